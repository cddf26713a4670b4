"""Finds the nearest tuned shape: the same call with other sizes, each within a factor."""

from __future__ import annotations

import bisect
import heapq
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from autotuned.configfiles.file import ConfigFile, Entry
from autotuned.key.nearest_key import octave, total
from autotuned.key.sizes import Sizes, argument_of, shape_of
from autotuned.typed_json import Json

Factors = Mapping[str, float]  # argument -> how many times larger or smaller a neighbour may be
T = TypeVar("T")


class Distance(NamedTuple):
    """How far a neighbour is; the least is used."""

    # Whether any size is larger than ours: tiles for a smaller problem fit a larger one, rarely the reverse.
    above: bool
    octaves: float  # the distance (`key/nearest_key.py`)


def is_near(mine: int, other: int, factor: float) -> bool:
    """Whether two sizes of an axis differ by at most the factor; nothing is near 0."""
    small, large = min(mine, other), max(mine, other)
    return small == large or (small > 0 and large <= small * factor)


class _Axis(NamedTuple):
    """The sizes on one axis, ascending, each with the next axis, or with an item on the last axis."""

    sizes: list[tuple[str, int]]
    behind: list[Any]


class Neighbourhood(Generic[T]):
    """Items that differ only in their sizes, iterated from the nearest outwards.

    The walk goes outwards on every axis, smallest step first, so that it visits only a few of ten thousand items.
    """

    def __init__(self, things: Iterable[tuple[Sizes, T]]) -> None:
        self._first = _axis(sorted(things, key=lambda thing: thing[0]), 0)

    def around(self, ours: Sizes, factors: Factors) -> Iterator[tuple[Distance, Sizes, T]]:
        """Items within the factor on every axis, nearest first; equally near ones by smaller sizes."""
        walk = _Walk([(place, factors[argument_of(place[0].partition(".")[0])]) for place in ours])
        walk.enter(self._first, _Reached(False, (), ()))
        while walk.ahead:
            above, octaves, is_thing, sizes, found = heapq.heappop(walk.ahead)
            if is_thing:
                yield Distance(above, octaves), sizes, found
            else:
                walk.take(found)


def _axis(things: Sequence[tuple[Sizes, Any]], depth: int) -> _Axis:
    alike = [(size, list(found)) for size, found in itertools.groupby(things, key=lambda thing: thing[0][depth])]
    last = depth + 1 == len(things[0][0]) if things else True
    return _Axis([size for size, _ in alike], [found[0][1] if last else _axis(found, depth + 1) for _, found in alike])


class _Reached(NamedTuple):
    """Sizes on the first axes and their distances; once complete, a `Distance`."""

    above: bool
    differences: tuple[float, ...]  # in octaves
    sizes: Sizes


class _Step(NamedTuple):
    """A step from one size on an axis to the next size outwards."""

    axis: _Axis
    place: int
    out: int  # 1 or -1
    before: _Reached
    after: _Reached


class _Walk:
    """A heap of pending steps and items; steps come before equally distant items, since more of these may follow."""

    def __init__(self, ours: Sequence[tuple[tuple[str, int], float]]) -> None:
        self._ours = ours
        self.ahead: list[tuple[bool, float, bool, Sizes, Any]] = []

    def enter(self, axis: _Axis, reached: _Reached) -> None:
        """Begin on an axis, in both directions."""
        place = bisect.bisect_right(axis.sizes, self._ours[len(reached.sizes)][0])
        self._look(axis, place - 1, -1, reached)
        self._look(axis, place, 1, reached)

    def _look(self, axis: _Axis, index: int, out: int, before: _Reached) -> None:
        if not 0 <= index < len(axis.sizes):
            return
        (_, mine), factor = self._ours[len(before.sizes)]
        size = axis.sizes[index]
        if is_near(mine, size[1], factor):
            differences = (*before.differences, octave(mine) - octave(size[1]))
            after = _Reached(before.above or out > 0, differences, (*before.sizes, size))
            self._push(after, False, _Step(axis, index, out, before, after))

    def _push(self, reached: _Reached, is_thing: bool, found: Any) -> None:
        heapq.heappush(self.ahead, (reached.above, total(reached.differences), is_thing, reached.sizes, found))

    def take(self, step: _Step) -> None:
        """Take a step: push the axis or item at its size, and the next size."""
        self._look(step.axis, step.place + step.out, step.out, step.before)
        behind = step.axis.behind[step.place]
        if len(step.after.sizes) == len(self._ours):
            self._push(step.after, True, behind)
        else:
            self.enter(behind, step.after)


def words(ours: Sequence[tuple[str, int]], theirs: Sequence[tuple[str, int]], far: Distance) -> str:
    """One line: `nearest shape M=4 for M=3, 0.42 octaves away`."""
    changed = [(path, mine, other) for (path, mine), (_, other) in zip(ours, theirs) if mine != other]
    there = " ".join(f"{path}={other}" for path, _, other in changed)
    here = " ".join(f"{path}={mine}" for path, mine, _ in changed)
    return f"nearest shape {there} for {here}, {far.octaves:.2f} octaves away"


def check(given: Mapping[str, float], allowed: Iterable[str], kernel: str) -> str:
    """The fault of a decorator's `nearest=`, or ""; its names must be among `allowed`, those in the key."""
    allowed = list(allowed)
    for name, factor in given.items():
        if name not in allowed:
            return f"`{kernel}`: nearest: {name!r} must be in the key; in it are {', '.join(allowed) or 'none'}."
        number = isinstance(factor, (int, float)) and not isinstance(factor, bool)
        if not (number and math.isfinite(factor) and factor >= 1):
            return f"`{kernel}`: nearest: {name}: expected a factor of 1 or more, such as 2.0, got {factor!r:.60}."
    return ""


class AlikeEntries(NamedTuple):
    """Entries of one context that differ only in sizes."""

    context: Json
    entries: Neighbourhood[Entry]


def alike(file: ConfigFile, rest: str, factors: Factors) -> list[AlikeEntries]:
    """The entries that differ only in sizes of some axes, by context; computed once per file and set of axes."""
    axes = frozenset(factors)
    if axes not in file.indexes:
        file.indexes[axes] = _index(file, axes)
    found: list[AlikeEntries] = file.indexes[axes].get(rest, [])
    return found


def _index(file: ConfigFile, axes: Iterable[str]) -> dict[str, list[AlikeEntries]]:
    index: dict[str, list[AlikeEntries]] = {}
    for group in file.groups():
        by_rest: dict[str, list[tuple[Sizes, Entry]]] = {}
        for entry in group.entries.values():
            shape = shape_of(entry.call, axes)
            if shape.sizes:
                by_rest.setdefault(shape.rest, []).append((shape.sizes, entry))
        for rest, found in by_rest.items():
            index.setdefault(rest, []).append(AlikeEntries(group.context, Neighbourhood(found)))
    return index
