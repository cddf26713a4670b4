"""The last comparison of a search: its best against the untuned config, on fresh samples, also at other addresses."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from autotuned.search.race import (
    CONTESTED,
    FAR_AHEAD,
    FIRST_SAMPLES,
    GUARD_SAMPLES,
    NOISY,
    TIE,
    TIE_BAND,
    open_trials,
    winner,
)
from autotuned.search.trial import CENTER, FASTEST, MEDIAN, SLOW, SLOWED, Rounds, Scale, Track, Trial, relative
from autotuned.store.record import Quality

# At most this many pairs, fewer once this many standard errors decide the duel.
MOST_PAIRS, ROUND, DECIDED_ERRORS = 20, 5, 4
# A config that leads by less than `FAR_AHEAD` may lose with tensors at other addresses. So the duel continues on copies
# at this many `PLACES`, with `FIRST_SAMPLES` pairs at each, repeatedly while it is undecided and has taken less than
# `SHARE` of the search. In the mean of all places the best must lead by `PLACE_ERRORS` standard errors.
PLACES, PLACE_ERRORS, SHARE = 5, 2, 0.05
TRIMMED = 1.25  # dropping the two extreme leads raises the standard error of the mean by this factor
# Places differ if their leads spread by more than chance explains in about 97 of 100 cases.
CHANCE = 2.0


@dataclass(frozen=True)
class Duel:
    """Fresh samples of the race's best and the untuned config.

    Attributes:
        steady: Whether conditions were steady.
        elsewhere: Duels of the same two on copies of the tensors.
        raced: The two with the race's samples.
    """

    best: Trial
    untuned: Trial
    steady: bool = True
    elsewhere: tuple[Duel, ...] = ()
    raced: tuple[Trial, Trial] | None = None

    @property
    def is_won(self) -> bool:
        """Whether the best leads the untuned config by more than a tie, and by more than chance and addresses explain.

        The fresh samples must not contradict the race's; without the latter, the medians must agree.
        """
        if not self.is_fought:
            return False
        lead, fresh, (best, untuned) = self._lead, self._fresh, self._pooled
        agrees = fresh.log + fresh.error > TIE if self._race else best.median_us < untuned.median_us
        return agrees and lead.log > max(TIE, self._doubt(lead))

    @property
    def is_sure(self) -> bool:
        """Whether it is certain over all places that the best leads by more than a tie, or does not."""
        lead = self._lead
        return abs(lead.log - TIE) > self._doubt(lead)

    @property
    def is_contested(self) -> bool:
        """Whether samples are disturbed and the best seems to lead clearly."""
        return self.is_disturbed and self._lead.log > CONTESTED

    def _doubt(self, lead: Lead) -> float:
        return PLACE_ERRORS * lead.error if self.elsewhere or self._race else 0.0

    @property
    def _lead(self) -> Lead:
        """The mean lead over all places; the race's samples count for the caller's tensors."""
        if self._race is None:
            return self._fresh
        [raced] = self._leads_of(self._race)
        if self.is_disturbed and self.elsewhere:  # load may have slowed all of the race's samples of one config
            return min(self._fresh, mean_lead([self._fresh, raced]), key=lambda lead: lead.error)
        here, *others = self._leads
        return mean_lead([weighed([here, raced]), *others])

    @property
    def _fresh(self) -> Lead:
        """The lead by the fresh samples alone."""
        leads = self._leads
        if not self.is_disturbed or len(leads) < 4:
            return mean_lead(leads)
        inner = sorted(lead.log for lead in leads)[1:-1]
        return Lead(statistics.mean(inner), TRIMMED * statistics.stdev(inner) / math.sqrt(len(leads) - 2))

    @property
    def _leads(self) -> list[Lead]:
        return self._leads_of(*(duel._pair for duel in self._all))

    def _leads_of(self, *pairs: tuple[Trial, Trial]) -> list[Lead]:
        scale = FASTEST if self.is_disturbed else CENTER
        noise = self._noise(scale)
        errors = [noise * math.sqrt(sum(1 / len(one.samples_us) for one in pair)) for pair in pairs]
        return [Lead(math.log(scale.us(pair[1]) / scale.us(pair[0])), error) for pair, error in zip(pairs, errors)]

    def _noise(self, scale: Scale) -> float:
        """Relative standard error of a single sample."""
        ones = self._race or [one for duel in self._all for one in duel._pair]
        samples_us = relative(ones, scale.us)
        return scale.error(replace(self.best, samples_us=samples_us)) * math.sqrt(len(samples_us))

    @property
    def _race(self) -> tuple[Trial, Trial] | None:
        """The race's samples, if there are enough."""
        return self.raced if self.raced and min(len(one.samples_us) for one in self.raced) >= GUARD_SAMPLES else None

    @property
    def is_disturbed(self) -> bool:
        """Whether samples show load by others. Then only the fastest count, which load does not affect, and the two
        most extreme places are left out.

        Bursts may leave the middle samples alone, or slow all samples at one place: 8 of 74 duels under 30% load were
        inconclusive before that was noticed (rmsnorm, H200).
        """
        spread, slowed = map(self._middle, range(2)), map(self._slowed, range(2))
        return self.is_fought and (max(spread) > NOISY or min(slowed) > SLOWED or self._leads_differ)

    @property
    def _leads_differ(self) -> bool:
        """Whether one place's lead is so far from the others' that load slowed all samples of one config there."""
        leads = [math.log(duel.untuned.median_us / duel.best.median_us) for duel in self._all if duel.is_fought]
        return max(abs(lead - statistics.median(leads)) for lead in leads) > math.log(SLOW)

    def _slowed(self, which: int) -> float:
        """Share of one config's samples that took far longer than the fastest at their place."""
        return statistics.mean(duel._pair[which].slowed for duel in self._all)

    def _middle(self, which: int) -> float:
        """Spread of one config's samples within places."""
        ones = [duel._pair[which] for duel in self._all]
        return replace(self.best, samples_us=relative(ones, MEDIAN.us)).middle

    @property
    def _pair(self) -> tuple[Trial, Trial]:
        return self.best, self.untuned

    @property
    def _all(self) -> tuple[Duel, ...]:
        return (self, *self.elsewhere)

    @property
    def _pooled(self) -> tuple[Trial, Trial]:
        """Both trials, with the samples of all places."""
        best = [us for duel in self._all for us in duel.best.samples_us]
        untuned = [us for duel in self._all for us in duel.untuned.samples_us]
        return replace(self.best, samples_us=best), replace(self.untuned, samples_us=untuned)

    @property
    def is_fought(self) -> bool:
        """Whether there are enough samples."""
        return min(len(self.best.samples_us), len(self.untuned.samples_us)) >= FIRST_SAMPLES

    @property
    def is_close(self) -> bool:
        """Whether the lead is small enough to vanish at other addresses, or a deficit is within chance."""
        if not self.is_fought:
            return False
        [lead] = self._leads_of(self._pair)
        return -PLACE_ERRORS * lead.error < lead.log < math.log1p(FAR_AHEAD)

    def quality(self, resolution_us: float) -> Quality:
        """Quality of the choice if it is the untuned config; see `winner`."""
        if self.elsewhere:
            return "tied" if self.steady and not self.is_disturbed else "noisy"
        return winner([self.best, self.untuned], resolution_us, self.steady, self.untuned.index)[1]


def fight(
    best: Trial,
    untuned: Trial,
    track: Track,
    most: int = MOST_PAIRS,
    before: Duel | None = None,
    exactly: bool = False,
) -> Duel:
    """Compare the best of a race with the untuned config on fresh samples; the trials keep their own.

    Args:
        most: Samples of each; fewer once the duel is decided.
        before: A duel of the same two to continue.
        exactly: Take `most` samples even if the duel is decided, as needed at several places.
    """
    fresh = before or Duel(best.fresh(), untuned.fresh(), raced=(best, untuned))
    pair = [fresh.best, fresh.untuned]
    rounds = Rounds(track, random.Random(0))
    while len(pair[0].samples_us) < most and not any(trial.error for trial in pair):
        if not exactly and _is_decided(*pair):
            break
        if not rounds.run(open_trials(pair), min(ROUND, most - len(pair[0].samples_us))):
            break
    for trial, sampled in zip((best, untuned), pair):
        trial.error = trial.error or sampled.error
    return replace(fresh, steady=fresh.steady and rounds.left > 0)


def _is_decided(best: Trial, untuned: Trial) -> bool:
    if not (best.samples_us and untuned.samples_us):
        return False
    doubt = DECIDED_ERRORS * math.hypot(best.relative_error, untuned.relative_error)
    return abs(untuned.center_us / best.center_us - 1 - TIE_BAND) > doubt


@dataclass(frozen=True)
class Lead:
    """Logarithm of the ratio of the untuned config's time to the best's, and its standard error."""

    log: float
    error: float


def mean_lead(leads: Sequence[Lead]) -> Lead:
    """Random-effects mean of leads, weighted by their errors and their variance (DerSimonian and Laird, 1986)."""
    mean = weighed(leads)
    weights, free = [1 / lead.error**2 for lead in leads], len(leads) - 1
    apart = math.fsum(weight * (lead.log - mean.log) ** 2 for weight, lead in zip(weights, leads))
    if not free or apart <= free + CHANCE * math.sqrt(2 * free):
        return mean
    between = (apart - free) / (math.fsum(weights) - math.fsum(weight**2 for weight in weights) / math.fsum(weights))
    return weighed([Lead(lead.log, math.hypot(lead.error, math.sqrt(between))) for lead in leads])


def weighed(leads: Sequence[Lead]) -> Lead:
    """Mean of leads that differ only by chance, weighted by their errors."""
    weights = [1 / lead.error**2 for lead in leads]
    total = math.fsum(weights)
    return Lead(math.fsum(weight * lead.log for weight, lead in zip(weights, leads)) / total, 1 / math.sqrt(total))
