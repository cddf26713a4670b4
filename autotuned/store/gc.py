"""Keeps the store bounded: removes the least recently used records, and leftovers of killed processes."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from autotuned import disk
from autotuned.store import layout, locks

DAY_S = 86400.0
DEFAULT_MAX_BYTES = 1 << 30  # some 30,000 records of 100 configs each
DEFAULT_MAX_AGE_S = 365 * DAY_S  # driver, compiler and kernel have probably changed since
SCRATCH_S = 7 * DAY_S  # a kernel's shapes are usually tuned within days
_TEMPORARY_S = 3600.0  # a write takes milliseconds
_SEARCH_S = 30 * DAY_S  # an abandoned search
_LOCK_S = DAY_S  # longer than any wait
_DAMAGED_S = 30 * DAY_S
_PROGRAM_S = 365 * DAY_S  # rewritten when the program launches something else


@dataclass
class Freed:
    """Counts of what a clean-up removed and kept."""

    records: int = 0
    leftovers: int = 0
    bytes: int = 0
    kept_records: int = 0
    kept_bytes: int = 0


@dataclass(frozen=True, order=True)
class _File:
    used: float  # seconds since the epoch
    size: int
    path: str


def run(root: Path, max_bytes: int | None = None, max_age_s: float | None = None) -> Freed:
    """Remove old records, then the least recently used until the rest fits into `max_bytes`, and old leftovers.

    `max_age_s` counts from a record's last use (accurate to a day) or writing. Locked records, and files that cannot be
    removed, stay.
    """
    freed, now = Freed(), time.time()
    kept: list[_File] = []
    for file in _files(root, freed, now):
        if max_age_s is None or now - file.used <= max_age_s or not _remove_record(file, freed):
            kept.append(file)
    total = sum(file.size for file in kept)
    if max_bytes is not None and total > max_bytes:
        kept.sort(reverse=True)
        spared = []
        while kept and total > max_bytes:
            file = kept.pop()
            if _remove_record(file, freed):
                total -= file.size
            else:
                spared.append(file)
        kept += spared
    clear_scratch(root / layout.SCRATCH, freed)
    freed.kept_records, freed.kept_bytes = len(kept), total
    return freed


def run_kept(folder: Path, max_bytes: int | None = None, max_age_s: float | None = None) -> Freed:
    """The same for compiled kernels of `autotuned run --binaries`; loading counts as use; ignores other files."""
    freed, now = Freed(), time.time()
    kept = sorted((file for entry in _entries(str(folder)) for file in _kept(entry)), reverse=True)
    total = sum(file.size for file in kept)
    while kept and (
        (max_age_s is not None and now - kept[-1].used > max_age_s) or (max_bytes is not None and total > max_bytes)
    ):
        file = kept.pop()
        is_gone = disk.remove(Path(file.path))
        total -= file.size if is_gone else 0
        freed.records += is_gone
        freed.bytes += file.size if is_gone else 0
    freed.kept_records, freed.kept_bytes = sum(1 for entry in _entries(str(folder)) for _ in _kept(entry)), total
    return freed


def _kept(entry: os.DirEntry[str]) -> Iterator[_File]:
    stem, dot, ending = entry.name.rpartition(".")
    if (dot, ending) != (".", "bin") or not stem.isalnum() or not entry.is_file(follow_symlinks=False):
        return
    info = entry.stat(follow_symlinks=False)
    yield _File(info.st_mtime, info.st_size, entry.path)


def clear_scratch(folder: Path, freed: Freed | None = None) -> None:
    """Remove binaries of losing configs that no search has used for `SCRATCH_S`."""
    freed, now = freed or Freed(), time.time()
    for kernel in _entries(str(folder)):
        try:
            if now - kernel.stat(follow_symlinks=False).st_mtime <= SCRATCH_S:
                continue
        except OSError:
            continue
        for entry in _entries(kernel.path):
            if entry.is_file(follow_symlinks=False):
                size = entry.stat(follow_symlinks=False).st_size
                _remove_leftover(_File(now, size, entry.path), freed)
        disk.remove_folder(Path(kernel.path))


def _files(root: Path, freed: Freed, now: float) -> Iterator[_File]:
    """Yield the records; removes leftovers on the way."""
    for schema in _entries(str(root)):
        if schema.name.startswith("v") and schema.name[1:].isdigit():
            for folder in _entries(schema.path):
                for entry in _entries(folder.path):
                    yield from _record(entry, freed, now)
        elif schema.name == layout.PROGRAMS:
            _remove_old(schema, freed, now)


def _record(entry: os.DirEntry[str], freed: Freed, now: float) -> Iterator[_File]:
    if entry.name in (layout.LOCKS, layout.DAMAGED, layout.JOURNAL) and entry.is_dir(follow_symlinks=False):
        _remove_old(entry, freed, now)
        return
    try:
        info = entry.stat(follow_symlinks=False)
    except OSError:
        return
    file = _File(info.st_mtime, info.st_size, entry.path)
    if not stat.S_ISREG(info.st_mode):
        return
    if entry.name.startswith("."):
        limit_s = _TEMPORARY_S if entry.name.endswith(".tmp") or _has_record(entry) else _SEARCH_S
        if now - file.used > limit_s:
            _remove_leftover(file, freed)
    elif entry.name.endswith(".json"):
        yield file


def _has_record(logbook: os.DirEntry[str]) -> bool:
    path = Path(logbook.path)
    return os.path.exists(path.with_name(f"{path.stem[1:]}.json"))


def _remove_old(folder: os.DirEntry[str], freed: Freed, now: float) -> None:
    limits_s = {layout.LOCKS: _LOCK_S, layout.JOURNAL: _SEARCH_S, layout.PROGRAMS: _PROGRAM_S}
    limit_s = limits_s.get(folder.name, _DAMAGED_S)
    for entry in _entries(folder.path):
        try:
            info = entry.stat(follow_symlinks=False)
        except OSError:
            continue
        if now - info.st_mtime <= (_TEMPORARY_S if entry.name.endswith(".tmp") else limit_s):
            continue
        file = _File(info.st_mtime, info.st_size, entry.path)
        if folder.name != layout.LOCKS or entry.name.endswith(".tmp"):
            _remove_leftover(file, freed)
        else:
            _remove_lock(file, freed)


def _remove_lock(file: _File, freed: Freed) -> None:
    """Remove an old lock file while holding it, so that a process that has just opened it notices."""
    with locks.if_free(Path(file.path.removesuffix(".holder"))) as free:
        if free:
            _remove_leftover(file, freed)


def _remove_record(file: _File, freed: Freed) -> bool:
    path = Path(file.path)
    with locks.if_free(layout.lock_path(path)) as free:
        if not free or not disk.remove(path):
            return False
    freed.records += 1
    freed.bytes += file.size
    return True


def _remove_leftover(file: _File, freed: Freed) -> None:
    removed = disk.remove(Path(file.path))
    freed.leftovers += removed
    freed.bytes += file.size * removed


def _entries(folder: str) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            yield from entries
    except OSError:
        return
