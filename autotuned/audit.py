"""Faults of config files that can be found without torch, without a GPU and without the program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from autotuned import configfile, exchange
from autotuned.configfile import ConfigFile, Fault, Group
from autotuned.values import Json, canonical

ALWAYS = {"environment", "source", "version"}  # what every context has, besides the device
TRIAL = "trial"  # where times are of another kind than by default
TOOLCHAINS = ({"triton", "triton_key", "ptxas"}, {"distributions"})
CALL = {"tensors", "values", "none"}


class Audit:
    """The faults of config files, and what could be read of them.

    Attributes:
        files: Each file that could be read, with its path.
        faults: In the order of the files.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self.files: list[tuple[Path, ConfigFile]] = []
        self.faults: list[Fault] = []
        self._first: dict[str, Path] = {}  # digest of a key -> the file that has it first
        for path in paths:
            for file in exchange.files_in([path]):
                self._file(file, placed=file.parent.parent == path)

    def _file(self, path: Path, placed: bool) -> None:
        file, faults = exchange.read(path)
        self.faults += faults
        if file is None:
            return
        self.files.append((path, file))
        self.faults += [Fault(str(path), text) for text in [*_misplaced(file, path, placed), *_dead(file)]]
        for key, entry in file.entries():
            first = self._first.setdefault(key.digest, path)
            if first != path:
                text = (
                    f"shadowed: {first} has the call {canonical(entry.call)} in the same context, and is asked first."
                )
                self.faults.append(Fault(str(path), text))

    @property
    def entries(self) -> int:
        """How many entries could be read."""
        return sum(len(group.entries) for _, file in self.files for group in file.groups())


def _misplaced(file: ConfigFile, path: Path, placed: bool) -> Iterator[str]:
    """Whether the file lies where it is looked for; of one that is given by itself nobody knows."""
    name = configfile.file_name(file.kernel)
    if placed and path.name != name:
        yield f"dead: it holds {file.kernel!r}, which is looked for in {name}."
    if placed and path.parent.name != file.device.slug:
        yield f"dead: its device is looked for in the folder {file.device.slug}, not {path.parent.name}."


def _dead(file: ConfigFile) -> Iterator[str]:
    """What no call can ever match."""
    for group in file.groups():
        if not any(group.context.keys() - {TRIAL} == ALWAYS | toolchain for toolchain in TOOLCHAINS):
            fields = " or ".join(", ".join(sorted(ALWAYS | toolchain)) for toolchain in TOOLCHAINS)
            yield f"dead: expected a context of {fields}, got {', '.join(sorted(group.context)) or 'nothing'}."
        yield from _dead_calls(group)


def _dead_calls(group: Group) -> Iterator[str]:
    for call in (entry.call for entry in group.entries.values()):
        if not CALL <= call.keys() <= CALL | {"options"}:
            yield f"dead: expected a call of {', '.join(sorted(CALL))}, got {_short(call)}."


def _short(call: Json) -> str:
    return canonical(call)[:120]
