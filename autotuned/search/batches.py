"""A search in batches: a strategy asks, each batch is raced against the best so far, and the strategy is told."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from autotuned.errors import CheckError, DecorationError, DeviceLostError, OutOfMemoryError
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
MOST = 600  # trials of a search by our own strategies, about
IN_VAIN, GAIN = 96, 0.995  # end after this many trials, and half of all, without a time below this share of the best


@dataclass(frozen=True)
class Source:
    """Where a search gets its configs."""

    strategy: AskTell
    admit: Callable[[Iterable[Any]], Mapping[str, Any]]  # returns those that the call may use, by identity
    size: str  # number of configs, as text
    says: Callable[[], Mapping[str, Json]] = dict  # further facts for the record, such as which parameters mattered


def run(job: Job, outcome: Outcome, source: Source) -> None:
    """Search until the strategy ends, no gain is likely or time is up; fills `outcome` like `search.run`.

    Known timings are told first. The untuned config and the best so far are in every race, so that times of different
    batches are never compared.

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
        self._configs = dict(job.configs)
        self._known = dict(job.known)
        self._start, self._stopped = time.perf_counter(), "interrupted"
        self._best: list[Json] = []
        self._lead = math.inf
        self._message = "no config was tried: the strategy asked for none"
        self._trials = self._better_at = 0
        self._own = hasattr(source.strategy, "doubt")  # a user's strategy ends by itself
        self._incumbent = job.incumbent
        self._raced = False
        for timing in self._own_timings() if job.incumbent is None else ():  # an interrupted search
            self._trials += 1
            self._note(timing.median_us if timing.usable else None)

    def _own_timings(self) -> list[Timing]:
        """Of this call's configs: a record may have others, of another call or an earlier declaration."""
        return [timing for name, timing in self._known.items() if name in self._configs]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Configs of each batch, by identity."""
        told = [(config, self._known[name]) for name, config in self._configs.items() if name in self._known]
        self._source.strategy.tell([_result(config, timing) for config, timing in told])
        waiting = {name: config for name, config in self._configs.items() if name not in self._known}
        in_vain = 0
        while (stopped := self._why_stop(in_vain)) is None:
            fresh = self._asked(waiting)
            if fresh is None:
                stopped = "the strategy has ended"
                break
            waiting, in_vain = {}, 0 if fresh else in_vain + 1
            if fresh:
                yield fresh
        if not self._raced and any(timing.usable for timing in self._own_timings()):
            yield {}  # all is known, but no winner was chosen
        self._stopped = stopped or ""

    def _asked(self, waiting: Mapping[str, Any]) -> dict[str, Any] | None:
        """What to measure next; None at the end."""
        room = self._size() - len(waiting)
        asked = self._configs_of(self._source.strategy.ask(room)) if room > 0 else []
        if not asked and not waiting:
            return None
        admitted, tell = self._source.admit(asked), self._source.strategy.tell
        kept = set(map(id, admitted.values())) | set(map(str, admitted.values()))
        tell([(config, None, "left out") for config in asked if kept.isdisjoint((id(config), str(config)))])
        tell([_result(config, self._known[name]) for name, config in admitted.items() if name in self._known])
        return {**waiting, **{name: config for name, config in admitted.items() if name not in self._known}}

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
        if not self._job.tunable.compiles_ahead:
            return LEAST_BATCH
        return max(LEAST_BATCH, min(MOST_BATCH, parallelism.count(MOST_BATCH)))

    def _why_stop(self, in_vain: int) -> str | None:
        if self._trials and self._left_s() <= 0:
            return "the budget is used up"
        if not self._raced and not in_vain:
            return None
        if in_vain >= IN_VAIN:
            return f"the strategy asked {IN_VAIN} times for nothing new"
        if self._trials >= MOST and (self._own or self._lead == math.inf):
            return f"{MOST} trials"
        if self._own and self._trials - self._better_at >= max(IN_VAIN, self._trials // 2):
            return "nothing better is likely"
        return None

    def _left_s(self) -> float:
        return self._job.budget_s - (time.perf_counter() - self._start)

    def race(self, fresh: Mapping[str, Any]) -> None:
        """Measure a batch together with the best so far and the untuned config."""
        self._raced = True
        self._configs.update(fresh)
        known = {name: timing for name, timing in self._known.items() if name != self._job.untuned}
        found, budget_s = Outcome(), max(self._left_s(), 1e-3)
        beaten = self._incumbent if self._incumbent in known else None
        wanted = replace(self._job, configs=dict(self._configs), known=known, incumbent=beaten, budget_s=budget_s,
                         is_proven=self._job.is_proven or self._outcome.winner is not None)  # fmt: skip
        try:
            search.run(wanted, found)
            self._outcome.winner, self._outcome.quality = found.winner, found.quality
            self._incumbent = found.winner
        except (DeviceLostError, OutOfMemoryError, CheckError):
            raise
        except Exception as error:  # nothing of this batch runs
            if any(one.status != "failed" for one in found.timings):
                raise
            self._message = str(error)
        finally:
            self._take_in(found, fresh)
        self._source.strategy.tell([_result(config, self._known.get(name)) for name, config in fresh.items()])

    def raise_if_none(self) -> None:
        """Raise what failed if nothing ran."""
        if self._outcome.winner is None:
            has_options = self._job.tunable.has_options
            failed = [(one.error or one.status, configs.label(one.config, has_options)) for one in self._own_timings()]
            raise failures.all_failed(self._job.tunable.name, failed or [(self._message, "")])

    def _take_in(self, found: Outcome, fresh: Mapping[str, Any]) -> None:
        into, unfinished = self._outcome, found.winner is None
        news = {one.identity: one for one in found.timings}
        self._known.update({name: one for name, one in news.items() if not (unfinished and name in self._known)})
        self._trials += len(fresh)
        into.timings = list(self._known.values())
        into.absorb(found)
        into.noise, into.unconfirmed = found.noise, found.unconfirmed
        best = min((one.median_us or math.inf for one in self._own_timings() if one.usable), default=None)
        if best is not None and (not self._best or best < self._best[-1][2]):
            self._best.append([self._trials, round(time.perf_counter() - self._start, 3), best])
        self._note(best)

    def _note(self, best: float | None) -> None:
        if best is not None and best < GAIN * self._lead:
            self._better_at, self._lead = self._trials, best

    def finish(self) -> None:
        if self._stopped == "interrupted":
            self._outcome.winner = None  # as of a list: the next search goes on
        doubt = float(getattr(self._source.strategy, "doubt", 1.0))
        self._outcome.space = {
            "members": self._source.size, "trials": self._trials, "stopped": self._stopped,
            **({} if doubt == 1.0 else {"doubt": round(doubt, 4)}),
            "best_so_far": self._best, **self._source.says(),
        }  # fmt: skip
        log.info(
            "`%s`: %d of %s configs tried; %s", self._job.tunable.name, self._trials, self._source.size, self._stopped
        )


def _result(config: Any, timing: Timing | None) -> tuple[Any, float | None, str]:
    if timing is None:
        return config, None, "not measured"
    return config, timing.median_us if timing.usable else None, timing.status
