"""Bounds on the loss that 95 of 100 calls do not exceed, estimated by leaving out whole bands of calls."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from autotuned.rules import tree
from autotuned.rules.rule import Loss

CALLS = 20  # fewest calls from which such a bound can be estimated
CONFIDENCE = 0.95
PRIOR = 8.0  # pseudo-calls with the overall mean loss, added to each leaf
BANDS = 9  # fewest served bands for a bound
UNSEEN = 0.25  # least share of an unseen band's calls that are assumed to exceed the allowed loss


class LeafLoss(NamedTuple):
    """A leaf's loss on left-out calls.

    Attributes:
        loss: Its bound is `own`. `own`: the loss that 95 of 100 calls of the leaf did not exceed, or the worst.
        bound: The estimate of `of_leaves`, not yet corrected.
    """

    loss: Loss
    own: float
    bound: float


class Correction(NamedTuple):
    """Limits which leaves serve, so that their bounds hold for bands not used to estimate them.

    Attributes:
        most: The largest estimated bound of a leaf that serves. `within`: the allowed loss, which such a leaf promises.
    """

    most: float
    within: float

    def applied(self, known: LeafLoss | None) -> Loss | None:
        """A leaf's loss with the corrected bound."""
        if known is None:
            return None
        if known.own <= self.within and known.bound <= self.most * (1 + 1e-9):
            return known.loss.replace(bound=up(self.within))
        return known.loss.replace(bound=up(min(max(known.bound, known.own, self.within + 1e-3), 1e6)))


def correction(
    losses: np.ndarray, own: np.ndarray, bounds: np.ndarray, bands: np.ndarray, within: float,
    combinations: np.ndarray | None = None,
) -> Correction | None:  # fmt: skip
    """Correct bounds by calls that were not used to estimate them; None if no limit holds for enough calls and bands.

    Calls of one band are similar, so bands are counted, not calls: in the served bands and an unseen one, as bad as the
    worst of them, at most 5 of 100 calls may exceed the allowed loss. Leaves with the largest bounds stop serving until
    that holds. No leaf promises less than the allowed loss, since leaves were selected by these losses.

    Args:
        losses: The loss of each call. `own`, `bounds`: of its leaf. `bands`: the number of its band.
        within: The allowed loss.
        combinations: The number of its combination of other sizes. If given, one more combination, as bad as the worst,
            is counted too.
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
    """Whether at most 5 of 100 calls exceed the loss, with one more group of mean size, as bad as the worst.

    Args:
        exceeds: Whether each call does. `groups`: the number of its group. `least`: the least share in that group.
    """
    _, numbers = np.unique(groups, return_inverse=True)
    sizes, count = np.bincount(numbers), len(exceeds)
    mean = count / len(sizes)
    unseen = max(least, float((np.bincount(numbers, exceeds) / sizes).max())) * mean
    return bool(exceeds.sum() + unseen <= (1 - CONFIDENCE) * (count + mean))


def of_leaves(left_out: np.ndarray, leaf_of: np.ndarray) -> list[LeafLoss | None]:
    """The loss of each leaf on left-out calls; None for a leaf with too few.

    A leaf's bound is its mean loss, shrunk towards the overall mean, times the 95% quantile, over all calls, of a
    call's loss to the mean of its leaf's other calls. No leaf promises less than `own`, since leaves were selected by
    these losses.
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


def _of_leaf(own: np.ndarray, mean: float, ratio: float | None) -> LeafLoss | None:
    if len(own) < tree.LEAF or ratio is None:
        return None
    scale = (float(own.sum()) + PRIOR * mean) / (len(own) + PRIOR)
    alone = _quantile(own)
    alone = float(own.max()) if alone is None else alone
    return LeafLoss(Loss(len(own), rounded(own.mean()), rounded(own.max()), up(alone)), alone, min(ratio * scale, 1e6))


def _quantile(losses: Sequence[float] | np.ndarray) -> float | None:
    """The loss that another call exceeds in at most 5 of 100 cases (conformal quantile); None for too few calls."""
    rank = math.ceil((len(losses) + 1) * CONFIDENCE)
    return float(np.sort(losses)[rank - 1]) if rank <= len(losses) else None


def rounded(value: float) -> float:
    """A loss as written in files."""
    return round(float(value), 4)


def up(value: float) -> float:
    """The same, rounded up."""
    return math.ceil(value * 1e4 - 1e-6) / 1e4
