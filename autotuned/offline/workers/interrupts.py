"""Ctrl-C during `tune`: the first is deferred until it loses nothing, the next one raises at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupts:
    """Defers the first Ctrl-C of a `with` block until `check` is called.

    Raised at any point, it would lose data just read or being written, and Ray's code may swallow it. If Ctrl-C is
    ignored or handled by the program, nothing changes.
    """

    def __init__(self) -> None:
        self._is_asked = self._is_told = self._is_mine = False

    def __enter__(self) -> Interrupts:
        is_main = threading.current_thread() is threading.main_thread()
        self._is_mine = is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if self._is_mine:
            signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        if self._is_mine:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._is_asked:
            raise KeyboardInterrupt
        self._is_asked = True

    def check(self) -> None:
        """Raise KeyboardInterrupt, once, if Ctrl-C was pressed."""
        if self._is_asked and not self._is_told:
            self._is_told = True
            raise KeyboardInterrupt


@contextmanager
def held_back() -> Iterator[None]:
    """Block Ctrl-C within a `with` block; processes started in it start with it blocked."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
