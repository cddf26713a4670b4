"""Locks per key and per GPU, between threads and processes: one searches, the others wait for a while."""

from __future__ import annotations

import contextlib
import enum
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotuned import disk
from autotuned._startup import after_fork
from autotuned.store import layout
from autotuned.typed_json import PID_MAX, integer, typed

if TYPE_CHECKING:
    from filelock import FileLock

log = logging.getLogger("autotuned")

MESSAGE_AFTER_S = 5.0  # most searches are shorter; after this a wait looks like a hang
LOCK_TIMEOUT_S = 600.0  # longer than any search that we saw
GPU_PATIENCE_S = 60.0  # a race takes less than a second
_POLL_S = 0.02


class Lock(enum.Enum):
    """Outcome of acquiring a lock."""

    HELD = "held"
    BUSY = "busy"  # held by another, and the wait timed out
    NESTED = "nested"  # held by this thread: the searched function calls itself
    NONE = "none"  # locks do not work on this file system


class _Waiting:
    """The threads of this process that wait for a lock, with one warning for all."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # only its owner can release it
        self.holder = ""
        self.said = False


_held = threading.local()
_waiting: dict[str, _Waiting] = {}
_locks: dict[int, FileLock] = {}  # held by this process


@contextmanager
def locked(path: Path, between_processes: bool = True, timeout_s: float | None = None) -> Iterator[Lock]:
    """Hold the lock at `path` in a `with` block, against threads and, with a lock file, processes; yields the outcome.

    Locks only save work: the block also runs without the lock, after a timeout or if the file cannot be created. A
    thread that holds a lock tries a second one only once, to avoid deadlock: a tuned host function may launch tuned
    kernels. While held, a file next to it names process, host and start time. The system frees the lock when its holder
    ends. A forked child holds no locks.

    Args:
        path: The lock file; never removed, since unlinking it would split the waiters.
        between_processes: False to lock threads of this process only, without a file.
        timeout_s: Longest wait in seconds; None for `LOCK_TIMEOUT_S`.
    """
    held = _held.__dict__.setdefault("paths", set())
    if path in held:
        yield Lock.NESTED
        return
    timeout_s = LOCK_TIMEOUT_S if timeout_s is None else timeout_s
    end = time.monotonic() + (0.0 if held else timeout_s)
    with contextlib.ExitStack() as stack:
        lock = _enter_thread_lock(stack, path, end)
        if lock is Lock.HELD and between_processes:
            lock = _enter_file_lock(stack, path, end)
        stack.callback(held.discard, path)
        held.add(path)
        yield lock


@contextmanager
def locked_config_file(path: Path) -> Iterator[None]:
    """Hold a config file in a `with` block against its other writers on this host.

    The lock file is in the cache folder, which another writer may not share, and belongs to one name of the file. So
    the file's folder, if it exists, is locked too, which leaves nothing in it.
    """
    with locked(layout.config_file_lock_path(path)), _folder_locked(path.parent):
        yield


@contextmanager
def _folder_locked(folder: Path) -> Iterator[None]:
    """Hold a folder against processes and threads, if it exists and can be locked."""
    held = _held.__dict__.setdefault("folders", set())
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError, ImportError):  # it does not exist, or this system locks no folders
            descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, descriptor)
            status = os.fstat(descriptor)
            one = status.st_dev, status.st_ino
            if one not in held:  # this thread would wait for itself
                stack.callback(held.discard, one)
                _flock(stack, descriptor, folder)
                held.add(one)
        yield


def _flock(stack: contextlib.ExitStack, descriptor: int, folder: Path) -> None:
    """Lock an open folder until the stack closes, or continue after a timeout; OSError if there are no locks here."""
    import fcntl  # not on Windows

    def unlock(owner: int) -> None:
        if os.getpid() == owner:  # not in a forked child: its parent holds the lock
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing is not enough while a child has the descriptor

    end = time.monotonic() + LOCK_TIMEOUT_S
    while time.monotonic() < end:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_POLL_S)
        else:
            stack.callback(unlock, os.getpid())
            return
    log.warning("folder %s was not free after %.0f s; continuing without a lock.", folder, LOCK_TIMEOUT_S)


def depth() -> int:
    """Number of locks that this thread holds or runs without."""
    return len(_held.__dict__.get("paths", ()))


# -- threads ---------------------------------------------------------------------------------------------------------


def _enter_thread_lock(stack: contextlib.ExitStack, path: Path, end: float) -> Lock:
    waiting = _waiting.setdefault(str(path), _Waiting())
    start = time.monotonic()
    stack.callback(_leave, waiting.lock)  # before it is acquired, or an interrupt in between would keep it held
    if not waiting.lock.acquire(timeout=max(0.0, min(MESSAGE_AFTER_S, end - start))) and (
        end - start <= MESSAGE_AFTER_S or not _wait_for_thread(waiting, path, end)
    ):
        return _gave_up(path, end - start)
    waiting.holder, waiting.said = threading.current_thread().name, False
    return Lock.HELD


def _leave(lock: threading.RLock) -> None:
    with contextlib.suppress(RuntimeError):  # another thread's
        lock.release()


def _wait_for_thread(waiting: _Waiting, path: Path, end: float) -> bool:
    if not waiting.said:
        waiting.said = True
        _say(f"thread {waiting.holder!r} of this process", path)
    return waiting.lock.acquire(timeout=max(0.0, end - time.monotonic()))


def _say(holder: str, path: Path) -> None:
    log.warning("waiting for %s, which tunes the same key; lock file: %s", holder, path)


def _gave_up(path: Path, waited_s: float) -> Lock:
    if waited_s > 0:
        log.warning("lock %s was not free after %.0f s; continuing without it.", path, waited_s)
    return Lock.BUSY


# -- processes -------------------------------------------------------------------------------------------------------


def _enter_file_lock(stack: contextlib.ExitStack, path: Path, end: float) -> Lock:
    start = time.monotonic()
    try:
        disk.make_folder(path.parent)
        lock = _file_lock(path)
        stack.callback(_release, lock, layout.holder_path(path), os.getpid())
        held = _acquire(lock, path, start + MESSAGE_AFTER_S, end)
    except (OSError, NotImplementedError) as error:
        log.debug("lock %s cannot be used (%s); continuing without it.", path, error)
        return Lock.NONE
    if not held:
        return _gave_up(path, end - start)
    _locks[id(lock)] = lock
    _write_holder(path)
    return Lock.HELD


def _file_lock(path: Path) -> FileLock:
    from filelock import FileLock  # takes 40 ms to import, and hits do not need it

    mode = disk.shared_mode(path.parent)
    options: dict[str, Any] = {"mode": mode} if mode else {}
    try:
        # Its fallback for file systems without flock is a file that would survive a killed holder.
        return FileLock(path, fallback_to_soft=False, **options)
    except TypeError:  # versions before 4 have no fallback
        return FileLock(path, **options)


def _acquire(lock: FileLock, path: Path, message_at: float, end: float) -> bool:
    """Acquire in time, or return False; OSError or NotImplementedError if locks do not work here."""
    if _try_until(lock, 0.0):
        return True
    said = False
    while (now := time.monotonic()) < end:
        _check_held(path)  # repeatedly, as the folder may be removed meanwhile
        if _try_until(lock, min(end, now + MESSAGE_AFTER_S, message_at if now < message_at else end)):
            return True
        if not said and message_at <= time.monotonic() < end:
            said = True
            _say(_holder_of(path), path)
    return False


def _check_held(path: Path) -> None:
    """Distinguish a held lock from an unusable one, since `filelock` retries after any error.

    Raises OSError if the file cannot be opened, NotImplementedError if this file system has no locks.
    """
    try:
        import fcntl
    except ImportError:  # Windows, where opening and locking are one step
        return
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # released on close
    except BlockingIOError:  # EAGAIN only
        pass
    except OSError as error:
        raise NotImplementedError(str(error)) from error
    finally:
        os.close(descriptor)


def _try_until(lock: FileLock, end: float) -> bool:
    """Try to acquire a lock until a time of `time.monotonic`, and at least once."""
    from filelock import Timeout

    try:
        lock.acquire(timeout=max(0.0, end - time.monotonic()), poll_interval=_POLL_S)
    except Timeout:
        return False
    return True


def _release(lock: FileLock, leftover: Path | None, owner: int) -> None:
    if os.getpid() != owner or not lock.is_locked:
        return  # in a forked child: its parent holds the lock
    try:
        if leftover is not None:
            disk.remove(leftover)
    finally:
        _locks.pop(id(lock), None)
        with contextlib.suppress(OSError):
            lock.release(force=True)


def _write_holder(path: Path) -> None:
    who = {"pid": os.getpid(), "host": host(), "start": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
    with contextlib.suppress(OSError):  # it only informs users who wait
        disk.write_text(layout.holder_path(path), disk.text(who))


def host() -> str:
    """This host's name; "" if unknown."""
    return os.uname().nodename if hasattr(os, "uname") else ""


def _holder_of(path: Path) -> str:
    """The holder of a lock, as text; tolerates any content of the file."""
    try:
        who = typed(disk.parse_json(disk.read_head(layout.holder_path(path), 1024)), dict, "holder")
        pid, host, start = integer(who.get("pid"), "pid", 1, PID_MAX), who.get("host"), who.get("start")
        return f"process {pid} on {typed(host, str, 'host'):.100} (since {typed(start, str, 'start'):.40})"
    except (OSError, ValueError):
        return "another process"


def _nobody_can_hold(path: Path) -> bool:
    try:
        _check_held(path)
    except NotImplementedError:
        return True
    except OSError:
        pass  # perhaps another user's file, who may hold the lock
    return False


@contextmanager
def if_free(path: Path) -> Iterator[bool]:
    """Hold a lock in a `with` block if it is free, without creating the file; yields whether it was free."""
    if not os.path.lexists(path):
        yield True
        return
    lock = _file_lock(path)
    try:
        free = _try_until(lock, 0.0) or _nobody_can_hold(path)
    except NotImplementedError:
        free = True  # no locks here
    except OSError:
        free = _nobody_can_hold(path)
    try:
        yield free
    finally:
        with contextlib.suppress(OSError):
            lock.release(force=True)


def claim(path: Path, stays: bool = False) -> Callable[[], None] | None:
    """Acquire a lock if it is free now; returns its release function (for this thread), or None.

    If locks do not work here, the function does nothing. Unless the file `stays`, it is removed on release, so a later
    holder must first check whether the work is already done.
    """
    try:
        disk.make_folder(path.parent)
        lock = _file_lock(path)
        if not _try_until(lock, 0.0):
            return (lambda: None) if _nobody_can_hold(path) else None
    except (OSError, NotImplementedError) as error:
        log.debug("lock %s cannot be used (%s); continuing without it.", path, error)
        return lambda: None
    return partial(_release, lock, None if stays else path, os.getpid())


def _after_fork_in_child() -> None:
    """Forget waiting threads. `_locks` keeps the parent's locks alive: garbage collection would release them."""
    _waiting.clear()


after_fork(_after_fork_in_child)


@contextmanager
def polled(path: Path, patience_s: float) -> Iterator[Lock]:
    """Hold a lock as `locked` does, but poll instead of waiting, which a thread with another lock may do too.

    Yields the outcome; `Lock.BUSY` after `patience_s` seconds.
    """
    end = time.monotonic() + patience_s
    while True:
        with locked(path, timeout_s=0.0) as lock:
            if lock is not Lock.BUSY or time.monotonic() > end:
                yield lock
                return
        time.sleep(_POLL_S)


@contextmanager
def gpu_locked(device: str | None, patience_s: float = GPU_PATIENCE_S) -> Iterator[bool]:
    """Hold a device's lock between this user's searches on this host; yields whether the search measures alone.

    Concurrent searches would distort each other's timings; after `patience_s` seconds the block runs anyway. Without a
    device (None) nothing is locked.
    """
    if device is None:
        yield True
        return
    with polled(layout.gpu_lock_path(device), patience_s) as lock:
        if lock is Lock.BUSY:
            log.warning("another search holds GPU %s for over %.0f s; measuring anyway.", device, patience_s)
        yield lock is not Lock.BUSY
