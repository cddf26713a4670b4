"""`prune`: removes entries that no recorded call uses from config files, with their compiled kernels."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from autotuned.binaries import writer
from autotuned.configfiles import exchange
from autotuned.configfiles.exchange import PathLike
from autotuned.configfiles.file import ConfigFile, Entry, Fault, grave
from autotuned.errors import AutotunedError
from autotuned.key.key import Key
from autotuned.offline.report.needed import Needed
from autotuned.recording import file as recording
from autotuned.typed_json import Json


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

    Only entries for the recording's devices, toolchains, environments and sources are considered: others may serve
    another program. An entry is kept if its call was recorded in any context, since policies may let it serve there, or
    if a recorded call without an entry differs only in sizes, since `nearest=` may serve it. A file is removed with its
    last entry.

    Args:
        paths: Config files, or folders of them.
        calls: The recording.
        dry_run: Report only, change nothing.

    Raises:
        ConfigFileError: There are no files.
        RecordingError: The recording cannot be read.
    """
    files, result = exchange.files_in(paths), PruneResult()
    needed = Needed(call.key for call in recording.read(Path(calls)))
    for path in files:
        config, faults = exchange.read(path)
        lost = grave(faults)
        result.faults += lost
        if config is None:
            continue
        unused = [] if lost else list(_unused(path, config, needed))
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


def _unused(path: Path, config: ConfigFile, needed: Needed) -> Iterator[Pruned]:
    is_needed = needed.by(config.kernel, (key for key, _ in config.entries()))
    entries = [(key, entry, is_needed(key)) for key, entry in config.entries()]
    named = {digest for _, entry, stays in entries if stays for digest in entry.binaries}
    for key, entry, stays in entries:
        if not stays:
            own = set(entry.binaries) - named
            named |= own
            yield Pruned(str(path), key, entry, len(own))
