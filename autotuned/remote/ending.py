"""Sends waiting records at the end of a process, and resets clients of shared stores in a forked child."""

from __future__ import annotations

import atexit
import contextlib
import threading
import time
import weakref
from typing import Any

from autotuned._startup import after_fork, living

EXIT_S = 2.0  # time for sending at exit; the next process sends the rest

clients: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # by id
_ends: list[float] = []


@atexit.register
def _flush_all() -> None:
    if not _ends:
        _ends.append(time.monotonic() + EXIT_S)
    for client in living(clients):
        client.flush(max(0.0, _ends[0] - time.monotonic()))


def flush_before_executors_end() -> None:
    """Flush before `concurrent.futures` ends its threads, which clients of buckets need to resolve host names.

    The standard library has no public hook for this; without it, the next process sends the rest.
    """
    register = getattr(threading, "_register_atexit", None)
    if register is not None:
        with contextlib.suppress(RuntimeError):  # the process is already ending
            register(_flush_all)


def _after_fork_in_child() -> None:
    for client in living(clients):
        client.after_fork()


after_fork(_after_fork_in_child)
