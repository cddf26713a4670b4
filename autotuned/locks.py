"""One lock a key, between threads and processes: who searches says so, the others wait for a while."""

from __future__ import annotations

import contextlib
import enum
import errno
import json
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from autotuned import disk

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger("autotuned")

MESSAGE_AFTER_S = 5.0  # a wait this long is worth a line: most searches are shorter, and people think it hangs
LOCK_TIMEOUT_S = 600.0  # longer than any search seen; afterwards the waiter goes on by itself
_POLL_S = 0.02
_FLAGS = os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)  # the holder's line must not go where a planted link points
_BUSY = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)


class Lock(enum.Enum):
    """What came of asking for a lock."""

    HELD = "held"
    BUSY = "busy"  # somebody else has it, and the time to wait is over
    NESTED = "nested"  # this very thread has it: what it searches calls itself
    NONE = "none"  # there can be no lock here; it would only have saved work


@dataclass
class _Waiting:
    """The threads of this process that want one lock: they wait as one, and say so once."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    holder: str = ""
    said: bool = False


_held = threading.local()
_waiting: dict[str, _Waiting] = {}
_descriptors: set[int] = set()  # of lock files that are open in this process


@contextmanager
def locked(path: Path, between_processes: bool = True, timeout_s: float | None = None) -> Iterator[Lock]:
    """Hold the lock at `path` for a `with` block; threads and, with a lock file, processes wait for its holder.

    The lock only saves work: whoever does not get it in time, or cannot make the file, goes on without. A thread
    that holds one lock never waits for another (a tuned host function may launch tuned kernels): it tries once.

    The holder's process, host and start stand in the file while it is held. The system frees the lock when its holder
    ends, however it ends. A forked child holds nothing.

    Args:
        path: The lock file. It is left in place: unlinking it while somebody waits would split the waiters.
        between_processes: False locks threads of this process only and touches no file.
        timeout_s: How long to wait at most, in seconds; None for `LOCK_TIMEOUT_S`.

    Yields:
        Whether it is held.
    """
    held = _held.__dict__.setdefault("paths", [])
    if path in held:
        yield Lock.NESTED
        return
    timeout_s = LOCK_TIMEOUT_S if timeout_s is None else timeout_s
    end = time.monotonic() + (0.0 if held else timeout_s)
    with contextlib.ExitStack() as stack:
        lock = _enter_thread_lock(stack, path, end)
        if lock is Lock.HELD and between_processes:
            lock = _enter_file_lock(stack, path, end)
        held.append(path)
        try:
            yield lock
        finally:
            held.remove(path)


# -- threads ---------------------------------------------------------------------------------------------------------


def _enter_thread_lock(stack: contextlib.ExitStack, path: Path, end: float) -> Lock:
    waiting = _waiting.setdefault(str(path), _Waiting())
    start = time.monotonic()
    if not waiting.lock.acquire(timeout=max(0.0, min(MESSAGE_AFTER_S, end - start))) and (
        end - start <= MESSAGE_AFTER_S or not _wait_for_thread(waiting, path, end)
    ):
        return _gave_up(path, end - start)
    waiting.holder, waiting.said = threading.current_thread().name, False
    stack.callback(waiting.lock.release)
    return Lock.HELD


def _wait_for_thread(waiting: _Waiting, path: Path, end: float) -> bool:
    if not waiting.said:
        waiting.said = True
        _say(f"thread {waiting.holder!r} of this process", path)
    return waiting.lock.acquire(timeout=max(0.0, end - time.monotonic()))


def _say(holder: str, path: Path) -> None:
    log.warning("waiting for %s, which tunes the same key; lock file: %s", holder, path)


def _gave_up(path: Path, waited_s: float) -> Lock:
    if waited_s > 0:
        log.warning("lock %s was not free after %.0f s; going on without it.", path, waited_s)
    return Lock.BUSY


# -- processes -------------------------------------------------------------------------------------------------------


def _enter_file_lock(stack: contextlib.ExitStack, path: Path, end: float) -> Lock:
    start = time.monotonic()
    try:
        descriptor = _acquire(path, end)
    except (OSError, NotImplementedError) as error:
        log.debug("lock %s cannot be used (%s); going on without it.", path, error)
        return Lock.NONE
    if descriptor is None:
        return _gave_up(path, end - start)
    _write_holder(descriptor)
    stack.callback(_release, descriptor, os.getpid())
    return Lock.HELD


def _acquire(path: Path, end: float) -> int | None:
    """The descriptor of the lock file, locked; None if that took too long.

    Raises:
        OSError: The file cannot be made, or this file system has no locks.
    """
    message_at = time.monotonic() + MESSAGE_AFTER_S
    descriptor = open_file(path)
    try:
        while not try_lock(descriptor, path):
            now = time.monotonic()
            if now >= end:
                close(descriptor)
                return None
            if message_at <= now:
                message_at = float("inf")
                _say(holder_of(path), path)
            if not _is_at(descriptor, path):  # it was cleared away: those who come now wait for another file
                close(descriptor)
                descriptor = open_file(path)
            time.sleep(max(0.0, min(_POLL_S, end - now)))
    except BaseException:
        close(descriptor)
        raise
    return descriptor


def open_file(path: Path) -> int:
    """Open a lock file without changing what is in it: that is its holder's.

    Raises:
        OSError: It cannot be made, nor read where it is there.
    """
    disk.make_folder(path.parent)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _FLAGS, 0o666)
        disk.share(descriptor, path.parent)
    except PermissionError:
        descriptor = os.open(path, os.O_RDONLY | _FLAGS)  # another user's: enough for a lock on a local disk
    _descriptors.add(descriptor)
    return descriptor


def try_lock(descriptor: int, path: Path) -> bool:
    """Lock an open lock file if nobody has it and it still lies at its path.

    Raises:
        OSError: This file system has no locks.
    """
    if fcntl is None:
        return _try_lock_windows(descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _BUSY:
            return False
        raise
    if _is_at(descriptor, path):
        return True
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False


def _try_lock_windows(descriptor: int) -> bool:
    import msvcrt

    try:
        os.lseek(descriptor, 1 << 30, os.SEEK_SET)  # far behind the holder's line, which must stay readable
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    except PermissionError:
        return False
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether the open file is the one at the path: a lock on a file that was unlinked locks nobody out."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False


def close(descriptor: int) -> None:
    """Close a lock file, which frees its lock where this process has it."""
    _descriptors.discard(descriptor)
    with contextlib.suppress(OSError):
        os.close(descriptor)


def _release(descriptor: int, owner: int) -> None:
    if os.getpid() != owner:
        return  # a forked child, which closed its copy at birth: the lock is its parent's
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
    if fcntl is not None:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # a copy in a child of C code would keep it locked
    close(descriptor)


def _write_holder(descriptor: int) -> None:
    who = {"pid": os.getpid(), "host": _host(), "start": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
    try:
        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)
        disk.write_all(descriptor, json.dumps(who).encode() + b"\n")
    except OSError:
        pass  # it helps people who wait, and nobody else


def _host() -> str:
    return os.uname().nodename if hasattr(os, "uname") else ""


def holder_of(path: Path) -> str:
    """Who holds a lock, in words; whatever stands in the file."""
    try:
        who = disk.parse_json(disk.read_head(path, 1024))
        return f"process {int(who['pid'])} on {who['host']:.100} (since {who['start']:.40})"
    except (OSError, ValueError, TypeError, KeyError):
        return "another process"


@contextmanager
def if_free(path: Path) -> Iterator[bool]:
    """Hold a lock for a `with` block if it can be had at once; yields whether nobody else has it.

    A lock file that is not there is not made.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | _FLAGS)
    except FileNotFoundError:
        yield True
        return
    except OSError:
        yield False
        return
    try:
        try:
            free = try_lock(descriptor, path)
        except OSError:
            free = True  # no locks here: nobody can hold one
        yield free
    finally:
        os.close(descriptor)


def _after_fork_in_child() -> None:
    """Forget every lock without unlocking: threads that held them are not here, and lock files are the parent's.

    Closing a copied descriptor leaves the parent's lock alone, and a child that outlives its parent must not keep it.
    """
    _waiting.clear()
    for descriptor in list(_descriptors):
        close(descriptor)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
