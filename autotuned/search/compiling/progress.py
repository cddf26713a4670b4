"""Report a long wait for compilers: a line at a terminal, more of them in the log."""

from __future__ import annotations

import logging
import os
import time

log = logging.getLogger("autotuned")
SAY_AFTER_S = 5.0  # waits shorter than this are not reported


class Waiting:
    """One wait: reported once per kernel at a terminal, else every `SAY_AFTER_S` seconds at level info."""

    def __init__(self, kernel: str) -> None:
        self._kernel = kernel
        self._begun_s = time.monotonic()
        self._next_s = self._begun_s + SAY_AFTER_S
        self._said = False

    def tick(self, done: int, total: int) -> None:
        """Report it, if it is time."""
        if time.monotonic() >= self._next_s:
            self._next_s += SAY_AFTER_S
            is_shown = not self._said and _at_a_terminal()
            self._said = True
            level = logging.WARNING if is_shown else logging.INFO
            log.log(level, "`%s`: compiling its configs, %d of %d compiled.", self._kernel, done, total)

    def end(self, done: int, total: int) -> None:
        """Log how long it took."""
        took_s = time.monotonic() - self._begun_s
        log.info("`%s`: %d of %d compiled ahead in %.1f s.", self._kernel, done, total, took_s)


def _at_a_terminal() -> bool:
    try:
        return os.isatty(2)
    except OSError:  # standard error is closed
        return False
