"""A tree grown from a table of losses, the split that saves most first, so that any number of leaves is a tree."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from autotuned.rules.rule import Split, Values
from autotuned.rules.table import MISSING

LEAF = 4  # fewest calls of a leaf
DIVISORS = (16, 64, 128, 256)  # alignments that matter to tiles and vector loads
STEEP = 0.1  # at this loss the quadratic part of the cost equals the linear one


def costs(losses: np.ndarray) -> np.ndarray:
    """What a tree minimizes: large losses count more than in proportion, unmeasured configs are never taken."""
    known = np.nan_to_num(losses, nan=0.0)
    return np.where(np.isnan(losses), MISSING, np.minimum(known + known**2 / STEEP, MISSING / 10))


Saving = tuple[float, int, int, int]  # what it saves, a feature, and the ranks on both sides of the test


class Features:
    """What a tree may test: each size, products of two, and whether a size is a multiple of something.

    Attributes:
        columns: Features by calls: the rank of each value, since floats do not hold large products exactly. Yes or
            no is 0 or 1, tested as "at most 0".
    """

    def __init__(self, names: Sequence[str], sizes: Sequence[Values]) -> None:
        given = list(zip(*sizes))
        self._asked: list[tuple[tuple[str, ...], int]] = []
        self._exact: list[list[int]] = []
        for count in (1, 2):
            for places in itertools.combinations(range(len(names)), count):
                rows = [math.prod(row[place] for place in places) for row in sizes]
                self._note(tuple(names[place] for place in places), 0, rows)
        for place, name in enumerate(names):
            for divisor in DIVISORS:
                self._note((name,), divisor, [int(size % divisor != 0) for size in given[place]])
        self._values = [sorted(set(rows)) for rows in self._exact]
        ranks = [[bisect_left(values, one) for one in rows] for values, rows in zip(self._values, self._exact)]
        self.columns = np.asarray(ranks, dtype=int).reshape(len(ranks), len(sizes))

    def _note(self, names: tuple[str, ...], divisor: int, rows: list[int]) -> None:
        if len(set(rows)) > 1 and rows not in self._exact:
            self._exact.append(rows)
            self._asked.append((names, divisor))

    def asked(self, feature: int, below: int, above: int) -> Split:
        """The test that separates ranks up to `below` from ranks of at least `above`."""
        (names, divisor), values = self._asked[feature], self._values[feature]
        return Split(names, divisor > 0, divisor or roundest(values[below], values[above] - 1))

    def holds(self, feature: int, split: Split) -> np.ndarray:
        """Whether a test of the feature holds, for each call."""
        limit = 0 if split.divides else bisect_right(self._values[feature], split.number) - 1
        held: np.ndarray = self.columns[feature] <= limit
        return held

    @cached_property
    def orders(self) -> np.ndarray:
        """The calls in the order of each feature."""
        return np.argsort(self.columns, axis=1, kind="stable")


def roundest(low: int, high: int) -> int:
    """The number between two, both included, that is a multiple of the largest power of two, as tiles are."""
    if low <= 0:
        return min(max(0, low), high) if high >= 0 else high
    bit = 1
    while high // (2 * bit) * (2 * bit) >= low:
        bit *= 2
    return high // bit * bit


@dataclass(eq=False)
class Grown:
    """A leaf of a growing tree, or a node once it is split.

    Attributes:
        rows: The calls it was fitted to. `all_rows`: all calls that reach it. `config`: the best for `rows`.
    """

    rows: np.ndarray
    all_rows: np.ndarray
    config: int
    cost: float
    saving: Saving | None = None
    split: Split | None = None
    then: Grown | None = None
    other: Grown | None = None

    @property
    def guesses(self) -> bool:
        """Whether its config was not measured for some call it was fitted to."""
        return self.cost >= MISSING


@dataclass(eq=False)
class Growth:
    """A tree that grows from one leaf up to `most`.

    Attributes:
        predicted: The config of every call with 1, 2, ... leaves.
    """

    features: Features
    costs: np.ndarray
    rows: np.ndarray
    most: int
    predicted: list[np.ndarray] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._fitted = np.zeros(len(self.costs), dtype=bool)
        self._fitted[self.rows] = True
        self.root = self._leaf(np.arange(len(self.costs)))
        self.leaves = [self.root]
        now = np.full(len(self.costs), self.root.config)
        self.predicted.append(now)
        while len(self.leaves) < self.most and (best := self._next()) is not None:
            now = now.copy()
            for leaf in self._part(best):
                now[leaf.all_rows] = leaf.config
            self.predicted.append(now)

    def _leaf(self, all_rows: np.ndarray) -> Grown:
        rows = all_rows[self._fitted[all_rows]]
        sums = self.costs[rows].sum(axis=0)
        config = int(np.argmin(sums))
        leaf = Grown(rows, all_rows, config, float(sums[config]))
        leaf.saving = self._best_saving(leaf)
        return leaf

    def _next(self) -> Grown | None:
        found = [leaf for leaf in self.leaves if leaf.saving is not None]
        return max(found, key=lambda leaf: leaf.saving[0] if leaf.saving else 0.0, default=None)

    def _part(self, leaf: Grown) -> tuple[Grown, Grown]:
        assert leaf.saving is not None
        _, feature, below, above = leaf.saving
        leaf.split = self.features.asked(feature, below, above)
        holds = self.features.holds(feature, leaf.split)[leaf.all_rows]
        leaf.then, leaf.other = self._leaf(leaf.all_rows[holds]), self._leaf(leaf.all_rows[~holds])
        at = self.leaves.index(leaf)
        self.leaves[at : at + 1] = [leaf.then, leaf.other]
        return leaf.then, leaf.other

    def isolate(self, exceeds: np.ndarray, allowed: np.ndarray, most: int) -> None:
        """Split leaves to isolate calls whose loss is often too large; configs stay.

        Args:
            exceeds: Whether the loss of each call was too large when it was left out.
            allowed: How many such calls a leaf may have, by its number of calls; -1 if it is too small.
            most: Largest number of leaves.
        """
        waiting = list(self.leaves)
        while waiting and len(self.leaves) < most:
            leaf = waiting.pop(0)
            leaf.saving = self._isolating(leaf, exceeds, allowed)
            if leaf.saving is not None:
                for part in self._part(leaf):
                    part.config, part.cost = leaf.config, float(self.costs[part.rows, leaf.config].sum())
                    waiting.append(part)

    def _isolating(self, leaf: Grown, exceeds: np.ndarray, allowed: np.ndarray) -> Saving | None:
        """The split that puts most calls on a side with an allowed number of large losses."""
        best, count = None, len(leaf.rows)
        if count < 2 * LEAF or int(exceeds[leaf.rows].sum()) <= allowed[count]:
            return None
        for feature, rows, at in self._places(leaf):
            sums = np.cumsum(exceeds[rows])
            left, right = at + 1, count - at - 1
            sides = left * (sums[at] <= allowed[left]), right * (sums[-1] - sums[at] <= allowed[right])
            kept = sides[0] + sides[1]
            place = int(np.argmax(kept))
            if kept[place] > 0 and (best is None or kept[place] > best[0]):
                best = self._saving(float(kept[place]), feature, rows, int(at[place]))
        return best

    def _places(self, leaf: Grown) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """For each feature, the calls of a leaf in its order, and the positions after which it can be split."""
        member = np.zeros(len(self.costs), dtype=bool)
        member[leaf.rows] = True
        for feature, order in enumerate(self.features.orders):
            rows = order[member[order]]
            values = self.features.columns[feature][rows]
            at = np.arange(LEAF - 1, len(rows) - LEAF)
            at = at[values[at] < values[at + 1]]
            if len(at):
                yield feature, rows, at

    def _saving(self, gain: float, feature: int, rows: np.ndarray, at: int) -> Saving:
        below, above = self.features.columns[feature][rows[at : at + 2]]
        return gain, feature, int(below), int(above)

    def _best_saving(self, leaf: Grown) -> Saving | None:
        """The split that saves most, with a config for each side."""
        best = None
        if len(leaf.rows) < 2 * LEAF or leaf.cost <= 1e-9:
            return None
        for feature, rows, at in self._places(leaf):
            sums = np.cumsum(self.costs[rows], axis=0)
            after = sums[at].min(axis=1) + (sums[-1] - sums[at]).min(axis=1)
            place = int(np.argmin(after))
            gain = leaf.cost - float(after[place])
            if gain > 1e-9 and (best is None or gain > best[0] + 1e-9):
                best = self._saving(gain, feature, rows, int(at[place]))
        return best
