"""`prune`: removes entries that no recorded call uses from config files, with their compiled kernels."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from autotuned.binaries import writer
from autotuned.configfiles import exchange
from autotuned.configfiles.exchange import PathLike
from autotuned.configfiles.file import ConfigFile, Entry, Fault, grave
from autotuned.errors import AutotunedError
from autotuned.key.key import Key
from autotuned.key.nearest_key import differences
from autotuned.recording import file as recording
from autotuned.typed_json import Json, canonical


@dataclass(frozen=True)
class Pruned:
    """An entry that no recorded call uses, with the number of compiled kernels that only it names."""

    path: str
    key: Key
    entry: Entry
    binaries: int = 0

    def to_json(self) -> dict[str, Json]:
        """As `autotuned prune --json` prints it."""
        return {
            "path": self.path,
            "kernel": self.key.kernel,
            "digest": self.key.digest,
            "device": self.key.context["device"],
            "triton": self.key.context.get("triton"),
            "call": self.key.call,
            "config": self.entry.config,
            "binaries": self.binaries,
        }


@dataclass
class PruneResult:
    """The entries removed (or to remove, in a dry run), the number kept, and faults in the files."""

    entries: list[Pruned] = field(default_factory=list)
    kept: int = 0
    faults: list[Fault] = field(default_factory=list)

    @property
    def files(self) -> list[str]:
        """Config files with removed entries."""
        return sorted({one.path for one in self.entries})

    @property
    def binaries(self) -> int:
        """Number of compiled kernels removed with them."""
        return sum(one.binaries for one in self.entries)

    def to_json(self) -> dict[str, Json]:
        """What `autotuned prune --json` prints."""
        return {
            "entries": [one.to_json() for one in self.entries],
            "kept": self.kept,
            "files": self.files,
            "binaries": self.binaries,
            "faults": [fault.to_json() for fault in self.faults],
        }


def prune(paths: PathLike | Iterable[PathLike], *, calls: str | os.PathLike[str], dry_run: bool = False) -> PruneResult:
    """Remove the entries that no recorded call uses from config files, and their compiled kernels.

    Only entries for the recording's devices are considered. An entry is kept if its call was recorded in any context,
    since policies may let it serve there, or if a recorded call without an entry differs only in sizes, since
    `nearest=` may serve it. A file is removed with its last entry.

    Args:
        paths: Config files, or folders of them.
        calls: The recording.
        dry_run: Report only, change nothing.

    Raises:
        ConfigFileError: There are no files.
        RecordingError: The recording cannot be read.
    """
    files, result = exchange.files_in(paths), PruneResult()
    used = _Used(call.key for call in recording.read(Path(calls)))
    for path in files:
        config, faults = exchange.read(path)
        lost = grave(faults)
        result.faults += lost
        if config is None:
            continue
        unused = [] if lost else list(_unused(path, config, used))
        if unused and not dry_run:
            try:
                writer.take_out([one.key for one in unused], path)
            except (AutotunedError, OSError) as error:
                text = str(error).removeprefix("config file ").removeprefix(f"{path}: ")
                result.faults.append(Fault(str(path), text))
                unused = []
        result.entries += unused
        result.kept += config.count - len(unused)
    return result


def _unused(path: Path, config: ConfigFile, used: _Used) -> Iterator[Pruned]:
    is_needed = used.by(config)
    entries = [(key, entry, is_needed(key)) for key, entry in config.entries()]
    named = {digest for _, entry, needed in entries if needed for digest in entry.binaries}
    for key, entry, needed in entries:
        if not needed:
            own = set(entry.binaries) - named
            named |= own
            yield Pruned(str(path), key, entry, len(own))


class _Used:
    """The calls of a recording, by kernel and text."""

    def __init__(self, keys: Iterable[Key]) -> None:
        self._calls: dict[str, dict[str, Json]] = {}
        self._devices: set[str] = set()
        for key in keys:
            self._devices.add(canonical(key.context["device"]))
            self._calls.setdefault(key.kernel, {})[canonical(key.call)] = key.call

    def by(self, config: ConfigFile) -> Callable[[Key], bool]:
        """A predicate: whether an entry with this key is needed."""
        calls = self._calls.get(config.kernel, {})
        there = {canonical(key.call) for key, _ in config.entries()}
        without = [call for text, call in calls.items() if text not in there]

        def is_needed(key: Key) -> bool:
            is_other = canonical(key.context["device"]) not in self._devices
            is_used = is_other or canonical(key.call) in calls
            return is_used or any(_in_sizes_alone(key.call, call) for call in without)

        return is_needed


def _in_sizes_alone(ours: Json, theirs: Json) -> bool:
    """Whether two calls differ only in numbers and shapes."""
    return all(
        change.path.endswith(".shape") or (change.path.startswith("values.") and _are_sizes(change.ours, change.theirs))
        for change in differences(ours, theirs)
    )


def _are_sizes(*values: Json) -> bool:
    return all(isinstance(value, int) and not isinstance(value, bool) for value in values)
