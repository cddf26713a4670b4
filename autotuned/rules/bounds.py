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
BANDS = 9  # fewer prove nothing
UNSEEN = 0.25  # share of one more, unseen band that is assumed to exceed, if no band was worse


class Known(NamedTuple):
    """The loss of a leaf from calls that were left out.

    Attributes:
        loss: With `own` as its bound. `own`: what 95 of 100 calls of the leaf did not exceed, or their worst.
        bound: That of the leaf as one of many; a factor for all leaves makes it right.
    """

    loss: Loss
    own: float
    bound: float


class Correction(NamedTuple):
    """Makes bounds hold for whole bands that were not used to make them.

    Attributes:
        most: The largest bound of a leaf that serves. `within`: the allowed loss, which such a leaf promises.
    """

    most: float
    within: float

    def applied(self, known: Known | None) -> Loss | None:
        """A leaf's loss with its bound corrected."""
        if known is None:
            return None
        if known.own <= self.within and known.bound <= self.most * (1 + 1e-9):
            return known.loss.replace(bound=up(self.within))
        return known.loss.replace(bound=up(min(max(known.bound, known.own, self.within + 1e-3), 1e6)))


def correction(
    losses: np.ndarray, own: np.ndarray, bounds: np.ndarray, bands: np.ndarray, within: float,
    combinations: np.ndarray | None = None,
) -> Correction | None:  # fmt: skip
    """Correct bounds by calls that were not used to make them; None if too few bands are served to tell.

    Calls of one band are alike, so bands count, not calls: of the served bands and an unseen one, as bad as the worst
    of them, at most 5 of 100 calls may lose more than allowed. To get there, leaves with large bounds stop
    serving. No leaf promises less than the allowed loss: that its left-out calls lost less is partly why it exists.

    Args:
        losses: Loss of each call. `own` and `bounds`: of its leaf. `bands`: the number of its band.
        within: The allowed loss.
        combinations: The number of its combination of other sizes, if unseen ones are promised something: one more,
            as bad as the worst of them, is counted too.
    """
    fair = own <= within
    for most in sorted({float(bound) for bound in bounds[fair]}, reverse=True):
        served = fair & (bounds <= most)
        if served.sum() < CALLS:
            return None
        exceeds, counted = losses[served] > within + 1e-12, [(bands[served], UNSEEN)]
        counted += [] if combinations is None else [(combinations[served], 0.0)]
        if len(np.unique(bands[served])) >= BANDS and all(_holds(exceeds, *groups) for groups in counted):
            return Correction(most, within)
    return None


def _holds(exceeds: np.ndarray, groups: np.ndarray, least: float) -> bool:
    """Whether few enough calls exceed the allowed loss, with one more group as large as the others and as bad as any.

    Args:
        exceeds: Of each call. `groups`: the number of its group. `least`: how bad that group is at least.
    """
    _, numbers = np.unique(groups, return_inverse=True)
    sizes, count = np.bincount(numbers), len(exceeds)
    mean = count / len(sizes)
    unseen = max(least, float((np.bincount(numbers, exceeds) / sizes).max())) * mean
    return bool(exceeds.sum() + unseen <= (1 - CONFIDENCE) * (count + mean))


def of_leaves(left_out: np.ndarray, leaf_of: np.ndarray) -> list[Known | None]:
    """The loss of each leaf from calls that were left out; None for a leaf with too few.

    The bound of a leaf is its mean loss, shrunk towards the mean of all calls, times the ratio to it that 95 of 100
    calls of all leaves did not exceed. Each ratio is to the mean of the leaf's other calls. The bound is at least what
    95 of 100 calls of the leaf did not exceed, since leaves were chosen by these losses.
    """
    known, count = ~np.isnan(left_out), int(leaf_of.max()) + 1
    rows = np.flatnonzero(known)
    if len(rows) < CALLS:
        return [None] * count
    losses, leaves = np.minimum(left_out[rows], 1e6), leaf_of[rows]
    mean = float(losses.mean()) or 1e-6
    sums, counts = (np.bincount(leaves, weights, count) for weights in (losses, None))
    others = (sums[leaves] - losses + PRIOR * mean) / (counts[leaves] - 1 + PRIOR)
    ratio = _quantile(losses / others)
    return [_of_leaf(losses[leaves == leaf], mean, ratio) for leaf in range(count)]


def _of_leaf(own: np.ndarray, mean: float, ratio: float | None) -> Known | None:
    if len(own) < tree.LEAF or ratio is None:
        return None
    scale = (float(own.sum()) + PRIOR * mean) / (len(own) + PRIOR)
    alone = _quantile(own)  # None for few calls: then the bound is at least their worst
    alone = float(own.max()) if alone is None else alone
    return Known(Loss(len(own), rounded(own.mean()), rounded(own.max()), up(alone)), alone, min(ratio * scale, 1e6))


def _quantile(losses: Sequence[float] | np.ndarray) -> float | None:
    """The loss that one more call exceeds in 5 of 100 cases at most; None for too few calls."""
    place = _place(len(losses))
    return float(np.sort(losses)[place - 1]) if place <= len(losses) else None


def _place(count: int) -> int:
    """Index of the loss, in ascending order, that another call exceeds in 5 of 100 cases; past the end if too few."""
    return math.ceil((count + 1) * CONFIDENCE)


def rounded(value: float) -> float:
    """A loss as written in files."""
    return round(float(value), 4)


def up(value: float) -> float:
    """The same, rounded up."""
    return math.ceil(value * 1e4 - 1e-6) / 1e4
