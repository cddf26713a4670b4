"""Predicted times of configs: sums of products of sizes and waves of tiles, written as readable text."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter, mul
from typing import TypeAlias

from autotuned._startup import Frozen


class Term(Frozen):
    """A term of a formula: a number of microseconds, times sizes, times waves of tiles.

    Attributes:
        names: The sizes. `processors`: tiles per wave, 1 to count the tiles; 0 for no waves.
    """

    number: float
    names: tuple[str, ...] = ()
    processors: int = 0

    def __str__(self) -> str:
        waves = (f"waves({self.processors})",) if self.processors else ()
        return " * ".join((f"{self.number:.4g}", *self.names, *waves))


class Formula(Frozen):
    """The predicted time of a config.

    Attributes:
        config: Its index in the rule's list. `tiles`: the size of a tile by the name of the size that it divides.
    """

    config: int
    tiles: Mapping[str, int]
    terms: tuple[Term, ...]

    def __str__(self) -> str:
        return " + ".join(map(str, self.terms))

    def __hash__(self) -> int:
        return hash((self.config, self.terms))


def tiles_words(tiles: Iterable[tuple[str, int]]) -> str:
    """A number of tiles as text: `M/128 * N`."""
    return " * ".join(name if tile == 1 else f"{name}/{tile}" for name, tile in tiles)


def tiles_of(sizes: Iterable[int], tiles: Iterable[int]) -> int:
    """The number of tiles: the product of the sizes, each divided by its tile's (1 without one) and rounded up."""
    product = 1
    for size, tile in itertools.zip_longest(sizes, tiles, fillvalue=1):
        product *= -(-size // tile)
    return product


_Tiling: TypeAlias = "tuple[tuple[int, int], ...]"  # indices of sizes, each with the size of its tile


class Predictor:
    """Evaluates formulas; products and waves that several share are computed once.

    Args:
        names: The sizes, in the order of a call's values.
    """

    def __init__(self, names: Sequence[str], formulas: Sequence[Formula]) -> None:
        tilings: dict[_Tiling, set[int]] = {}
        products: dict[tuple[int, ...], int] = {}
        parts: dict[tuple[_Tiling, int, int], int] = {}
        self._formulas = []
        for formula in formulas:
            tiling = tuple((names.index(name), tile) for name, tile in formula.tiles.items())
            tilings.setdefault(tiling, set()).update(term.processors for term in formula.terms if term.processors)
            used = []
            for term in formula.terms:
                product = products.setdefault(tuple(map(names.index, term.names)), len(products))
                part = (tiling if term.processors else (), term.processors, product)
                used.append(parts.setdefault(part, len(parts)))
            numbers = [term.number for term in formula.terms]
            self._formulas.append((formula.config, [*numbers, 0.0, 0.0], itemgetter(*used, 0, 0)))
        self._products = list(products)
        self._tilings = [(tiling, sorted(processors)) for tiling, processors in tilings.items()]
        waves = [((), 0), *((tiling, count) for tiling, counts in self._tilings for count in counts)]
        self._parts = [(waves.index((tiling, processors)), product) for tiling, processors, product in parts]

    def fastest(self, values: Sequence[int]) -> tuple[int, float]:
        """The first config with the least predicted time, and that time in microseconds; inf without a prediction."""
        products, waves = [], [1]
        for places in self._products:
            product = 1
            for place in places:
                product *= values[place]
            products.append(product)
        for tiling, processors in self._tilings:
            tiles = 1
            for place, size in tiling:
                tiles *= -(-values[place] // size)
            waves += [-(-tiles // count) for count in processors]
        parts = [waves[wave] * products[product] for wave, product in self._parts]
        best, least = 0, math.inf
        for config, numbers, used in self._formulas:
            try:
                us = sum(map(mul, numbers, used(parts)))
            except OverflowError:  # an integer too large for a float
                continue
            if us < least:
                best, least = config, us
        return best, least
