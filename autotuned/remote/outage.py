"""Tells a shared store that is away from one that answers and refuses writes: each is one warning of a process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Outage:
    """What the last read tells of later failures."""

    def __init__(self) -> None:
        self._answers = False

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Around each read, also that before a write, and other requests that the store does not refuse."""
        self._answers = False
        yield
        self._answers = True

    def about(self, kind: str) -> str:
        """What to report a failure under: one warning for a store that is away, whatever the process was doing."""
        return "refuses" if kind == "write" and self._answers else "away"
