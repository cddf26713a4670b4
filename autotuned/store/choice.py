"""A choice: the config found for a call and its origin, or why none was found."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, ClassVar

from autotuned._startup import Frozen
from autotuned.key.key import Key
from autotuned.store.conditions import Conditions
from autotuned.store.record import TuningRecord


class Origin:
    """Where a choice came from: one of ten objects, in the order in which a call looks.

    Not an `enum`, which would add 0.2 ms to each process start.
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
    ONLY: ClassVar[Origin]  # the only config

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"Origin.{self.name}"

    def __reduce__(self) -> tuple[Any, ...]:
        return origin, (self.name,)  # origins are compared by identity


ORIGINS = {name: Origin(name) for name in Origin.__annotations__}
for _name, _origin in ORIGINS.items():
    setattr(Origin, _name, _origin)


def origin(name: str) -> Origin:
    """The origin with this name."""
    return ORIGINS[name]


class Choice(Frozen):
    """The config to launch with, and why."""

    config: Any  # the live `Config` object, including its hook
    origin: Origin
    record: TuningRecord | None = None  # the stored one, if any
    complete: bool = True  # whether every candidate of the call was measured
    where: str = ""  # the file it came from, as text
    lasting: bool = True  # whether later calls may use it without another look-up
    key: Key | None = None  # the key that it was tuned for, if not the call's
    note: str = ""  # how that key differs
    loud: bool = False  # whether the difference deserves a warning
    conditions: Conditions | None = None  # of the measurement
    tried: frozenset[str] = frozenset()  # candidates of this process's searches; those not reached are not retried
    digest: str = ""  # of the call's key, if it was computed

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
    """A source's answer for a key: a choice, or the reason for none."""

    choice: Choice | None = None
    # "absent", "damaged", "unreadable", "newer schema", "config gone", "weaker conditions" or "mode"; next to a choice,
    # the problem of an earlier file.
    problem: str = ""
    detail: str = ""
    path: str = ""


class Live(dict[str, Any]):
    """The live configs of a call by identity, in order."""

    is_listed = True  # False for members of a space, which get their names as a search reaches them
    whole = True  # False if configs with an empty grid were left out
    untuned: str | None = None  # identity of the config used without tuning: `default=`, otherwise the first
    spare: str | None = None  # the same if not in the user's list: it must not replace a list that failed as a whole
    said: tuple[Any] | None = None  # result of `default=` for the call; None if not called, or if it raised
    no_default = ""  # why `default=` is not among them

    def join_untuned(self, identity: str, config: Any) -> None:
        """Add `default=`, last if it is not in the list."""
        self.untuned, self.spare = identity, None if identity in self else identity
        self.setdefault(identity, config)

    def each(self) -> Iterable[Any]:
        """The configs, in order."""
        return self.values()

    def is_wider_than(self, provenance: Mapping[str, Any]) -> bool:
        """Whether they are from more members of a space than a record with this provenance."""
        return False

    def is_declared_as(self, provenance: Mapping[str, Any]) -> bool:
        """Whether a record with this provenance is from the same space."""
        return True

    def only(self, names: Collection[str]) -> Live:
        """The configs with these identities, with everything known about the call."""
        left = Live((name, config) for name, config in self.items() if name in names)
        vars(left).update(vars(self))
        return left

    def without(self, names: Collection[str]) -> Live:
        """The other configs."""
        return self.only(self.keys() - {*names})


def each(candidates: Candidates) -> Iterable[Any]:
    """The configs, in order; for a space also those without a name yet."""
    return candidates.each() if isinstance(candidates, Live) else candidates.values()


def untuned_of(candidates: Candidates) -> str | None:
    """Identity of the config used without tuning; None if unknown."""
    return candidates.untuned if isinstance(candidates, Live) else None


Candidates = Mapping[str, Any]  # a config's identity -> the live Config
Place = tuple[Origin, Callable[[Key, Candidates], Look]]
