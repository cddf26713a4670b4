"""All records of this user, or those of a kernel: listed in constant memory, by their heads where that is enough."""

from __future__ import annotations

import difflib
import operator
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from autotuned import disk
from autotuned.errors import KernelNameError
from autotuned.store import layout, record, records
from autotuned.store.choice import Look
from autotuned.store.record import TuningRecord

BLOCK = 1000  # records that are put in order at a time: a listing of any number must not hold all names
HEAD_BYTES = 4096  # most keys end before; if not, the file is read as a whole
MOST_KNOWN = 4096  # records of a kernel that are remembered for messages and guesses; a few KiB each
MOST_FOLDERS = 16  # kernels of which some are; of more, the one that was first asked for is forgotten
_SETTLED_NS = 2_000_000_000  # network file systems tell times by the second


def all_records(
    kernel: str | None = None, quietly: bool = False, store: Path | None = None
) -> Iterator[tuple[Path, TuningRecord]]:
    """Every readable record of the user's store, or of one kernel in it.

    By kernel and digest; of a kernel with more than `BLOCK` of them, each block of so many is in order.

    Args:
        kernel: Its name, or None for all kernels.
        quietly: Leave damaged records where they are, and say nothing of them.
        store: The cache folder of another store, of which all kernels are listed.
    """
    for path in map(Path, _record_paths(kernel, store)):
        if (found := _read(path, quietly)) is not None:
            yield path, found


def unreadable(kernel: str) -> Iterator[tuple[Path, Look]]:
    """The record files of a kernel that hold no record, and why; they stay where they are."""
    for path in map(Path, _record_paths(kernel)):
        found, seen = records.inspect(path)
        if found is None and seen.problem != "absent":
            yield path, seen


def _read(path: Path, quietly: bool) -> TuningRecord | None:
    return records.inspect(path)[0] if quietly else records.read(path)


def kernels(quietly: bool = False) -> set[str]:
    """Names of the kernels that have records: each folder holds those of one, so its first record says which."""
    firsts = (next(_heads_in(folder, quietly), None) for folder in _folders())
    return {found.key.kernel for _, found in filter(None, firsts)}


def named(names: Iterable[str], wanted: str) -> list[str]:
    """The kernel names that `wanted` stands for: that very name, else those that end in it after a dot.

    Raises:
        KernelNameError: There is none; the message has the nearest.
    """
    names = sorted(set(names))
    found = [wanted] if wanted in names else [name for name in names if name.endswith(f".{wanted}")]
    if not found:
        raise KernelNameError(f"no kernel {wanted!r}{_hint(names, wanted)}", name=wanted)
    return found


def _hint(known: list[str], wanted: str) -> str:
    if not known:
        return f": nothing is stored in {layout.root()}, and there are no config files."
    short = {name.rpartition(".")[2]: name for name in known}
    near = [short.get(name, name) for name in difflib.get_close_matches(wanted, [*known, *short], 3)]
    return (
        f". Did you mean {' or '.join(map(repr, dict.fromkeys(near)))}?" if near else f". Known are {', '.join(known)}."
    )


def one_named(names: Iterable[str], wanted: str) -> str:
    """The one kernel name that `wanted` stands for.

    Raises:
        KernelNameError: There is none, or there are several.
    """
    found = named(names, wanted)
    if len(found) > 1:
        text = f"{wanted!r} is the end of several names: {', '.join(found)}. Give more of the name."
        raise KernelNameError(text, name=wanted)
    return found[0]


def all_heads(kernel: str | None = None, quietly: bool = False) -> Iterator[tuple[str, TuningRecord]]:
    """Like `all_records`, without timings and provenance: of each file only the first bytes are read.

    Paths are text: of 100,000 records a tenth of the time went into making `Path` of them.
    """
    for folder in _folders(kernel):
        yield from _heads_in(folder, quietly)


def _heads_in(folder: Path, quietly: bool) -> Iterator[tuple[str, TuningRecord]]:
    for path in _paths_in(folder):
        if (found := _head(path) or _read(Path(path), quietly)) is not None:
            yield path, found


class _Known:
    """What was read of one folder.

    Attributes:
        heads: By path, each with what the file was like.
        found: By how many were asked for: what the folder was like, if that is certain, and the answer.
    """

    def __init__(self) -> None:
        self.heads: dict[str, tuple[_Stamp, TuningRecord | None]] = {}
        self.found: dict[int, tuple[_Stamp | None, tuple[TuningRecord, ...]]] = {}


_Stamp = tuple[int, int, int]  # inode, time in nanoseconds, size: a record is never written in place
_known: dict[str, _Known] = {}  # by folder


def known_heads(kernel: str, most: int = MOST_KNOWN) -> tuple[TuningRecord, ...]:
    """The heads of a kernel's records, each file read once in this process for as long as it is as it was.

    A folder in which nothing changed is not looked through again: then this is the very same tuple.

    Args:
        most: How many; of more, those whose names come first, which says nothing of them.
    """
    folder = str(layout.kernel_folder(kernel))
    if folder not in _known and len(_known) >= MOST_FOLDERS:
        _known.pop(next(iter(_known)))
    known = _known.setdefault(folder, _Known())
    stamp = _stamp(folder)
    # A folder's time has the grain of a clock: what was written in the same instant may have been missed.
    state = stamp if stamp is not None and time.time_ns() - stamp[1] > _SETTLED_NS else None
    before, found = known.found.get(most, (None, ()))
    if state is None or state != before:
        fresh = _heads_of(folder, known, most)
        found = found if _are_same(fresh, found) else fresh
        known.found[most] = state, found
    return found


def _heads_of(folder: str, known: _Known, most: int) -> tuple[TuningRecord, ...]:
    now: dict[str, tuple[_Stamp, TuningRecord | None]] = {}
    for path in islice(_paths_in(Path(folder)), most):
        if (stamp := _stamp(path)) is not None:
            before = known.heads.get(path)
            now[path] = before if before and before[0] == stamp else (stamp, _head(path) or _read(Path(path), True))
    # Whoever asks for fewer does not make the others be read again.
    known.heads = {**known.heads, **now} if len(known.heads) < MOST_KNOWN else now
    return tuple(record for _, record in now.values() if record is not None)


def _are_same(some: Sequence[TuningRecord], others: Sequence[TuningRecord]) -> bool:
    return len(some) == len(others) and all(map(operator.is_, some, others))


def _stamp(path: str) -> _Stamp | None:
    try:
        info = os.stat(path)
    except OSError:
        return None
    return info.st_ino, info.st_mtime_ns, info.st_size


def _head(path: str) -> TuningRecord | None:
    """A record without its timings; None where the first bytes of the file do not tell.

    30,000 records of 100 configs took 2.0 s of processor time so, and 34.8 s where each file was read as a whole.
    """
    try:
        fields = disk.json_head(disk.read_head(path, HEAD_BYTES), "timings")
        return record.load({**fields, "timings": [], "provenance": {}}) if fields else None
    except (OSError, ValueError):
        return None  # reading all of it says what is wrong


def is_store(path: Path) -> bool:
    """Whether a folder is the cache folder of a store with records of this schema."""
    return (path / layout.schema_folder().name).is_dir()


def _record_paths(kernel: str | None, store: Path | None = None) -> Iterator[str]:
    for folder in _folders(kernel, store):
        yield from _paths_in(folder)


def _folders(kernel: str | None = None, store: Path | None = None) -> list[Path]:
    """The folder of one kernel, or those of all."""
    if kernel is not None:
        return [layout.kernel_folder(kernel)]
    schema = layout.schema_folder()
    schema = schema if store is None else store / schema.name
    return sorted(schema / name for name in _names(schema) if not name.startswith("."))


def _paths_in(folder: Path) -> Iterator[str]:
    names = (name for name in _names(folder) if name.endswith(".json") and not name.startswith("."))
    while block := sorted(islice(names, BLOCK)):
        yield from (os.path.join(folder, name) for name in block)


def _names(folder: Path) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            yield from (entry.name for entry in entries)
    except OSError:
        return


def clear(kernel: str | None = None) -> int:
    """Delete the records of one kernel, or of all; returns how many."""
    count = 0
    for path in (Path(path) for path, _ in all_heads(kernel)):
        disk.remove(layout.logbook_path(path))
        count += disk.remove(path)
    return count
