"""Picks the next case for a free device: each key on one device at a time, cases that share code on the same one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Set
from dataclasses import dataclass, field

from autotuned.typed_json import Json


@dataclass
class QueuedCase:
    """A case to measure on one kind of device."""

    number: int  # its number in the targets
    result: dict[str, Json]  # its result before it is measured
    group: str = ""  # cases of a group share compiled code; "" if unknown
    count: int = 0  # how often a recorded call was made
    key: Json = None  # the call's key as JSON; only if stores are separate
    # Devices whose process ended in this case without a config to blame, once per end.
    ended_on: list[str] = field(default_factory=list)

    @property
    def digest(self) -> str:
        """The key's digest, or ""."""
        return self.result["digest"] or ""


@dataclass
class Queue:
    """The cases of one kind of device; `listed` once all are known, with `results` of finished ones by number."""

    listed: bool = False
    results: dict[int, dict[str, Json]] = field(default_factory=dict)
    _open: dict[int, QueuedCase] = field(default_factory=dict)
    _doing: dict[str, QueuedCase] = field(default_factory=dict)  # by device
    _group_of: dict[str, str] = field(default_factory=dict)  # by device: the group that it compiled last
    _compiled: set[str] = field(default_factory=set)  # groups with a compiled case
    _known: set[int] = field(default_factory=set)

    def add(self, case: QueuedCase) -> bool:
        """Add a case; False if it is already known."""
        if case.number in self._known:
            return False
        self._known.add(case.number)
        self._open[case.number] = case
        return True

    def take(self, device: str, devices: Set[str]) -> QueuedCase | None:
        """The next case for a device, or None; a case that ended a process is tried on another of `devices` first."""
        case = min(self._fitting(device, devices), key=self._ranks(device), default=None)
        if case is not None:
            del self._open[case.number]
            self._doing[device] = case
            self._group_of[device] = case.group
        return case

    def compiled(self, device: str) -> None:
        """Note that a device's case is compiled: others of its group will find the binaries."""
        if device in self._doing:
            self._compiled.add(self._doing[device].group)

    def done(self, device: str, result: dict[str, Json]) -> None:
        """Note a device's finished case."""
        self.compiled(device)
        case = self._doing.pop(device)
        self.results[case.number] = result

    def give_back(self, device: str) -> None:
        """Put the case of a device whose process ended back to the front."""
        case = self._doing.pop(device, None)
        if case is not None:
            self._open = {case.number: case, **self._open}

    def drop(self) -> list[QueuedCase]:
        """Remove and return all cases not yet begun."""
        cases, self._open = list(self._open.values()), {}
        return cases

    @property
    def is_done(self) -> bool:
        """Whether no case is left, and none will come."""
        return self.listed and not self._open and not self._doing

    @property
    def known(self) -> int:
        """Number of known cases."""
        return len(self._known)

    @property
    def open_count(self) -> int:
        """Total count of the recorded calls not yet begun."""
        return sum(case.count for case in self._open.values())

    def _fitting(self, device: str, devices: Set[str]) -> list[QueuedCase]:
        """Cases whose key no device is measuring, and whose group no other device is compiling."""
        busy = {case.digest for case in self._doing.values()} - {""}
        compiling = {case.group for case in self._doing.values()} - self._compiled - {""}
        # Recorded calls come most frequent first; those with similar counts may change places.
        most = max((case.count for case in self._open.values()), default=0)
        return [
            case
            for case in self._open.values()
            if case.digest not in busy
            and case.group not in compiling
            and (case.ended_on or case.count * 2 >= most)
            and (device not in case.ended_on or devices <= set(case.ended_on))
        ]

    def _ranks(self, device: str) -> Callable[[QueuedCase], tuple[bool, int, int, int]]:
        """The sort key: cases that ended a process, then the device's own group, unowned groups, the largest group."""
        sizes = Counter(case.group for case in self._open.values())
        owned = {group for other, group in self._group_of.items() if other != device}

        def rank(case: QueuedCase) -> tuple[bool, int, int, int]:
            mine = case.group and case.group == self._group_of.get(device)
            place = 0 if mine else 1 if case.group not in owned or not case.group else 2
            return not case.ended_on, place, -sizes[case.group] if place == 2 else 0, case.number

        return rank
