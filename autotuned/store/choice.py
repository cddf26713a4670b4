"""A choice: the config that a place gave for a call and where it came from, or why the place has none."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, ClassVar

from autotuned._startup import Frozen
from autotuned.key.key import Key
from autotuned.store.conditions import Conditions
from autotuned.store.record import TuningRecord


class Origin:
    """Where a choice came from: one of ten objects, in the order in which the places are asked.

    No `enum`: each process would spend 0.2 ms on making it before its first launch, as on reading two modules.
    """

    TABLE: ClassVar[Origin]  # this process's own table
    STORE: ClassVar[Origin]  # the user's records
    BINARY: ClassVar[Origin]  # config files: same call, with a compiled kernel that fits this Triton
    FILE: ClassVar[Origin]  # config files: same call, same context
    LADDER: ClassVar[Origin]  # config files: same call, another context
    RULE: ClassVar[Origin]  # config files: a rule for calls of other sizes
    NEAREST: ClassVar[Origin]  # config files: nearest shape
    DEFAULT: ClassVar[Origin]  # `default=`, or the first config where a mode says so
    SEARCH: ClassVar[Origin]  # measured now
    ONLY: ClassVar[Origin]  # the one config there is

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"Origin.{self.name}"

    def __reduce__(self) -> tuple[Any, ...]:
        return origin, (self.name,)  # copies are compared by identity too


ORIGINS = {name: Origin(name) for name in Origin.__annotations__}
for _name, _rung in ORIGINS.items():
    setattr(Origin, _name, _rung)


def origin(name: str) -> Origin:
    """The origin with this name."""
    return ORIGINS[name]


class Choice(Frozen):
    """The config to launch with, and why it is this one.

    Attributes:
        config: The live `Config` object, its hook included.
        origin: Where it came from.
        record: The stored record, where there is one.
        complete: Whether every candidate of the call has been measured already.
        lasting: Whether later calls may use it without asking again.
        where: The file it came from, for people.
        key: The key it was tuned for, where that is another than the call's; `note` says in what they differ.
        loud: Whether that is worth a warning.
        conditions: What it was measured under; None for what was not measured.
        tried: The candidates, by identity, of the searches of this process that it comes from: what these had no time
            for is not searched for again.
        digest: Of the call's key, where one was made.
    """

    config: Any
    origin: Origin
    record: TuningRecord | None = None
    complete: bool = True
    where: str = ""
    lasting: bool = True
    key: Key | None = None
    note: str = ""
    loud: bool = False
    conditions: Conditions | None = None
    tried: frozenset[str] = frozenset()
    digest: str = ""

    def __repr__(self) -> str:
        return f"Choice({self.config}; {self.why})"

    @property
    def is_own(self) -> bool:
        """Whether it was measured on this host, or is in the user's store."""
        return self.origin in (Origin.STORE, Origin.SEARCH)

    @property
    def why(self) -> str:
        """Where it came from, in a line."""
        return f"{self.where or self.origin.name} ({self.note})" if self.note else self.where or self.origin.name


class Look(Frozen):
    """What one place holds for a key: a choice, or in a few words why there is none.

    Attributes:
        problem: "absent", "damaged", "unreadable", "newer schema", "config gone", "weaker conditions" or "mode"; with
            a choice, what an earlier file had instead of one.
        detail: What exactly, for people. `path`: the file it is about.
    """

    choice: Choice | None = None
    problem: str = ""
    detail: str = ""
    path: str = ""


class Live(dict[str, Any]):
    """The live configs of a call by identity, in order.

    Attributes:
        is_listed: False for members of a space, which are named as a search comes to them.
        whole: False where some were left out because their grid launches nothing.
        untuned: Identity of what the call has without tuning: `default=`, else the first; None where that is unknown.
        spare: The same, where the user's list does not have it: it must not stand for a list that failed.
        said: What `default=` said for the call, in a tuple; None where it was not asked, or raised.
        no_default: Why `default=` is not among them; "" where it is, or there is none.
    """

    is_listed = True
    whole = True
    untuned: str | None = None
    spare: str | None = None
    said: tuple[Any] | None = None
    no_default = ""

    def join_untuned(self, identity: str, config: Any) -> None:
        """Take `default=` in: last, if the list does not have it."""
        self.untuned, self.spare = identity, None if identity in self else identity
        self.setdefault(identity, config)

    def each(self) -> Iterable[Any]:
        """The configs, in order."""
        return self.values()

    def is_wider_than(self, provenance: Mapping[str, Any]) -> bool:
        """Whether they come from more members of a space than a record with this provenance."""
        return False

    def only(self, names: Collection[str]) -> Live:
        """Those of these names, with all that is known of the call."""
        left = Live((name, config) for name, config in self.items() if name in names)
        vars(left).update(vars(self))
        return left

    def without(self, names: Collection[str]) -> Live:
        """Those that have other names."""
        return self.only(self.keys() - {*names})


def each(candidates: Candidates) -> Iterable[Any]:
    """The configs, in order; of a space more than were named so far."""
    return candidates.each() if isinstance(candidates, Live) else candidates.values()


def untuned_of(candidates: Candidates) -> str | None:
    """What a call with these candidates has without tuning, by identity; None where that is unknown."""
    return candidates.untuned if isinstance(candidates, Live) else None


Candidates = Mapping[str, Any]  # a config's identity -> the live Config
Place = tuple[Origin, Callable[[Key, Candidates], Look]]
