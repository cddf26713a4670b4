"""Strategies by name: which members of a space to try next, given the times of those tried before."""

from __future__ import annotations

import itertools
import logging
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

from autotuned.errors import OptionError
from autotuned.space.members import Members
from autotuned.space.parts import Point
from autotuned.space.space import Space
from autotuned.tunable.configs import Config

if TYPE_CHECKING:
    from typing import Protocol
else:
    Protocol = object

log = logging.getLogger("autotuned")
Name = Literal["auto", "exhaustive", "random", "guided"]
NAMES: tuple[str, ...] = get_args(Name)
SMALL = 64  # members of a space all of which "auto" tries
IN_VAIN = 1_000  # members drawn one after the other that were all asked for: there are no others to speak of

Result = tuple[Config, "float | None", str]


class AskTell(Protocol):
    """What `strategy=` takes in place of a name, or a callable of the `Members` that returns it."""

    def ask(self, n: int, /) -> Iterable[Any]:
        """At most `n` configs to measure next; none when it is done."""

    def tell(self, results: Any, /) -> Any:
        """Take times: of each config in microseconds, None where it failed, with its status."""


class Asking(Protocol):
    """What chooses among points."""

    doubt: float

    def ask(self, count: int) -> list[Point]:
        """At most so many that were not asked for."""

    def tell(self, results: Iterable[tuple[Point, float | None]]) -> None:
        """Logarithms of times, None for what failed."""


class Strategy:
    """Asks for configs of a space, and is told their times; the same seed and times give the same configs.

    Attributes:
        members: What it chooses from.
    """

    def __init__(self, members: Members, begin: Callable[[], Asking]) -> None:
        self.members, self._begin = members, begin
        self._asking = begin()

    def __deepcopy__(self, memo: object) -> Strategy:
        """A strategy that begins anew."""
        return Strategy(self.members, self._begin)

    def ask(self, n: int) -> list[Config]:
        """At most `n` configs that were not asked for before; none when there are no others.

        Raises:
            OptionError: `n` is no number above 0.
        """
        if not isinstance(n, int) or n < 1:
            raise OptionError(
                f"ask: expected how many configs, 1 or more, got {n!r}.", option="n", problem="no number above 0"
            )
        return [self.members.config(point) for point in self._asking.ask(n)]

    def tell(self, results: Iterable[Result]) -> None:
        """Take results: each a config, its time in microseconds or None where it failed, and its status.

        What is no member of the space is left out; a time that is not above 0 counts as failed.
        """
        told = [(self.members.point(config), _logarithm(us)) for config, us, _ in results]
        self._asking.tell((point, time) for point, time in told if point is not None)

    def importance(self) -> dict[str, Any]:
        """How much each parameter matters, 1 for the most; nothing where no model says so."""
        found = self._asking.importance() if hasattr(self._asking, "importance") else []
        most = max(found, default=0.0) or 1.0
        shares = {name: round(one / most, 2) for name, one in zip(self.members.names, found)}
        return {"importance": shares} if shares else {}

    @property
    def doubt(self) -> float:
        """How likely it is that a config that was not tried is 1% faster than the best; 1 where nothing is known."""
        return self._asking.doubt


def strategy(
    name: Name,
    space: Space | Members,
    seed: int = 0,
    prior: Sequence[tuple[Config, float | None]] = (),
    arguments: Mapping[str, Any] | None = None,
) -> Strategy:
    """A strategy outside of the decorator.

    Args:
        name: "auto" (all of a small space, else guided), "exhaustive", "random" or "guided".
        space: What to choose from.
        seed: Strategies with the same seed that are told the same ask for the same.
        prior: Configs with their times in microseconds under other conditions, such as on another card: these come
            first, and count as far as they agree with what is told.
        arguments: Of the call, by name, if constraints name them.

    Raises:
        OptionError: There is no strategy of this name.
        SpaceError: The space leaves nothing.
    """
    if name not in NAMES:
        raise OptionError(
            f"strategy: expected {', '.join(map(repr, NAMES))}, got {name!r:.40}.", option="name", problem="unknown"
        )
    members = space.members(arguments) if isinstance(space, Space) else space
    placed = [(members.point(config), _logarithm(us)) for config, us in prior]
    known = {point: time for point, time in placed if point is not None and time is not None}
    return Strategy(members, partial(_named, name, members, seed, known))


def _named(name: str, members: Members, seed: int, prior: Mapping[Point, float]) -> Asking:
    if name == "auto":
        name = "exhaustive" if members.is_at_most(SMALL) else "guided"
    if name == "guided":
        from autotuned.space.guided import Guided  # with NumPy's linear algebra

        return Guided(members, seed, members.first, prior)
    if name == "exhaustive" and not members.exact:
        raise OptionError(
            f"strategy: expected a space of known size for 'exhaustive', got {members.words} members. Take 'guided'.",
            option="name",
            problem="unknown size",
        )
    first = [*members.first, *sorted(prior, key=lambda point: (prior[point], point))]
    return InTurn(itertools.chain(first, members if name == "exhaustive" else _drawn(members, seed)))


class InTurn:
    """Points in an order that times do not change."""

    doubt = 1.0

    def __init__(self, points: Iterable[Point]) -> None:
        self._points, self._asked = iter(points), set[Point]()

    def ask(self, count: int) -> list[Point]:
        """The next that were not asked for."""
        found = list(itertools.islice((point for point in self._points if self._is_new(point)), count))
        self.doubt = 1.0 if found else 0.0
        return found

    def _is_new(self, point: Point) -> bool:
        is_new = point not in self._asked
        self._asked.add(point)
        return is_new

    def tell(self, results: Iterable[tuple[Point, float | None]]) -> None:
        """Nothing to learn, but what needs no trial."""
        self._asked.update(point for point, _ in results)


def _drawn(members: Members, seed: int) -> Iterator[Point]:
    """All members in random order; of a space of unknown size those that are drawn until no others come."""
    source = random.Random(seed)
    if members.exact and members.size <= 10_000_000:
        yield from (members[index] for index in _shuffled(members.size, source))
        return
    drawn, repeated = set[Point](), 0
    while repeated < IN_VAIN:
        point = members.draw(source)
        repeated = repeated + 1 if point in drawn else 0
        drawn.add(point)
        yield point


def _shuffled(count: int, source: random.Random) -> Iterator[int]:
    """The numbers below `count` in random order, each exchange made when it is asked for (Fisher and Yates)."""
    moved: dict[int, int] = {}
    for place in range(count):
        other = source.randrange(place, count)
        yield moved.get(other, other)
        moved[other] = moved.pop(place, place)


def _logarithm(us: float | None) -> float | None:
    return math.log(us) if us is not None and 0 < us < math.inf else None
