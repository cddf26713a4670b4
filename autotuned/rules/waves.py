"""Fits formulas to a table's times: a tiled kernel's time grows with the number of waves, not with the sizes."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Sequence
from functools import cache, cached_property
from typing import Any

import numpy as np

from autotuned.rules.formula import Formula, Term
from autotuned.rules.table import Table

PER_PROCESSOR = (1, 2, 3, 4)  # programs that a multiprocessor may run at a time
SIZES = 4  # most sizes for which products are tried
TILINGS = 500  # if there are more, parameters equal in all configs are skipped, and twice as many are tried at most
TOLD_BY = 4  # most configs that decide the tiling
SHARE = 0.01  # a term that is always a smaller share of the time is dropped
Tiling = tuple[str | int | None, ...]  # for each size: the parameter that divides it, 1, or None for a loop over it


class Waves:
    """Fits the formulas of `autotuned.rules.formula` to a table."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._sizes = np.asarray(table.sizes, dtype=float).reshape(len(table), len(table.names))
        self._times = np.asarray([[times.get(one, math.nan) for one in table.configs] for times in table.times])
        self._parameters = [_numbers(config) for config in table.configs]
        places = range(len(table.names))
        most = 3 if len(places) <= SIZES else 1
        self._products = [some for count in range(most + 1) for some in itertools.combinations(places, count)]
        self._product_columns = np.stack([self._sizes[:, list(some)].prod(axis=1) for some in self._products], axis=1)
        self._known: dict[Any, np.ndarray] = {}

    def fitted(self, rows: np.ndarray, configs: Sequence[int]) -> tuple[list[Formula], np.ndarray | None]:
        """Formulas fitted to some calls, and the config that they choose for every call, by index in the table.

        A config has no formula if some of the calls lacks its time, or if it is the fastest for none. None for the
        configs without formulas.
        """
        measured = [one for one in configs if not np.isnan(self._times[rows, one]).any()]
        found = [self._solved(self._columns(self._tiles(one), PER_PROCESSOR), rows, one)[0] for one in measured]
        while measured:
            columns = (self._columns(self._tiles(one), PER_PROCESSOR) for one in measured)
            us = np.stack([column @ numbers for column, numbers in zip(columns, found)])
            picks = us.argmin(axis=0)
            used = np.unique(picks[rows])
            if len(used) == len(measured):
                return [self._formula(*one) for one in zip(measured, found)], np.asarray(measured)[picks]
            measured, found = [measured[at] for at in used], [found[at] for at in used]
        return [], None

    def _formula(self, config: int, numbers: np.ndarray) -> Formula:
        names, count = self._table.names, len(self._products)
        processors = [0, *self._processors(PER_PROCESSOR)]
        terms = [
            Term(float(numbers[at]), tuple(names[one] for one in self._products[at % count]), processors[at // count])
            for at in np.flatnonzero(numbers)
        ]
        tiles = {name: tile for name, tile in zip(names, self._tiles(config)) if tile is not None}
        return Formula(config, tiles, tuple(terms))

    @cached_property
    def _tiling(self) -> Tiling:
        """Which parameter divides which size: the guess that best fits the times of a few different configs."""
        rows, told_by = np.arange(len(self._table)), self._different()

        @cache  # many tilings give a config the same tiles
        def error(config: int, tiles: tuple[int | None, ...]) -> float:
            return self._solved(self._columns(tiles, (1,)), rows, config)[1]

        best, least = None, math.inf
        for tiling in self._tilings():
            total = 0.0
            for one in told_by:
                total += error(one, self._tiles(one, tiling))
                if total >= least:
                    break
            else:
                best, least = tiling, total
        return best or (None,) * len(self._table.names)

    def _tilings(self) -> Iterator[Tiling]:
        parameters = sorted({name for one in self._parameters for name in one})
        count = len(self._table.names)
        if (2 + len(parameters)) ** count > TILINGS:
            parameters = [name for name in parameters if len({one.get(name) for one in self._parameters}) > 1]
        for tiling in itertools.islice(itertools.product((None, 1, *parameters), repeat=count), 2 * TILINGS):
            named = [one for one in tiling if isinstance(one, str)]
            if len(set(named)) == len(named):
                yield tiling

    def _different(self) -> list[int]:
        """A few configs that were measured for all calls, with as many different values of parameters as possible."""
        left = np.flatnonzero(~np.isnan(self._times).any(axis=0)).tolist()
        found: list[int] = []
        seen: set[tuple[str, int]] = set()
        while left and len(found) < TOLD_BY:
            news = [
                (len(set(self._parameters[one].items()) - seen), len({*self._parameters[one].values()})) for one in left
            ]
            found.append(left.pop(news.index(max(news))))
            seen |= set(self._parameters[found[-1]].items())
        return found

    def _tiles(self, config: int, tiling: Tiling | None = None) -> tuple[int | None, ...]:
        own = self._parameters[config]
        return tuple(own.get(one, 1) if isinstance(one, str) else one for one in tiling or self._tiling)

    def _processors(self, per_processor: Sequence[int]) -> list[int]:
        count = self._table.processors
        return [1, *(count * some for some in per_processor if count)]

    def _columns(self, tiles: tuple[int | None, ...], per_processor: Sequence[int]) -> np.ndarray:
        """The terms without their factors, calls by terms: products of sizes, alone and times each kind of waves."""
        key = tiles, per_processor
        if key not in self._known:
            counts = np.ones(len(self._table))
            for size, tile in zip(self._sizes.T, tiles):
                counts = counts * np.ceil(size / tile) if tile is not None else counts
            waves = [np.ceil(counts / processors)[:, None] for processors in self._processors(per_processor)]
            self._known[key] = np.hstack([self._product_columns, *(one * self._product_columns for one in waves)])
        return self._known[key]

    def _solved(self, columns: np.ndarray, rows: np.ndarray, config: int) -> tuple[np.ndarray, float]:
        """Non-negative factors, of four digits, that minimize the squared relative errors, and the mean of these."""
        shares = columns[rows] / self._times[rows, config][:, None]
        scale = np.maximum(np.abs(shares).max(axis=0), 1e-300)
        shares = shares / scale
        found = _nnls(shares)
        kept = (shares * found).max(axis=0) >= SHARE
        start, found = found[kept], np.zeros(len(found))
        found[kept] = _nnls(shares[:, kept], start)
        numbers = np.asarray([float(f"{one:.4g}") for one in found / scale])
        return numbers, float(((shares @ (numbers * scale) - 1.0) ** 2).mean())


def _numbers(config: str) -> dict[str, int]:
    """The parameters of a config that may be the size of a tile."""
    found = json.loads(config).get("kwargs", {})
    return {name: value for name, value in found.items() if type(value) is int and 1 < value < 1 << 16}


def _nnls(columns: np.ndarray, start: np.ndarray | None = None) -> np.ndarray:
    """Non-negative least squares (Lawson and Hanson): factors whose weighted sum of columns is nearest to ones.

    Args:
        start: Non-negative factors to start from; None for zeros.
    """
    count = columns.shape[1]
    products, wanted = columns.T @ columns, columns.sum(axis=0)
    products[np.diag_indices(count)] *= 1 + 1e-9  # columns may be multiples of each other
    found = np.zeros(count) if start is None else start
    free = found > 0
    for _ in range(3 * count):
        if free.any():
            found = _solve_free(products, wanted, found, free)
        gain = np.where(free, -np.inf, wanted - products @ found)
        place = int(gain.argmax()) if count else 0
        if not count or gain[place] <= 1e-7 * len(columns):
            break
        free[place] = True
    return found


def _solve_free(products: np.ndarray, wanted: np.ndarray, found: np.ndarray, free: np.ndarray) -> np.ndarray:
    """Least squares over the free factors; those that would be negative are fixed at 0."""
    while True:
        some = np.flatnonzero(free)
        solved = np.zeros(len(found))
        solved[some] = np.linalg.solve(products[some[:, None], some], wanted[some])
        low = free & (solved <= 0)
        if not low.any():
            return solved
        found = found + (found[low] / (found[low] - solved[low])).min() * (solved - found)
        free &= found > 1e-14
        found[~free] = 0.0
