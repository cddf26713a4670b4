"""This user's records on disk, one file per key: locked, read, written; any error is a miss."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from autotuned import disk, env
from autotuned._startup import later
from autotuned.gpu.device import Device, wait_for
from autotuned.key.key import Key
from autotuned.store import layout, record
from autotuned.store.choice import Look
from autotuned.store.conditions import Restore
from autotuned.store.record import Timing, TuningRecord, Unread
from autotuned.typed_json import Json, canonical

if TYPE_CHECKING:
    from autotuned.store import gc, locks
    from autotuned.store.locks import Lock
else:
    gc, locks = later("store.gc"), later("store.locks")

log = logging.getLogger("autotuned")

_done: set[str] = set()  # what is done once per process


def scratch_folder() -> Path:
    """The folder for binaries of losing configs; cleared of old files once per process."""
    folder = layout.root() / layout.SCRATCH
    if "scratch" not in _done:
        _done.add("scratch")
        if os.path.isdir(folder):
            gc.clear_scratch(folder)
    return folder


@contextmanager
def locked(key: Key, device: Device, between_processes: bool = True) -> Iterator[Lock]:
    """Hold the key's lock: one process or thread searches, the others wait (see `locks.locked`).

    First waits for this thread's launches on its device. These may depend on another rank, as a receive does, and
    holding the lock meanwhile could deadlock: the other rank may need the same key before it sends.
    """
    wait_for(device)
    if between_processes:
        _say_network()
    with locks.locked(layout.lock_path(layout.record_path(key)), between_processes) as lock:
        yield lock


def _say_network() -> None:
    if "network" not in _done:
        kind = layout.network_file_system(layout.root())
        _done.add("network")
        if kind:
            log.warning(
                "the cache folder %s is on a network file system (%s): records are safe there, but if its locks "
                "do not work, several hosts may search the same key. Set AUTOTUNED_CACHE_DIR to a local folder.",
                layout.root(),
                kind,
            )


def read(path: Path) -> TuningRecord | None:
    """Read a record file; None if it is missing, unreadable, damaged or of a newer schema."""
    found, seen = record.inspect(path)
    react(seen)
    return found


def read_of(key: Key) -> TuningRecord | None:
    """Read the record of a key; None if missing, unreadable, damaged or of another key."""
    found, seen = record.look_up(key)
    react(seen)
    return found


def react(seen: Look | Unread) -> None:
    """Move a damaged record aside, and warn once about problems that a user can fix."""
    path = Path(seen.path)
    if seen.problem == "damaged":
        damaged(path, seen.detail)
    elif seen.problem == "unreadable":
        env.warn_once(seen.path, "record %s cannot be read (%s); continuing without it.", path, seen.detail)
    elif seen.problem == "newer schema":
        env.warn_once(seen.path, "record %s has the newer schema %s; it is left alone.", path, seen.detail)
    elif seen.problem == "weaker conditions":
        log.info("%s: %s, which is not enough for this call.", seen.path, seen.detail)
    elif seen.problem == "config gone" and seen.path:
        env.warn_once(
            f"{path} {seen.detail}",
            "config file %s: the config for this call is no longer among the kernel's configs; it is not used: %s",
            path,
            seen.detail,
        )


def damaged(path: Path, why: str) -> None:
    """Move a damaged record aside and warn once."""
    moved = disk.move_aside(path, path.parent / layout.DAMAGED)
    message = "record %s is damaged (%s); %s; the kernel is tuned again."
    if moved:
        log.warning(message, path, why.rstrip("."), f"moved to {moved}")
    else:  # found again at the next look-up
        env.warn_once(str(path), message, path, why.rstrip("."), "it will be replaced")


unwritten: set[str] = set()  # digests of keys whose last record could not be written; at most `MOST_UNWRITTEN`
MOST_UNWRITTEN = 4096


def keep(result: TuningRecord) -> bool:
    """Write a record; returns whether that worked, and warns once if not: the choice is then kept in memory only."""
    is_kept = _write(result)
    if is_kept:
        unwritten.discard(result.key.digest)
    elif len(unwritten) < MOST_UNWRITTEN:
        unwritten.add(result.key.digest)
    return is_kept


def _write(result: TuningRecord) -> bool:
    path = layout.record_path(result.key)
    if is_of_newer(path):
        return False
    try:
        disk.write_text(path, disk.text(record.dump(result)))
    except OSError as error:
        env.warn_once(
            "unwritable",
            "cannot write to the cache folder %s (%s): results are kept in memory only. Set "
            "AUTOTUNED_CACHE_DIR to a folder that can be written.",
            layout.root(),
            error,
        )
        return False
    disk.remove(layout.logbook_path(path))
    if is_gc_due(result.key.digest):
        gc.run(layout.root(), gc.DEFAULT_MAX_BYTES, gc.DEFAULT_MAX_AGE_S)
    return True


def is_of_newer(path: Path) -> bool:
    """Whether a later version of this package wrote a record file, which must not be replaced."""
    try:
        return record.is_newer(disk.read_json(path))
    except (OSError, ValueError):  # it may be replaced
        return False


def is_gc_due(digest: str) -> bool:
    """Whether writing this key's record triggers a clean-up: for one key in 256, since that visits every file."""
    return digest.startswith("00")


@contextmanager
def logged(key: Key, fresh: bool, restore: Restore = None) -> Iterator[Callable[[Timing], None]]:
    """Write each timing of a search to disk as it is measured; `fresh` starts over."""
    record_file = layout.record_path(key)
    path = layout.logbook_path(record_file)
    if os.path.exists(path):  # the last search was killed, perhaps while writing another file of the key
        for written in (record_file, layout.journal_path(key), layout.holder_path(layout.lock_path(record_file))):
            disk.remove_temporaries(written)
    if fresh:
        disk.remove(path)
    with open_logbook(path, key, restore) as write:
        yield write


def may_save(key: Key) -> bool:
    """Whether a search without the lock may save its record: the lock is free, and no other search has saved one."""
    with locks.if_free(layout.lock_path(layout.record_path(key))) as free:
        if not free:
            return False
    found = read_of(key)
    return found is None or found.winner is None


def resumable(key: Key, before: TuningRecord | None = None, restore: Restore = None) -> dict[str, Timing]:
    """Timings by identity, from the key's record `before` and from an unfinished search with the same protection."""
    found = timings_in(layout.logbook_path(layout.record_path(key)), key, restore)
    return {**found, **{timing.identity: timing for timing in before.timings}} if before is not None else found


# -- the logbook: timings of a search in progress, so that a killed process loses only the last -----------------------


@contextmanager
def open_logbook(path: Path, key: Key, restore: Restore = None) -> Iterator[Callable[[Timing], None]]:
    """Append timings to a key's logbook; yields the function that does so.

    Each line is written by one system call, so a kill tears at most the last line. After an error nothing is written
    and the search continues.
    """
    try:
        disk.make_folder(path.parent)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        log.debug("timings cannot be written one by one (%s)", error)
        yield lambda timing: None
        return
    try:
        disk.share(descriptor, path.parent)
        # A newline first: the last line may be torn.
        _append(descriptor, "\n" + disk.text(_header(key, restore)))
        yield lambda timing: _append(descriptor, _line(timing))
    finally:
        with contextlib.suppress(OSError):
            os.close(descriptor)


def _header(key: Key, restore: Restore) -> dict[str, Json]:
    names = None if restore is None else list(restore)
    return {"schema": record.SCHEMA, "kernel": key.kernel, "key": key.to_json(), "restore": names}


def _line(timing: Timing) -> str:
    try:
        return disk.text(timing.to_json())
    except (TypeError, ValueError):  # a config value has no JSON form, so records omit it too
        return ""


def _append(descriptor: int, text: str) -> None:
    try:
        disk.write_all(descriptor, text.encode())
    except OSError as error:
        log.debug("a timing cannot be written (%s)", error)


def timings_in(path: Path, key: Key, restore: Restore = None) -> dict[str, Timing]:
    """Each config's last timing in a key's logbook with the given protection, by identity; skips invalid lines."""
    try:
        lines = disk.read_bytes(path).split(b"\n")
    except (OSError, ValueError):
        return {}
    found: dict[str, Timing] = {}
    ours, ours_text = False, canonical(_header(key, restore))
    for line in lines:
        with contextlib.suppress(ValueError):  # torn or invalid, such as the empty lines before headers
            data = disk.parse_json(line)
            if isinstance(data, dict) and "key" in data:
                ours = canonical(data) == ours_text
            elif ours:
                timing = record.load_timing(data, "logbook")
                found[timing.identity] = timing
    return found
