"""One search over several calls of a bucket: race each call by itself, then the best configs over all."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from autotuned.errors import AllConfigsFailedError
from autotuned.search import failures, search
from autotuned.search.job import Job, Outcome
from autotuned.search.race import TIE_BAND
from autotuned.search.timers import GivenTimer
from autotuned.store.record import Timing
from autotuned.typed_json import Json

# Race at most this many configs within this ratio of the best over all members again: a config that was fastest for no
# member, and left each race early, may be the best over all.
FINAL_RATIO, FINALISTS = 1.1, 8
OF_EACH = 3  # in a space, members try different configs: also race the fastest of each that others have not tried
CHALLENGES = 3  # configs that may duel with the untuned one

_NOTHING = Timing({})


@dataclass(frozen=True)
class MemberJob:
    """A call of a bucket."""

    sizes: Mapping[str, Json]  # values of the bucketed arguments
    count: int  # how often it was called, if known
    job: Job
    has_default: bool = False  # whether its untuned config is a `default=`, to which no choice may lose


def run(members: Sequence[MemberJob], outcome: Outcome, by: str, first: Callable[[MemberJob, Outcome], None]) -> None:
    """Choose one config for all members; fills `outcome` like `search.run`, with times over all members.

    Args:
        by: "mean": geometric mean of the times relative to each member's best; "worst": the largest of these ratios.
        first: Runs the search of one member.

    Raises:
        AllConfigsFailedError: Nothing runs for any member.
        Exception: As `search.run`.
    """
    together = _Together(members, by)
    try:
        together.measure(first)
        together.choose(outcome)
    finally:
        together.note(outcome)


class _Together:
    def __init__(self, members: Sequence[MemberJob], by: str) -> None:
        self._members, self._by = members, by
        self._found: list[tuple[MemberJob, Outcome, dict[str, Timing]]] = []
        self._deadline_s = time.monotonic() + members[0].job.budget_s
        self._untuned = {member.job.untuned for member in members}

    def measure(self, first: Callable[[MemberJob, Outcome], None]) -> None:
        """Search for each member by itself; skip members for which nothing runs."""
        failed: AllConfigsFailedError | None = None
        for place, member in enumerate(self._members):
            share_s = self._left_s() / (len(self._members) - place + 1)
            if share_s <= 0 and self._found:
                break
            found = Outcome()
            try:
                first(replace(member, job=replace(member.job, budget_s=max(share_s, 1e-3))), found)
            except AllConfigsFailedError as error:
                failed = error
                continue
            self._found.append((member, found, {timing.identity: timing for timing in found.timings}))
        if failed is not None and not self._found:
            raise failed

    def choose(self, outcome: Outcome) -> None:
        """Race the best of all members again, and confirm the winner against each member's untuned config."""
        scores = self._scores()
        if not scores:
            job = self._members[0].job
            raise failures.all_failed(job.tunable.name, [(one.error or one.status, "") for one in self._combined()])
        job = self._found[0][0].job
        is_given, late = isinstance(job.timer, GivenTimer), self._left_s() <= 0
        if not late and not (is_given and job.check is None):
            self._race(self._finalists(scores))
            scores = self._scores()
        tied = [name for name in scores if scores[name] <= (1 + TIE_BAND) * min(scores.values())]
        listed = list(job.configs)
        best = min(tied, key=lambda name: (name not in self._untuned, listed.index(name) if name in listed else 0))
        noisy = any(found.quality == "noisy" for _, found, _ in self._found)
        outcome.winner, outcome.quality = best, "noisy" if noisy else "tied" if len(tied) > 1 else "ok"
        if not is_given:
            self._confirm(outcome, scores, late)

    # -- scores --------------------------------------------------------------------------------------------------

    def _scores(self) -> dict[str, float]:
        """Slowdown against the members' best, for the configs that run for the most members."""
        ratios: dict[str, list[float]] = {}
        for _, _, times in self._found:
            usable = {name: timing.median_us or math.inf for name, timing in times.items() if timing.usable}
            for name, median_us in usable.items():
                ratios.setdefault(name, []).append(median_us / min(usable.values()))
        most = max(map(len, ratios.values()), default=0)
        return {name: self._score(some) for name, some in ratios.items() if len(some) == most}

    def _score(self, ratios: Iterable[float]) -> float:
        return max(ratios) if self._by == "worst" else _mean(ratios)

    def _finalists(self, scores: Mapping[str, float]) -> list[str]:
        limit = FINAL_RATIO * min(scores.values())
        best = [name for name in sorted(scores, key=scores.__getitem__) if scores[name] <= limit][:FINALISTS]
        of_each = []
        for _, _, times in self._found:
            usable = [name for name in times if times[name].usable and name not in scores]
            of_each += sorted(usable, key=lambda name: times[name].median_us or math.inf)[:OF_EACH]
        return list(dict.fromkeys([*best, *of_each, *filter(None, self._untuned)]))

    # -- races ---------------------------------------------------------------------------------------------------

    def _race(self, names: Sequence[str]) -> None:
        """Race some configs for each member; none leaves before the finals."""
        for index, (member, found, times) in enumerate(self._found):
            fresh = self._again(member, names, all_stay=True)
            if fresh is not None:
                found.quality = fresh.quality
                found.noise = fresh.noise or found.noise
                self._found[index] = member, found, {**times, **{one.identity: one for one in fresh.timings}}

    def _again(self, member: MemberJob, names: Sequence[str], all_stay: bool = False) -> Outcome | None:
        """A race of some configs for one member; None if none runs or time is up."""
        job, left_s = member.job, self._left_s()
        configs = {name: job.configs[name] for name in names if name in job.configs}
        if not configs or left_s <= 0:
            return None
        found = Outcome()
        untuned = job.untuned if all_stay else names[0]  # in a duel, the config that stays in a tie
        check = job.check if all_stay else None
        try:
            search.run(replace(job, configs=configs, untuned=untuned, all_stay=all_stay, budget_s=left_s, check=check,
                               known={}, incumbent=None, spare=None), found)  # fmt: skip
        except AllConfigsFailedError:
            return None
        return found

    def _confirm(self, outcome: Outcome, scores: Mapping[str, float], late: bool) -> None:
        """Let the first of the best win that the untuned configs do not beat in a duel, else an untuned one."""
        names = sorted(scores, key=lambda name: (name != outcome.winner, scores[name]))[:CHALLENGES]
        [common] = self._untuned if len(self._untuned) == 1 else [None]
        for name in names:
            if name != common and common in scores and (late or self._left_s() <= 0):
                outcome.winner, outcome.quality, outcome.unconfirmed = common, "unresolved", name
                return
            if name == common or self._wins(name):
                outcome.winner = name
                return
        # Every config loses somewhere: use the common untuned config, else the one that loses least to a member's own.
        outcome.winner = common if common in scores else min(scores, key=self._largest_loss)

    def _wins(self, name: str) -> bool:
        """Whether a config beats the untuned ones in a duel over all members, and no `default=` beats it."""
        mine, bases = [], []
        for member, _, times in self._found:
            untuned = member.job.untuned or ""
            duel = None if untuned == name else self._again(member, [name, untuned])
            fresh = {} if duel is None else {one.identity: one for one in duel.timings if one.status == "ok"}
            if duel is None or len(fresh) < 2:  # one binary, or one that does not run
                continue
            if member.has_default and duel.winner == untuned:
                return False
            best_us = min(one.median_us or math.inf for one in times.values() if one.usable)
            mine.append((fresh[name].median_us or math.inf) / best_us)
            bases.append((fresh[untuned].median_us or math.inf) / best_us)
        return not mine or self._score(mine) * (1 + TIE_BAND) < self._score(bases)

    def _largest_loss(self, name: str) -> float:
        return max((1 / ratio for ratio in self._vs_default(name) if ratio), default=1.0)

    def _vs_default(self, name: str) -> list[float | None]:
        """For each member, the untuned time over the time of a config; None if one of them is unknown."""
        found: list[float | None] = []
        for member, _, times in self._found:
            base_us = times.get(member.job.untuned or "", _NOTHING).median_us
            mine_us = times.get(name, _NOTHING).median_us
            found.append(base_us / mine_us if base_us and mine_us else None)
        return found

    def _left_s(self) -> float:
        return self._deadline_s - time.monotonic()

    # -- results -------------------------------------------------------------------------------------------------

    def note(self, outcome: Outcome) -> None:
        outcome.timings = self._combined()
        for _, found, _ in self._found:
            outcome.absorb(found)
            outcome.noise, outcome.space = outcome.noise or found.noise, found.space
        ratios = self._vs_default(outcome.winner or "")
        outcome.members = {"by": self._by, "calls": [
            {"sizes": dict(member.sizes), "count": member.count, "vs_default": ratio,
             "timings": [timing.to_json() for timing in times.values()]}
            for (member, _, times), ratio in zip(self._found, ratios)
        ]}  # fmt: skip

    def _combined(self) -> list[Timing]:
        """Times over the members that have a config; omitted if one of them has not measured it."""
        bests = [
            min((one.median_us or math.inf for one in times.values() if one.usable), default=math.inf)
            for _, _, times in self._found
        ]
        scale_us = _mean([best for best in bests if best < math.inf] or [1.0])
        found = []
        for name in dict.fromkeys(name for _, _, times in self._found for name in times):
            having = [(member, times, best) for (member, _, times), best in zip(self._found, bests)
                      if name in member.job.configs]  # fmt: skip
            if having and all(name in times for _, times, _ in having):
                found.append(self._one([(member, times[name], best) for member, times, best in having], scale_us))
        return found

    def _one(self, having: Sequence[tuple[MemberJob, Timing, float]], scale_us: float) -> Timing:
        timings = [timing for _, timing, _ in having]
        for member, timing, _ in having:
            if not timing.usable:
                words = ", ".join(f"{name}={value}" for name, value in member.sizes.items())
                return timing.replace(error=f"{words}: {timing.error}", median_us=None, low_us=None, high_us=None)
        same = all(timing.status == "same" for timing in timings)
        first = next((timing for timing in timings if timing.status == "ok"), timings[0])

        def over_all(of: str) -> float:
            return scale_us * self._score((getattr(one, of) or one.median_us or 0.0) / best for _, one, best in having)

        return first.replace(
            median_us=over_all("median_us"), low_us=over_all("low_us"), high_us=over_all("high_us"),
            samples=min(timing.samples for timing in timings), status="same" if same else "ok",
            error=first.error if same else None,
        )  # fmt: skip


def _mean(ratios: Iterable[float]) -> float:
    """The geometric mean."""
    logs = [math.log(ratio) for ratio in ratios]
    return math.exp(sum(logs) / len(logs))
