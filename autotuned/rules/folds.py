"""Which calls are left out together, so that a rule's loss holds for unmeasured calls."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from autotuned.rules.rule import Tuned
from autotuned.rules.table import Table

MULTIPLES = (256, 128, 64, 16)  # that a tree may test
APART = 1.3  # smallest factor between a fitted call and one left out
BAND = 1.5  # largest size of a band over its smallest
FOLDS = 8  # bands left out together are this many bands apart
COMBINED = 8  # largest number of groups of other sizes that are left out in turn
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
    """The largest factor between two tuned sizes for which calls between them are like calls left out."""
    holes = []
    for out, left in along(table):
        rest = sorted({at(table.steps[row]) for row in left})
        places = np.searchsorted(rest, [at(table.steps[row]) for row in out])
        holes += [rest[place] / rest[place - 1] for place in places if 0 < place < len(rest)]
    return float(np.median(holes)) if holes else APART


def at(size: float) -> float:
    """A size for measuring distances by factor: at least 1."""
    return max(abs(float(size)), 1.0)


def tuned(table: Table) -> Iterator[Tuned]:
    """The tuned combinations of the other sizes, each with its spans of the size `along`."""
    most = reach(table) * (1 + 1e-9)
    for others in sorted(set(table.others)):
        steps = sorted({int(step) for step, own in zip(table.steps, table.others) if own == others})
        ends = [place for place in range(1, len(steps)) if at(steps[place]) / at(steps[place - 1]) > most]
        bounds = zip([0, *ends], [*ends, len(steps)])
        yield Tuned(others, tuple((steps[first], steps[last - 1]) for first, last in bounds))


def multiples(table: Table) -> dict[str, int]:
    """The largest of `MULTIPLES` that divides all values of a size, by name, where one does."""
    found = {}
    for name, column in zip(table.names, zip(*table.sizes)):
        number = next((number for number in MULTIPLES if not any(size % number for size in column)), 1)
        found.update({name: number} if number > 1 else {})
    return found


def across(table: Table) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Leave out whole combinations of the other sizes, and from the rest the bands around them."""
    kinds = {others: number for number, others in enumerate(sorted(set(table.others)))}
    if len(kinds) < LEAST:
        return
    group = np.asarray([kinds[others] % COMBINED for others in table.others])
    for out, left in along(table):
        for one in range(min(COMBINED, len(kinds))):
            gone, stays = out[group[out] == one], left[group[left] != one]
            if len(gone) and len(stays):
                yield gone, stays
