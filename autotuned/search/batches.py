"""A search in batches: a strategy asks for configs, they race the best so far, and the strategy learns their times.

If the strategy can be asked ahead, a batch grows while it is compiled, so that nothing waits for the slowest config.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from autotuned.errors import CheckError, DecorationError, DeviceLostError, OutOfMemoryError, SealedError
from autotuned.search import failures, search
from autotuned.search.compiling import parallelism
from autotuned.search.job import Job, Outcome
from autotuned.store.record import Timing
from autotuned.tunable import configs
from autotuned.typed_json import Json

if TYPE_CHECKING:
    from autotuned.space.strategies import AskTell

log = logging.getLogger("autotuned")
LEAST_BATCH, MOST_BATCH = 8, 64
GROWTH, SHARE = 4, 0.5  # a batch grows to at most this many times its size, in this share of the time left
NO_TIME = "the budget is used up"
MOST = 600  # approximate number of trials of a search by our own strategies
IN_VAIN, GAIN = 96, 0.995  # end after this many trials, and half of all, without a time below this share of the best


@dataclass(frozen=True)
class Source:
    """Where a search gets its configs."""

    strategy: AskTell
    admit: Callable[[Iterable[Any]], Mapping[str, Any]]  # returns the configs that the call may use, by identity
    size: str  # number of configs, as text
    says: Callable[[], Mapping[str, Json]] = dict  # returns facts for the record, such as parameters' importance


def run(job: Job, outcome: Outcome, source: Source) -> None:
    """Search until the strategy ends, no gain is likely or time is up; fills `outcome` like `search.run`.

    The strategy first learns the known timings. The untuned config and the best so far are in every race, so that times
    of different batches are never compared.

    Raises:
        AllConfigsFailedError: Nothing runs.
        Exception: As `search.run`.
    """
    batches = _Batches(job, outcome, source)
    try:
        for fresh in batches:
            batches.race(fresh)
        batches.raise_if_none()
    finally:
        batches.finish()


class _Batches:
    def __init__(self, job: Job, outcome: Outcome, source: Source) -> None:
        self._job, self._outcome, self._source = job, outcome, source
        self._configs, self._known = dict(job.configs), dict(job.known)
        self._start, self._stopped = time.perf_counter(), "interrupted"
        self._best: list[Json] = []
        self._message = "no config was tried: the strategy asked for none"
        self._trials, self._better_at, self._lead = 0, 0, math.inf
        self._own = hasattr(source.strategy, "doubt")  # a user's strategy ends by itself
        self._incumbent, self._raced = job.incumbent, False
        self._grows = (getattr(source.strategy, "asks_ahead", False) is True and job.tunable.compiles_ahead
                       and job.timer.overlaps and job.objective == "kernel" and job.hooks.before is None)  # fmt: skip
        self._batch: dict[str, Any] = {}  # configs being measured, by identity
        self._error: Exception | None = None  # of the strategy, a constraint or a pruner while the batch grew
        self._most, self._until_s = 0, math.inf  # size to which the batch may grow, and when growth ends
        for timing in self._own_timings() if job.incumbent is None else ():  # an interrupted search
            self._trials += 1
            self._note(timing.median_us if timing.usable else None, self._trials)

    def _own_timings(self) -> list[Timing]:
        """Timings of this call's configs: a record may hold those of other calls or an earlier declaration."""
        return [timing for name, timing in self._known.items() if name in self._configs]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Configs of each batch, by identity."""
        told = [(config, self._known[name]) for name, config in self._configs.items() if name in self._known]
        self._source.strategy.tell([_result(config, timing) for config, timing in told])
        waiting = {name: config for name, config in self._configs.items() if name not in self._known}
        in_vain = 0
        while (stopped := self._why_stop(in_vain)) is None:
            fresh = self._asked(waiting, self._size() - len(waiting))
            if fresh is None:
                stopped = "the strategy has ended"
                break
            waiting, in_vain = {}, 0 if fresh else in_vain + 1
            if fresh:
                yield fresh
        if not self._raced and any(timing.usable for timing in self._own_timings()):
            yield {}  # all times are known, but no winner was chosen
        self._stopped = stopped or ""

    def _asked(self, waiting: Mapping[str, Any], room: int) -> dict[str, Any] | None:
        """Configs to measure next, with at most `room` new ones; None at the end."""
        asked = self._configs_of(self._source.strategy.ask(room)) if room > 0 else []
        if not asked and not waiting:
            return None
        admitted, tell = self._source.admit(asked), self._source.strategy.tell
        # By text too: an equal config may be known as another object.
        kept = set(map(id, admitted.values())) | set(map(str, admitted.values()))
        tell([(config, None, "left out") for config in asked if kept.isdisjoint((id(config), str(config)))])
        tell([_result(config, self._known[name]) for name, config in admitted.items() if name in self._known])
        return {**waiting, **{name: config for name, config in admitted.items() if name not in self._known}}

    def _begin(self, fresh: Mapping[str, Any], budget_s: float) -> None:
        """Begin a batch; limits its growth, so that the search ends when it would with batches of one size."""
        self._raced, self._batch = True, dict(fresh)
        self._configs.update(fresh)
        self._until_s = time.perf_counter() + SHARE * budget_s
        self._most = min(MOST_BATCH, GROWTH * self._size())
        if self._own:
            self._most = min(self._most, MOST - self._trials, self._better_at + self._patience() - self._trials)

    def _more(self, news: Mapping[str, Timing], compiling: int) -> list[str]:
        """Report rough times, and ask for as many configs as there are free compilers."""
        try:
            return self._grown(news, compiling)
        except Exception as error:
            self._error = error
            raise

    def _grown(self, news: Mapping[str, Timing], compiling: int) -> list[str]:
        self._source.strategy.tell([_result(self._configs[name], timing) for name, timing in news.items()])
        room = min(max(2, parallelism.count(MOST_BATCH)) - compiling, self._most - len(self._batch))
        if room < 1 or time.perf_counter() > self._until_s:
            return []
        fresh = {name: one for name, one in (self._asked({}, room) or {}).items() if name not in self._batch}
        self._batch |= fresh
        self._configs |= fresh  # which the running search reads
        return list(fresh)

    def _patience(self) -> int:
        return max(IN_VAIN, self._trials // 2)

    def _configs_of(self, answer: Any) -> list[Any]:
        """The strategy's answer, checked."""
        asked = list(answer) if isinstance(answer, Iterable) and not isinstance(answer, (str, Mapping)) else [answer]
        if not all(map(configs.is_config, asked)):
            raise DecorationError(
                f"`{self._job.tunable.name}`: strategy: expected a list of autotuned.Config from ask(n), got "
                f"{answer!r:.60}. Give an empty list at the end."
            )
        return asked

    def _size(self) -> int:
        return max(LEAST_BATCH, parallelism.count(MOST_BATCH) if self._job.tunable.compiles_ahead else 0)

    def _why_stop(self, in_vain: int) -> str | None:
        if self._trials and self._left_s() <= 0:
            return NO_TIME
        if not self._raced and not in_vain:
            return None
        if in_vain >= IN_VAIN:
            return f"the strategy asked {IN_VAIN} times for nothing new"
        if self._trials >= MOST and (self._own or self._lead == math.inf):
            return f"{MOST} trials"
        if self._own and self._trials - self._better_at >= self._patience():
            return "nothing better is likely"
        return None

    def _left_s(self) -> float:
        return self._job.budget_s - (time.perf_counter() - self._start)

    def race(self, fresh: Mapping[str, Any]) -> None:
        """Measure a batch together with the best so far and the untuned config."""
        known = {name: one for name, one in self._known.items() if name != self._job.untuned or not one.usable}
        found, budget_s = Outcome(), max(self._left_s(), 1e-3)
        self._begin(fresh, budget_s)
        beaten = self._incumbent if self._incumbent in known else None
        wanted = replace(self._job, configs=self._configs, known=known, incumbent=beaten, budget_s=budget_s,
                         more=self._more if self._grows else None,
                         is_proven=self._job.is_proven or self._outcome.winner is not None)  # fmt: skip
        try:
            search.run(wanted, found)
            self._outcome.winner, self._outcome.quality = found.winner, found.quality
            self._incumbent = found.winner
        except (DeviceLostError, OutOfMemoryError, CheckError, SealedError):
            raise
        except Exception as error:  # nothing of this batch runs
            if error is self._error or any(one.usable for one in found.timings):
                raise
            self._message = str(error)
        finally:
            self._take_in(found)
        self._source.strategy.tell([_result(config, self._known.get(name)) for name, config in self._batch.items()])

    def raise_if_none(self) -> None:
        """Raise the failures if nothing ran."""
        if self._outcome.winner is None:
            has_options = self._job.tunable.has_options
            failed = [(one.error or one.status, configs.label(one.config, has_options)) for one in self._own_timings()]
            raise failures.all_failed(self._job.tunable.name, failed or [(self._message, "")])

    def _take_in(self, found: Outcome) -> None:
        into, unfinished = self._outcome, found.winner is None
        news = {one.identity: one for one in found.timings}
        self._known.update({name: one for name, one in news.items() if not (unfinished and name in self._known)})
        self._trials += len(self._batch)
        into.timings = list(self._known.values())
        into.absorb(found)
        into.noise, into.unconfirmed = found.noise, found.unconfirmed
        times = {one.identity: one.median_us or math.inf for one in self._own_timings() if one.usable}
        if name := min(times, key=lambda name: times[name], default=None):
            later = [*reversed(self._batch)].index(name) if name in self._batch else 0
            trials = self._trials - later // self._size() * self._size()  # as if the batch had not grown
            if not self._best or times[name] < self._best[-1][2]:
                self._best.append([trials, round(time.perf_counter() - self._start, 3), times[name]])
            self._note(times[name], trials)

    def _note(self, best: float | None, trials: int) -> None:
        if best is not None and best < GAIN * self._lead:
            self._better_at, self._lead = trials, best

    def finish(self) -> None:
        if self._stopped == "interrupted":
            self._outcome.winner = None  # as with a list: the next search continues
        is_cut = self._stopped == NO_TIME and len(self._own_timings()) < MOST
        doubt = float(getattr(self._source.strategy, "doubt", 1.0))
        self._outcome.space = {
            "members": self._source.size, "trials": self._trials, "stopped": self._stopped,
            **({"unfinished": True} if is_cut else {}), **({} if doubt == 1.0 else {"doubt": round(doubt, 4)}),
            "best_so_far": self._best, **self._source.says(),
        }  # fmt: skip
        log.info(
            "`%s`: %d of %s configs tried; %s", self._job.tunable.name, self._trials, self._source.size, self._stopped
        )


def _result(config: Any, timing: Timing | None) -> tuple[Any, float | None, str]:
    if timing is None:
        return config, None, "not measured"
    return config, timing.median_us if timing.usable else None, timing.status
