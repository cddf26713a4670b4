"""Fits a rule to measured times: its tree, its loss on left-out calls, and whether it beats simpler choices."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from autotuned.rules import bounds, cover, folds, tree
from autotuned.rules.bounds import CALLS, Correction, rounded
from autotuned.rules.formula import Formula
from autotuned.rules.rule import Leaf, Loss, Node, Rule, Tree, leaves
from autotuned.rules.table import Table
from autotuned.rules.waves import Waves
from autotuned.store.conditions import BY_DEFAULT, Conditions
from autotuned.typed_json import Json

LEAVES = 16  # most leaves of a tree, since people read it
GAIN, FACTOR = 0.01, 2.0  # a rule must lower the mean loss by this much, or the worst loss by this factor
NEAR = 2.0  # largest size ratio of the neighbours that it is compared with
SIMPLER = ("best single config", "best config of each power of two", f"nearest within a factor of {NEAR:g}")


@dataclass(frozen=True)
class Fit:
    """The result of fitting a table.

    Attributes:
        table: The data. `within`: the allowed loss.
        configs: The configs of its leaves and formulas. `cover`: the fewest for all calls, by index in the table.
        tree: None for too few calls, or calls of one shape. `leaf_of`: the index in `leaves` for each call.
        left_out: The loss of each call when left out with its band; NaN if it never was, infinite if its config was not
            measured.
        compared: Mean and worst loss of the left-out calls that it serves, by "rule" and each simpler choice.
        served: The share of left-out calls that it serves.
        why_not: Why it is not worth writing; "" if it is.
    """

    table: Table
    within: float
    configs: tuple[str, ...]
    cover: cover.Cover
    tree: Tree | None
    leaf_of: np.ndarray
    left_out: np.ndarray
    compared: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    served: float = 0.0
    why_not: str = ""
    formulas: tuple[Formula, ...] = ()

    def rule(self, under: Conditions = BY_DEFAULT) -> Rule | None:
        """The rule for the table's calls, even if not worth writing; None without a tree or pattern.

        Args:
            under: The conditions of all measurements.
        """
        if self.tree is None or self.table.pattern is None:
            return None
        return Rule(
            self.table.pattern, folds.limits(self.table), self.table.along,
            tuple(folds.tuned(self.table)), tuple(map(json.loads, self.configs)), under, self.tree,
            folds.multiples(self.table), self.formulas,
        )  # fmt: skip

    @cached_property
    def leaves(self) -> list[Leaf]:
        """The leaves of the tree, in file order."""
        return list(leaves(self.tree)) if self.tree is not None else []

    def to_json(self) -> dict[str, Json]:
        """A summary of its size and loss."""
        compared = {
            name: {"mean": rounded(mean), "worst": rounded(worst)} for name, (mean, worst) in self.compared.items()
        }
        return {
            "calls": len(self.table), "configs": len(self.configs), "leaves": len(self.leaves),
            "served": rounded(self.served), "compared": compared, "why_not": self.why_not,
        }  # fmt: skip


def fit(table: Table, within: float, most: int | None = None, among: Iterable[str] | None = None) -> Fit:
    """Fit a rule to a table.

    Its configs come from the fewest that hold every call within the loss and, unless their number is limited, within
    half of it. Cross-validation chooses the number of leaves: each time, configs and tree are chosen without the
    left-out calls, so that their loss is that of unseen calls.

    Args:
        within: The allowed loss: 0.05 for 5%.
        most: Largest number of configs.
        among: The configs to choose from; None for all. Losses are relative to the best of all.
    """
    allowed = np.isin(table.configs, list(table.configs if among is None else among))
    choosable = np.where(allowed[None, :], table.losses, math.nan)
    chosen = cover.fewest(choosable, within, most)
    names = tuple(table.configs[place] for place in chosen.configs)
    nothing = np.full(len(table), math.nan)
    empty = Fit(table, within, names, chosen, None, np.zeros(len(table), dtype=int), nothing)
    if not table.names:
        return replace(empty, why_not="all calls have the same sizes")
    if not names:
        return replace(empty, why_not=f"none of the chosen configs is within {within:.1%} of any best time")
    if len(table) < CALLS:
        return replace(empty, why_not=f"expected {CALLS} calls or more, got {len(table)}")
    features = tree.Features(table.names, table.sizes, table.processors)
    trial = _Trial(table, choosable, features, within, most)
    losses = (trial.along(), trial.across())
    everything = np.arange(len(table))
    few = trial.configs(everything, chosen.configs)
    grown, groups = trial.parted(trial.grow(everything, few, trial.leaves), losses)
    formulas = trial.formulas(everything, few)[0] if any(leaf.config == tree.PICKS for leaf in grown.leaves) else []
    used = sorted({leaf.config for leaf in grown.leaves} - {tree.PICKS} | {one.config for one in formulas})
    place_of = {config: place for place, config in enumerate(used)}
    ends = {
        id(leaf): Leaf(place_of.get(leaf.config), len(leaf.rows), *((None, None) if leaf.guesses else known))
        for leaf, known in zip(grown.leaves, _bounded(trial, grown, groups, losses))
    }
    names = tuple(table.configs[place] for place in used)
    placed = tuple(one.replace(config=place_of[one.config]) for one in formulas)
    found = Fit(table, within, names, chosen, _tree(grown.root, ends), groups[-1], losses[0], formulas=placed)
    return _judged(found, trial)


def _bounded(
    trial: _Trial, grown: tree.Growth, groups: Sequence[np.ndarray], losses: Sequence[np.ndarray]
) -> Iterable[tuple[Loss | None, ...]]:
    """The losses of each leaf, along and across, with corrected bounds."""
    kinds = []
    for kind, parts in enumerate((trial.along_grown(), trial.across_grown)):
        correction = trial.correction(parts, losses, kind)
        known = bounds.of_leaves(losses[kind], groups[kind])
        ends = [known[groups[kind][leaf.all_rows[0]]] for leaf in grown.leaves]
        kinds.append([None if correction is None else correction.applied(one) for one in ends])
    return zip(*kinds)


def _tree(grown: tree.Grown, ends: Mapping[int, Leaf]) -> Tree:
    if grown.split is None or grown.then is None or grown.other is None:
        return ends[id(grown)]
    then, other = _tree(grown.then, ends), _tree(grown.other, ends)
    return Node(grown.split, then, other)


class _Trial:
    """Cross-validation: fits trees without some calls, and measures the loss of these."""

    def __init__(
        self, table: Table, choosable: np.ndarray, features: tree.Features, within: float, most: int | None
    ) -> None:
        self.table, self._choosable, self._features = table, choosable, features
        self._within, self._most = within, most
        self._costs = tree.costs(table.losses)
        self._losses = np.nan_to_num(table.losses, nan=np.inf)
        self._along = list(folds.along(table))
        self._waves = Waves(table)
        self._known: dict[tuple[bytes, tuple[int, ...]], tuple[list[Formula], np.ndarray | None]] = {}
        grown = {kind: self._all_grown(kind) for kind in (False, True)}
        #: Whether leaves may use formulas, and the number of leaves.
        self.predicts, self.leaves = self._best_size(grown)
        self._grown = grown[self.predicts]

    def configs(self, rows: np.ndarray, fewest: Sequence[int] | None = None) -> list[int]:
        """A few configs that hold some calls and, if their number is not limited, hold them within half the loss.

        The other half is left to the tree: it gives unseen calls the config of another call.
        """
        losses = self._choosable[rows]
        few = cover.greedy(losses, self._within, self._most) if fewest is None else fewest
        found = sorted({*few, *(cover.greedy(losses, self._within / 2) if self._most is None else ())})
        return found or [int(np.argmin(tree.costs(losses).mean(axis=0)))]  # none holds one of these calls

    def grow(self, rows: np.ndarray, configs: Sequence[int], most: int, predicts: bool | None = None) -> tree.Growth:
        """Fit a tree to some calls with some of the configs, and with formulas if `predicts`."""
        formulas, picks = (
            self.formulas(rows, configs) if (self.predicts if predicts is None else predicts) else ([], None)
        )
        return tree.Growth(self._features, self._costs, configs, rows, most, picks if formulas else None)

    def formulas(self, rows: np.ndarray, configs: Sequence[int]) -> tuple[list[Formula], np.ndarray | None]:
        """Formulas fitted to some calls, and the config that they choose for every call; None without formulas."""
        key = rows.tobytes(), tuple(configs)
        if key not in self._known:
            self._known[key] = self._waves.fitted(rows, configs)
        return self._known[key]

    def _all_grown(self, predicts: bool) -> list[list[np.ndarray]]:
        """For each fold, the configs of all calls by trees of 1, 2, ... leaves fitted without it."""
        return [self.grow(left, self.configs(left), LEAVES, predicts).predicted for _, left in self._along]

    def parted(self, grown: tree.Growth, losses: Sequence[np.ndarray]) -> tuple[tree.Growth, list[np.ndarray]]:
        """Split a tree further where calls lose too much, for each kind of loss in turn.

        Also returns the leaf of each call after each kind's splits.
        """
        groups = []
        for left_out in losses:
            if (~np.isnan(left_out)).sum() >= CALLS:
                grown.isolate(np.nan_to_num(left_out, nan=0.0) > self._within, LEAVES)
            groups.append(np.zeros(len(self.table), dtype=int))
            for place, leaf in enumerate(grown.leaves):
                groups[-1][leaf.all_rows] = place
        return grown, groups

    def correction(
        self, parts: Iterable[tuple[np.ndarray, tree.Growth]], losses: Sequence[np.ndarray], kind: int
    ) -> Correction | None:
        """Correct bounds so that they hold for bands used neither for trees nor for bounds.

        The losses that bound a leaf also selected it. So each fold in turn is left out of both, and the losses of its
        calls are compared with the resulting bounds.

        Args:
            parts: Left-out calls, each with the tree grown without them.
            losses: From `along` and `across`. `kind`: the index of those that give the bounds.
        """
        found: list[tuple[float, ...]] = []
        numbers = folds.bands(self.table.steps)
        kinds = sorted(set(self.table.others))
        for out, grown in parts:
            stays = np.isin(np.arange(len(self.table)), grown.rows)
            seen = [np.where(stays, one, math.nan) for one in losses]
            _, groups = self.parted(grown, seen)
            known = bounds.of_leaves(seen[kind], groups[kind])
            for row in out:
                leaf, one = grown.leaves[groups[-1][row]], known[groups[kind][row]]
                if one is not None and not leaf.guesses:
                    loss = min(self._losses[row, grown.predicted[-1][row]], 1e6)
                    found.append((loss, one.own, one.bound, numbers[row], kinds.index(self.table.others[row])))
        lost, own, promised, bands, combinations = np.asarray(found, dtype=float).reshape(-1, 5).T
        return bounds.correction(lost, own, promised, bands, self._within, combinations if kind else None)

    def _best_size(self, grown: Mapping[bool, list[list[np.ndarray]]]) -> tuple[bool, int]:
        """Whether to use formulas, and the number of leaves, by the cost of left-out calls."""
        sizes = {kind: self._best_of(trees) for kind, trees in grown.items()}
        best = min(sizes, key=lambda kind: (sizes[kind][1], kind))
        return best, sizes[best][0]

    def _best_of(self, trees: list[list[np.ndarray]]) -> tuple[int, float]:
        """The least number of leaves whose mean cost is within half a standard error of the least, and that cost."""
        totals = []
        for count in range(LEAVES):
            costs = [
                self._costs[out, predicted[min(count, len(predicted) - 1)][out]]
                for (out, _), predicted in zip(self._along, trees)
            ]
            totals.append(np.concatenate(costs) if costs else np.zeros(1))
        means = [float(found.mean()) for found in totals]
        best = int(np.argmin(means))
        error = float((totals[best] - means[best]).std() / math.sqrt(len(totals[best]))) / 2
        return next((count + 1, mean) for count, mean in enumerate(means) if mean <= means[best] + error)

    def along(self) -> np.ndarray:
        """The loss of each call with its band left out."""
        found = np.full(len(self.table), math.nan)
        for (out, _), predicted in zip(self._along, self._grown):
            found[out] = self._losses[out, predicted[min(self.leaves, len(predicted)) - 1][out]]
        return found

    def along_grown(self) -> list[tuple[np.ndarray, tree.Growth]]:
        """Left-out bands, each with the tree grown without them."""
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
        """The losses of the same calls by each of the simpler choices."""
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
        """A call's config by each of `SIMPLER`."""
        octaves = np.log2(np.maximum(self.table.steps, 1.0))
        far = octaves - octaves[row]
        bucket = [at for at in here if math.ceil(octaves[at]) == math.ceil(octaves[row])]
        nearest = [min(here, key=lambda at: abs(far[at]))] if here else []
        power = int(np.argmin(self._costs[bucket or nearest].mean(axis=0))) if here else single
        reached = sorted((far[at] > 0, abs(far[at]), at) for at in here if abs(far[at]) <= math.log2(NEAR))
        return single, power, int(np.argmin(self._costs[reached[0][2]])) if reached else single


def _judged(fitted: Fit, trial: _Trial) -> Fit:
    """Compare the rule with simpler choices on the left-out calls that it serves."""
    simpler = trial.simpler()
    asked = ~np.isnan(fitted.left_out)
    promised = np.asarray([leaf.along.bound if leaf.along else math.inf for leaf in fitted.leaves])
    served = (promised <= fitted.within)[fitted.leaf_of] & asked
    share = float(served.sum() / max(asked.sum(), 1))
    if not share:
        return replace(fitted, why_not=f"none of its leaves has a bound within {fitted.within:.1%}")
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
        f"on the left-out calls that it serves, it loses {mean:.1%} on average and {worst:.0%} at worst; {name} loses "
        f"{compared[name][0]:.1%} and {compared[name][1]:.0%}: neither {GAIN:.0%} better on average nor half the worst"
    )
