"""A config with its samples in a search, and the times and errors that configs are compared by, also under load."""

from __future__ import annotations

import math
import operator
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

NOISE_FLOOR = 0.003  # smallest relative spread that is believed
FAST = 1 / 3  # share of the samples that are believed where others use the device
CUT = 1.5  # standard deviations from the median to which samples are cut in `center_us`


@dataclass
class Trial:
    """One config in the race."""

    index: int  # position in the list of candidates; the earlier one wins a tie
    prepare: Callable[[], None]  # restores, zeroes and runs hooks; not timed
    launch: Callable[[], Any]  # launches the config once; timed
    finish: Callable[[], None] = lambda: None  # runs after the launch; not timed
    samples_us: list[float] = field(default_factory=list)
    launches: int = 1  # launches per sample, which is their mean
    error: str | None = None
    leader_us: float | None = None  # the leader's median when this trial left the race; None while in it

    def fresh(self) -> Trial:
        """The same config without samples, back in the race."""
        return replace(self, samples_us=[], leader_us=None)

    @property
    def median_us(self) -> float:
        """Median of the samples so far, in microseconds."""
        return median(self.samples_us)

    @property
    def center_us(self) -> float:
        """Mean of the samples, each cut to within 1.5 standard deviations of the median, in microseconds.

        Chance moves it less than the median, which of a 28 us kernel moves in steps of 0.1% where a clock counts in
        steps of 32 ns, and lies in one of two modes.
        """
        median_us, most_us = self.median_us, CUT * self.spread * self.median_us
        parts_us = [max(-most_us, min(sample - median_us, most_us)) for sample in self.samples_us]
        return median_us + sum(parts_us) / len(parts_us)

    @property
    def fast_us(self) -> float:
        """Mean of the fastest third of the samples, at least one of them, in microseconds.

        Other users of the device make samples slower, never faster.
        """
        fast = self._fast
        return sum(fast) / len(fast)

    @property
    def fast_error(self) -> float:
        """Relative standard error of `fast_us`, that of a trimmed mean: samples are cut to the slowest of these."""
        fast, slower = self._fast, len(self.samples_us) - len(self._fast)
        most_us, count = fast[-1], len(self.samples_us)
        mean_us = (sum(fast) + slower * most_us) / count
        squares = sum((us - mean_us) ** 2 for us in fast) + slower * (most_us - mean_us) ** 2
        return max(math.sqrt(squares) / len(fast) / self.fast_us, NOISE_FLOOR / math.sqrt(count))

    @property
    def _fast(self) -> list[float]:
        return sorted(self.samples_us)[: max(1, int(FAST * len(self.samples_us)))]

    @property
    def relative_error(self) -> float:
        """Relative standard error of the median: 1.2533 sigma / sqrt(n), sigma from the median deviation."""
        return 1.2533 * self.spread / math.sqrt(len(self.samples_us))

    @property
    def spread(self) -> float:
        """Relative standard deviation of a sample, from the median deviation; at least the noise floor."""
        median_us = self.median_us
        deviation_us = median([abs(sample - median_us) for sample in self.samples_us])
        return max(1.4826 * deviation_us / median_us, NOISE_FLOOR)

    @property
    def middle(self) -> float:
        """Width of the middle 60% of the samples, relative to the median."""
        return (self.percentile(0.8) - self.percentile(0.2)) / self.median_us

    def percentile(self, share: float) -> float:
        """The sample below which `share` of all samples lie, in microseconds."""
        return sorted(self.samples_us)[min(int(share * len(self.samples_us)), len(self.samples_us) - 1)]


def median(values: Sequence[float]) -> float:
    """Like `statistics.median` in a third of its time: a race calls it thousands of times while the device waits."""
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def relative(trials: Sequence[Trial], time_us: Callable[[Trial], float]) -> list[float]:
    """All samples, each over its trial's time."""
    times_us = [(one, time_us(one)) for one in trials]
    return [us / own_us for one, own_us in times_us for us in one.samples_us]


def check_samples(samples_us: Sequence[float]) -> None:
    """Refuse times that no clock can have measured.

    Raises:
        ValueError: A time is zero, negative, NaN or infinite.
    """
    for sample in samples_us:
        if not math.isfinite(sample) or sample <= 0:
            raise ValueError(f"expected a time above 0 us, got {sample!r}.")


# -- by what they are compared -----------------------------------------------------------------------------------------

ENOUGH = 12  # samples that tell whether they spread as beside load
LOAD = 0.08  # relative; where the middle 60% of the samples spread over more, others use the device
# Places differ if their leads spread by more than chance lets them in all but about 3 of 100 cases.
CHANCE = 2.0


@dataclass(frozen=True)
class Scale:
    """The time of a trial in microseconds, and its relative standard error."""

    us: Callable[[Trial], float]
    error: Callable[[Trial], float]


MEDIAN = Scale(operator.attrgetter("median_us"), operator.attrgetter("relative_error"))
CENTER = Scale(operator.attrgetter("center_us"), operator.attrgetter("relative_error"))
# Load makes samples slower, never faster. With load in 30% of the time, the mean of the fastest third of 240 samples of
# two configs told their difference to 0.2%, the center to 0.5% (replayed rmsnorm, split-K product).
FASTEST = Scale(operator.attrgetter("fast_us"), operator.attrgetter("fast_error"))


def are_loaded(trials: Sequence[Trial]) -> bool:
    """Whether the samples of most of these trials spread as where others use the device."""
    middles = [trial.middle for trial in trials if len(trial.samples_us) >= ENOUGH]
    return bool(middles) and statistics.median(middles) > LOAD


def scale(trials: Sequence[Trial], calm: Scale = CENTER) -> Scale:
    """The scale to compare these trials by."""
    return FASTEST if are_loaded(trials) else calm


@dataclass(frozen=True)
class Lead:
    """Logarithm of the untuned config's time over the best's, and its standard error."""

    log: float
    error: float


def mean_lead(leads: Sequence[Lead]) -> Lead:
    """Mean of leads, each weighed by its error, and by how much they differ besides (DerSimonian and Laird, 1986)."""
    mean = weighed(leads)
    weights, free = [1 / lead.error**2 for lead in leads], len(leads) - 1
    apart = math.fsum(weight * (lead.log - mean.log) ** 2 for weight, lead in zip(weights, leads))
    if not free or apart <= free + CHANCE * math.sqrt(2 * free):
        return mean
    between = (apart - free) / (math.fsum(weights) - math.fsum(weight**2 for weight in weights) / math.fsum(weights))
    return weighed([Lead(lead.log, math.hypot(lead.error, math.sqrt(between))) for lead in leads])


def weighed(leads: Sequence[Lead]) -> Lead:
    """Mean of leads of one place, which differ by chance alone."""
    weights = [1 / lead.error**2 for lead in leads]
    total = math.fsum(weights)
    return Lead(math.fsum(weight * lead.log for weight, lead in zip(weights, leads)) / total, 1 / math.sqrt(total))
