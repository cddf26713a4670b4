"""`install(race=True)`: our search in place of the benchmark of Triton's tuners, behind Triton's own `_bench`.

Triton's `run` stays in charge: it prunes, asks `_bench` for the time of each config, takes the least, keeps the times
in `.configs_timings` and in its file cache, and tells its listener. Here the first config that is asked for starts a
race of all of them, and each answer is what the race found.
"""

from __future__ import annotations

import logging
import math
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from triton.runtime.autotuner import Autotuner

from autotuned import env
from autotuned.api import triton_listener
from autotuned.dropin import stock_tuner
from autotuned.dropin.stock_tuner import Seed
from autotuned.key.key import Key, KeySpec
from autotuned.resolve.request import Options, Question, State
from autotuned.resolve.searcher import Searcher
from autotuned.search import failures
from autotuned.store.conditions import Conditions
from autotuned.store.record import Timing
from autotuned.triton_compat import kernel
from autotuned.tunable.call import Call, Hooks

log = logging.getLogger("autotuned")
_Times = list[float]
_FAILED = [math.inf] * 3  # Triton's own word for a config that failed
# What Triton counts as a failure of the config, and what must not be tried again; the program sees other errors.
_EXCUSED = ("OutOfResources", "CompileTimeAssertionFailure", "PTXASError", "Crashed", "TimedOut")


class StockCall(Call):
    """A call whose hooks see what Triton gives them: arguments by place, the keywords with the grid, the config's."""

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
    """The race of one call of a tuner, begun by the first config whose time Triton asks for.

    Attributes:
        is_run: Whether the times that Triton got are the race's; if not, Triton measured them.
    """

    def __init__(self, tuner: Any, seed: Seed, key: Key, call: Call, left: Callable[[], Sequence[Any]]) -> None:
        self._tuner, self._seed, self._key, self._left = weakref.proxy(tuner), seed, key, left
        self._call = _as_given(tuner, call)
        self._nargs = tuner.nargs
        self._times: dict[str, _Times | None] | None = None
        self.is_run = False
        self._outer, _now.race = _now.race, self

    def close(self) -> None:
        """The call is over."""
        _now.race = self._outer
        self._nargs = self._outer = None

    def is_of(self, tuner: Any) -> bool:
        """Whether a tuner measures for this call, and not for another one within it."""
        return tuner.nargs is self._nargs

    def times(self, config: Any) -> _Times | None:
        """Median, 20th and 80th percentile in milliseconds, infinite for a failure; None where Triton must measure."""
        if self._times is None:
            self._times = {}  # a call within a trial is none of this race
            self._times = self._run()
        (identity,) = self._seed.identities([config])
        return self._times.get(identity)

    def _run(self) -> dict[str, _Times | None]:
        try:
            choice = self._searcher().search(self._question())
        except Exception as error:  # all failed, or the device is lost: Triton meets the same, and says it in its way
            self._say(failures.describe(error))
            return {}
        if choice is None or choice.record is None:
            self._say("there is no room for a search")
            return {}
        self.is_run = True
        (winner,) = self._seed.identities([choice.config])
        return answers({timing.identity: timing for timing in choice.record.timings}, winner)

    def _say(self, why: str) -> None:
        why = why.splitlines()[0] if why else why
        self._seed.warn_once("`%s`: no race (%s): Triton measures its configs.", "race", why)

    def _question(self) -> Question:
        tuner, live = self._tuner, self._seed.identities(self._left())
        narrowed = tuner.early_config_prune is not None or tuner.perf_model is not None
        return Question(self._call, self._key, live, env.current_mode(), needed=Conditions(None), narrowed=narrowed)

    def _searcher(self) -> Searcher:
        """Made anew for each race: what it would remember lives as long as the tuner, which it must not keep alive."""
        tuner, how = self._tuner, kernel.measured_by(self._tuner)
        hooks = Hooks(how.before and _unless_reset_only(how.before), how.after)
        options = Options(
            lambda: tuner.configs, KeySpec(()), zero=tuple(how.zero), hooks=hooks, do_bench=how.do_bench
        )  # fmt: skip
        return Searcher(State(self._seed.tunable, options, lambda written: None))


class _Now(threading.local):
    """The innermost race of this thread."""

    race: Race | None = None


_now = _Now()


def _as_given(tuner: Any, call: Call) -> StockCall:
    """The call as the search launches it, without what `run` is given besides: the grid, and that it is no warm-up."""
    kwargs = {name: value for name, value in call.kwargs.items() if name not in ("grid", "warmup")}
    return StockCall(call.args, kwargs, call.arguments, {}, call.grid, {**(tuner.nargs or {}), **call.kwargs})


def _unless_reset_only(hook: Callable[..., Any]) -> Callable[..., Any]:
    """A user's `pre_hook` without the last word after a search, which Triton says itself."""
    return lambda arguments, reset_only=False: None if reset_only else hook(arguments)


def answers(timings: Mapping[str, Timing], winner: str) -> dict[str, _Times | None]:
    """What Triton is told of each config by identity, so that the least time is the winner's.

    In a near tie the race takes the first of the list, where Triton takes the least number: what measured less than
    the winner is told as just above it.
    """
    found = {identity: _answer(timing) for identity, timing in timings.items()}
    least = found[winner]
    above = [math.nextafter(time, math.inf) for time in least or ()]
    return {
        identity: above if identity != winner and times is not None and least is not None and times <= least else times
        for identity, times in found.items()
    }


def _answer(timing: Timing) -> _Times | None:
    if timing.usable:
        low_us, median_us, high_us = timing.typical_us
        return [median_us / 1e3, low_us / 1e3, high_us / 1e3]
    kind, _, _ = (timing.error or "").partition(":")
    excused = timing.status == "crashed" or kind in _EXCUSED
    return _FAILED if excused else None  # Triton's own attempt raises what it raised here


def begin() -> None:
    """Race where Triton's tuners would measure, from now on; not where somebody has replaced `Autotuner._bench`."""
    stock: Any = Autotuner._bench
    if stock_tuner.racing.on:
        return
    if not kernel.is_tritons(stock):
        log.warning("install: Autotuner._bench was replaced before (%s): there are no races.", stock)
        return

    def _bench(self: Any, *args: Any, config: Any, **meta: Any) -> Any:
        race = _now.race
        times = race.times(config) if race is not None and race.is_of(self) else None
        if times is None:
            return stock(self, *args, config=config, **meta)
        triton_listener.say_measured(self.base_fn.__name__, config)
        return list(times)

    _bench.in_front_of = stock  # type: ignore[attr-defined]
    Autotuner._bench = _bench
    stock_tuner.racing.on = True


def end() -> None:
    """Take back what `begin` did; where somebody has replaced `_bench` since, theirs stays."""
    stock_tuner.racing.on = False
    ours = getattr(Autotuner._bench, "in_front_of", None)
    if ours is not None:
        Autotuner._bench = ours
