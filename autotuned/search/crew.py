"""Threads that compile a list of binaries into Triton's cache, each once on this host whatever processes want it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from autotuned.search import failures, threads
from autotuned.store import locks
from autotuned.triton_compat import cache
from autotuned.triton_compat.compiled import Compilation

log = logging.getLogger("autotuned")
TICK_S = 0.5  # how often one who waits is told that it still waits
POLL_S = 0.05  # how often is looked whether another process has compiled what is left, or let go of a processor
STALL_S = 300.0  # so long after the last binary nothing more is expected: no compilation was seen to take that long


class Crew:
    """Threads of this process, which take the next binary of a list that nobody on this host compiles.

    Args:
        wanted: What to compile, in the order in which to begin.
        count: How many threads.
        slots: Locks of the processors of this host, where processes share them; a compilation holds one of them.

    Attributes:
        done: How many are compiled, by whatever process, or failed.
    """

    def __init__(self, wanted: Sequence[Compilation], count: int, slots: Sequence[Path] = ()) -> None:
        self.total, self.done = len(wanted), 0
        self._left, self._slots = list(wanted), slots
        self._turn, self._counting = threading.Lock(), threading.Lock()
        self._latest_s = time.monotonic()
        self._over, self._finished = threading.Event(), threading.Event()
        self._pool = ThreadPoolExecutor(count, "autotuned-ahead")
        self._count = count

    def __enter__(self) -> Crew:
        self._stack = ExitStack()
        self._stack.enter_context(threads.brisk())
        self._stack.callback(self._close)
        try:
            for _ in range(self._count):
                self._pool.submit(self._work)
        except RuntimeError as error:  # no thread can be started: those that were do it
            log.debug("compile ahead: %s", error)
        return self

    def __exit__(self, *details: object) -> None:
        self._stack.close()

    def _close(self) -> None:
        self._over.set()
        self._pool.shutdown(wait=False, cancel_futures=True)  # what is in LLVM cannot be stopped, and ends by itself

    def wait(self, tick: Callable[[], None]) -> bool:
        """Wait until nothing is left; False if nothing came for `STALL_S`.

        Args:
            tick: Called now and then meanwhile.
        """
        while self.done < self.total and time.monotonic() - self._latest_s < STALL_S:
            self._finished.wait(TICK_S)
            tick()
        return self.done >= self.total

    def _work(self) -> None:
        while (claimed := self._claim()) is not None:
            one, let_go = claimed
            try:
                with let_go:
                    self._compile(one)
            finally:
                self._end()

    def _compile(self, one: Compilation) -> None:
        if cache.holds(one.digest):
            return
        try:
            threads.parsed_again(one.run)
        except Exception as error:  # Triton meets it again, and says it in its way
            log.debug("compile ahead: %s", failures.describe(error))
            failures.let_go(error)

    def _claim(self) -> tuple[Compilation, ExitStack] | None:
        """The next one that nobody compiles, and what holds its locks; None once none is left."""
        with self._turn:  # one thread looks, the others wait for it
            while self._left and not self._over.is_set():
                if (found := self._free()) is not None:
                    return found
                self._over.wait(POLL_S)
        return None

    def _free(self) -> tuple[Compilation, ExitStack] | None:
        held = ExitStack()
        if not _claim(held, self._slots, stays=True):
            return None
        for one in list(self._left):
            if cache.holds(one.digest):
                self._left.remove(one)
                self._end()
            elif _claim(held, _lock_of(one)):
                self._left.remove(one)
                return one, held
        held.close()
        return None

    def _end(self) -> None:
        with self._counting:
            self.done += 1
            self._latest_s = time.monotonic()
            if self.done >= self.total:
                self._finished.set()


def _lock_of(one: Compilation) -> list[Path]:
    try:
        return [cache.lock_path(one.digest)]
    except OSError:
        return []


def _claim(held: ExitStack, paths: Sequence[Path], stays: bool = False) -> bool:
    """Hold the first of some locks that is free; True where there are none at all."""
    for path in paths:
        if (let_go := locks.claim(path, stays)) is not None:
            held.callback(let_go)
            return True
    return not paths
