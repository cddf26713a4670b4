"""The members of a space for one call: counted, drawn, compared and made into configs."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from autotuned.space import parts
from autotuned.space.constraints import Constraint
from autotuned.space.parts import Point
from autotuned.tunable.configs import OPTIONS, Config

EXACT_LISTS = 50_000  # most members to examine at once; of larger spaces, a random sample of this size
DRAWN = 500  # size of the sample if the space's is an estimate: a draw takes a millisecond


class Members:
    """The members of a space for one call; `first` are points to try first.

    Raises:
        SpaceError: A constraint names something unknown, leaves nothing or raises.
    """

    def __init__(
        self,
        values: Mapping[str, Sequence[Any]],
        where: Sequence[Constraint],
        arguments: Mapping[str, Any],
        first: Sequence[Point] = (),
        options: bool = True,
    ) -> None:
        self.names = tuple(values)  # the parameters, in order
        self.values = tuple(values.values())
        self._options = {name for name in self.names if options and name in OPTIONS}
        self._has_options = options
        self.parts = parts.split(values, [one.bound(self.names, arguments) for one in where], first)
        self.under = ""  # digest of the declaration, and the arguments that constraints read; set by `Declaration`
        self.exact = all(part.exact for part in self.parts)  # whether there are few enough combinations to list
        self.first = tuple(point for point in dict.fromkeys(first) if self.holds(point))

    @cached_property
    def _indices(self) -> list[dict[Any, int]]:
        return [indices(values) for values in self.values]

    @cached_property
    def size(self) -> int:
        """Number of members; an estimate unless `exact`."""
        return math.prod(part.size for part in self.parts)

    @cached_property
    def about(self) -> int:
        """Number of members; an estimate if counting takes long."""
        return math.prod(part.about for part in self.parts)

    def is_at_most(self, most: int) -> bool:
        """Whether an exact space has at most `most` members; examines no more."""
        return self.exact and sum(1 for _ in itertools.islice(iter(self), most + 1)) <= most

    @property
    def words(self) -> str:
        """Number of members as text."""
        return f"{'' if self.exact else 'about '}{self.size:,}"

    def holds(self, point: Sequence[int]) -> bool:
        """Whether a point is a member."""
        return all(part.holds([point[place] for place in part.places]) for part in self.parts)

    def draw(self, source: random.Random) -> Point:
        """A random member, uniformly; approximately so if the size is an estimate."""
        return self._point([part.draw(source) for part in self.parts])

    def __getitem__(self, index: int) -> Point:
        """The member at an index of an exact space; parameters of the last part change fastest.

        Raises:
            IndexError: Out of range, or the size is an estimate.
        """
        if not (self.exact and 0 <= index < self.size):
            raise IndexError(f"expected an index below {self.words} in a space of known size, got {index}")
        return tuple(self.table(np.array([index]))[0].tolist())

    def __iter__(self) -> Iterator[Point]:
        """Members of an exact space, in order."""
        return map(self._point, self._rows(0))

    def _rows(self, place: int) -> Iterator[list[Sequence[int]]]:
        """A row of each part from `place` on; those of the last part change fastest."""
        if place == len(self.parts):
            yield []
            return
        for row in self.parts[place]:
            for rest in self._rows(place + 1):
                yield [row, *rest]

    def _point(self, rows: Sequence[Sequence[int]]) -> Point:
        point = [0] * len(self.names)
        for part, row in zip(self.parts, rows):
            for place, index in zip(part.places, row):
                point[place] = index
        return tuple(point)

    def table(self, index: np.ndarray) -> np.ndarray:
        """The members at some indices of an exact space, one per row."""
        found = np.empty((len(index), len(self.names)), np.uint16)
        for part in reversed(self.parts):
            index, row = np.divmod(index, part.size)
            if part.rows is not None:
                found[:, list(part.places)] = part.rows[row]
        return found

    def some(self, source: random.Random, most: int = EXACT_LISTS) -> np.ndarray:
        """All members, or at most `most` random ones, one per row."""
        if self.exact and self.size <= most:
            return self.table(np.arange(self.size))
        if self.exact and self.size < 2**62:
            return self.table(np.array(source.sample(range(self.size), most)))
        return np.array([*{self.draw(source): None for _ in range(min(most, DRAWN))}], np.uint16)

    def neighbours(self, point: Sequence[int]) -> Iterator[Point]:
        """Members that differ in one parameter: by one step in its values, or in any value if unordered."""
        for place, values in enumerate(self.values):
            here = point[place]
            steps = (here - 1, here + 1) if is_ordered(values) else range(len(values))
            for index in steps:
                other = (*point[:place], index, *point[place + 1 :])
                if index != here and 0 <= index < len(values) and self.holds(other):
                    yield other

    def config(self, point: Sequence[int]) -> Config:
        """A member as a `triton.Config`."""
        import triton

        given = {name: values[index] for name, values, index in zip(self.names, self.values, point)}
        options = {name: given.pop(name) for name in list(given) if name in self._options}
        return triton.Config(given, **options)

    def point(self, config: Config) -> Point | None:
        """Point of a config; None if it is not a member."""
        others = config.kwargs.keys() - set(self.names)
        if others or getattr(config, "pre_hook", None) is not None:
            return None
        if self._has_options and any(
            getattr(config, name, default) != default for name, default in OPTIONS.items() if name not in self.names
        ):
            return None
        point = place_of(config, self.names, self._indices)
        return point if point is not None and self.holds(point) else None


def place_of(config: Config, names: Sequence[str], places: Sequence[Mapping[Any, int]]) -> Point | None:
    """Indices of a config's values, ignoring constraints; None if a value is unknown."""
    fields = {**{name: getattr(config, name, None) for name in OPTIONS}, **config.kwargs}
    found = [known.get(key_of(fields[name])) if name in fields else None for name, known in zip(names, places)]
    return None if None in found else tuple(index for index in found if index is not None)


def indices(values: Sequence[Any]) -> dict[Any, int]:
    """Index of each value, by `key_of`."""
    return {key_of(value): index for index, value in enumerate(values)}


def key_of(value: Any) -> Any:
    """A key to compare values by: `True` is not 1, 16 of any integer type is 16."""
    try:
        hash(value)
    except TypeError:
        return repr(value)
    return isinstance(value, (bool, np.bool_)), value


def is_ordered(values: Sequence[Any]) -> bool:
    """Whether values are numbers in ascending or descending order."""
    if not all(isinstance(value, (int, float, np.number)) and not isinstance(value, bool) for value in values):
        return False
    pairs = list(zip(values, values[1:]))
    return all(one < other for one, other in pairs) or all(one > other for one, other in pairs)
