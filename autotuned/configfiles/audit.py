"""Faults of config files that can be found without torch, a GPU or the program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from autotuned.configfiles import exchange, lookup, unreachable, writer
from autotuned.configfiles.exchange import PathLike
from autotuned.configfiles.file import ConfigFile, Fault, Group
from autotuned.typed_json import Json, canonical

ALWAYS = {"environment", "source", "version"}  # in every context, besides the device
TRIAL = "trial"  # only if not measured in the default way
TOOLCHAINS = ({"triton", "triton_key", "ptxas"}, {"distributions"})
CALL = {"tensors", "values", "none"}


class Audit:
    """The readable config files with their paths, and the faults that `autotuned check` finds, in the same order."""

    def __init__(self, paths: PathLike | Iterable[PathLike]) -> None:
        self.files: list[tuple[Path, ConfigFile]] = []
        self.faults: list[Fault] = []
        self._first: dict[str, Path] = {}  # digest of a key -> the file that has it first
        lookup.forget_files()  # they may have changed since this process read them
        for path in exchange.paths_of(paths):
            for file in exchange.files_in(path):
                self._file(file, path if path.is_dir() else None)

    def _file(self, path: Path, folder: Path | None) -> None:
        file, faults = exchange.read(path)
        self.faults += faults
        if file is None:
            return
        self.files.append((path, file))
        self.faults += [Fault(str(path), text) for text in [*_lost(file, path, folder), *_dead(file)]]
        for key, entry in file.entries():
            first = self._first.setdefault(key.digest, path)
            if first != path:
                text = (
                    f"shadowed: {first} has the call {canonical(entry.call)} in the same context, and is asked first."
                )
                self.faults.append(Fault(str(path), text))

    def to_json(self) -> dict[str, Json]:
        """What `autotuned check --json` prints."""
        return {
            "files": [str(path) for path, _ in self.files],
            "entries": self.entries,
            "faults": [fault.to_json() for fault in self.faults],
        }

    @property
    def entries(self) -> int:
        """How many entries could be read."""
        return sum(file.count for _, file in self.files)


def _lost(file: ConfigFile, path: Path, folder: Path | None) -> Iterator[str]:
    """Entries that no look-up finds; if the folder is unknown, only the file itself is asked."""
    if folder is not None and path.parent == folder and folder.name == file.device.slug:
        folder = folder.parent  # the folder of a device, given by itself
    place = path if folder is None else writer.path_of(file.kernel, file.device, folder)
    if place != path:
        yield f"dead: it is for {file.kernel!r} on {file.device.name!r}, which is looked for in {place}."
        return
    for key, entry in file.entries():
        if (file.find(key) if folder is None else lookup.find(lookup.path_of(folder, key), key)) != entry:
            yield f"dead: no look-up finds the entry for the call {_short(key.call)}: its context names a device too."


def _dead(file: ConfigFile) -> Iterator[str]:
    """Entries that no call can match."""
    for group in file.groups():
        if not any(group.context.keys() - {TRIAL} == ALWAYS | toolchain for toolchain in TOOLCHAINS):
            fields = " or ".join(", ".join(sorted(ALWAYS | toolchain)) for toolchain in TOOLCHAINS)
            yield f"dead: expected a context of {fields}, got {', '.join(sorted(group.context)) or 'nothing'}."
        else:
            yield from (f"dead: {text}" for text in unreachable.in_context(group.context))
        yield from _dead_calls(group)
    if not file.groups():
        yield "it has no groups, and so answers no call: remove it."
    yield from (f"dead: {text}" for text in unreachable.in_entries(file))


def _dead_calls(group: Group) -> Iterator[str]:
    for call in (entry.call for entry in group.entries.values()):
        if not CALL <= call.keys() <= CALL | {"options"}:
            yield f"dead: expected a call of {', '.join(sorted(CALL))}, got {_short(call)}."


def _short(call: Json) -> str:
    return canonical(call)[:120]
