"""Which sizes of a range are worth a search: few at first, then where neighbours' winners differ and that matters."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from autotuned.errors import OptionError
from autotuned.typed_json import Json

Point = tuple[int, ...]  # a value of each size
Known = Mapping[Point, Mapping[str, float]]  # of each measured point, the loss of each config: 0.1 is 10%
Ranges = Mapping[str, tuple[int, int]]

START = 14  # points at first, spread evenly by their logarithms: one an octave of a range of 1 to 8192
LEAST = 20  # points: of fewer no loss is known that 95 of 100 calls do not exceed
LARGEST = 1 << 40  # size: distances between sizes are worked out with floating point numbers
MOST = 40  # searches of one group of cases
ROUND = 6  # points that are measured before it is decided anew
MEAN, WORST = 0.015, 0.15  # what may be lost between the points
WITHIN = 0.05  # the loss that a rule is fitted for
CLOSE = 1.02  # no point is wanted between two that are nearer


@dataclass(frozen=True)
class Wanted:
    """The sizes that generators of cases are asked for.

    Attributes:
        names: Of the sizes. `points`: their values, in the order in which they are measured.
        only: The points of each group of cases; None for all of them, as long as groups are not known.
    """

    names: tuple[str, ...]
    points: tuple[Point, ...]
    only: Mapping[str, Sequence[Point]] | None = field(default=None)

    def holds(self, group: str, point: Point) -> bool:
        """Whether a group's case of a point is to be measured."""
        return self.only is None or point in self.only.get(group, ())

    def sizes(self, point: Point) -> dict[str, int]:
        """What a generator is given by keyword."""
        return dict(zip(self.names, point))

    def to_json(self) -> dict[str, Json]:
        """As a process that measures is told it."""
        only = None if self.only is None else {group: list(map(list, some)) for group, some in self.only.items()}
        return {"names": list(self.names), "points": list(map(list, self.points)), "only": only}

    @staticmethod
    def from_json(data: Json) -> Wanted | None:
        """What `to_json` wrote; None for None."""
        if data is None:
            return None
        only = data["only"] and {group: [tuple(one) for one in some] for group, some in data["only"].items()}
        return Wanted(tuple(data["names"]), tuple(map(tuple, data["points"])), only)


def refused(problem: str) -> OptionError:
    """The error of a range, or of targets, that cannot be covered."""
    return OptionError(f"cover: {problem}.", option="cover", problem=problem)


def checked(cover: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, int]]:
    """The ranges that are to be covered.

    Raises:
        OptionError: One is none.
    """
    found = {}
    for name, ends in cover.items():
        pair = tuple(ends) if isinstance(ends, (tuple, list)) else ()
        if len(pair) != 2 or not all(type(end) is int for end in pair) or not 1 <= pair[0] <= pair[1] <= LARGEST:
            problem = f"{name}: expected a range of sizes from 1 to {LARGEST:,}, such as (1, 8192), got {ends!r:.60}"
            raise refused(problem)
        found[str(name)] = (pair[0], pair[1])
    if not found:
        problem = "expected the range of a size at least, such as M=1:8192, got none"
        raise refused(problem)
    if 2 ** sum(low < high for low, high in found.values()) > MOST:
        raise refused(f"expected ranges whose ends are at most {MOST} calls, got {len(found)} ranges")
    return found


def parsed(texts: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Ranges as the command line has them: `M=1:8192`, several with commas or one after the other.

    Raises:
        OptionError: One is none.
    """
    found: dict[str, Sequence[int]] = {}
    for text in itertools.chain(*(one.split(",") for one in texts)):
        name, _, ends = text.partition("=")
        low, _, high = ends.partition(":")
        if not name.isidentifier() or not (low.isdecimal() and high.isdecimal()):
            problem = f"expected NAME=LOW:HIGH, such as M=1:8192, got {text!r:.60}"
            raise refused(problem)
        if name in found:
            raise refused(f"expected one range of each size, got {name!r} twice")
        found[name] = (int(low[:20]), int(high[:20]))
    return checked(found)


def first_wanted(ranges: Ranges) -> Wanted:
    """What is wanted of ranges to begin with."""
    return Wanted(tuple(ranges), tuple(first(ranges)))


def first(ranges: Ranges) -> list[Point]:
    """The points to begin with, the ends among them."""
    open_ = sum(low < high for low, high in ranges.values())
    each = max(2, round(START ** (1 / open_))) if open_ else 1
    axes = [_spread(low, high, each) for low, high in ranges.values()]
    return list(itertools.product(*axes))


def _spread(low: int, high: int, count: int) -> list[int]:
    steps = max(1, count - 1)
    return sorted({round(low * (high / low) ** (step / steps)) for step in range(steps + 1)})


class Gap(NamedTuple):
    """Two measured points with none between them that differ in one size only."""

    axis: int
    low: Point
    high: Point

    @property
    def octaves(self) -> float:
        """How far they are apart."""
        return math.log2(self.high[self.axis] / self.low[self.axis])

    @property
    def middle(self) -> Point | None:
        """A point between them; None where there is none, or it says nothing new."""
        low, high = self.low[self.axis], self.high[self.axis]
        middle = round(math.sqrt(low * high))
        if not low < middle < high or high < low * CLOSE:
            return None
        return (*self.low[: self.axis], middle, *self.low[self.axis + 1 :])


class Estimate(NamedTuple):
    """What calls between the measured points lose with what serves them, as far as the points tell."""

    mean: float
    worst: float

    @property
    def is_enough(self) -> bool:
        """Whether that is little enough to stop."""
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
    """Of each point between two others, by axis: its loss with what both neighbours are best with, and the nearer's."""
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
    """The config that loses least."""
    return min(losses, key=losses.__getitem__)


def estimate(known: Known) -> Estimate:
    """What is lost between the points. Of few points nothing is known.

    Of each point: what it would have lost, had it not been measured; its neighbours are then further away than those of
    calls between points, so that it is rather less. In each gap a call may be like either end and have the winner of
    the other, which the points left out need not show: the worst case counts that too.
    """
    open_ = [gap for gap in gaps(known) if gap.middle]
    if len(known) < LEAST and open_:
        return Estimate(math.inf, math.inf)
    losses = [nearer for _, nearer in _left_out(known).values()] or [0.0]
    return Estimate(sum(losses) / len(losses), max(*losses, *(_exchanged(known, gap) for gap in open_), 0.0))


def _exchanged(known: Known, gap: Gap) -> float:
    """What is lost at one end of a gap with the winner of the other, at the worse end."""
    low, high = known[gap.low], known[gap.high]
    return max(low.get(winner(high), 9.0), high.get(winner(low), 9.0))


def further(known: Known, most: int = ROUND) -> list[Point]:
    """The points to measure next: the middles of the gaps where most may be lost; empty where that is nowhere.

    A gap counts by its width, and by what the best config for both of its ends loses at the worse of them; and where
    that is little, by what its ends would have lost had they not been measured.
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
