"""Faults of file calls, as from bad disks, network file systems and other users, one system call at a time."""

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# The calls that the store makes; each can fail with any error.
READING = ("open", "fstat", "read")
WRITING = ("mkdir", "open", "write", "replace")


@contextmanager
def faults(call: str, error: int | BaseException, times: int = 1 << 30, name: str = "") -> Iterator[list[str]]:
    """Let a system call fail in this process.

    Args:
        call: A function of `os`, or "flock".
        error: An errno, or an exception to raise.
        times: Number of failures; afterwards it works.
        name: Only for paths (also of descriptors) that end with this or, between stars, contain it.

    Yields:
        The paths of the calls that failed.
    """
    module: Any = fcntl if call == "flock" else os
    real, failed = getattr(module, call), []

    def fake(*args: Any, **kwargs: Any) -> Any:
        path = _path(args[1] if call == "replace" else args[0])
        if len(failed) < times and _matches(path, name):
            failed.append(path)
            raise error if isinstance(error, BaseException) else OSError(error, os.strerror(error), path)
        return real(*args, **kwargs)

    setattr(module, call, fake)
    try:
        yield failed
    finally:
        setattr(module, call, real)


@contextmanager
def no_op_flock() -> Iterator[None]:
    """Locks without effect, as on some network file systems."""
    real: Callable[..., Any] = fcntl.flock
    fcntl.flock = lambda descriptor, operation: None
    try:
        yield
    finally:
        fcntl.flock = real


def _path(argument: Any) -> str:
    return os.readlink(f"/proc/self/fd/{argument}") if isinstance(argument, int) else os.fspath(argument)


def _matches(path: str, name: str) -> bool:
    return name.strip("*") in path if name.startswith("*") else path.endswith(name)


def everything_in(folder: Path) -> list[str]:
    """Every path below a folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


PASSING = (errno.ENOENT, errno.ESTALE, errno.EIO, errno.EBUSY)


def refuse(*args: Any, **kwargs: Any) -> Any:
    """Replaces a function that writes: the disk is full."""
    raise OSError(errno.ENOSPC, "No space left on device")
