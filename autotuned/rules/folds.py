"""Which calls are left out together, so that a rule's loss holds for unmeasured calls."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np

from autotuned.rules.rule import Tuned, Values
from autotuned.rules.table import Table
from autotuned.typed_json import INT64_MAX

MULTIPLES = (256, 128, 64, 16)  # that a tree may test
APART = 1.3  # smallest factor between a fitted call and one left out
BAND = 1.5  # largest size of a band over its smallest
FOLDS = 8  # bands left out together are this many bands apart
COMBINED = 8  # largest number of groups of other sizes that are left out in turn
CALLS = 0.95  # share of the calls left out that tell how far from a tuned size a call may be
BEYOND = 2.0  # no other size is served further from the tuned ones
LEAST = 4  # fewest combinations from which one can be left out


def bands(steps: np.ndarray) -> np.ndarray:
    """The number of each call's band; few sizes have a band each."""
    values = sorted(set(steps.tolist()))
    if len(values) <= 2 * FOLDS:
        return np.searchsorted(values, steps)
    low = max(values[0], 1.0)
    found = np.floor(np.log(np.maximum(steps, 1.0) / low) / math.log(BAND) + 1e-9).astype(int)
    _, numbers = np.unique(found, return_inverse=True)
    return numbers


def near(steps: np.ndarray, out: np.ndarray) -> np.ndarray:
    """Which calls are within `APART` of one left out."""
    values = np.unique(steps[out])
    at = np.maximum(np.abs(steps), 1.0)[:, None]
    with np.errstate(divide="ignore"):
        ratio = np.maximum(at / np.maximum(np.abs(values), 1.0), np.maximum(np.abs(values), 1.0) / at)
    return (ratio <= APART).any(axis=1) if len(values) else np.zeros(len(steps), dtype=bool)


def along(table: Table) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Leave out whole bands of the size `along`: calls left out, and those that remain."""
    numbers = bands(table.steps)
    count = int(numbers.max()) + 1 if len(numbers) else 0
    for fold in range(min(FOLDS, count)):
        out = numbers % FOLDS == fold
        left = ~near(table.steps, out)
        if out.any() and left.any():
            yield np.flatnonzero(out), np.flatnonzero(left)


def reach(table: Table) -> float:
    """The factor to the nearest tuned size of the same combination that 95 of 100 calls left out had at most."""
    far = []
    for out, left in along(table):
        rest = _steps(table, left)
        far += [
            min(_apart(table.steps[row], step) for step in some) for row in out if (some := rest.get(table.others[row]))
        ]
    return float(np.quantile(far, CALLS, method="inverted_cdf")) if far else APART


def _apart(one: float, other: float) -> float:
    one, other = at(one), at(other)
    return max(one, other) / min(one, other)


def at(size: float) -> float:
    """A size for measuring distances by factor: at least 1."""
    return max(abs(float(size)), 1.0)


def _steps(table: Table, rows: Iterable[int]) -> dict[Values, list[int]]:
    """The sizes `along` of some calls, by combination of the other sizes."""
    found: dict[Values, list[int]] = {}
    place = table.names.index(table.along)
    for row in rows:  # not of `steps`: floats do not hold all sizes
        found.setdefault(table.others[row], []).append(table.sizes[row][place])
    return found


def tuned(table: Table) -> Iterator[Tuned]:
    """The tuned combinations of the other sizes, each with the spans of the size `along` that are near tuned ones."""
    most, (low, high) = reach(table) * (1 + 1e-9), limits(table)[table.along]
    for others, steps in sorted(_steps(table, range(len(table))).items()):
        spans: list[tuple[int, int]] = []
        for step in sorted(steps):
            ends = (step, step) if step < 1 else (math.ceil(step / most), math.floor(step * most))
            first, last = max(low, ends[0]), min(high, ends[1])
            if spans and first <= spans[-1][1] + 1:
                first, last = spans.pop()[0], last
            spans.append((first, last))
        yield Tuned(others, tuple(spans))


def limits(table: Table, rows: Iterable[int] | None = None) -> dict[str, tuple[int, int]]:
    """The least and the largest of each size for which something is known from some calls, all if None.

    Of other sizes than `along` that is beyond the tuned ones by the factor that 95 of 100 calls left out had to the
    nearest, and at most `BEYOND`.
    """
    sizes = table.sizes if rows is None else [table.sizes[row] for row in rows]
    found = {name: (min(column), max(column)) for name, column in zip(table.names, zip(*sizes))}
    for name, most in _beyond(table).items():
        low, high = found[name]
        found[name] = (math.ceil(low / most), min(math.floor(high * most), INT64_MAX)) if low > 0 else (low, high)
    return found


def _beyond(table: Table) -> dict[str, float]:
    """How far beyond the tuned ones each size but `along` may be, as a factor."""
    groups, found = _groups(table), {}
    for place, name in enumerate([name for name in table.names if name != table.along] if groups else []):
        far = {}
        for others, group in groups.items():
            rest = {one[place] for one, other in groups.items() if other != group}
            far[others] = min(_apart(others[place], value) for value in rest)
        most = float(np.quantile([far[one] for one in table.others], CALLS, method="inverted_cdf"))
        found[name] = min(BEYOND, most)
    return found


def multiples(table: Table) -> dict[str, int]:
    """The largest of `MULTIPLES` that divides all values of a size, by name, where one does."""
    found = {}
    for name, column in zip(table.names, zip(*table.sizes)):
        number = next((number for number in MULTIPLES if not any(size % number for size in column)), 1)
        found.update({name: number} if number > 1 else {})
    return found


def _groups(table: Table) -> dict[Values, int]:
    """The combinations of the other sizes, each with the number of those that are left out with it; {} for few."""
    kinds = sorted(set(table.others))
    return {others: number % COMBINED for number, others in enumerate(kinds)} if len(kinds) >= LEAST else {}


def across(table: Table) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Leave out whole combinations of the other sizes, and from the rest the bands around them.

    Only those that are near enough to the others to be served.
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
