"""Bounds of the loss that hold for 95 of 100 calls, from calls left out in whole bands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from autotuned.rules import tree
from autotuned.rules.rule import Loss

CALLS = 20  # fewer do not show a loss that 95 of 100 stay below
CONFIDENCE = 0.95
PRIOR = 8.0  # calls with the mean loss of all leaves, added to those of each leaf
UNSEEN = 0.5  # share of one more, unseen band that is assumed to exceed: few bands prove nothing


class Correction(NamedTuple):
    """Makes bounds hold for whole bands that were not used to make them.

    Attributes:
        scale: Factor of every bound. `least`: the smallest bound.
        within: The allowed loss that this was found for.
    """

    scale: float
    least: float
    within: float

    def applied(self, known: Loss | None) -> Loss | None:
        """A leaf's loss with its bound corrected."""
        if known is None:
            return None
        bound = max(known.bound * self.scale, self.least)
        is_allowed = bound <= self.within * (1 + 1e-9)
        return known.replace(bound=min(up(bound), self.within) if is_allowed else up(min(bound, 1e6)))


def correction(losses: np.ndarray, bounds: np.ndarray, bands: np.ndarray, within: float) -> Correction | None:
    """Correct bounds by calls that were not used to make them; None if too few bands are served to tell.

    Calls of one band are alike, so bands are counted, not calls: averaged over the served bands and one unseen band, at
    most 5 of 100 calls may exceed their bound. To get there, small bounds are raised, and the leaves with the largest
    bounds stop serving.

    Args:
        losses: Loss of each call. `bounds`: its promised bound. `bands`: the number of its band.
        within: The allowed loss.
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
    """Whether few enough calls exceed their bounds, with equal weight for each band."""
    _, numbers, counts = np.unique(bands, return_inverse=True, return_counts=True)
    exceeding = np.bincount(numbers, losses > bounds + 1e-12) / counts
    return bool(exceeding.sum() + UNSEEN <= (1 - CONFIDENCE) * (len(counts) + 1))


def of_leaves(left_out: np.ndarray, leaf_of: np.ndarray, count: int) -> list[Loss | None]:
    """The loss of each leaf from calls that were left out; None for a leaf with too few.

    The bound of a leaf is its mean loss, shrunk towards the mean of all calls, times the ratio to it that 95 of 100
    calls of all leaves did not exceed. Each ratio is to the mean of the leaf's other calls. The bound is at least what
    95 of 100 calls of the leaf did not exceed, since leaves were chosen by these losses.
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
    alone = _quantile(own)  # None for few calls: then the bound is at least their worst
    bound = max(ratio * scale, float(own.max()) if alone is None else alone)
    return Loss(len(own), rounded(own.mean()), rounded(own.max()), up(min(bound, 1e6)))


def allowed(count: int) -> np.ndarray:
    """How many of 0, 1, 2, ... calls may exceed a loss that `_quantile` stays below; -1 for too few calls."""
    return np.asarray([number - _place(number) for number in range(count + 1)])


def _quantile(losses: Sequence[float] | np.ndarray) -> float | None:
    """The loss that one more call exceeds in 5 of 100 cases at most; None for too few calls."""
    place = _place(len(losses))
    return float(np.sort(losses)[place - 1]) if place <= len(losses) else None


def _place(count: int) -> int:
    """Which of so many losses, from the smallest, one more call exceeds in 5 of 100 cases; beyond them for too few."""
    return math.ceil((count + 1) * CONFIDENCE)


def rounded(value: float) -> float:
    """A loss as written in files."""
    return round(float(value), 4)


def up(value: float) -> float:
    """The same, rounded up."""
    return math.ceil(value * 1e4 - 1e-6) / 1e4
