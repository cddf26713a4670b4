"""A rule fitted to times: its tree, its loss on calls left out, and whether it beats something simpler."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from autotuned.rules import bounds, cover, folds, tree
from autotuned.rules.bounds import CALLS, Correction, Known, rounded
from autotuned.rules.rule import Leaf, Loss, Node, Rule, Tree, leaves
from autotuned.rules.table import Table
from autotuned.store.conditions import BY_DEFAULT, Conditions
from autotuned.typed_json import Json

LEAVES = 16  # of a tree at most: people read it
GAIN, FACTOR = 0.01, 2.0  # what a rule must save: in the mean, or in the worst call
NEAR = 2.0  # factor of the neighbours it is compared with


@dataclass(frozen=True)
class Fit:
    """The result of fitting a table.

    Attributes:
        table: The data. `within`: the allowed loss.
        configs: The configs of its leaves. `cover`: how they were chosen, by index in `table.configs`.
        tree: None if there are too few calls. `leaf_of`: the index in `leaves` for each call.
        left_out, left_out_across: The loss of each call when left out with its band, and with its combination of the
            other sizes too; NaN if it was not, infinite if it got a config without a time.
        compared: Mean and worst loss of the served calls left out, under "rule" and under what is simpler.
        served: Share of the calls left out that it serves.
        why_not: Why it is not worth writing; "" if it is.
    """

    table: Table
    within: float
    configs: tuple[str, ...]
    cover: cover.Cover
    tree: Tree | None
    leaf_of: np.ndarray
    left_out: np.ndarray
    left_out_across: np.ndarray
    compared: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    served: float = 0.0
    why_not: str = ""

    def rule(self, under: Conditions = BY_DEFAULT) -> Rule | None:
        """The rule over the table's calls, worth it or not; None without a tree.

        Args:
            under: What all times were measured under.
        """
        if self.tree is None or self.table.pattern is None:
            return None
        columns = zip(self.table.names, zip(*self.table.sizes))
        return Rule(
            self.table.pattern, {name: (min(column), max(column)) for name, column in columns}, self.table.along,
            tuple(folds.tuned(self.table)), tuple(map(json.loads, self.configs)), under, self.tree,
            folds.multiples(self.table),
        )  # fmt: skip

    @cached_property
    def leaves(self) -> list[Leaf]:
        """The leaves of the tree, in its order."""
        return list(leaves(self.tree)) if self.tree is not None else []

    def to_json(self) -> dict[str, Json]:
        """What is known of its loss."""
        compared = {
            name: {"mean": rounded(mean), "worst": rounded(worst)} for name, (mean, worst) in self.compared.items()
        }
        return {
            "calls": len(self.table), "configs": len(self.configs), "leaves": len(self.leaves),
            "served": rounded(self.served), "compared": compared, "why_not": self.why_not,
        }  # fmt: skip


def fit(table: Table, within: float, most: int | None = None, among: Iterable[str] | None = None) -> Fit:
    """Fit a rule to a table.

    Its configs are among the fewest that hold every call within the loss, and, if their number is not limited, within
    half of it. The size of the tree is what did best on calls left out. Configs and tree are chosen anew without them
    each time, so that the loss is that of unseen calls.

    Args:
        within: The allowed loss: 0.05 for 5%.
        most: Largest number of configs.
        among: The configs that may be chosen; None for all. Losses are relative to the best of all.
    """
    allowed = np.isin(table.configs, list(table.configs if among is None else among))
    choosable = np.where(allowed[None, :], table.losses, math.nan)
    chosen = cover.fewest(choosable, within, most)
    names = tuple(table.configs[place] for place in chosen.configs)
    nothing = np.full(len(table), math.nan)
    empty = Fit(table, within, names, chosen, None, np.zeros(len(table), dtype=int), nothing, nothing)
    if not table.names:
        return replace(empty, why_not="all calls have the same sizes")
    if len(table) < CALLS:
        return replace(empty, why_not=f"expected {CALLS} calls or more, got {len(table)}")
    features = tree.Features(table.names, table.sizes, table.processors)
    trial = _Trial(table, choosable, features, within, most)
    losses = (trial.along(), trial.across())
    everything = np.arange(len(table))
    grown, leaf_of = trial.parted(
        trial.grow(everything, trial.configs(everything, chosen.configs), trial.leaves), losses
    )
    known = [
        _corrected(bounds.of_leaves(one, leaf_of, len(grown.leaves)), trial.correction(parts, losses, kind))
        for kind, (one, parts) in enumerate(zip(losses, (trial.along_grown(), trial.across_grown)))
    ]
    used = sorted({leaf.config for leaf in grown.leaves})
    made = [
        Leaf(used.index(leaf.config), len(leaf.rows), *((None, None) if leaf.guesses else one))
        for leaf, one in zip(grown.leaves, zip(*known))
    ]
    ends = {id(leaf): one for leaf, one in zip(grown.leaves, made)}
    names = tuple(table.configs[place] for place in used)
    found = Fit(table, within, names, chosen, _tree(grown.root, ends), leaf_of, *losses)
    return _judged(found, trial)


def _tree(grown: tree.Grown, ends: Mapping[int, Leaf]) -> Tree:
    if grown.split is None or grown.then is None or grown.other is None:
        return ends[id(grown)]
    then, other = _tree(grown.then, ends), _tree(grown.other, ends)
    return Node(grown.split, then, other)


class _Trial:
    """Fits trees without some calls, and measures the loss of these."""

    def __init__(
        self, table: Table, choosable: np.ndarray, features: tree.Features, within: float, most: int | None
    ) -> None:
        self.table, self._choosable, self._features = table, choosable, features
        self._within, self._most = within, most
        self._costs = tree.costs(table.losses)
        self._losses = np.nan_to_num(table.losses, nan=np.inf)
        self._along = list(folds.along(table))
        self._grown = [self.grow(left, self.configs(left), LEAVES).predicted for _, left in self._along]
        self.leaves = self._best_size()

    def configs(self, rows: np.ndarray, fewest: Sequence[int] | None = None) -> list[int]:
        """Few configs that hold some calls, and without a limit those that hold them within half the loss.

        The other half is for a tree: unseen calls get the config of another one.
        """
        losses = self._choosable[rows]
        few = cover.greedy(losses, self._within, self._most) if fewest is None else fewest
        return sorted({*few, *(cover.greedy(losses, self._within / 2) if self._most is None else ())})

    def grow(self, rows: np.ndarray, configs: Sequence[int], most: int) -> tree.Growth:
        """A tree fitted to some calls with some of the configs."""
        return tree.Growth(self._features, self._costs, configs, rows, most)

    def parted(self, grown: tree.Growth, losses: Sequence[np.ndarray]) -> tuple[tree.Growth, np.ndarray]:
        """Split a tree further where calls lose too much; also returns the leaf of each call."""
        for left_out in losses:
            exceeds = np.nan_to_num(left_out, nan=0.0) > self._within
            if (~np.isnan(left_out)).sum() >= CALLS:
                grown.isolate(exceeds, LEAVES)
        leaf_of = np.zeros(len(self.table), dtype=int)
        for place, leaf in enumerate(grown.leaves):
            leaf_of[leaf.all_rows] = place
        return grown, leaf_of

    def correction(
        self, parts: Iterable[tuple[np.ndarray, tree.Growth]], losses: Sequence[np.ndarray], kind: int
    ) -> Correction | None:
        """Correct bounds so that they hold for bands used neither for trees nor for bounds.

        A leaf is chosen by the same losses that bound it. So each band in turn is left out of everything, and the loss
        of its calls is compared with the resulting bounds.

        Args:
            parts: Calls left out, each with the tree grown without them.
            losses: From `along` and `across`. `kind`: index of those that make the bounds.
        """
        found: list[tuple[float, float, float, float]] = []
        numbers = folds.bands(self.table.steps)
        for out, grown in parts:
            stays = np.isin(np.arange(len(self.table)), grown.rows)
            seen = [np.where(stays, one, math.nan) for one in losses]
            _, leaf_of = self.parted(grown, seen)
            known = bounds.of_leaves(seen[kind], leaf_of, len(grown.leaves))
            for row in out:
                leaf, one = grown.leaves[leaf_of[row]], known[leaf_of[row]]
                if one is not None and not leaf.guesses:
                    found.append((min(self._losses[row, leaf.config], 1e6), one.own, one.bound, numbers[row]))
        lost, own, promised, bands = np.asarray(found, dtype=float).reshape(-1, 4).T
        return bounds.correction(lost, own, promised, bands, self._within)

    def _best_size(self) -> int:
        """The number of leaves with the least cost of calls left out; the smallest if several are about as good."""
        totals = []
        for count in range(LEAVES):
            costs = [
                self._costs[out, predicted[min(count, len(predicted) - 1)][out]]
                for (out, _), predicted in zip(self._along, self._grown)
            ]
            totals.append(np.concatenate(costs) if costs else np.zeros(1))
        means = [float(found.mean()) for found in totals]
        best = int(np.argmin(means))
        error = float((totals[best] - means[best]).std() / math.sqrt(len(totals[best]))) / 2
        return next(count + 1 for count, mean in enumerate(means) if mean <= means[best] + error)

    def along(self) -> np.ndarray:
        """The loss of each call with its band left out."""
        found = np.full(len(self.table), math.nan)
        for (out, _), predicted in zip(self._along, self._grown):
            found[out] = self._losses[out, predicted[min(self.leaves, len(predicted)) - 1][out]]
        return found

    def along_grown(self) -> list[tuple[np.ndarray, tree.Growth]]:
        """Bands left out, with the trees grown without them."""
        return [(out, self.grow(left, self.configs(left), self.leaves)) for out, left in self._along]

    @cached_property
    def across_grown(self) -> list[tuple[np.ndarray, tree.Growth]]:
        """The same with combinations of the other sizes left out too."""
        parts = folds.across(self.table)
        return [(out, self.grow(left, self.configs(left), self.leaves)) for out, left in parts]

    def across(self) -> np.ndarray:
        """The loss of each call with its combination of the other sizes left out too."""
        found = np.full(len(self.table), math.nan)
        for out, grown in self.across_grown:
            found[out] = self._losses[out, grown.predicted[-1][out]]
        return found

    def simpler(self) -> dict[str, np.ndarray]:
        """The losses of the same calls under simpler choices than a rule."""
        found = {name: np.full(len(self.table), math.nan) for name in SIMPLER}
        for out, left in self._along:
            single = int(np.argmin(self._costs[left].mean(axis=0)))
            for row in out:
                here = [at for at in left if self.table.others[at] == self.table.others[row]]
                picks = self._picks(row, here, single)
                for name, pick in zip(SIMPLER, picks):
                    found[name][row] = self._losses[row, pick]
        return found

    def _picks(self, row: int, here: Sequence[int], single: int) -> tuple[int, int, int]:
        """A call's config by simpler means: the single best, its power of two's, its nearest neighbour's."""
        octaves = np.log2(np.maximum(self.table.steps, 1.0))
        far = octaves - octaves[row]
        bucket = [at for at in here if math.ceil(octaves[at]) == math.ceil(octaves[row])]
        nearest = [min(here, key=lambda at: abs(far[at]))] if here else []
        power = int(np.argmin(self._costs[bucket or nearest].mean(axis=0))) if here else single
        reached = sorted((far[at] > 0, abs(far[at]), at) for at in here if abs(far[at]) <= math.log2(NEAR))
        return single, power, int(np.argmin(self._costs[reached[0][2]])) if reached else single


SIMPLER = ("best single config", "best config of each power of two", f"nearest within a factor of {NEAR:g}")


def _corrected(known: Sequence[Known | None], correction: Correction | None) -> list[Loss | None]:
    return [None if correction is None else correction.applied(one) for one in known]


def _judged(fitted: Fit, trial: _Trial) -> Fit:
    """Add how it compares with simpler choices on the served calls left out."""
    simpler = trial.simpler()
    asked = ~np.isnan(fitted.left_out)
    bounds = np.asarray([leaf.along.bound if leaf.along else math.inf for leaf in fitted.leaves])
    served = (bounds <= fitted.within)[fitted.leaf_of] & asked
    share = float(served.sum() / max(asked.sum(), 1))
    if not share:
        return replace(fitted, why_not=f"no leaf of it has a bound of at most {fitted.within:.1%}")
    losses = {"rule": fitted.left_out, **simpler}
    compared = {name: (float(found[served].mean()), float(found[served].max())) for name, found in losses.items()}
    return replace(fitted, compared=compared, served=share, why_not=_why_not(compared))


def _why_not(compared: Mapping[str, tuple[float, float]]) -> str:
    (mean, worst), others = compared["rule"], [compared[name] for name in SIMPLER]
    least_mean, least_worst = min(one[0] for one in others), min(one[1] for one in others)
    if mean <= least_mean - GAIN or (worst * FACTOR <= least_worst and mean <= least_mean):
        return ""
    name = min(SIMPLER, key=lambda one: compared[one][0])
    return (
        f"on the calls left out that it serves it loses {mean:.1%} in the mean and {worst:.0%} in the worst, and "
        f"{name} {compared[name][0]:.1%} and {compared[name][1]:.0%}: neither {GAIN:.0%} better nor half of the worst"
    )
