"""Compiling configs ahead of their first launch: several at once, what they read and write, which are one binary."""

from __future__ import annotations

import itertools
import json
import logging
import math
import queue
import time
import weakref
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import Protocol
else:
    Protocol = object

from autotuned.errors import LeftOutError
from autotuned.search import failures
from autotuned.search.compiling import parallelism, threads
from autotuned.search.exclusions import SharedMemory
from autotuned.store.journal import Journal
from autotuned.triton_compat import cache
from autotuned.triton_compat import compiled as compiledkernel
from autotuned.tunable import configs
from autotuned.tunable.call import Call, Tunable

log = logging.getLogger("autotuned")
TICK_S = 0.25  # how often one who waits for the compilers is told that it still waits


@dataclass(frozen=True)
class Wanted:
    """A config to compile.

    Attributes:
        index: Place in the list of candidates.
        hooked: User code runs before a launch: it may write, and may change what is compiled.
        likely: It is to be tried first: it won for a call like this one.
        suspect: A process ended while it was compiled: it is compiled alone, so that the blame is exact.
    """

    index: int
    identity: str
    config: Any
    hooked: bool = False
    likely: bool = False
    suspect: bool = False

    @property
    def size(self) -> float:
        """Grows with the time it takes to compile: elements of its blocks a warp, times stages.

        Ranks as the times do: correlation 0.78 over 40 configs of a matmul and 0.91 over 36 of an attention kernel,
        Triton 3.9 for sm_90.
        """
        blocks = [value for value in self.config.kwargs.values() if isinstance(value, int) and value > 0]
        stages, warps = getattr(self.config, "num_stages", 1) or 1, getattr(self.config, "num_warps", 1) or 1
        return float(math.prod(blocks)) * stages / warps


@dataclass(frozen=True)
class Ready:
    """A config whose turn it is; `take()` returns its index, or that of an earlier one that is the same binary and has
    the same grid, and raises what stands in its way.
    """

    wanted: Wanted
    take: Callable[[], int]


class Compilers(Protocol):
    """Processes that compile configs of kernels for this one, as `autotuned tune` has them."""

    def compile(
        self, kernel: str, parts: tuple[Any, ...], folder: Path | None, begun: Callable[[], None]
    ) -> str | None:
        """Compile; the hash of the binary in Triton's cache, "" where that failed, None where nothing was tried."""

    def missed(self, kernel: str) -> None:
        """What was compiled there was not found here."""


compilers: list[Compilers] = []  # of the whole process; the last one is in force


class CompileStream:
    """What compiling the configs of one call has shown.

    Attributes:
        excluded: Why a config does not compile, by identity; passing reasons, such as a full memory, are left out.
    """

    def __init__(self, tunable: Tunable, call: Call, journal: Journal | None = None) -> None:
        self._tunable, self._call = tunable, call
        self._journal = journal or Journal(None)
        self._found: list[compiledkernel.Access | None] = []
        self._binaries: dict[Hashable, int] = {}
        self._pool: _Pool | None = None
        self._memory = SharedMemory(compiledkernel.shared_memory_limit() if tunable.compiles_ahead else None)
        self.excluded: dict[str, str] = {}

    @property
    def access(self) -> compiledkernel.Access | None:
        """What all configs that are compiled so far read and write together; None where one does not tell."""
        return compiledkernel.union(self._found)

    def stream(
        self,
        wanted: Sequence[Wanted],
        deadline: float = math.inf,
        tick: Callable[[Wanted], None] = lambda wanted: None,
        enough: Callable[[], bool] = lambda: True,
    ) -> Generator[Ready, None, None]:
        """Compile, and give each config back: one by one, or from a pool; with a deadline as soon as it is ready.

        Those with hooks come last. They are compiled too, for Triton's cache, but their hooks decide what is launched.

        Args:
            deadline: Of `time.monotonic`; once it has passed no compilation begins, and the rest is left out.
            tick: Told which config is compiled, now and then.
            enough: Asked after the deadline whether a config has run; until then it goes on.

        Raises:
            ValueError: `AUTOTUNED_COMPILE_WORKERS` holds no number.
        """
        if any(one.hooked for one in wanted):
            self._found.append(None)
        pooled = [one for one in wanted if not one.suspect]
        count = parallelism.count(len(pooled)) if self._tunable.compiles_ahead else 0
        alone = [one for one in wanted if one.suspect or not count]
        stream = self._pooled(pooled, count, deadline, tick, enough) if count else iter(())
        for ready in itertools.chain(stream, self._serial(alone, tick)):
            if time.monotonic() > deadline and enough():
                return
            yield ready

    def running(self) -> dict[str, float]:
        """What is being compiled at this moment, by identity, and for how many seconds already."""
        now = time.monotonic()
        return {} if self._pool is None else {name: now - begun for name, begun in [*self._pool.begun.items()]}

    # -- one after the other -------------------------------------------------------------------------------------

    def _serial(self, wanted: Sequence[Wanted], tick: Callable[[Wanted], None]) -> Iterator[Ready]:
        for one in sorted(wanted, key=lambda one: one.hooked):
            tick(one)
            yield Ready(one, partial(self._take, one, partial(self._alone, one)))

    def _alone(self, one: Wanted) -> Any:
        if one.hooked:
            return None  # its launch compiles it, after the hook
        self._memory.refuse(one.config)
        with self._journal.compiling(one.identity):
            compiled = self._tunable.compile(self._call, one.config)
        self._memory.note(one.config, compiled)
        return compiled

    # -- in a pool -----------------------------------------------------------------------------------------------

    def _pooled(
        self,
        wanted: Sequence[Wanted],
        count: int,
        deadline: float,
        tick: Callable[[Wanted], None],
        enough: Callable[[], bool],
    ) -> Iterator[Ready]:
        by_index = {one.index: one for one in wanted}
        # With a budget the order of the list is kept: what the user put first is to be measured.
        order = wanted if deadline < math.inf else in_order(wanted)
        last: list[Ready] = []

        def over() -> bool:
            return time.monotonic() > deadline and enough()

        with _Pool(count, self._tunable.name, self._journal, self._memory, over) as pool:
            self._pool = pool
            started = {one.index: self._start(pool, one) for one in order}
            for _ in wanted:
                # One with a hook waits for those without; at the deadline it must do where none of these has run.
                limit = deadline if last or enough() else math.inf
                index = pool.next(limit, partial(tick, order[-1]))
                if index is None:
                    break
                ready = Ready(by_index[index], partial(self._take, by_index[index], started.pop(index)))
                if ready.wanted.hooked or deadline == math.inf:
                    last.append(ready)
                else:
                    yield ready
        # A launch waits for Python's lock as often as it comes back from a call, and the compilers want it too: for 40
        # configs of a matmul 16 cores needed 3.6 s when each was launched as it was ready, 2.6 s for compiling alone
        # (H100, Triton 3.6). What launches then take without them is less. Only a budget asks for answers early.
        yield from sorted(last, key=lambda ready: (ready.wanted.hooked, ready.wanted.index))

    def _start(self, pool: _Pool, one: Wanted) -> Callable[[], Any]:
        """Give one to the pool; the function that waits for it, loads it, and raises what went wrong."""
        slot = _Slot(pool, one)
        try:
            finish = self._tunable.compile_in(slot, self._call, one.config)
        except Exception as error:
            finish = partial(_throw, error)
        if not slot.used:
            pool.done.put(one.index)  # in Triton's table already, or it fails before the compiler runs
        return finish or _nothing

    # -- what has been compiled ----------------------------------------------------------------------------------

    def _take(self, one: Wanted, compile_: Callable[[], Any]) -> int:
        try:
            compiled = compile_()
        except CancelledError:
            raise
        except Exception as error:
            if one.hooked:
                failures.let_go(error)
                return one.index  # the hook may mend it
            if not failures.is_passing(error):
                self.excluded[one.identity] = failures.describe(error)
            raise
        return one.index if one.hooked else self._note(one, compiled)

    def _note(self, one: Wanted, compiled: Any) -> int:
        if compiled is None:
            self._found.append(None)
            return one.index
        facts = _facts_of(compiled)
        self._found.append(facts.access)
        binary, grid = facts.binary, _grid_of(self._call, one.config)
        return one.index if binary is None or grid is None else self._binaries.setdefault((binary, grid), one.index)


@dataclass(frozen=True)
class _Facts:
    """What a compiled kernel reads and writes, and the hash of its binary."""

    access: compiledkernel.Access | None
    binary: str | None


# Found once a binary, not again for each further shape: 1.5 ms each, and 40 of them is as long as their race.
_facts: weakref.WeakKeyDictionary[Any, _Facts] = weakref.WeakKeyDictionary()


def _facts_of(compiled: Any) -> _Facts:
    try:
        found = _facts.get(compiled)
        if found is None:
            found = _facts[compiled] = _Facts(
                compiledkernel.accesses(compiled), compiledkernel.binary_identity(compiled)
            )
    except TypeError:  # of a kind that cannot be a key
        return _Facts(compiledkernel.accesses(compiled), compiledkernel.binary_identity(compiled))
    return found


def in_order(wanted: Iterable[Wanted]) -> list[Wanted]:
    """Those that take longest first, as nearly as can be told."""
    return sorted(wanted, key=_order)


def _order(one: Wanted) -> tuple[bool, float, int]:
    """Longest first; of one tile the fewest stages first, since these tell what more of them need."""
    stages = getattr(one.config, "num_stages", 1) or 1
    return not one.likely, -one.size / stages, stages


def _grid_of(call: Call, config: Any) -> tuple[Any, ...] | None:
    """The grid a config is launched with; None where it cannot be told ahead."""
    try:
        grid = call.grid(call.full(config)) if callable(call.grid) else call.grid
        return tuple(grid)
    except Exception:  # the user's own code, with arguments that heuristics may still have to add
        return None


def _throw(error: Exception) -> Any:
    raise error


def _nothing() -> None:
    """Stands in for what a target does not compile."""


def _closed() -> bool:
    """Whether a pool that is closed begins no other compilation."""
    return True


class _Pool:
    """Threads that compile; `done` has the index of each config that is ready, in that order."""

    def __init__(
        self, count: int, kernel: str, journal: Journal, memory: SharedMemory, over: Callable[[], bool]
    ) -> None:
        self._kernel = kernel
        self._threads = ThreadPoolExecutor(count, "autotuned-compile")
        self._folder, self._journal, self._memory, self._over = cache.current(), journal, memory, over
        self.done: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.begun: dict[str, float] = {}

    def __enter__(self) -> _Pool:
        self._brisk = threads.brisk()
        self._brisk.__enter__()
        return self

    def __exit__(self, *details: object) -> None:
        # A thread that compiles cannot be stopped: it ends by itself, and what it has made stays in the cache.
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._brisk.__exit__(None, None, None)
        self._over = _closed  # what was given leads to the search, and the search to this pool

    def submit(self, one: Wanted, compile_: Callable[[], Any]) -> Future[Any]:
        """Compile on a thread of the pool."""
        future = self._threads.submit(self._run, one, compile_)
        future.add_done_callback(lambda future: self.done.put(one.index))
        return future

    def _run(self, one: Wanted, compile_: Callable[[], Any]) -> Any:
        if self._over():
            raise CancelledError  # as those are that no thread has taken yet
        if not one.hooked:
            self._memory.refuse(one.config)
        with cache.same_as(self._folder):
            self.begun[one.identity] = time.monotonic()
            try:
                compiled = self._made(one, compile_)
            finally:
                del self.begun[one.identity]
        self._memory.note(one.config, compiled)
        return compiled

    def _made(self, one: Wanted, compile_: Callable[[], Any]) -> Any:
        """Let a process compile it, if there is one that can; then it is only loaded here."""
        there = self._made_elsewhere(one, compile_)
        is_kept = bool(there) and cache.holds(str(there))
        with self._journal.compiling(one.identity):
            compiled = threads.parsed_again(compile_)
        if there is not None and not (is_kept and getattr(compiled, "hash", None) == there):
            compilers[-1].missed(self._kernel)
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
        """The next config that is ready; None if the deadline comes first."""
        while (left := deadline - time.monotonic()) > 0:
            try:
                return self.done.get(timeout=min(left, TICK_S))
            except queue.Empty:
                tick()
        return None


class _Slot:
    """What Triton takes for an executor: it leaves one compilation to the pool."""

    def __init__(self, pool: _Pool, one: Wanted) -> None:
        self._pool, self._one = pool, one
        self.used = False

    def submit(self, compile_: Callable[[], Any]) -> Future[Any]:
        """Called by Triton unless its table has the kernel."""
        self.used = True
        return self._pool.submit(self._one, compile_)
