"""What a leaf's calls are expected not to lose in 95 of 100 cases, from calls that were left out with their bands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from autotuned.rules import tree
from autotuned.rules.rule import Loss

CALLS = 20  # of fewer no loss is known that 95 of 100 do not exceed
CONFIDENCE = 0.95
PRIOR = 8.0  # calls with the mean loss of all leaves, which each leaf's own are put beside
UNSEEN = 0.5  # of one more band so much is taken to exceed its bounds: of few bands nothing is known


class Correction(NamedTuple):
    """What makes bounds hold for whole bands that took no part in making them.

    Attributes:
        scale: Bounds are multiplied by it. `least`: none is smaller.
        within: The loss that is allowed, for which this was found.
    """

    scale: float
    least: float
    within: float

    def applied(self, known: Loss | None) -> Loss | None:
        """The same of a leaf, with its bound corrected."""
        if known is None:
            return None
        bound = max(known.bound * self.scale, self.least)
        is_allowed = bound <= self.within * (1 + 1e-9)
        return known.replace(bound=min(up(bound), self.within) if is_allowed else up(min(bound, 1e6)))


def correction(losses: np.ndarray, bounds: np.ndarray, bands: np.ndarray, within: float) -> Correction | None:
    """Correct bounds by calls that took no part in making them; None where too few bands are served to tell.

    Calls of one band are alike, so that bands are counted and not calls: on the average of the bands served, and of one
    more that was not seen, at most 5 of 100 calls may exceed. Bounds that are smaller than that allows are raised, and
    leaves whose bounds are largest are served no more until it holds.

    Args:
        losses: Of each call. `bounds`: what was promised to it. `bands`: the number of its band.
        within: The loss that is allowed.
    """
    for most in [within, *sorted({float(bound) for bound in bounds if bound < within}, reverse=True)]:
        served = bounds <= most
        if served.sum() < CALLS:
            return None
        lost, scale = losses[served], within / max(most, 1e-4)
        raised = [0.0, *sorted({float(loss) for loss in lost if loss < within}), within]
        for least in raised if _holds(lost, within, bands[served]) else ():
            if _holds(lost, np.maximum(bounds[served] * scale, least), bands[served]):
                return Correction(scale, least, within)
    return None


def _holds(losses: np.ndarray, bounds: np.ndarray | float, bands: np.ndarray) -> bool:
    """Whether few enough calls exceed their bounds, each band counting as much as another."""
    _, numbers, counts = np.unique(bands, return_inverse=True, return_counts=True)
    exceeding = np.bincount(numbers, losses > bounds + 1e-12) / counts
    return bool(exceeding.sum() + UNSEEN <= (1 - CONFIDENCE) * (len(counts) + 1))


def of_leaves(left_out: np.ndarray, leaf_of: np.ndarray, count: int) -> list[Loss | None]:
    """What is known of each leaf, from the losses of calls that were left out; None for one with too few.

    The bound of a leaf is its mean loss, put beside that of all calls, times the ratio to it that 95 of 100 calls of
    all leaves did not exceed; each ratio is to the mean of the others of the leaf, so that no call counts itself. It is
    no less than what 95 of 100 calls of the leaf did not exceed: leaves were chosen by these losses.
    """
    known = ~np.isnan(left_out)
    rows = np.flatnonzero(known)
    if len(rows) < CALLS:
        return [None] * count
    losses, leaves = np.minimum(left_out[rows], 1e6), leaf_of[rows]
    mean = float(losses.mean()) or 1e-6
    sums, counts = (np.bincount(leaves, weights, count) for weights in (losses, None))
    others = (sums[leaves] - losses + PRIOR * mean) / (counts[leaves] - 1 + PRIOR)
    ratio = _quantile(losses / others)
    return [_of_leaf(losses[leaves == leaf], mean, ratio) for leaf in range(count)]


def _of_leaf(own: np.ndarray, mean: float, ratio: float | None) -> Loss | None:
    if len(own) < tree.LEAF or ratio is None:
        return None
    scale = (float(own.sum()) + PRIOR * mean) / (len(own) + PRIOR)
    alone = _quantile(own)  # of few calls there is none: then it is their worst, at least
    bound = max(ratio * scale, float(own.max()) if alone is None else alone)
    return Loss(len(own), rounded(own.mean()), rounded(own.max()), up(min(bound, 1e6)))


def allowed(count: int) -> np.ndarray:
    """How many of 0, 1, 2, ... calls may exceed what `_quantile` of their losses then is not above; -1 of too few."""
    found = [number - math.ceil((number + 1) * CONFIDENCE) for number in range(count + 1)]
    return np.asarray(found)


def _quantile(losses: Sequence[float] | np.ndarray) -> float | None:
    """What one more of the same kind does not exceed in 95 of 100 cases; None of too few."""
    place = math.ceil((len(losses) + 1) * CONFIDENCE)
    return float(np.sort(losses)[place - 1]) if place <= len(losses) else None


def rounded(value: float) -> float:
    """As files hold a loss."""
    return round(float(value), 4)


def up(value: float) -> float:
    """The same, and not less than it is."""
    return math.ceil(value * 1e4 - 1e-6) / 1e4
