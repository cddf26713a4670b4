"""Compile configs ahead of their first launch, several at once; learn what they access and which are duplicates."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import math
import os
import queue
import sys
import time
import weakref
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from autotuned._startup import Protocol
from autotuned.errors import LeftOutError, SealedError
from autotuned.key.source_text import parsed_again
from autotuned.search import failures
from autotuned.search.compiling import crew, parallelism, threads
from autotuned.search.exclusions import SharedMemory
from autotuned.store.journal import Journal
from autotuned.triton_compat import cache, launcher
from autotuned.triton_compat import compiled as compiledkernel
from autotuned.tunable import configs
from autotuned.tunable.call import Call
from autotuned.tunable.tunable import Tunable

log = logging.getLogger("autotuned")
TICK_S = 0.25  # interval of `tick` while waiting for compilers


@dataclass(frozen=True)
class Wanted:
    """A config to compile."""

    index: int  # position in the list of candidates
    identity: str
    config: Any
    hooked: bool = False  # user code runs before the launch: it may write tensors, and change the compilation
    likely: bool = False  # to be tried first: it won for a similar call
    suspect: bool = False  # a process died while compiling it: compile it alone, to know whom to blame

    @property
    def size(self) -> float:
        """Estimates the compile time: block elements per warp, times stages.

        Correlates with measured times: 0.78 over 40 configs of a matmul, 0.91 over 36 of attention (Triton 3.9, sm_90).
        """
        blocks = [value for value in self.config.kwargs.values() if isinstance(value, int) and value > 0]
        stages, warps = getattr(self.config, "num_stages", 1) or 1, getattr(self.config, "num_warps", 1) or 1
        return float(math.prod(blocks)) * stages / warps


@dataclass(frozen=True)
class Ready:
    """A config that may launch; `take()` returns its index, or an earlier duplicate's, and raises any error of the
    wrong.
    """

    wanted: Wanted
    take: Callable[[], int]


class Compilers(Protocol):
    """Processes that compile configs for this one, as under `autotuned tune`."""

    def compile(
        self, kernel: str, parts: tuple[Any, ...], folder: Path | None, begun: Callable[[], None]
    ) -> str | None:
        """Compile; returns the binary's hash in Triton's cache, "" if that failed, None if not attempted."""

    def missed(self, kernel: str) -> None:
        """A binary compiled there was not found here."""


compilers: list[Compilers] = []  # process-wide; the last one is in force


@dataclass(frozen=True)
class _Terms:
    """How configs are compiled in a pool; the callables are those of `CompileStream.stream`."""

    count: int  # of threads
    deadline: float
    tick: Callable[[Wanted], None]
    enough: Callable[[], bool]
    further: Callable[[], Iterable[Wanted]]
    early: bool  # yield each config once it is compiled, in the given order, not when all are


class CompileStream:
    """Compiles the configs of one call; with `all_cores` on all cores that no other rank of this host compiles on."""

    def __init__(self, tunable: Tunable, call: Call, journal: Journal | None = None, all_cores: bool = False) -> None:
        self._tunable, self._call, self._all_cores = tunable, call, all_cores
        self._journal = journal or Journal(None)
        self._found: list[compiledkernel.Access | None] = []
        self._binaries: dict[Hashable, int] = {}
        self._pool: _Pool | None = None
        self._memory = SharedMemory(compiledkernel.shared_memory_limit() if tunable.compiles_ahead else None)
        self.done = 0  # configs compiled, or failed
        self.excluded: dict[str, str] = {}  # why configs do not compile, without passing reasons; by identity

    @property
    def access(self) -> compiledkernel.Access | None:
        """The accesses of the configs compiled so far; None if those of one are unknown."""
        known = [access for access in self._found if access is not None]
        return compiledkernel.union(known) if known and len(known) == len(self._found) else None

    def stream(
        self,
        wanted: Sequence[Wanted],
        deadline: float = math.inf,
        tick: Callable[[Wanted], None] = lambda wanted: None,
        enough: Callable[[], bool] = lambda: True,
        more: Callable[[], Sequence[Wanted]] | None = None,
    ) -> Generator[Ready, None, None]:
        """Compile configs and yield each as soon as it may launch.

        Without a deadline, configs with hooks come last: they are compiled for Triton's cache, but their hooks affect
        what is launched.

        Args:
            deadline: On `time.monotonic`; no compilation begins after it, and the rest is skipped.
            tick: Called now and then with a config that is compiling.
            enough: Whether a config has run; until then the deadline does not count.
            more: Called after each yielded config; returns more configs to compile.

        Raises:
            ValueError: `AUTOTUNED_COMPILE_WORKERS` holds no number.
        """
        if any(one.hooked for one in wanted):
            self._found.append(None)
        pooled, is_limited = [one for one in wanted if not one.suspect], deadline < math.inf
        most = (len(pooled) or int(is_limited)) if more is None else sys.maxsize
        count = parallelism.count(most, self._all_cores, limited=is_limited) if self._tunable.compiles_ahead else 0
        alone = [one for one in wanted if one.suspect or not count]

        def further() -> Iterator[Wanted]:
            for one in more() if more is not None else ():
                if one.suspect:
                    alone.append(one)
                else:
                    yield one

        terms = _Terms(count, deadline, tick, enough, further, is_limited or more is not None)
        stream = self._pooled(pooled, terms) if count and pooled else iter(())
        rest = self._in_turn(alone, terms) if count and is_limited else self._serial(alone, tick)
        for ready in itertools.chain(stream, rest):
            if time.monotonic() > deadline and enough():
                return
            yield ready

    def running(self) -> dict[str, float]:
        """Seconds since each running compilation began, by identity."""
        now = time.monotonic()
        return {} if self._pool is None else {name: now - begun for name, begun in [*self._pool.begun.items()]}

    # -- one after the other -------------------------------------------------------------------------------------

    def _serial(self, wanted: Sequence[Wanted], tick: Callable[[Wanted], None]) -> Iterator[Ready]:
        for one in sorted(wanted, key=lambda one: one.hooked):
            tick(one)
            yield Ready(one, partial(self._take, one, partial(self._alone, one)))
            self.done += 1

    def _alone(self, one: Wanted) -> Any:
        if one.hooked:
            return None  # its launch compiles it, after the hook
        self._memory.refuse(one.config)
        with self._journal.compiling(one.identity):
            compiled = self._tunable.compile(self._call, one.config)
        self._memory.note(one.config, compiled)
        return compiled

    def _in_turn(self, wanted: Sequence[Wanted], terms: _Terms) -> Iterator[Ready]:
        """Suspects one after the other, each for its share of the time left; without a deadline if none other ran."""
        for left, one in zip(range(len(wanted), 0, -1), wanted):
            share = time.monotonic() + (terms.deadline - time.monotonic()) / left
            enough = terms.enough if left == 1 else lambda: True
            yield from self._pooled([one], replace(terms, count=1, deadline=share, enough=enough, further=tuple))

    # -- in a pool -----------------------------------------------------------------------------------------------

    def _pooled(self, wanted: Sequence[Wanted], terms: _Terms) -> Iterator[Ready]:
        # With a budget keep the user's order: the first configs must be measured.
        order = wanted if terms.early else in_order(wanted)
        last: list[Ready] = []

        def over() -> bool:
            return time.monotonic() > terms.deadline and terms.enough()

        slots = crew.shared_slots() if self._all_cores else []
        with _Pool(terms.count, self._tunable.name, self._journal, self._memory, over, slots) as pool:
            self._pool = pool
            started = {one.index: (one, self._start(pool, one)) for one in order}
            while started:
                limit = terms.deadline if terms.enough() else math.inf
                index = pool.next(limit, partial(terms.tick, order[-1]))
                if index is None:
                    break
                self.done += 1
                one, finish = started.pop(index)
                ready = Ready(one, partial(self._take, one, finish))
                if not terms.early:
                    last.append(ready)
                    continue
                yield ready
                started |= {one.index: (one, self._start(pool, one)) for one in terms.further()}
        # Launching while others compile is slow, since both need Python's lock: 40 configs of a matmul on 16 cores took
        # 3.6 s, compiling alone 2.6 s (H100, Triton 3.6). So configs are launched early only with a budget, or where
        # their times say what to compile next.
        yield from sorted(last, key=lambda ready: (ready.wanted.hooked, ready.wanted.index))

    def _start(self, pool: _Pool, one: Wanted) -> Callable[[], Any]:
        """Submit to the pool; returns a function that waits, loads, and raises what went wrong."""
        slot = _Slot(pool, one)
        try:
            finish = self._tunable.compile_in(slot, self._call, one.config)
        except Exception as error:
            finish = partial(_throw, error)
        if not slot.used:
            pool.done.put(one.index)  # known to Triton already, or failed before the compiler ran
        return finish or (lambda: None)  # a tunable that compiles nothing

    # -- results -------------------------------------------------------------------------------------------------

    def _take(self, one: Wanted, compile_: Callable[[], Any]) -> int:
        try:
            compiled = compile_()
        except CancelledError:
            raise
        except Exception as error:
            if one.hooked:
                failures.let_go(error)
                return one.index  # the hook may fix it
            if not failures.is_passing(error) and not isinstance(error, SealedError):
                self.excluded[one.identity] = failures.describe(error)
            raise
        return one.index if one.hooked else self._note(one, compiled)

    def _note(self, one: Wanted, compiled: Any) -> int:
        if compiled is None:
            self._found.append(None)
            return one.index
        access, binary = _facts_of(compiled)
        self._found.append(access)
        grid = _grid_of(self._call, one.config)
        return one.index if binary is None or grid is None else self._binaries.setdefault((binary, grid), one.index)


_Facts = tuple["compiledkernel.Access | None", "str | None"]  # accesses, and the hash of the binary
# Cached per binary: 1.5 ms each, and 40 of them would take as long as their race.
_facts: weakref.WeakKeyDictionary[Any, _Facts] = weakref.WeakKeyDictionary()


def _facts_of(compiled: Any) -> _Facts:
    with contextlib.suppress(TypeError):  # not hashable, or no weak references
        if compiled in _facts:
            return _facts[compiled]
    found = compiledkernel.accesses(compiled), compiledkernel.binary_identity(compiled)
    with contextlib.suppress(TypeError):
        _facts[compiled] = found
    return found


def in_order(wanted: Iterable[Wanted]) -> list[Wanted]:
    """Longest compilations first, by estimate."""
    return sorted(wanted, key=_order)


def _order(one: Wanted) -> tuple[bool, float, int]:
    """Longest first; within one tile the fewest stages first, which predict the memory of more."""
    stages = getattr(one.config, "num_stages", 1) or 1
    return not one.likely, -one.size / stages, stages


def _grid_of(call: Call, config: Any) -> tuple[Any, ...] | None:
    """A config's grid; None if it cannot be evaluated in advance."""
    try:
        grid = call.grid(call.full(config)) if callable(call.grid) else call.grid
        return tuple(grid)
    except Exception:  # user code, perhaps without arguments that heuristics add later
        return None


def _throw(error: Exception) -> Any:
    raise error


class _Pool:
    """Threads that compile; `done` receives the index of each config as it gets ready."""

    def __init__(
        self, count: int, kernel: str, journal: Journal, memory: SharedMemory, over: Callable[[], bool],
        slots: Sequence[Path],
    ) -> None:  # fmt: skip
        self._kernel, self._turns = kernel, crew.Turns(slots)
        self._threads = ThreadPoolExecutor(count, "autotuned-compile")
        self._folder, self._journal, self._memory, self._over = cache.current(), journal, memory, over
        self.done: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.begun: dict[str, float] = {}

    def __enter__(self) -> _Pool:
        self._brisk = threads.brisk()
        self._brisk.__enter__()
        return self

    def __exit__(self, *details: object) -> None:
        # A compiling thread cannot be stopped: it runs to its end, and its binary stays in the cache.
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._brisk.__exit__(None, None, None)
        self._over = lambda: True  # breaks the cycle with the search

    def submit(self, one: Wanted, compile_: Callable[[], Any]) -> Future[Any]:
        try:
            future = self._threads.submit(self._run, one, compile_)
        except RuntimeError:  # Python's executors end with the main thread; or the system starts no more threads
            future = _done_here(partial(self._run, one, compile_))
        future.add_done_callback(lambda future: self.done.put(one.index))
        return future

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
        """Index of the next ready config; None at the deadline."""
        while (left := deadline - time.monotonic()) > 0:
            try:
                return self.done.get(timeout=min(left, TICK_S))
            except queue.Empty:
                tick()
        return None


def _done_here(action: Callable[[], Any]) -> Future[Any]:
    """The result of an action that this thread runs now."""
    future: Future[Any] = Future()
    try:
        future.set_result(action())
    except Exception as error:
        future.set_exception(error)
    return future


class _Slot:
    """Passed to Triton as an executor: hands one compilation to the pool."""

    def __init__(self, pool: _Pool, one: Wanted) -> None:
        self._pool, self._one = pool, one
        self.used = False

    def submit(self, compile_: Callable[[], Any]) -> Future[Any]:
        """Called by Triton unless it has compiled the kernel before."""
        self.used = True
        return self._pool.submit(self._one, compile_)


# -- long waits --------------------------------------------------------------------------------------------------------

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
