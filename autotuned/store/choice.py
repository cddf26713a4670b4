"""A choice: the config found for a call and its origin, or why there is none."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, ClassVar

from autotuned._startup import Frozen
from autotuned.key.key import Key
from autotuned.store.conditions import Conditions
from autotuned.store.record import TuningRecord


class Origin:
    """Where a choice came from: one of ten objects, in the order in which origins are asked.

    Not an `enum`, which would add 0.2 ms to each process start, like two more modules.
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
        return origin, (self.name,)  # origins are compared by identity


ORIGINS = {name: Origin(name) for name in Origin.__annotations__}
for _name, _rung in ORIGINS.items():
    setattr(Origin, _name, _rung)


def origin(name: str) -> Origin:
    """The origin with this name."""
    return ORIGINS[name]


class Choice(Frozen):
    """The config to launch with, and why.

    Attributes:
        config: The live `Config` object, including its hook.
        origin: Where it came from.
        record: The stored record, if any.
        complete: Whether every candidate of the call was measured.
        lasting: Whether later calls may use it without asking again.
        where: The file it came from, as text.
        key: The key it was tuned for, if not the call's; `note` says how they differ.
        loud: Whether that deserves a warning.
        conditions: Conditions of the measurement; None if not measured.
        tried: Identities of the candidates in this process's searches behind it: those not reached in time are not
            searched for again.
        digest: Of the call's key, if one was made.
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
        """Whether it was measured on this host or is in the user's store."""
        return self.origin in (Origin.STORE, Origin.SEARCH)

    @property
    def why(self) -> str:
        """Where it came from, in one line."""
        return f"{self.where or self.origin.name} ({self.note})" if self.note else self.where or self.origin.name


class Look(Frozen):
    """What one place has for a key: a choice, or why there is none.

    Attributes:
        problem: "absent", "damaged", "unreadable", "newer schema", "config gone", "weaker conditions" or "mode"; with
            a choice, the problem of an earlier file.
        detail: Details as text.
        path: The file.
    """

    choice: Choice | None = None
    problem: str = ""
    detail: str = ""
    path: str = ""


class Live(dict[str, Any]):
    """The live configs of a call by identity, in order.

    Attributes:
        is_listed: False for members of a space, which are named as a search reaches them.
        whole: False if some were left out because their grid launches nothing.
        untuned: Identity of the config used without tuning: `default=`, else the first; None if unknown.
        spare: The same, if it is not in the user's list: it must not stand in when the whole list failed.
        said: What `default=` returned for the call, in a tuple; None if it was not called, or raised.
        no_default: Why `default=` is missing here; "" if it is not.
    """

    is_listed = True
    whole = True
    untuned: str | None = None
    spare: str | None = None
    said: tuple[Any] | None = None
    no_default = ""

    def join_untuned(self, identity: str, config: Any) -> None:
        """Add `default=`, last if it is not in the list."""
        self.untuned, self.spare = identity, None if identity in self else identity
        self.setdefault(identity, config)

    def each(self) -> Iterable[Any]:
        """The configs, in order."""
        return self.values()

    def is_wider_than(self, provenance: Mapping[str, Any]) -> bool:
        """Whether they come from more members of a space than a record with this provenance."""
        return False

    def only(self, names: Collection[str]) -> Live:
        """The configs with these identities, with everything known about the call."""
        left = Live((name, config) for name, config in self.items() if name in names)
        vars(left).update(vars(self))
        return left

    def without(self, names: Collection[str]) -> Live:
        """The other configs."""
        return self.only(self.keys() - {*names})


def each(candidates: Candidates) -> Iterable[Any]:
    """The configs, in order; for a space also those not named yet."""
    return candidates.each() if isinstance(candidates, Live) else candidates.values()


def untuned_of(candidates: Candidates) -> str | None:
    """Identity of the config used without tuning; None if unknown."""
    return candidates.untuned if isinstance(candidates, Live) else None


Candidates = Mapping[str, Any]  # a config's identity -> the live Config
Place = tuple[Origin, Callable[[Key, Candidates], Look]]
