"""Lists this user's records, or a kernel's, in constant memory, reading only their heads if possible."""

from __future__ import annotations

import difflib
import operator
import os
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from autotuned import disk
from autotuned._startup import forget_oldest
from autotuned.errors import KernelNameError
from autotuned.store import layout, record, records
from autotuned.store.record import TuningRecord, Unread

BLOCK = 1000  # records sorted at a time, to keep memory constant
HEAD_BYTES = 4096  # enough for most keys; otherwise the whole file is read
MOST_KNOWN = 4096  # cached records of a kernel, a few KiB each
MOST_FOLDERS = 16  # cached kernels
_SETTLED_NS = 2_000_000_000  # times on some network file systems have a resolution of a second


def all_records(
    kernel: str | None = None, quietly: bool = False, store: Path | None = None
) -> Iterator[tuple[Path, TuningRecord]]:
    """Every readable record of the user's store, of one kernel in it, or of another cache folder `store`.

    Sorted by kernel and digest; a kernel with more than `BLOCK` records is sorted within each block. `quietly` leaves
    damaged records in place without a warning.
    """
    for path in _record_paths(kernel, store):
        if (found := _read(path, quietly)) is not None:
            yield path, found


def unreadable(kernel: str) -> Iterator[tuple[Path, Unread]]:
    """A kernel's files that hold no valid record, and why; nothing is moved."""
    for path in _record_paths(kernel):
        found, seen = record.inspect(path)
        if found is None and seen.problem != "absent":
            yield path, seen


def _read(path: Path, quietly: bool) -> TuningRecord | None:
    return record.inspect(path)[0] if quietly else records.read(path)


def kernels(quietly: bool = False) -> set[str]:
    """Names of the kernels with records, each read from the first record of a folder."""
    firsts = (next(_heads_in(folder, quietly), None) for folder in _folders())
    return {found.key.kernel for _, found in filter(None, firsts)}


def named(names: Iterable[str], wanted: str) -> list[str]:
    """The kernel names that match `wanted`: an exact match, otherwise all that end with it after a dot.

    Raises KernelNameError if none matches, suggesting the closest.
    """
    names = sorted(set(names))
    found = [wanted] if wanted in names else [name for name in names if name.endswith(f".{wanted}")]
    if not found:
        raise KernelNameError(f"no kernel {wanted!r}{_hint(names, wanted)}", name=wanted)
    return found


def _hint(known: list[str], wanted: str) -> str:
    if not known:
        return f": nothing is stored in {layout.named()}, and there are no config files."
    if inside := [name for name in known if name.startswith(f"{wanted}.")]:
        return f". Kernels in it are {', '.join(inside[:8])}{', ...' if len(inside) > 8 else ''}."
    short = {name.rpartition(".")[2]: name for name in known}
    if near := [short.get(name, name) for name in difflib.get_close_matches(wanted, [*known, *short], 3)]:
        return f". Did you mean {' or '.join(map(repr, dict.fromkeys(near)))}?"
    return f". Known are {', '.join(known)}."


def one_named(names: Iterable[str], wanted: str) -> str:
    """The single kernel name that matches `wanted`; KernelNameError if none or several match."""
    found = named(names, wanted)
    if len(found) > 1:
        text = f"{wanted!r} matches several names: {', '.join(found)}. Give a longer part."
        raise KernelNameError(text, name=wanted)
    return found[0]


def all_heads(kernel: str | None = None, quietly: bool = False) -> Iterator[tuple[str, TuningRecord]]:
    """Like `all_records`, with paths as text, but reading only heads: without timings and provenance."""
    for folder in _folders(kernel):
        yield from _heads_in(folder, quietly)


def _heads_in(folder: Path, quietly: bool) -> Iterator[tuple[str, TuningRecord]]:
    for path in _paths_in(folder):
        if (found := _head(path) or _read(Path(path), quietly)) is not None:
            yield path, found


class _Known:
    def __init__(self) -> None:
        # Heads by path, with the file's stamp; results by requested number, with the folder's stamp if it is certain.
        self.heads: dict[str, tuple[disk.Stamp, TuningRecord | None]] = {}
        self.found: dict[int, tuple[disk.Stamp | None, tuple[TuningRecord, ...]]] = {}


_known: dict[str, _Known] = {}  # by folder


def known_heads(kernel: str, most: int = MOST_KNOWN) -> tuple[TuningRecord, ...]:
    """Heads of a kernel's records, at most `most`; while the folder is unchanged the same tuple, without reading."""
    folder = str(layout.kernel_folder(kernel))
    if folder not in _known:
        forget_oldest(_known, MOST_FOLDERS - 1)
    known = _known.setdefault(folder, _Known())
    stamp = disk.stamp(folder)
    # A recent modification time is not trusted: a file written at the same time may have been missed.
    state = stamp if stamp is not None and time.time_ns() - stamp[1] > _SETTLED_NS else None
    before, found = known.found.get(most, (None, ()))
    if state is None or state != before:
        fresh = _heads_of(folder, known, most)
        is_same = len(fresh) == len(found) and all(map(operator.is_, fresh, found))
        found = found if is_same else fresh
        known.found[most] = state, found
    return found


def _heads_of(folder: str, known: _Known, most: int) -> tuple[TuningRecord, ...]:
    now: dict[str, tuple[disk.Stamp, TuningRecord | None]] = {}
    for path in islice(_paths_in(Path(folder)), most):
        if (stamp := disk.stamp(path)) is not None:
            before = known.heads.get(path)
            now[path] = before if before and before[0] == stamp else (stamp, _head(path) or _read(Path(path), True))
    # Keep the others too: another call may have requested more.
    known.heads = {**known.heads, **now} if len(known.heads) < MOST_KNOWN else now
    return tuple(record for _, record in now.values() if record is not None)


def _head(path: str) -> TuningRecord | None:
    """A record without its timings; None if the file's start is not enough.

    30,000 records of 100 configs took 2.0 s of CPU time this way, 34.8 s when read whole.
    """
    try:
        fields = json_head(disk.read_head(path, HEAD_BYTES), "timings")
        return record.load({**fields, "timings": [], "provenance": {}}) if fields else None
    except (OSError, ValueError):
        return None  # reading the whole file reports the error


def json_head(content: bytes, last: str) -> dict[str, Any] | None:
    """The fields of an object before its list `last`, from the start of a file; None if the start is too short."""
    # Inside a string the quotes would be escaped; inside a nested object the rest would be unbalanced.
    head, found, _ = content.partition(f', "{last}": ['.encode())
    try:
        fields = disk.parse_json(head + b"}") if found else None
    except ValueError:
        return None
    return fields if isinstance(fields, dict) else None


def is_store(path: Path) -> bool:
    """Whether a folder is a cache folder with records of this schema."""
    return (path / layout.schema_folder().name).is_dir()


def _record_paths(kernel: str | None, store: Path | None = None) -> Iterator[Path]:
    for folder in _folders(kernel, store):
        yield from map(Path, _paths_in(folder))


def _folders(kernel: str | None = None, store: Path | None = None) -> list[Path]:
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
    """Delete the records of one kernel, or of all; returns their number."""
    count = 0
    for path in (Path(path) for path, _ in all_heads(kernel)):
        disk.remove(layout.logbook_path(path))
        count += disk.remove(path)
    return count
