"""Threads that compile the configs of one search, or have other processes compile them."""

from __future__ import annotations

import json
import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotuned._startup import Protocol
from autotuned.errors import LeftOutError
from autotuned.key.source_text import parsed_again
from autotuned.search.compiling import crew, threads
from autotuned.search.exclusions import SharedMemory
from autotuned.store.journal import Journal
from autotuned.triton_compat import cache, launcher
from autotuned.triton_compat import compiled as compiledkernel
from autotuned.tunable import configs

if TYPE_CHECKING:
    from autotuned.search.compiling.stragglers import Stragglers

log = logging.getLogger("autotuned")
TICK_S = 0.25  # interval of `tick` while waiting for compilers
POLL_S, SAY_AFTER_S = 1.0, 5.0  # interval between looks at the main thread; wait after its end before the warning


@dataclass(frozen=True)
class Wanted:
    """A config to compile."""

    index: int  # position in the list of candidates
    identity: str
    config: Any
    hooked: bool = False  # user code runs before the launch: it may write tensors, and change the compilation
    likely: bool = False  # to be tried first: it won for a similar call
    suspect: bool = False  # a process died while compiling it: compile it alone, so that it can be blamed

    @property
    def size(self) -> float:
        """Estimates the compile time: block elements per warp, times stages.

        Correlates with measured times: 0.78 over 40 configs of a matmul, 0.91 over 36 of attention (Triton 3.9, sm_90).
        """
        blocks = [value for value in self.config.kwargs.values() if isinstance(value, int) and value > 0]
        stages, warps = getattr(self.config, "num_stages", 1) or 1, getattr(self.config, "num_warps", 1) or 1
        return float(math.prod(blocks)) * stages / warps


class Compilers(Protocol):
    """Processes that compile configs for this one, as under `autotuned tune`."""

    def compile(
        self, kernel: str, parts: tuple[Any, ...], folder: Path | None, begun: Callable[[], None]
    ) -> str | None:
        """Compile; returns the binary's hash in Triton's cache, "" if that failed, None if not attempted."""

    def missed(self, kernel: str) -> None:
        """A binary compiled there was not found here."""


compilers: list[Compilers] = []  # process-wide; the last one is in force


class Pool:
    """Threads that compile; `done` receives the index of each config as it gets ready."""

    def __init__(
        self, count: int, kernel: str, journal: Journal, memory: SharedMemory, over: Callable[[], bool],
        slots: Sequence[Path], slow: Stragglers | None,
    ) -> None:  # fmt: skip
        self._kernel, self._turns, self._slow = kernel, crew.Turns(slots), slow
        self._threads = ThreadPoolExecutor(count, "autotuned-compile")
        self._folder, self._journal, self._memory, self._over = cache.current(), journal, memory, over
        self.done: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.begun: dict[str, float] = {}
        self._open: dict[int, tuple[Wanted, Future[Any]]] = {}  # those not yet given out by `next`
        self._joined: set[str] = set()  # identities of those that an earlier search compiles

    def __enter__(self) -> Pool:
        self._brisk = threads.brisk()
        self._brisk.__enter__()
        return self

    def __exit__(self, *details: object) -> None:
        # A compiling thread cannot be stopped: it runs to its end, and its binary stays in the cache.
        self._threads.shutdown(wait=False, cancel_futures=True)
        if left := [future for _, future in self._open.values() if not future.done()]:
            threading.Thread(target=_say_at_exit, args=(self._kernel, left), daemon=True).start()
        self._brisk.__exit__(None, None, None)
        self._over = lambda: True  # breaks the cycle with the search

    def submit(self, one: Wanted, compile_: Callable[[], Any]) -> Future[Any]:
        """Compile a config in one of the threads."""
        try:
            future = self._threads.submit(self._run, one, compile_)
        except RuntimeError:  # Python's executors end with the main thread; or the system starts no more threads
            future = _done_here(partial(self._run, one, compile_))
        self._open[one.index] = one, future
        future.add_done_callback(lambda future: self.done.put(one.index))
        return future

    def join(self, one: Wanted, future: Future[Any]) -> None:
        """Wait for a compilation that an earlier search began."""

        def ended(_: Any) -> None:
            self.begun.pop(one.identity, None)
            self.done.put(one.index)

        self._joined.add(one.identity)
        self._open[one.index], self.begun[one.identity] = (one, future), time.monotonic()
        future.add_done_callback(ended)

    def _run(self, one: Wanted, compile_: Callable[[], Any]) -> Any:
        with self._turns.turn(lambda: self._over()), cache.same_as(self._folder):  # also once the search has ended
            if self._over():
                raise CancelledError  # as for configs that no thread has taken
            if not one.hooked:
                self._memory.refuse(one.config)
            self.begun[one.identity] = time.monotonic()
            try:
                compiled = self._made(one, compile_)
            finally:
                self.begun.pop(one.identity, None)
        self._memory.note(one.config, compiled)
        return compiled

    def _made(self, one: Wanted, compile_: Callable[[], Any]) -> Any:
        """Compile in a compile process, if there is one, and then only load the result."""
        there = self._made_elsewhere(one, compile_)
        is_kept = bool(there) and cache.holds(str(there))
        with self._journal.compiling(one.identity):
            compiled = parsed_again(compile_)
        if there is not None and not (is_kept and getattr(compiled, "hash", None) == there):
            compilers[-1].missed(self._kernel)
        launcher.build_early(compiled)
        return compiled

    def _made_elsewhere(self, one: Wanted, compile_: Callable[[], Any]) -> str | None:
        parts = compiledkernel.specialization(compile_) if compilers else None
        if parts is None:
            return None

        def begun() -> None:
            self.begun[one.identity] = time.monotonic()

        try:
            return compilers[-1].compile(self._kernel, parts, self._folder, begun)
        except LeftOutError as error:
            label, cost = configs.label(json.loads(one.identity)), f"it took {error.seconds:.1f} s"
            log.warning("`%s`: %s: %s; it is left out (%s).", self._kernel, label, error, cost)
            raise

    def next(self, deadline: float, tick: Callable[[], None]) -> int | None:
        """Index of the next ready config; None at the deadline, or if the rest takes too long."""
        while (left := deadline - time.monotonic()) > 0 and not self._leaves():
            try:
                index = self.done.get(timeout=min(left, TICK_S))
            except queue.Empty:
                tick()
                continue
            self._note(index)
            return index
        return None

    def _note(self, index: int) -> None:
        _, future = self._open.pop(index, (None, None))  # Triton knew it already, or it failed before the compiler ran
        if self._slow is not None:
            self._slow.note(future is None or (not future.cancelled() and future.exception() is None))

    def _leaves(self) -> bool:
        """Whether the search goes on without the configs that are compiling, once all others are given out."""
        if self._slow is None or not self.done.empty() or len(self.begun) < len(self._open):
            return False
        compiling = {one.identity: future for one, future in self._open.values()}
        mendable = [one.identity for one, _ in self._open.values() if one.hooked]
        return self._slow.leave(compiling, compiling.keys() <= self._joined, mendable)


def _say_at_exit(kernel: str, compilations: Sequence[Future[Any]]) -> None:
    """Say if the process could end but for these compilations."""
    while not _is_ending():
        if not wait(compilations, POLL_S).not_done:
            return
    if left := wait(compilations, SAY_AFTER_S).not_done:
        log.warning("`%s`: the main thread has ended; running compilations hold up the exit: %d.", kernel, len(left))


def _is_ending() -> bool:
    """Whether the main thread has ended: while Python then waits for other threads, executors take nothing more."""
    with ThreadPoolExecutor(1) as probe:
        try:
            probe.submit(int)
        except RuntimeError:
            return True
    return False


def _done_here(action: Callable[[], Any]) -> Future[Any]:
    """The result of an action that this thread runs now."""
    future: Future[Any] = Future()
    try:
        future.set_result(action())
    except Exception as error:
        future.set_exception(error)
    return future


class Slot:
    """Passed to Triton as an executor: hands one compilation to the pool."""

    def __init__(self, pool: Pool, one: Wanted) -> None:
        self._pool, self._one = pool, one
        self.used = False

    def submit(self, compile_: Callable[[], Any]) -> Future[Any]:
        """Called by Triton unless it has compiled the kernel before."""
        self.used = True
        return self._pool.submit(self._one, compile_)
