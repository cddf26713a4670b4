"""Chooses the sizes of a range to tune: a few at first, then more where neighbours' winners lose most."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from autotuned.errors import refused
from autotuned.typed_json import Json

Point = tuple[int, ...]  # a value of each size
Known = Mapping[Point, Mapping[str, float]]  # the loss of each config at each measured point; 0.1 is 10%
Ranges = Mapping[str, tuple[int, int]]

START = 14  # points at first, spread evenly by logarithm: one per octave of 1 to 8192
LEAST = 20  # points; fewer cannot show a loss that 95 of 100 calls stay below
LARGEST = 1 << 40  # size; distances are computed in floating point
MOST = 40  # searches per group of cases
ROUND = 6  # points measured before deciding again
MEAN, WORST = 0.015, 0.15  # allowed loss between the points
WITHIN = 0.05  # allowed loss for fitting a rule
CLOSE = 1.02  # no further point between two that are closer


@dataclass(frozen=True)
class WantedSizes:
    """The sizes to request from case generators.

    Attributes:
        names: The sizes' names.
        points: Their values, in the order of measuring.
        only: The points of each group of cases; None for all, while groups are unknown.
    """

    names: tuple[str, ...]
    points: tuple[Point, ...]
    only: Mapping[str, Sequence[Point]] | None = None

    def holds(self, group: str, point: Point) -> bool:
        """Whether to measure a group's case at a point."""
        return self.only is None or point in self.only.get(group, ())

    def sizes(self, point: Point) -> dict[str, int]:
        """Keyword arguments for a generator."""
        return dict(zip(self.names, point))

    def to_json(self) -> dict[str, Json]:
        """JSON for a measuring process."""
        only = None if self.only is None else {group: list(map(list, some)) for group, some in self.only.items()}
        return {"names": list(self.names), "points": list(map(list, self.points)), "only": only}

    @staticmethod
    def from_json(data: Json) -> WantedSizes | None:
        """The inverse of `to_json`; None for None."""
        if data is None:
            return None
        only = data["only"] and {group: [tuple(one) for one in some] for group, some in data["only"].items()}
        return WantedSizes(tuple(data["names"]), tuple(map(tuple, data["points"])), only)


def checked(cover: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, int]]:
    """The checked ranges to cover; OptionError if one is invalid."""
    found = {}
    for name, ends in cover.items():
        pair = tuple(ends) if isinstance(ends, (tuple, list)) else ()
        if len(pair) != 2 or not all(type(end) is int for end in pair) or not 1 <= pair[0] <= pair[1] <= LARGEST:
            text = f"expected a range of sizes from 1 to {LARGEST:,}, such as (1, 8192), got {ends!r:.60}"
            raise refused("cover", f"{name}: {text}")
        found[str(name)] = (pair[0], pair[1])
    if not found:
        raise refused("cover", "expected at least one range of a size, such as M=1:8192, got none")
    if 2 ** sum(low < high for low, high in found.values()) > MOST:
        raise refused("cover", f"expected ranges whose ends combine to at most {MOST} calls, got {len(found)} ranges")
    return found


def parsed(texts: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Ranges from the command line, such as `M=1:8192`, also separated by commas; OptionError if one is invalid."""
    found: dict[str, Sequence[int]] = {}
    for text in itertools.chain(*(one.split(",") for one in texts)):
        name, _, ends = text.partition("=")
        low, _, high = ends.partition(":")
        if not name.isidentifier() or not (low.isdecimal() and high.isdecimal()):
            raise refused("cover", f"expected NAME=LOW:HIGH, such as M=1:8192, got {text!r:.60}")
        if name in found:
            raise refused("cover", f"expected one range of each size, got {name!r} twice")
        found[name] = (int(low[:20]), int(high[:20]))
    return checked(found)


def first_wanted(ranges: Ranges) -> WantedSizes:
    """The first round over some ranges."""
    return WantedSizes(tuple(ranges), tuple(first(ranges)))


def first(ranges: Ranges) -> list[Point]:
    """The points of the first round, including the ends."""
    open_ = sum(low < high for low, high in ranges.values())
    each = max(2, round(START ** (1 / open_))) if open_ else 1
    axes = [spread(low, high, each) for low, high in ranges.values()]
    return list(itertools.product(*axes))


def spread(low: int, high: int, count: int) -> list[int]:
    """At most `count` sizes, but at least both ends, in equal ratios."""
    steps = max(1, count - 1)
    return sorted({round(low * (high / low) ** (step / steps)) for step in range(steps + 1)})


class Gap(NamedTuple):
    """Two neighbouring measured points, which differ in one size only."""

    axis: int
    low: Point
    high: Point

    @property
    def octaves(self) -> float:
        """Their distance."""
        return math.log2(self.high[self.axis] / self.low[self.axis])

    @property
    def middle(self) -> Point | None:
        """A point between them; None if they are too close."""
        low, high = self.low[self.axis], self.high[self.axis]
        middle = round(math.sqrt(low * high))
        if not low < middle < high or high < low * CLOSE:
            return None
        return (*self.low[: self.axis], middle, *self.low[self.axis + 1 :])


class Estimate(NamedTuple):
    """Estimated loss of calls between the measured points."""

    mean: float
    worst: float

    @property
    def is_enough(self) -> bool:
        """Whether it is small enough to stop."""
        return self.mean <= MEAN and self.worst <= WORST


def gaps(known: Known) -> Iterator[Gap]:
    """All gaps between measured points."""
    axes = len(next(iter(known), ()))
    for axis in range(axes):
        lines: dict[Point, list[Point]] = {}
        for point in known:
            lines.setdefault((*point[:axis], *point[axis + 1 :]), []).append(point)
        for line in lines.values():
            ordered = sorted(line, key=lambda point: point[axis])
            yield from (Gap(axis, low, high) for low, high in itertools.pairwise(ordered))


def _left_out(known: Known) -> dict[tuple[int, Point], tuple[float, float]]:
    """The loss of each inner point, by axis: with its neighbours' best common config, and the nearer's winner."""
    behind = {(gap.axis, gap.high): gap for gap in gaps(known)}
    found = {}
    for gap in gaps(known):
        before = behind.get((gap.axis, gap.low))
        if before is None:
            continue
        here, low, high = known[gap.low], known[before.low], known[gap.high]
        share = before.octaves / (before.octaves + gap.octaves)
        both = min(here, key=lambda name: (1 - share) * low.get(name, 9.0) + share * high.get(name, 9.0))
        nearer = winner(low if before.octaves <= gap.octaves else high)
        found[gap.axis, gap.low] = here[both], here.get(nearer, 9.0)
    return found


def winner(losses: Mapping[str, float]) -> str:
    """The config with the smallest loss."""
    return min(losses, key=losses.__getitem__)


def estimate(known: Known) -> Estimate:
    """The loss between the points; infinite if there are too few.

    Each point is left out in turn and served by its neighbours, which are farther away than those of real calls, so the
    estimate is too high rather than too low. The worst case also includes, for each gap, the loss at one end with the
    other end's winner.
    """
    open_ = [gap for gap in gaps(known) if gap.middle]
    if len(known) < LEAST and open_:
        return Estimate(math.inf, math.inf)
    losses = [nearer for _, nearer in _left_out(known).values()] or [0.0]
    return Estimate(sum(losses) / len(losses), max(*losses, *(_exchanged(known, gap) for gap in open_), 0.0))


def _exchanged(known: Known, gap: Gap) -> float:
    """The loss at the worse end of a gap with the other end's winner."""
    low, high = known[gap.low], known[gap.high]
    return max(low.get(winner(high), 9.0), high.get(winner(low), 9.0))


def further(known: Known, most: int = ROUND) -> list[Point]:
    """The points to measure next: the middles of the gaps with the largest possible loss.

    A gap is weighted by its width and by the loss of its ends' best common config at the worse end, or, if that is
    larger, by the mean loss of its ends when left out.
    """
    left_out = _left_out(known)
    found: dict[Point, float] = {}
    for gap in gaps(known):
        low, high, middle = known[gap.low], known[gap.high], gap.middle
        if middle is None or middle in known:
            continue
        both = min((max(low[name], high[name]) for name in low.keys() & high.keys()), default=1.0)
        ends = [left_out[gap.axis, point][0] for point in (gap.low, gap.high) if (gap.axis, point) in left_out]
        loss = min(max(both, sum(ends) / 2), 0.5)
        if loss > 0:
            found[middle] = max(found.get(middle, 0.0), loss * gap.octaves)
    return sorted(found, key=lambda point: (-found[point], point))[:most]
