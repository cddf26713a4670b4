"""Threads that compile binaries into Triton's cache, each once per host across processes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from autotuned import env
from autotuned._startup import after_fork
from autotuned.key.source_text import parsed_again
from autotuned.search import failures
from autotuned.search.compiling import parallelism
from autotuned.store import layout, locks
from autotuned.triton_compat import cache, launcher
from autotuned.triton_compat.compiled import Compilation

log = logging.getLogger("autotuned")
TICK_S = 0.5  # interval of `tick` while waiting
POLL_S = 0.05  # interval between checks for binaries and cores that other processes have finished with
STALL_S = 300.0  # give up this long after the last binary: no observed compilation took that long


class Crew:
    """Threads that take the next binary of a list that no process on this host is compiling.

    They end when the list is empty or after `close`; at process exit, after their current compilation.

    Args:
        wanted: What to compile, in order.
        count: Number of threads.
        slots: Locks of this host's processors if processes share them; each compilation holds one.
        noted: Context around each compilation, given its hash.
    """

    def __init__(
        self,
        wanted: Sequence[Compilation],
        count: int,
        slots: Sequence[Path] = (),
        noted: Callable[[str], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self.total, self._count, self._slots, self._noted = len(wanted), min(count, len(wanted)), slots, noted
        self._left, self._ended = list(wanted), threading.Condition()
        self._open = {one.digest for one in wanted}  # left, or being compiled
        self._looking, self._turn, self._over = threading.Lock(), threading.Lock(), threading.Event()
        self._latest_s, self._for = time.monotonic(), threading.current_thread()

    @property
    def done(self) -> int:
        """Number of binaries compiled by any process, or failed."""
        return self.total - len(self._open)

    def start(self) -> Crew:
        """Start the threads; none if the system refuses."""
        try:
            for number in range(self._count):
                threading.Thread(target=self._work, name=f"autotuned-ahead_{number}").start()
        except RuntimeError as error:
            log.debug("compile ahead: %s", error)
            if number == 0:
                self.close()
        return self

    def close(self) -> None:
        """Start no more compilations; running ones complete."""
        self._over.set()

    def wait(self, tick: Callable[[], None]) -> bool:
        """Wait until all are done, calling `tick` now and then; False without threads, or if none ends in `STALL_S`."""
        while self._open and time.monotonic() - self._latest_s < STALL_S and not self._over.is_set():
            with self._ended:
                self._ended.wait_for(lambda: not self._open or self._over.is_set(), TICK_S)
            tick()
        return not self._open

    def wait_for(self, digest: str) -> None:
        """Wait for a binary that is being compiled; one not begun is left to the caller."""
        with self._turn:
            for one in [one for one in self._left if one.digest == digest]:
                with ExitStack() as held:
                    if _hold(held, _lock_of(one)):  # otherwise another process compiles it
                        self._left.remove(one)
                        self._end(digest)
        with self._ended:
            self._ended.wait_for(lambda: digest not in self._open, STALL_S)

    def _work(self) -> None:
        while (claimed := self._claim()) is not None:
            one, held = claimed
            try:
                with held, self._noted(one.digest):
                    _compile(one)
            finally:
                self._end(one.digest)

    def _claim(self) -> tuple[Compilation, ExitStack] | None:
        """The next binary that nobody compiles, with its locks held; None at the end."""
        with self._looking:  # one thread looks, the others wait for it
            while self._left and not self._over.is_set() and self._goes_on():
                with self._turn:
                    found = self._free()
                if found is not None:
                    return found
                with self._ended:
                    self._ended.wait(POLL_S)
            if self._left:  # at process exit nothing waits for them
                self.close()
        return None

    def _goes_on(self) -> bool:
        """Whether the process, or the thread that this is for, is not about to end; a main thread may end first."""
        return any(one.is_alive() and not one.daemon for one in (threading.main_thread(), self._for))

    def _free(self) -> tuple[Compilation, ExitStack] | None:
        held = ExitStack()
        if not _hold(held, self._slots, stays=True):
            return None
        for one in list(self._left):
            if cache.holds(one.digest):
                self._left.remove(one)
                self._end(one.digest)
            elif _hold(held, _lock_of(one)):
                self._left.remove(one)
                return one, held
        held.close()
        return None

    def _end(self, digest: str) -> None:
        with self._ended:
            self._open.discard(digest)
            self._latest_s = time.monotonic()
            self._ended.notify_all()


def shared_slots() -> list[Path]:
    """Locks of the processors if ranks of one job share this host; none if the user sets the workers."""
    if env.local_ranks() < 2 or env.compile_workers() is not None:
        return []
    return [layout.compile_slot_path(locks.host(), number) for number in parallelism.places()]


class Turns:
    """Makes threads of one pool wait for a free slot of `shared_slots` before each compilation."""

    def __init__(self, slots: Sequence[Path]) -> None:
        self._slots, self._looking = slots, threading.Lock()

    @contextmanager
    def turn(self, over: Callable[[], bool]) -> Iterator[None]:
        """Hold a slot once one is free; none once it is `over`, or after `STALL_S`."""
        end = time.monotonic() + STALL_S
        with ExitStack() as held:
            with self._looking:  # one thread looks, the others wait for it
                while not _hold(held, self._slots, stays=True) and not over() and time.monotonic() < end:
                    time.sleep(POLL_S)
            yield


def _compile(one: Compilation) -> None:
    if cache.holds(one.digest):
        return  # another process was quicker
    try:
        binary = parsed_again(one.run)
        one.ended(binary)  # Triton need not read it from its cache again
        launcher.build_early(binary)
    except Exception as error:  # Triton will meet and report it again
        log.debug("compile ahead: %s", failures.describe(error))
        failures.let_go(error)


def _lock_of(one: Compilation) -> list[Path]:
    try:
        return [cache.lock_path(one.digest)]
    except OSError:
        return []


_ours: set[Path] = set()  # locks held by threads of this process: trying one takes 0.4 ms, and there may be 100
after_fork(_ours.clear)


def _hold(held: ExitStack, paths: Sequence[Path], stays: bool = False) -> bool:
    """Hold the first free lock; True if there are no locks."""
    for path in paths:
        if path not in _ours and (let_go := locks.claim(path, stays)) is not None:
            _ours.add(path)
            held.callback(let_go)
            held.callback(_ours.discard, path)
            return True
    return not paths
