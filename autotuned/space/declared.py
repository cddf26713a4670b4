"""Candidates of a declared space: its members, made into configs on demand."""

from __future__ import annotations

import copy
import itertools
import json
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any

from autotuned._startup import forget_oldest
from autotuned.errors import DecorationError, PruningError, SpaceError
from autotuned.key import opaque, source
from autotuned.space.members import EXACT_LISTS, Members
from autotuned.space.space import Space
from autotuned.space.strategies import NAMES, SMALL, strategy
from autotuned.store.choice import Live
from autotuned.tunable.call import Call, refuse_conflicts
from autotuned.tunable.configs import Config
from autotuned.tunable.tunable import Tunable
from autotuned.typed_json import Json, canonical, digest, encode

KEPT = 16  # cached spaces per kernel, by the arguments that constraints read
WIDER = 1.1  # a call with more members by this factor is searched again; not 1, since their number may be an estimate
ADMITTED = 256  # members offered to a pruner until it keeps one


class Declaration:
    """`configs=Space(...)` and `strategy=` of a decorated function.

    Args:
        wanted: A strategy's name, an object with `ask(n)` and `tell(results)`, or a callable of the members that
            returns one.
        options: Whether `num_warps` and the like are launch options.

    Raises:
        DecorationError: `wanted` is none of these.
    """

    def __init__(self, space: Space, wanted: Any, options: bool, kernel: str) -> None:
        if not (wanted in NAMES if isinstance(wanted, str) else _is_strategy(wanted) or callable(wanted)):
            raise DecorationError(
                f"`{kernel}`: strategy: expected {', '.join(map(repr, NAMES))}, or an object with ask(n) and "
                f"tell(results), got {wanted!r:.60}."
            )
        self.space, self._wanted, self._options, self._kernel = space, wanted, options, kernel
        self._unused: list[Any] = [wanted]  # the user's object serves the first search, copies the others
        self._pristine = _copied(wanted)
        self._known: dict[str, Members] = {}  # by the arguments that constraints read, as text

    def reads(self, arguments: Iterable[str]) -> set[str]:
        """The arguments that constraints read."""
        where = self.space.where
        named = {name for one in where for name in (*one.needs, *one.takes)}
        return {name for name in arguments if name in named or any(one.rest for one in where)}

    def members(self, arguments: Mapping[str, Any]) -> Members:
        """The members for a call.

        Raises:
            SpaceError: A constraint names something unknown, leaves nothing or raises.
        """
        read = {name: arguments[name] for name in sorted(self.reads(arguments))}
        has_text = all(type(value) in (int, str, bool, float, type(None)) for value in read.values())
        text = repr(read) if has_text else ""
        found = self._known.get(text)
        if found is None:
            found = self.space.members(arguments, self._options)
            found.under = f"{self._digest} {text}"
            if has_text:
                forget_oldest(self._known, KEPT - 1)
                self._known[text] = found
        return found

    @cached_property
    def _digest(self) -> str:
        """A digest of values and constraints, equal in all processes."""
        where = [source.fingerprint(one.function) for one in self.space.where]
        return digest([[name, repr(values)] for name, values in self.space.parameters.items()] + [where])[:16]

    def is_listed(self, members: Members, ranked: bool) -> bool:
        """Whether all members are candidates, as in a list; `ranked`: whether a `perf_model` ranks them.

        Raises:
            SpaceError: There are too many to rank.
        """
        if ranked and not (members.exact and members.size <= EXACT_LISTS):
            raise SpaceError(
                f"`{self._kernel}`: perf_model: expected a space of at most {EXACT_LISTS:,} configs to rank, got "
                f"{members.words}. Add constraints, or leave perf_model out: the search learns which are fast.",
                constraint="perf_model",
            )
        wanted = self._wanted
        if ranked or wanted == "exhaustive":
            return members.exact
        return wanted == "auto" and members.is_at_most(SMALL)

    def __call__(self, **arguments: Any) -> list[Config]:
        """All members as a list, those of `first=` first."""
        members = self.members(arguments)
        return [members.config(point) for point in dict.fromkeys([*members.first, *members])]

    def strategy(self, members: Members, prior: list[tuple[Config, float]]) -> Any:
        """The strategy for a call's space."""
        if isinstance(self._wanted, str):
            return strategy(self._wanted, members, 0, prior)  # type: ignore[arg-type]  # checked
        if not _is_strategy(self._wanted):
            return self._wanted(members)
        with suppress(IndexError):  # taken, perhaps by another thread
            return self._unused.pop()
        if self._pristine is None:
            raise DecorationError(
                f"`{self._kernel}`: strategy: expected an object that can be copied for the search of each key, got "
                f"{self._wanted!r:.60}. Give a callable that takes the space's members and returns one."
            )
        return copy.deepcopy(self._pristine)

    def sample(self) -> list[Config]:
        """A config that sets all parameters, ignoring constraints."""
        members = Members(self.space.parameters, (), {}, (), self._options)
        return [members.config((0,) * len(members.names))]


class Declared(Live):
    """Candidates by identity: those asked for so far, and all other members on demand.

    `admit` returns the configs that the pruner keeps and for which the grid is not empty.
    """

    is_listed = False

    def __init__(
        self, members: Members, identity: Callable[[Config], str], admit: Callable[[list[Config]], list[Config]]
    ) -> None:
        super().__init__()
        self.members, self._identity, self._admit = members, identity, admit
        self._out: Collection[str] = ()

    def admitted(self, configs: Iterable[Config]) -> dict[str, Config]:
        """Add the configs that this call may use to the candidates; returns them by identity."""
        new = [config for config in configs if self.members.point(config) is not None]
        found = {self._identity(config): config for config in self._admit(new)} if new else {}
        found = {name: dict.get(self, name, config) for name, config in found.items() if name not in self._out}
        self.update(found)
        return found

    def is_wider_than(self, provenance: Mapping[str, Any]) -> bool:
        """Whether this call allows more members than any call behind a record."""
        most, under = _widest(provenance)
        is_alike = under == self.members.under and not under.endswith(" ")  # " ": the arguments have no text
        return most > 0 and not is_alike and most * WIDER < self.members.about

    def is_declared_as(self, provenance: Mapping[str, Any]) -> bool:
        """Whether a record's space has the same declaration, even if for another call."""
        return _widest(provenance)[1].split(" ")[0] == self.members.under.split(" ")[0]

    def widest(self, earlier: Mapping[str, Any]) -> dict[str, Json]:
        """The call with the most members, of the record's calls and this one, as written to the record."""
        most, under = _widest(earlier)
        if most > self.members.about and self.is_declared_as(earlier):
            return {"widest": most, "under": under}
        return {"widest": self.members.about, "under": self.members.under}

    def begin(self) -> None:
        """Add the first config that this call may use."""
        next(self._in_order(), None)

    def each(self) -> Iterator[Any]:
        """The candidates so far, then others in order, some hundreds in all."""
        named = dict(self)
        yield from named.values()
        yield from (config for identity, config in self._in_order() if identity not in named)

    def _in_order(self) -> Iterator[tuple[str, Config]]:
        seeded, members = random.Random(0), self.members
        every = iter(members) if members.exact else (members.draw(seeded) for _ in itertools.count())
        for point in itertools.islice(itertools.chain(self.members.first, every), ADMITTED):
            yield from self.admitted([self.members.config(point)]).items()

    def __len__(self) -> int:
        return super().__len__() + 1  # never a single candidate

    def __contains__(self, identity: object) -> bool:
        return super().__contains__(identity) or self._named(identity)

    def __missing__(self, identity: str) -> Config:
        if self._named(identity):
            return dict.__getitem__(self, identity)
        raise KeyError(identity)

    def get(self, identity: str, default: Any = None) -> Any:
        """The config of an identity."""
        return self[identity] if self.__contains__(identity) else default

    def without(self, names: Collection[str]) -> Live:
        """A copy without some of them."""
        left = Declared(self.members, self._identity, self._admit)
        left.update((name, config) for name, config in self.items() if name not in names)
        vars(left).update({**vars(self), "_out": frozenset({*self._out, *names})})
        return left

    def _named(self, identity: object) -> bool:
        config = self.member(identity) if isinstance(identity, str) and identity not in self._out else None
        return config is not None and identity in self.admitted([config])

    @cached_property
    def _texts(self) -> list[dict[str, int]]:
        """For each parameter, the index of each value by its text in an identity."""
        return [
            {canonical(encode(value, name, opaque.spell)): index for index, value in enumerate(values)}
            for name, values in zip(self.members.names, self.members.values)
        ]

    def member(self, identity: str) -> Config | None:
        """The member with an identity, even if this call may not use it; None if there is none."""
        try:
            form: Json = json.loads(identity)
            fields = {**form, **form["kwargs"]}
            point = [texts[canonical(fields[name])] for name, texts in zip(self.members.names, self._texts)]
        except (ValueError, KeyError, TypeError):
            return None
        config = self.members.config(point)
        return config if self.members.holds(point) and self._identity(config) == identity else None


def _widest(provenance: Mapping[str, Any]) -> tuple[int, str]:
    """The most members of any call behind a record (0 if unknown), and that call's `Members.under`."""
    searched = provenance.get("space")
    searched = searched if isinstance(searched, dict) else {}
    most, under = searched.get("widest"), searched.get("under")
    return (most if type(most) is int else 0), str(under)


def of(given: Any, wanted: Any, options: bool, kernel: str) -> Declaration:
    """`configs=` and `strategy=` of a decorator.

    Raises:
        DecorationError: A strategy without a space, or an unknown one.
    """
    if not isinstance(given, Space):
        raise DecorationError(
            f"`{kernel}`: strategy: expected configs=autotuned.Space(...) with it, got {type(given).__name__}: every "
            "config of a list is measured. Remove strategy=, or declare a space."
        )
    return Declaration(given, "auto" if wanted is None else wanted, options, kernel)


def candidates(
    tunable: Tunable,
    call: Call,
    members: Members,
    identity: Callable[[Config], str],
    prune: Callable[[list[Config]], list[Config]],
) -> Declared:
    """The candidates of a call's space; only the first is made into a config.

    Raises:
        PruningError: A pruner, or the grid, leaves none of the first members.
        ValueError: The caller passes an argument that a config sets.
    """

    def admit(configs: list[Config]) -> list[Config]:
        offered = {id(config) for config in configs}
        try:
            left = prune(configs)
        except PruningError:
            return []
        same = {id(config) for config in left}
        made = {identity(config) for config in left if id(config) not in offered}  # by the pruner itself
        kept = [config for config in configs if id(config) in same or (made and identity(config) in made)]
        for config in kept:
            refuse_conflicts(tunable, call.args, call.kwargs, tunable.settings(config))
        return [config for config in kept if not callable(call.grid) or tunable.launches(call, config)]

    live = Declared(members, identity, admit)
    live.begin()
    if not live.keys():
        raise PruningError(
            f"`{tunable.name}`: expected a pruner and a grid that keep some of the first "
            f"{min(ADMITTED, members.size)} of {members.words} configs, got none for this call. Move their conditions "
            "into where=; a pruner adds no configs to a space.",
            kernel=tunable.name,
        )
    live.untuned = next(iter(live))
    return live


def _copied(given: Any) -> Any:
    """A copy of the user's strategy; None if it cannot be copied."""
    try:
        return copy.deepcopy(given) if _is_strategy(given) else None
    except Exception:  # user objects may raise anything
        return None


def _is_strategy(given: Any) -> bool:
    return callable(getattr(given, "ask", None)) and callable(getattr(given, "tell", None))
