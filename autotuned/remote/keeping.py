"""A lock around merging a shared store's records into the user's own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from autotuned.store import layout, locks

PATIENCE_S = 5.0  # work under the lock takes milliseconds
_POLL_S = 0.005


class Keeping:
    """A lock for reading, joining and keeping a record, between threads and processes; may be nested.

    Without a lock file, or if its holder hangs, it only separates threads.
    """

    def __init__(self, before: Keeping | None = None) -> None:
        self._lock, self._depth = threading.RLock(), 0
        self._let_go: Callable[[], None] | None = None
        self._before = before  # a parent process's: collected as garbage, its lock would be released in the parent

    def __enter__(self) -> Keeping:
        """Wait for the lock."""
        self._lock.acquire()
        if not self._depth:
            self._let_go = _claimed()
        self._depth += 1
        return self

    def __exit__(self, *error: Any) -> None:
        self._depth -= 1
        if not self._depth and self._let_go is not None:
            self._let_go()
        self._lock.release()


def _claimed() -> Callable[[], None] | None:
    path, end = layout.root() / layout.LOCKS / "shared-store.lock", time.monotonic() + PATIENCE_S
    while (let_go := locks.claim(path, stays=True)) is None and time.monotonic() < end:
        time.sleep(_POLL_S)
    return let_go
