"""Parts of a space: parameters linked by constraints, listed if there are few combinations, else sampled."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np

from autotuned.errors import SpaceError
from autotuned.space.constraints import BoundConstraint

LISTED = 1_000_000  # most combinations of a part that is listed; larger ones are sampled
PROBES, DRAWS = 2_000, 8  # descents per estimate of a size; members among which a draw chooses
TRIES, RARE, POOL = 40, 20, 2_000  # descents per draw, and if members are rare; members kept in that case
FILLING = 10_000  # descents to fill the pool once members turn out to be rare
QUICK = 20_000  # combinations that are listed within 0.1 s
TRIED = 40_000  # descents before a sampled part counts as empty: about two seconds

Point = tuple[int, ...]
"""A config as an index into the values of each parameter, in order."""


class Part:
    """Parameters linked by constraints, and the allowed combinations of their values.

    Members are counted on demand: finding a stored choice needs no count.

    Args:
        places: Positions of the parameters in a point.
        values: The values of each.
        constraints: Each with the indices, into `places`, of the parameters that it reads.
    """

    def __init__(
        self,
        places: Sequence[int],
        values: Sequence[Sequence[object]],
        constraints: Iterable[tuple[BoundConstraint, Point]],
    ) -> None:
        self.places = tuple(places)
        self._values = values
        self._at: list[list[tuple[BoundConstraint, Point]]] = [[] for _ in places]
        for bound, reads in constraints:
            self._at[max(reads)].append((bound, reads))
        self._combinations = math.prod(map(len, values))
        self.exact = self._combinations <= LISTED  # whether members can be listed
        self._pool: list[tuple[Point, float]] = []  # drawn members with their weights
        self._tries = TRIES

    @cached_property
    def rows(self) -> np.ndarray | None:
        """All members, one per row; None if there are too many combinations."""
        return self._listed() if self.exact else None

    @cached_property
    def size(self) -> int:
        """Number of members; an estimate unless `exact`."""
        return len(self.rows) if self.rows is not None else self._estimate()

    @property
    def about(self) -> int:
        """Number of members; an estimate if counting takes long."""
        return self.size if self._combinations <= QUICK else self._estimate()

    def is_empty(self, first: Iterable[Point]) -> bool:
        """Whether there are no members; if they cannot be listed, tries `first` and `TRIED` random descents."""
        if self.exact:
            return next(iter(self), None) is None
        given = ((row, 1.0) for row in first if self.holds(row))
        self._pool = list(itertools.islice(itertools.chain(given, self._descents(random.Random(1), TRIED)), 1))
        return not self._pool

    def __iter__(self) -> Iterator[list[int]]:
        listed = self.__dict__.get("rows")
        return self._members([]) if listed is None else iter(listed.tolist())

    def holds(self, row: Sequence[int]) -> bool:
        """Whether a combination is a member."""
        return all(self._allowed(row, depth) for depth in range(len(self.places)))

    def draw(self, source: random.Random) -> Point:
        """A random member, uniformly; approximately so if they are not listed."""
        if self.rows is not None:
            return tuple(self.rows[source.randrange(len(self.rows))].tolist())
        found = list(itertools.islice(self._descents(source, self._tries), DRAWS))
        if len(found) < DRAWS:  # members are rare: draw from those found so far
            more = () if self._tries == RARE else self._descents(source, FILLING)
            self._pool, self._tries = [*self._pool, *found, *more][-POOL:], RARE
            found = self._pool
        return source.choices([row for row, _ in found], [weight for _, weight in found])[0]

    def _listed(self) -> np.ndarray:
        if not any(self._at):
            shape = tuple(map(len, self._values))
            return np.stack(np.unravel_index(np.arange(self._combinations), shape), 1).astype(np.uint16)
        flat = itertools.chain.from_iterable(self._members([]))
        return np.fromiter(flat, np.uint16).reshape(-1, len(self.places))

    def _members(self, row: list[int]) -> Iterator[list[int]]:
        """Members that begin with `row`, in order."""
        if len(row) == len(self.places):
            yield row
            return
        for index in self._choices(row):
            yield from self._members([*row, index])

    def _choices(self, row: list[int]) -> Sequence[int]:
        """Values that the next parameter may have after `row`."""
        depth = len(row)
        every = range(len(self._values[depth]))
        return [index for index in every if self._allowed([*row, index], depth)] if self._at[depth] else every

    def _allowed(self, row: Sequence[int], depth: int) -> bool:
        values = self._values
        return all(bound.holds([values[place][row[place]] for place in reads]) for bound, reads in self._at[depth])

    def _descents(self, source: random.Random, tries: int) -> Iterator[tuple[Point, float]]:
        """Random members with the inverse of their probability (Knuth, 1975)."""
        for _ in range(tries):
            row, weight = self._descent(source)
            if weight:
                yield tuple(row), weight

    def _descent(self, source: random.Random) -> tuple[list[int], float]:
        row: list[int] = []
        weight = 1.0
        while len(row) < len(self.places):
            choices = self._choices(row)
            if not choices:
                return row, 0.0
            weight *= len(choices)
            row.append(source.choice(choices))
        return row, weight

    def _estimate(self) -> int:
        """Knuth's estimate of the number of members, with a fixed seed."""
        found = sum(weight for _, weight in self._descents(random.Random(0), PROBES))
        return max(1, round(found / PROBES))


def split(
    values: Mapping[str, Sequence[object]], constraints: Sequence[BoundConstraint], first: Sequence[Point] = ()
) -> list[Part]:
    """Split a space into independent parts; points of `first` that satisfy the constraints are known members.

    Raises:
        SpaceError: Constraints leave a part empty; names them.
    """
    names = list(values)
    parts = []
    for group in _groups(len(names), [[names.index(name) for name in bound.names] for bound in constraints]):
        inside = [bound for bound in constraints if names.index(bound.names[0]) in group]
        reads = [(bound, tuple(group.index(names.index(name)) for name in bound.names)) for bound in inside]
        part = Part(group, [values[names[place]] for place in group], reads)
        if part.is_empty(tuple(point[place] for place in group) for point in first):
            labels, named = [bound.label for bound in inside], [names[place] for place in group]
            verb, tried = "leave" if len(labels) > 1 else "leaves", f", as far as {TRIED:,} random tries tell"
            raise SpaceError(
                f"Space: expected some of {math.prod(len(values[name]) for name in named):,} combinations of "
                f"{', '.join(named)}, got none: {', '.join(labels)} {verb} nothing{tried * (not part.exact)}. Loosen a "
                f"constraint, or add values{', or name a member in first=' * (not part.exact)}.",
                constraint="; ".join(labels),
            )
        parts.append(part)
    return parts


def _groups(count: int, links: Sequence[Sequence[int]]) -> list[list[int]]:
    """Positions grouped so that no link connects two groups."""
    groups = [{place} for place in range(count)]
    for link in links:
        joined = set(link).union(*(group for group in groups if group & set(link)))
        groups = [group for group in groups if not group & joined] + [joined]
    return sorted(map(sorted, groups))
