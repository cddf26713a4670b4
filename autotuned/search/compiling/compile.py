"""Compile configs ahead of their first launch, several at once; learn what they access and which are duplicates."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import os
import sys
import time
import weakref
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from autotuned import env
from autotuned.search import failures
from autotuned.search.compiling import crew, parallelism
from autotuned.search.compiling.pool import Pool, Slot, Wanted
from autotuned.search.exclusions import SharedMemory
from autotuned.store.journal import Journal
from autotuned.triton_compat import compiled as compiledkernel
from autotuned.triton_compat.unfinished import Compiling
from autotuned.tunable.call import Call
from autotuned.tunable.tunable import Tunable

if TYPE_CHECKING:
    from autotuned.search.compiling.stragglers import Stragglers

log = logging.getLogger("autotuned")


@dataclass(frozen=True)
class Ready:
    """A config that may launch; `take()` returns its index or an earlier duplicate's, or raises what went wrong."""

    wanted: Wanted
    take: Callable[[], int]


@dataclass(frozen=True)
class _Terms:
    """How configs are compiled in a pool; the callables are those of `CompileStream.stream`."""

    count: int  # of threads
    deadline: float
    tick: Callable[[Wanted], None]
    enough: Callable[[], bool]
    further: Callable[[], Iterable[Wanted]]
    early: bool  # yield each config once it is compiled, in the given order, not when all are
    slow: Stragglers | None  # keeps the compilations that are not waited for; None to wait for all


class CompileStream:
    """Compiles the configs of one call.

    Args:
        all_cores: Compile on all cores that no other rank of this host compiles on.
    """

    def __init__(self, tunable: Tunable, call: Call, journal: Journal | None = None, all_cores: bool = False) -> None:
        self._tunable, self._call, self._all_cores = tunable, call, all_cores
        self._journal = journal or Journal(None)
        self._found: list[compiledkernel.Access | None] = []
        self._binaries: dict[Hashable, int] = {}
        self._pool: Pool | None = None
        self._memory = SharedMemory(compiledkernel.shared_memory_limit() if tunable.compiles_ahead else None)
        if not tunable.compiles_ahead:
            env.say_if_workers_are_wrong()
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
        slow: Stragglers | None = None,
    ) -> Generator[Ready, None, None]:
        """Compile configs and yield each as soon as it may launch.

        Without a deadline, configs with hooks come last: they are compiled for Triton's cache, but their hooks affect
        what is launched.

        Args:
            deadline: On `time.monotonic`; no compilation begins after it, and the rest is skipped.
            tick: Called now and then with a config that is compiling.
            enough: Whether a config has run; until then the deadline does not count.
            more: Called after each yielded config; returns more configs to compile.
            slow: Keeps the compilations that are not waited for; only without `deadline` and `more`. None to wait for
                all.

        Raises:
            ValueError: `AUTOTUNED_COMPILE_WORKERS` holds no number.
        """
        if any(one.hooked for one in wanted):
            self._found.append(None)
        pooled, is_limited = [one for one in wanted if not one.suspect], deadline < math.inf
        most = (len(pooled) or int(is_limited)) if more is None else sys.maxsize
        is_early = is_limited or more is not None
        slow = slow if slow is not None and not is_early and parallelism.cores() > 1 else None
        goes_on = is_limited or slow is not None
        count = parallelism.count(most, self._all_cores, limited=goes_on) if self._tunable.compiles_ahead else 0
        alone = [one for one in wanted if one.suspect or not count]

        def further() -> Iterator[Wanted]:
            for one in more() if more is not None else ():
                if one.suspect:
                    alone.append(one)
                else:
                    yield one

        terms = _Terms(count, deadline, tick, enough, further, is_early, slow)
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
        """Suspects one after the other, each in its share of the time left; the last may exceed it if none has run."""
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

        slots, slow = crew.shared_slots() if self._all_cores else [], terms.slow
        with Pool(terms.count, self._tunable.name, self._journal, self._memory, over, slots, slow) as pool:
            self._pool = pool
            started = {one.index: (one, self._start(pool, one)) for one in order}
            if slow is not None:
                slow.begin()
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
            for _, finish in started.values():
                if isinstance(finish, Compiling):
                    finish.outlast()
        # Launching while others compile is slow, since both need Python's lock: 40 configs of a matmul on 16 cores took
        # 3.6 s, compiling alone 2.6 s (H100, Triton 3.6). So configs are launched early only with a budget, or where
        # their times say what to compile next.
        yield from sorted(last, key=lambda ready: (ready.wanted.hooked, ready.wanted.index))

    def _start(self, pool: Pool, one: Wanted) -> Callable[[], Any]:
        """Submit to the pool; returns a function that waits, loads, and raises what went wrong."""
        slot = Slot(pool, one)
        try:
            finish = self._tunable.compile_in(slot, self._call, one.config)
        except Exception as error:
            finish = partial(_throw, error)
        running = finish.running if isinstance(finish, Compiling) else None
        if not slot.used and running is not None:
            pool.join(one, running)
        elif not slot.used:
            pool.done.put(one.index)  # known to Triton already, or failed before the compiler ran
        return finish or (lambda: None)  # a tunable that compiles nothing

    # -- results -------------------------------------------------------------------------------------------------

    def _take(self, one: Wanted, compile_: Callable[[], Any]) -> int:
        try:
            compiled = compile_()
        except Exception as error:
            if one.hooked and not isinstance(error, CancelledError):
                failures.let_go(error)
                return one.index  # the hook may fix it
            if not failures.is_passing(error):
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
