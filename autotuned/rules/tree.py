"""Grows a tree from a table of losses, best split first, so that stopping at any number of leaves gives a tree."""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from autotuned.rules.rule import Split, Values, number_of
from autotuned.rules.table import MISSING

LEAF = 4  # fewest calls in a leaf
DIVISORS = (16, 64, 128, 256)  # alignments that matter to tiles and vector loads
TILES = (1, 64, 128, 256)
CHUNK = 1 << 18  # numbers processed at once
TOLD = 3.0  # log-likelihood ratio above which a split is not attributed to chance
PICKS = -1  # a leaf's config if formulas choose for each call
STEEP = 0.1  # the loss at which the quadratic part of the cost equals the linear one


def costs(losses: np.ndarray) -> np.ndarray:
    """The cost that a tree minimizes: it grows faster than the loss; unmeasured configs cost too much to be chosen."""
    known = np.minimum(np.nan_to_num(losses, nan=0.0), MISSING)  # the square of more may overflow
    return np.where(np.isnan(losses), MISSING, np.minimum(known + known**2 / STEEP, MISSING / 10))


Saving = tuple[float, int, int, int]  # gain, feature, and the ranks on both sides of the test


class Features:
    """The numbers that a tree may test: sizes, products of two, numbers of tiles, how full waves are, divisibility.

    Attributes:
        columns: Features by calls. Values are given by rank, since floats do not hold large products exactly;
            divisibility is 0 if a size is a multiple, else 1, tested as "at most 0".
    """

    def __init__(self, names: Sequence[str], sizes: Sequence[Values], processors: int = 0) -> None:
        self._splits: list[Split] = []
        exact: dict[tuple[int, ...], None] = {}
        for split, values in self._all(names, sizes, processors):
            if len(set(values)) > 1 and values not in exact:
                exact[values] = None
                self._splits.append(split)
        self._values = [sorted(set(values)) for values in exact]
        ranks = [[bisect_left(known, one) for one in values] for known, values in zip(self._values, exact)]
        self.columns = np.asarray(ranks, dtype=int).reshape(len(ranks), len(sizes))

    @staticmethod
    def _all(names: Sequence[str], sizes: Sequence[Values], processors: int) -> Iterator[tuple[Split, tuple[int, ...]]]:
        places = range(len(names))
        asked = [*((one,) for one in places), *itertools.combinations(places, 2)]
        splits = [(some, Split(tuple(names[one] for one in some), False, 0)) for some in asked]
        if processors:
            for some, split in list(splits):
                for tiles in itertools.product(TILES, repeat=len(some)):
                    made = () if max(tiles) == 1 else tiles
                    splits += [(some, split.replace(tiles=made, processors=of)) for of in (0, processors)]
        for some, split in splits:
            rows = ([row[one] for one in some] for row in sizes)
            yield split, tuple(number_of(row, split.tiles, split.processors) for row in rows)
        for place, name in enumerate(names):
            for divisor in DIVISORS:
                yield Split((name,), True, divisor), tuple(int(row[place] % divisor != 0) for row in sizes)

    def asked(self, feature: int, below: int, above: int) -> Split:
        """The test that separates ranks up to `below` from ranks of at least `above`."""
        split, values = self._splits[feature], self._values[feature]
        return split if split.divides else split.replace(number=roundest(values[below], values[above] - 1))

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
    """The number from `low` to `high` that is a multiple of the largest power of two, as sizes of tiles are."""
    if low <= 0:
        return min(max(0, low), high) if high >= 0 else high
    bit = 1
    while high // (2 * bit) * (2 * bit) >= low:
        bit *= 2
    return high // bit * bit


def _surprise(some: np.ndarray | int, count: np.ndarray | int) -> np.ndarray:
    """The negative log-likelihood of `some` events in `count` trials at their own rate."""
    rate = np.clip(some / np.asarray(count), 1e-12, 1 - 1e-12)
    likely: np.ndarray = some * np.log(rate) + (count - some) * np.log(1 - rate)
    return -likely


@dataclass(eq=False)
class Grown:
    """A leaf of a growing tree, or a node once it is split.

    Attributes:
        rows: The calls it was fitted to. `all_rows`: all calls that reach it.
        config: The best for `rows`, or `PICKS`.
        saving: The best split, once searched; None without one.
    """

    rows: np.ndarray
    all_rows: np.ndarray
    config: int
    cost: float
    saving: Saving | None = None
    is_searched: bool = False
    split: Split | None = None
    then: Grown | None = None
    other: Grown | None = None

    @property
    def guesses(self) -> bool:
        """Whether its config was not measured for some call that it was fitted to."""
        return self.cost >= MISSING


@dataclass(eq=False)
class Growth:
    """A tree that grows from one leaf up to `most`.

    Attributes:
        costs: Calls by configs. `configs`: those that may be chosen, by index in the table.
        picks: The config that formulas choose for every call; may be chosen too, as `PICKS`. None without formulas.
        predicted: The config of every call with 1, 2, ... leaves.
    """

    features: Features
    costs: np.ndarray
    configs: Sequence[int]
    rows: np.ndarray
    most: int
    picks: np.ndarray | None = None
    predicted: list[np.ndarray] = field(default_factory=list)

    def __post_init__(self) -> None:
        by_config = self.costs[:, self.configs]
        if self.picks is not None:  # first, so that ties choose it
            by_config = np.column_stack([self.costs[np.arange(len(self.costs)), self.picks], by_config])
            self.configs = [PICKS, *self.configs]
        self._by_config = np.ascontiguousarray(by_config.T)
        self._fitted = np.zeros(len(self.costs), dtype=bool)
        self._fitted[self.rows] = True
        self.root = self._leaf(np.arange(len(self.costs)))
        self.leaves = [self.root]
        now = self._chosen(self.root)
        self.predicted.append(now)
        while len(self.leaves) < self.most and (best := self._next()) is not None:
            now = now.copy()
            for leaf in self._part(best):
                now[leaf.all_rows] = self._chosen(leaf)
            self.predicted.append(now)

    def _chosen(self, leaf: Grown) -> np.ndarray:
        """The configs of the calls of a leaf."""
        found = np.full(len(leaf.all_rows), leaf.config)
        if leaf.config == PICKS and self.picks is not None:
            found[:] = self.picks[leaf.all_rows]
        return found

    def _leaf(self, all_rows: np.ndarray) -> Grown:
        rows = all_rows[self._fitted[all_rows]]
        sums = self._by_config[:, rows].sum(axis=1)
        best = int(np.argmin(sums))
        return Grown(rows, all_rows, int(self.configs[best]), float(sums[best]))

    def _next(self) -> Grown | None:
        for leaf in self.leaves:
            if not leaf.is_searched:
                leaf.saving, leaf.is_searched = self._best_saving(leaf), True
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

    def isolate(self, exceeds: np.ndarray, most: int) -> None:
        """Split leaves to isolate regions where the loss is often too large; configs stay.

        Args:
            exceeds: Whether the loss of each call was too large when it was left out.
            most: Largest number of leaves.
        """
        waiting = list(self.leaves)
        while waiting and len(self.leaves) < most:
            leaf = waiting.pop(0)
            leaf.saving = self._isolating(leaf, exceeds)
            if leaf.saving is not None:
                for part in self._part(leaf):
                    part.config = leaf.config
                    part.cost = float(self._by_config[list(self.configs).index(leaf.config), part.rows].sum())
                    waiting.append(part)

    def _isolating(self, leaf: Grown, exceeds: np.ndarray) -> Saving | None:
        """The split that best separates calls with large losses from others, if it is unlikely to be chance."""
        count, total = len(leaf.rows), int(exceeds[leaf.rows].sum())
        if count < 2 * LEAF or total in (0, count):
            return None
        left = np.arange(1, count)

        def told(rows: np.ndarray) -> np.ndarray:
            sums = np.cumsum(exceeds[rows], axis=1)[:, :-1]
            gain: np.ndarray = _surprise(total, count) - _surprise(sums, left) - _surprise(total - sums, count - left)
            return gain

        found = self._best(leaf, told, 1)
        return found if found is not None and found[0] > TOLD else None

    def _best_saving(self, leaf: Grown) -> Saving | None:
        """The split that saves most, with a config for each side."""
        if len(leaf.rows) < 2 * LEAF or leaf.cost <= 1e-9:
            return None

        def saved(rows: np.ndarray) -> np.ndarray:
            before = after = np.full((len(rows), rows.shape[1] - 1), np.inf)
            for costs in self._by_config:  # one at a time, so that the data fits into the CPU's cache
                sums = np.cumsum(costs[rows], axis=1)
                before = np.minimum(before, sums[:, :-1])
                after = np.minimum(after, sums[:, -1:] - sums[:, :-1])
            apart: np.ndarray = before + after
            return leaf.cost - apart

        return self._best(leaf, saved, len(self.configs))

    def _best(self, leaf: Grown, gains: Callable[[np.ndarray], np.ndarray], width: int) -> Saving | None:
        """The split with the largest gain, the first of several; None without one.

        Args:
            gains: The gain of splitting at each place of each row of calls, which are in the order of a feature.
            width: How many numbers it needs per call.
        """
        best, member = None, np.zeros(len(self.costs), dtype=bool)
        member[leaf.rows] = True
        count, some = len(leaf.rows), max(1, CHUNK // (len(leaf.rows) * width))
        for start in range(0, len(self.features.orders), some):
            orders = self.features.orders[start : start + some]
            rows = orders[member[orders]].reshape(-1, count)
            values = np.take_along_axis(self.features.columns[start : start + some], rows, axis=1)
            found = np.where(values[:, :-1] < values[:, 1:], gains(rows), 0.0)
            found[:, : LEAF - 1] = 0.0
            found[:, count - LEAF :] = 0.0
            feature, place = divmod(int(np.argmax(found)), count - 1)
            gain = float(found[feature, place])
            if gain > 1e-9 and (best is None or gain > best[0] + 1e-9):
                best = gain, start + feature, int(values[feature, place]), int(values[feature, place + 1])
        return best
