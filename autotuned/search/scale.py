"""By what configs are compared: their time and its standard error, also beside others who use the device."""

from __future__ import annotations

import math
import operator
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autotuned.search.trial import Trial

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
    mean = _weighed(leads)
    weights, free = [1 / lead.error**2 for lead in leads], len(leads) - 1
    apart = math.fsum(weight * (lead.log - mean.log) ** 2 for weight, lead in zip(weights, leads))
    if not free or apart <= free + CHANCE * math.sqrt(2 * free):
        return mean
    between = (apart - free) / (math.fsum(weights) - math.fsum(weight**2 for weight in weights) / math.fsum(weights))
    return _weighed([Lead(lead.log, math.hypot(lead.error, math.sqrt(between))) for lead in leads])


def _weighed(leads: Sequence[Lead]) -> Lead:
    weights = [1 / lead.error**2 for lead in leads]
    total = math.fsum(weights)
    return Lead(math.fsum(weight * lead.log for weight, lead in zip(weights, leads)) / total, 1 / math.sqrt(total))
