"""Folds of cross-validation: which calls are left out together, so that a rule's loss holds for unmeasured calls."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np

from autotuned.rules import tree
from autotuned.rules.rule import TunedSizes, Values
from autotuned.rules.table import Table
from autotuned.typed_json import INT64_MAX

APART = 1.3  # least size ratio between a fitted call and a left-out one
BAND = 1.5  # largest size of a band over its smallest
FOLDS = 8  # bands left out together are this many bands apart
COMBINED = 8  # most groups of combinations of the other sizes; they are left out in turn
QUANTILE = 0.95  # of left-out calls' distances from tuned sizes; a rule serves calls up to it
BEYOND = 2.0  # largest factor beyond the tuned values at which sizes other than `along` are served
LEAST = 4  # fewest combinations from which one can be left out


def bands(steps: np.ndarray) -> np.ndarray:
    """The number of each call's band; if there are few sizes, each is a band."""
    values = sorted(set(steps.tolist()))
    if len(values) <= 2 * FOLDS:
        return np.searchsorted(values, steps)
    low = max(values[0], 1.0)
    found = np.floor(np.log(np.maximum(steps, 1.0) / low) / math.log(BAND) + 1e-9).astype(int)
    _, numbers = np.unique(found, return_inverse=True)
    return numbers


def near(steps: np.ndarray, out: np.ndarray) -> np.ndarray:
    """Which calls are within `APART` of a left-out one."""
    values = np.unique(steps[out])
    at = np.maximum(np.abs(steps), 1.0)[:, None]
    with np.errstate(divide="ignore"):
        ratio = np.maximum(at / np.maximum(np.abs(values), 1.0), np.maximum(np.abs(values), 1.0) / at)
    return (ratio <= APART).any(axis=1) if len(values) else np.zeros(len(steps), dtype=bool)


def along(table: Table) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Leave out whole bands of the size `along`; yields the left-out calls and those that remain, `APART` from them."""
    numbers = bands(table.steps)
    count = int(numbers.max()) + 1 if len(numbers) else 0
    for fold in range(min(FOLDS, count)):
        out = numbers % FOLDS == fold
        left = ~near(table.steps, out)
        if out.any() and left.any():
            yield np.flatnonzero(out), np.flatnonzero(left)


def reach(table: Table) -> float:
    """The ratio to the nearest remaining size of the same combination that 95 of 100 left-out calls do not exceed."""
    far = []
    for out, left in along(table):
        rest = _steps(table, left)
        far += [
            min(_apart(table.steps[row], step) for step in some) for row in out if (some := rest.get(table.others[row]))
        ]
    return float(np.quantile(far, QUANTILE, method="inverted_cdf")) if far else APART


def _apart(one: float, other: float) -> float:
    one, other = at(one), at(other)
    return max(one, other) / min(one, other)


def at(size: float) -> float:
    """A size as used in ratios: at least 1."""
    return max(abs(float(size)), 1.0)


def _steps(table: Table, rows: Iterable[int]) -> dict[Values, list[int]]:
    """The sizes `along` of some calls, by combination of the other sizes."""
    found: dict[Values, list[int]] = {}
    place = table.names.index(table.along)
    for row in rows:  # exact, unlike the floats of `steps`
        found.setdefault(table.others[row], []).append(table.sizes[row][place])
    return found


def tuned(table: Table) -> Iterator[TunedSizes]:
    """The tuned combinations of the other sizes, each with the spans of `along` within `reach` of tuned values."""
    most, (low, high) = reach(table) * (1 + 1e-9), limits(table)[table.along]
    for others, steps in sorted(_steps(table, range(len(table))).items()):
        spans: list[tuple[int, int]] = []
        for step in sorted(steps):
            ends = (step, step) if step < 1 else (math.ceil(step / most), math.floor(step * most))
            first, last = max(low, ends[0]), min(high, ends[1])
            if spans and first <= spans[-1][1] + 1:
                first, last = spans.pop()[0], last
            spans.append((first, last))
        yield TunedSizes(others, tuple(spans))


def limits(table: Table, rows: Iterable[int] | None = None) -> dict[str, tuple[int, int]]:
    """The range of each size that a rule fitted to some calls covers; to all calls if None.

    Sizes other than `along` may exceed their tuned values (`_beyond`).
    """
    sizes = table.sizes if rows is None else [table.sizes[row] for row in rows]
    found = {name: (min(column), max(column)) for name, column in zip(table.names, zip(*sizes))}
    for name, most in _beyond(table).items():
        low, high = found[name]
        found[name] = (math.ceil(low / most), min(math.floor(high * most), INT64_MAX)) if low > 0 else (low, high)
    return found


def _beyond(table: Table) -> dict[str, float]:
    """The factor by which each size other than `along` may exceed its tuned values, at most `BEYOND`.

    95 of 100 calls had at most this ratio to the nearest value in another group.
    """
    groups, found = _groups(table), {}
    for place, name in enumerate([name for name in table.names if name != table.along] if groups else []):
        far = {}
        for others, group in groups.items():
            rest = {one[place] for one, other in groups.items() if other != group}
            far[others] = min(_apart(others[place], value) for value in rest)
        most = float(np.quantile([far[one] for one in table.others], QUANTILE, method="inverted_cdf"))
        found[name] = min(BEYOND, most)
    return found


def multiples(table: Table) -> dict[str, int]:
    """The largest number that divides all values of a size, of those that a tree may test; by name, without ones."""
    found = {}
    for name, column in zip(table.names, zip(*table.sizes)):
        number = max((number for number in tree.DIVISORS if not any(size % number for size in column)), default=1)
        found.update({name: number} if number > 1 else {})
    return found


def _groups(table: Table) -> dict[Values, int]:
    """The number of the group with which each combination of the other sizes is left out; {} for too few of them."""
    kinds = sorted(set(table.others))
    return {others: number % COMBINED for number, others in enumerate(kinds)} if len(kinds) >= LEAST else {}


def across(table: Table) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Like `along`, but also leave out whole combinations of the other sizes.

    Calls too far from the remaining ones to be served are skipped.
    """
    groups = _groups(table)
    if not groups:
        return
    group = np.asarray([groups[others] for others in table.others])
    for out, left in along(table):
        for one in range(max(groups.values()) + 1):
            gone, stays = out[group[out] == one], left[group[left] != one]
            if len(stays):
                ends = limits(table, stays)
                ends[table.along] = min(table.steps), max(table.steps)
                gone = gone[[_is_within(table.sizes[row], ends.values()) for row in gone]] if len(gone) else gone
            if len(gone) and len(stays):
                yield gone, stays


def _is_within(sizes: Values, limits: Iterable[tuple[float, float]]) -> bool:
    return all(low <= size <= high for size, (low, high) in zip(sizes, limits))
