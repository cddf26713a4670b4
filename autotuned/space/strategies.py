"""Strategies by name: which members of a space to try next, given the times so far."""

from __future__ import annotations

import itertools
import logging
import math
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, get_args

from autotuned._startup import Protocol
from autotuned.errors import OptionError
from autotuned.space.members import Members
from autotuned.space.parts import Point
from autotuned.space.space import Space
from autotuned.tunable.configs import Config, is_config

log = logging.getLogger("autotuned")
Name = Literal["auto", "exhaustive", "random", "guided"]
NAMES: tuple[str, ...] = get_args(Name)
SMALL = 64  # "auto" tries all members of a space up to this size
FAILED = ("failed", "wrong", "crashed")  # statuses of results whose times do not count
IN_VAIN = 1_000  # repeated draws in a row after which the space counts as exhausted

Result = tuple[Config, "float | None", str]


class AskTell(Protocol):
    """A user's strategy, given as `strategy=` or returned by a callable of the `Members`."""

    def ask(self, n: int, /) -> Iterable[Any]:
        """At most `n` configs to measure next; none to end."""

    def tell(self, results: Any, /) -> Any:
        """Take results: (config, microseconds or None for a failure, status)."""


class Asking(Protocol):
    """A strategy over points."""

    doubt: float

    def ask(self, count: int) -> list[Point]:
        """At most `count` new points."""

    def tell(self, results: Iterable[tuple[Point, float | None]]) -> None:
        """Take log times; None for failures."""


class Strategy:
    """Asks for configs of a space and is told their times; deterministic for a given seed."""

    asks_ahead = True  # may be asked while results are missing, and told better results later

    def __init__(self, members: Members, begin: Callable[[], Asking]) -> None:
        self.members, self._begin = members, begin
        self._asking = begin()

    def __deepcopy__(self, memo: object) -> Strategy:
        """A fresh strategy."""
        return Strategy(self.members, self._begin)

    def ask(self, n: int) -> list[Config]:
        """At most `n` new configs; none at the end.

        Raises:
            OptionError: `n` is not a number above 0.
        """
        if not hasattr(n, "__index__") or n < 1:
            raise _refusal("n", f"ask: expected a number of configs, 1 or more, got {n!r:.40}.")
        return [self.members.config(point) for point in self._asking.ask(min(int(n), sys.maxsize))]

    def tell(self, results: Iterable[Result]) -> None:
        """Take results: (config, microseconds or None for a failure, status).

        Configs outside the space are ignored; times not above 0 count as failures.

        Raises:
            OptionError: A result has another form.
        """
        told = [
            (self.members.point(config), None if status in FAILED else _logarithm(us))
            for config, us, status in _checked("results", results, 3)
        ]
        self._asking.tell((point, time) for point, time in told if point is not None)

    def importance(self) -> dict[str, Any]:
        """Weight of each parameter, 1 for the largest; empty without a model."""
        found = self._asking.importance() if hasattr(self._asking, "importance") else []
        most = max(found, default=0.0) or 1.0
        shares = {name: round(one / most, 2) for name, one in zip(self.members.names, found)}
        return {"importance": shares} if shares else {}

    @property
    def doubt(self) -> float:
        """Probability that an untried config is 1% faster than the best; 1 if unknown."""
        return self._asking.doubt


def strategy(
    name: Name,
    space: Space | Members,
    seed: int = 0,
    prior: Sequence[tuple[Config, float | None]] = (),
    arguments: Mapping[str, Any] | None = None,
) -> Strategy:
    """A strategy for use outside the decorator.

    Args:
        name: "auto" (all of a small space, else guided), "exhaustive", "random" or "guided".
        seed: The same seed and results give the same configs.
        prior: Configs with their times in microseconds under other conditions, such as on another card; tried first,
            and modelled as far as they agree with results.
        arguments: The call's arguments by name, if constraints name them.

    Raises:
        OptionError: Unknown name, or another argument is not of its type.
        SpaceError: The space is empty.
    """
    if name not in NAMES:
        raise _refusal("name", f"strategy: expected {', '.join(map(repr, NAMES))}, got {name!r:.40}.")
    if not isinstance(space, (Space, Members)):
        raise _refusal("space", f"space: expected an autotuned.Space, got {space!r:.60}.")
    if not isinstance(seed, int) or seed < 0:
        raise _refusal("seed", f"seed: expected a whole number of 0 or more, got {seed!r:.40}.")
    if not isinstance(arguments, (Mapping, type(None))):
        raise _refusal("arguments", f"arguments: expected a dict of a call's arguments, got {arguments!r:.60}.")
    members = space.members(arguments) if isinstance(space, Space) else space
    placed = [(members.point(config), _logarithm(us)) for config, us in _checked("prior", prior, 2)]
    known = {point: time for point, time in placed if point is not None and time is not None}
    return Strategy(members, partial(_named, name, members, seed, known))


def _named(name: str, members: Members, seed: int, prior: Mapping[Point, float]) -> Asking:
    if name == "auto":
        name = "exhaustive" if members.is_at_most(SMALL) else "guided"
    if name == "guided":
        from autotuned.space.guided import Guided  # with NumPy's linear algebra

        return Guided(members, seed, members.first, prior)
    if name == "exhaustive" and not members.exact:
        text = f"strategy: expected a space of known size for 'exhaustive', got {members.words} members."
        raise _refusal("name", f"{text} Use 'guided'.")
    first = [*members.first, *sorted(prior, key=lambda point: (prior[point], point))]
    return InTurn(itertools.chain(first, members if name == "exhaustive" else _drawn(members, seed)))


class InTurn:
    """Points in a fixed order."""

    doubt = 1.0

    def __init__(self, points: Iterable[Point]) -> None:
        self._points, self._asked = iter(points), set[Point]()

    def ask(self, count: int) -> list[Point]:
        """The next new points."""
        found = list(itertools.islice((point for point in self._points if self._is_new(point)), count))
        self.doubt = 1.0 if found else 0.0
        return found

    def _is_new(self, point: Point) -> bool:
        is_new = point not in self._asked
        self._asked.add(point)
        return is_new

    def tell(self, results: Iterable[tuple[Point, float | None]]) -> None:
        """Skip points that have results already."""
        self._asked.update(point for point, _ in results)


def _drawn(members: Members, seed: int) -> Iterator[Point]:
    """All members in random order; if their number is unknown, until no new ones come."""
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
    """The numbers below `count` in random order, shuffled lazily (Fisher and Yates)."""
    moved: dict[int, int] = {}
    for place in range(count):
        other = source.randrange(place, count)
        yield moved.get(other, other)
        moved[other] = moved.pop(place, place)


def _checked(what: str, given: Any, length: int) -> list[Any]:
    """Rows of a config, its microseconds or None and, if `length` is 3, a status."""
    rows = list(given) if isinstance(given, Iterable) and not isinstance(given, (str, Mapping)) else [given]
    for row in rows:
        is_row = isinstance(row, (tuple, list)) and len(row) == length and is_config(row[0])
        if not is_row or not (row[1] is None or hasattr(row[1], "__float__")):
            form = "(config, microseconds or None, status)" if length == 3 else "(config, microseconds)"
            raise _refusal(what, f"{what}: expected a list of {form} with an autotuned.Config each, got {row!r:.60}.")
    return rows


def _refusal(option: str, text: str) -> OptionError:
    return OptionError(text, option=option, problem="not of its form")


def _logarithm(us: float | None) -> float | None:
    return math.log(us) if us is not None and 0 < us < math.inf else None
