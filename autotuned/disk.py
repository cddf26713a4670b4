"""Files that survive other processes: atomic writes, a lock per key, damaged files moved aside."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from autotuned.values import Json

if TYPE_CHECKING:
    from filelock import BaseFileLock

log = logging.getLogger("autotuned")

MESSAGE_AFTER_S = 5.0  # a wait this long is worth a line: most searches are shorter, and people think it hangs
LOCK_TIMEOUT_S = 600.0  # longer than any search seen; afterwards the waiter searches by itself
MAX_FILE_BYTES = 64 << 20  # a record is a few KiB; a huge file is damage or an attack, and would be read into memory
_held = threading.local()
_thread_locks: dict[str, threading.Lock] = {}
if hasattr(os, "register_at_fork"):
    # In a forked child the threads that held these are gone, and nobody would ever release them.
    os.register_at_fork(after_in_child=_thread_locks.clear)


def read_json(path: Path) -> Json:
    """Parse a JSON file.

    Raises:
        FileNotFoundError: There is none.
        OSError: It cannot be read.
        ValueError: It is too large, no JSON, or holds NaN, Infinity or a number like 1e999, which Python reads as one.
    """
    if path.stat().st_size > MAX_FILE_BYTES:
        raise ValueError(f"{path}: expected at most {MAX_FILE_BYTES} bytes, got {path.stat().st_size}.")
    return parse_json(path.read_bytes())


def parse_json(content: str | bytes) -> Json:
    """Parse JSON text; ValueError where `read_json` has it."""
    try:
        return json.loads(content, parse_constant=_refuse_constant, parse_float=_finite)
    except RecursionError:
        raise ValueError("expected JSON of a sane depth, got one nested too deeply.") from None


def _refuse_constant(name: str) -> Json:
    raise ValueError(f"expected finite numbers, got {name}.")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"expected finite numbers, got {digits:.20}.")
    return number


def text(data: Json) -> str:
    """JSON as it is written to disk: one line, ASCII; NaN and Infinity are refused."""
    return json.dumps(data, ensure_ascii=True, allow_nan=False) + "\n"


def write_text(path: Path, content: str) -> None:
    """Replace a file's content in one step: readers see the old text or the new, never a part.

    Not crash-durable: there is no fsync, a power cut may lose the newest write (the old or no file is left).

    Raises:
        OSError: The folder cannot be made or written; no temporary file is left behind.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Beside its target, or os.replace would cross file systems; hidden and unique, so that readers never see it.
    temporary = path.parent / f".{path.name[:40]}.{uuid.uuid4().hex}.tmp"
    try:
        # "x" and the umask's own mode: tempfile would make it 0600, which the readers of a shared folder cannot open.
        with open(temporary, "x", encoding="utf-8") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        _remove(temporary)
        raise


def _remove(path: Path) -> None:
    try:
        path.unlink()
    except OSError:
        pass  # a leftover temporary file costs bytes; raising here would cost the result


def move_aside(path: Path) -> Path | None:
    """Move a damaged file into a `damaged` folder beside it, so that it can be looked at and is not met again.

    Returns:
        Where it lies now, or None if it could not be moved (the next write replaces it).
    """
    target = path.parent / "damaged" / f"{path.stem}.{os.getpid()}.{time.time_ns():x}{path.suffix}"
    try:
        target.parent.mkdir(mode=0o700, exist_ok=True)
        os.replace(path, target)
    except OSError:
        return None
    return target


@contextmanager
def locked(path: Path, between_processes: bool = True, timeout_s: float = LOCK_TIMEOUT_S) -> Iterator[None]:
    """Hold the lock at `path` for a `with` block; threads and, with a lock file, processes wait for its holder.

    The lock only saves work: whoever does not get it in time, or cannot make the file, goes on without. A thread
    that holds one lock never waits for another (a tuned host function may launch tuned kernels): it tries once.

    Args:
        path: The lock file. It is left in place: unlinking it while somebody waits would split the waiters.
        between_processes: False locks threads of this process only and touches no file.
        timeout_s: How long to wait at most, in seconds.
    """
    wait_s = 0.0 if getattr(_held, "count", 0) else timeout_s
    with contextlib.ExitStack() as stack:
        if _enter_thread_lock(stack, path, wait_s) and between_processes:
            _enter_file_lock(stack, path, wait_s)
        _held.count = getattr(_held, "count", 0) + 1
        try:
            yield
        finally:
            _held.count -= 1


def _enter_thread_lock(stack: contextlib.ExitStack, path: Path, wait_s: float) -> bool:
    lock = _thread_locks.setdefault(str(path), threading.Lock())
    if not lock.acquire(timeout=wait_s):
        return False
    stack.callback(lock.release)
    return True


def _enter_file_lock(stack: contextlib.ExitStack, path: Path, wait_s: float) -> None:
    from filelock import FileLock, Timeout

    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = FileLock(path, thread_local=False)
        _acquire(lock, path, wait_s)
    except Timeout:
        if wait_s:
            log.warning("lock %s was not free after %.0f s; going on without it.", path, wait_s)
    except (OSError, NotImplementedError) as error:
        log.debug("lock %s cannot be used (%s); going on without it.", path, error)
    else:
        stack.callback(lock.release)


def _acquire(lock: BaseFileLock, path: Path, timeout_s: float) -> None:
    """Acquire in two steps, so that a long wait says once what is waited for."""
    from filelock import Timeout

    first = min(MESSAGE_AFTER_S, timeout_s)
    try:
        lock.acquire(timeout=first, poll_interval=0.02)
    except Timeout:
        if timeout_s <= first:
            raise
        log.warning("waiting for another process or thread that tunes the same key; lock file: %s", path)
        lock.acquire(timeout=timeout_s - first, poll_interval=0.02)


def cache_dir(setting: str) -> Path:
    """The folder of records: an absolute path, made so at first use and then fixed.

    Args:
        setting: The user's choice; empty for the platform's cache folder. Without a usable home folder (HOME unset
            and no passwd entry) a private folder under the system's temporary one is taken.
    """
    if setting not in _cache_dirs:
        _cache_dirs[setting] = _absolute(setting) if setting else _default_dir()
    return _cache_dirs[setting]


_cache_dirs: dict[str, Path] = {}


def _absolute(setting: str) -> Path:
    try:
        return Path(setting).expanduser().absolute()
    except RuntimeError:  # '~' without a home folder
        return _temporary_dir()


def _default_dir() -> Path:
    import platformdirs

    try:
        path = Path(platformdirs.user_cache_dir("autotuned", appauthor=False))
    except (RuntimeError, KeyError, OSError):  # a uid without a passwd entry: which one depends on the Python version
        return _temporary_dir()
    return path if path.is_absolute() else _temporary_dir()


def _temporary_dir() -> Path:
    user = os.getuid() if hasattr(os, "getuid") else "user"
    path = Path(tempfile.gettempdir()) / f"autotuned-{user}"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        safe = path.lstat().st_uid == user and not path.is_symlink()
    except OSError:
        safe = False
    # Under a folder that everybody writes, a name that can be guessed may be somebody else's.
    return path if safe or user == "user" else Path(tempfile.mkdtemp(prefix="autotuned-"))
