"""`install(race=True)`: our search behind Triton's `_bench`, instead of the benchmark of Triton's tuners.

Triton's `run` stays in charge: it prunes, asks `_bench` for each config's time, takes the smallest, keeps the times in
`.configs_timings` and its file cache, and tells its listener. The first request starts a race of all configs, or waits
for another process that races them, and each answer is the race's.
"""

from __future__ import annotations

import logging
import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from autotuned import env
from autotuned._startup import after_fork
from autotuned.api import triton_listener
from autotuned.dropin.stock_tuner import Seed, racing, without_grid
from autotuned.key.key import Key, KeySpec
from autotuned.resolve.request import Options, Question, State
from autotuned.resolve.searcher import Searcher
from autotuned.search import exclusions, failures
from autotuned.search.compiling.stragglers import Stragglers
from autotuned.search.exclusions import Reason
from autotuned.store import layout, locks, records
from autotuned.store.choice import Choice, Origin
from autotuned.store.conditions import Conditions
from autotuned.store.journal import Journal
from autotuned.store.record import Timing
from autotuned.triton_compat import kernel
from autotuned.tunable.call import Call, Hooks
from autotuned.typed_json import portable

log = logging.getLogger("autotuned")
_Times = list[float]
PATIENCE = 0.1  # share of a search's: Triton does not wait for calm, and the program waits for its first step
_TRITONS = "CompilationError"  # Triton compiles such a config again, and raises
# Errors that Triton counts as a config's failure too, or that the search has warned of.
_EXCUSED = (
    "OutOfResources",
    "CompilationError",
    "CompileTimeAssertionFailure",
    "PTXASError",
    "Crashed",
    "TimedOut",
    "AnswerError",
)


class StockCall(Call):
    """A call whose hooks get what Triton passes them: arguments by name, the grid, and the config's values."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    arguments: Mapping[str, Any]
    options: Mapping[str, Any]
    grid: Any
    named: Mapping[str, Any]

    def full(self, config: Any) -> dict[str, Any]:
        """As Triton's `_bench` makes it."""
        return {**self.named, **config.all_kwargs()}


class Race:
    """The race of one call of a tuner, started by Triton's first timing; `is_run` if Triton got the race's times.

    `is_partial` if it left configs out: those that its budget cut off, or, without one, those that compile much longer
    than the others. The first call after these have compiled measures them, and waits for all. Until then other calls
    with its key, of any tuner, measure nothing.
    """

    def __init__(self, tuner: Any, seed: Seed, key: Key, call: Call, left: Callable[[], Sequence[Any]]) -> None:
        self._tuner, self._seed, self._key, self._left = weakref.proxy(tuner), seed, key, left
        self._call = _as_given(tuner, call)
        self._times: dict[str, _Times | None] | None = None
        self._unmeasured: _Times | None = None  # of a config that the race did not measure
        self.is_run = self.is_partial = False
        self._slow: Stragglers | None = None  # what it does not wait for

    def times(self, config: Any) -> _Times | None:
        """Median, 20th and 80th percentile in ms, infinite for a failure; None if Triton must measure."""
        if self._times is None:
            self._times = {}  # calls within a trial are not part of this race
            self._times = {} if self._is_refused() else self._run()
        (identity,) = self._seed.identities([config])
        return self._times.get(identity, self._unmeasured)

    def _is_refused(self) -> bool:
        """Whether the caller passes a value that a config sets; Triton rejects that before it calls a hook."""
        return any(self._call.kwargs.keys() & config.kwargs.keys() for config in self._left())

    def _run(self) -> dict[str, _Times | None]:
        try:
            choice = self._choice()
        except Exception as error:  # all failed, or the device is lost: Triton will report it in its own way
            self._say(failures.describe(error))
            return {}
        if choice is None or choice.record is None:
            self._say("not enough memory for a search")
            return {}
        self.is_run = True
        left = self._seed.identities(self._left()).keys() - {one.identity for one in choice.record.timings}
        if left and (racing.budget_s is not None or choice.origin is not Origin.SEARCH or self._slow):
            self._note_left(len(left))
        (winner,) = self._seed.identities([choice.config])
        for timing in choice.record.timings:
            if not _excused(timing):  # Triton would raise it, but trying again could change the caller's data
                about = f"left out: {timing.identity}"
                self._seed.warn_once("`%s`: the race leaves out %s: %s", about, timing.identity, timing.error)
        return answers({timing.identity: timing for timing in choice.record.timings}, winner)

    def _choice(self) -> Choice | None:
        """The choice of a search, or of another process or thread that raced the same key; None if out of memory."""
        question = self._question()
        before = records.read_of(self._key)
        with records.locked(self._key, self._seed.tunable.device(question.call)) as lock:
            known = self._seed.found(self._key, question.live, partly=racing.budget_s != math.inf)
            if known is not None and known.record is not None and known.record.timings:
                is_changed = known.record != before
                if self._is_enough(known, is_changed, question.fresh):
                    return known
            question = question.replace(lock=lock)
            if racing.budget_s is not None:
                return self._searcher().search(question)
            return self._unlimited(question, self._late(lock))

    def _late(self, lock: locks.Lock) -> Journal:
        """The journal of configs that races of this key did not wait for."""
        path = layout.late_journal_path(self._key) if portable(self._key.to_json()) else None
        return Journal(path, self._key, writes=lock is not locks.Lock.BUSY)

    def _unlimited(self, question: Question, late: Journal) -> Choice | None:
        """The choice of a search that may go on without configs that compile much longer than the others.

        It waits for those that an earlier one left out, which have compiled since, and for those that two processes
        were compiling when they ended: one of them may be the cause, and only a search's own journal finds out which.
        """
        digest = self._key.digest
        if digest not in self._seed.has_left and not late.crashed:
            self._slow = Stragglers()
        choice = self._searcher().search(question)
        if self._slow:
            self._seed.has_left.add(digest)
            _compiling[digest] = self._slow
            late.note_compiling(self._slow.identities)
            self._slow.then(partial(_ended, digest, late.erase))
        elif late.crashed or late.suspects:
            late.erase()
        return choice

    def _is_enough(self, known: Choice, is_changed: bool, fresh: bool) -> bool:
        """Whether a choice that is stored now serves this call: a new one, or the best until the rest has compiled."""
        if known.complete:
            return is_changed or not fresh
        slow = _compiling.get(self._key.digest)
        if slow is not None and slow.are_compiling and racing.budget_s is None:
            self._slow = slow
            return True
        return is_changed and (racing.budget_s is not None or self._key.digest not in self._seed.has_left)

    def _note_left(self, count: int) -> None:
        """Note that so many configs were not measured, and that Triton need not either."""
        self.is_partial, self._unmeasured = True, [*triton_listener.FAILED]  # Triton would wait for their compilation
        if racing.budget_s is None:
            self._seed.has_left.add(self._key.digest)
        when = "A later call" if self._slow else "The next process"
        log.info("`%s`: configs not compiled and measured in time: %d. %s measures them.", self._seed.tunable.name,
                 count, when)  # fmt: skip

    def renew_later(self, memory: Any, own: Any) -> None:
        """Drop the choice from a `seeded.Memory` once the configs that this did not wait for can be measured.

        Until then neither this call's arguments nor the tuner are kept alive.
        """
        if self.is_run and self._slow and memory.has(own):
            again = partial(_choose_again, weakref.ref(memory), own, memory.get(own))
            self._slow.then(partial(_ended, self._key.digest, again))

    def _say(self, why: str) -> None:
        self._seed.warn_once("`%s`: no race (%s): Triton measures its configs.", "race", why.splitlines()[0])

    def _question(self) -> Question:
        tuner, live = self._tuner, self._seed.identities(self._left())
        narrowed = tuner.early_config_prune is not None or tuner.perf_model is not None
        return Question(self._call, self._key, live, env.current_mode(), needed=Conditions(None), narrowed=narrowed)

    def _searcher(self) -> Searcher:
        """A new searcher per race: a kept one would keep the tuner alive."""
        tuner, how = self._tuner, kernel.measuring_of(self._tuner)
        hooks = Hooks(how.before and _unless_reset_only(how.before), how.after and _unless_tritons(how.after))
        options = Options(
            lambda: tuner.configs, KeySpec(()), zero=tuple(how.zero), hooks=hooks, do_bench=how.do_bench,
            budget_s=racing.budget_s, patience=PATIENCE, slow=self._slow,
        )  # fmt: skip
        return Searcher(State(self._seed.tunable, options, lambda written: None))


# By the key's digest: compilations that races of this process did not wait for.
_compiling: dict[str, Stragglers] = {}
after_fork(_compiling.clear)


def _ended(digest: str, action: Callable[[], None], failed: Mapping[str, str]) -> None:
    """Called when all that a race did not wait for has compiled or failed."""
    _compiling.pop(digest, None)
    for identity, why in failed.items():  # the next race need not wait for them
        exclusions.process.add(digest, identity, Reason.NOT_COMPILED, why)
    action()


def _choose_again(memory: weakref.ref[Any], own: Any, config: Any) -> None:
    """Drop a choice, in mode "off" at the next change of mode; not after `uninstall`: Triton would measure at once."""
    there = memory()
    if there is None or not racing.on:
        return
    if env.current_mode() == "off":
        there.stop_gap(own, config, "")
    else:
        there.renew(own, config)


def _as_given(tuner: Any, call: Call) -> StockCall:
    """The call as the search launches it."""
    named = {**(tuner.nargs or {}), **call.kwargs}
    return StockCall(call.args, without_grid(call.kwargs), call.arguments, {}, call.grid, named)


def _unless_reset_only(hook: Callable[..., Any]) -> Callable[..., Any]:
    """A user's `pre_hook` without the final `reset_only` call, which Triton makes itself."""
    return lambda arguments, reset_only=False: None if reset_only else hook(arguments)


def _unless_tritons(hook: Callable[..., Any]) -> Callable[..., Any]:
    """A user's `post_hook` without the errors that Triton meets again, and tells the hook (`_answer`)."""
    return lambda arguments, exception: type(exception).__name__ == _TRITONS or hook(arguments, exception=exception)


def answers(timings: Mapping[str, Timing], winner: str) -> dict[str, _Times | None]:
    """The times to report to Triton for each identity, such that the winner's is the least.

    In a near tie the race prefers the first config, but Triton takes the least number: faster ones are reported just
    above the winner.
    """
    found = {identity: _answer(timing) for identity, timing in timings.items()}
    least = found[winner]
    above = [math.nextafter(time, math.inf) for time in least or ()]
    return {
        identity: above if identity != winner and times is not None and least is not None and times <= least else times
        for identity, times in found.items()
    }


def _answer(timing: Timing) -> _Times | None:
    # Triton may try again what does not compile: it launches nothing and raises. After another error it might launch
    # the config on the caller's data.
    if not timing.usable and (timing.error or "").startswith(_TRITONS):
        return None
    return triton_listener.times_of(timing)


def _excused(timing: Timing) -> bool:
    return timing.usable or timing.status == "crashed" or (timing.error or "").startswith(_EXCUSED)
