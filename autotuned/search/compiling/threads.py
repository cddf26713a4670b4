"""Running Triton's compiler on several threads: Python's lock."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from autotuned._startup import renewed

# Compiling threads compete for the interpreter's lock; the measuring thread must not wait 5 ms (Python's default) each
# time it returns from torch.
SWITCH_S = 0.0005

_brisk_lock = renewed(threading.Lock())
_brisk_users: list[float] = []  # the former interval, once per user


@contextmanager
def brisk() -> Iterator[None]:
    """Shorten Python's switch interval while compilers compete with the measuring thread."""
    with _brisk_lock:
        _brisk_users.append(sys.getswitchinterval() if not _brisk_users else _brisk_users[0])
        sys.setswitchinterval(min(SWITCH_S, _brisk_users[0]))
    try:
        yield
    finally:
        with _brisk_lock:
            before = _brisk_users.pop()
            if not _brisk_users:
                sys.setswitchinterval(before)
