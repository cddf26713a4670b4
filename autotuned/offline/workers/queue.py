"""Which unit a free device gets next: one key to one device at a time, and what compiles alike to the same one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Set
from dataclasses import dataclass, field

from autotuned.typed_json import Json


@dataclass
class Task:
    """One unit to be done on one kind of device.

    Attributes:
        number: Of the unit in the targets.
        row: What is known of it before it is measured.
        group: What has this in common compiles alike; "" where that is not known.
        count: How often a recorded call was made.
        key: Of the call, as JSON; only where stores are apart.
        ended_on: Devices whose processes ended in it with no config to blame, one for each time.
    """

    number: int
    row: dict[str, Json]
    group: str = ""
    count: int = 0
    key: Json = None
    ended_on: list[str] = field(default_factory=list)

    @property
    def digest(self) -> str:
        """Of its key; "" where it has none."""
        return self.row["digest"] or ""


@dataclass
class Queue:
    """The tasks of one kind of device.

    Attributes:
        listed: Whether all of its tasks are known.
        rows: What came of those that are done, by number.
    """

    listed: bool = False
    rows: dict[int, dict[str, Json]] = field(default_factory=dict)
    _open: dict[int, Task] = field(default_factory=dict)
    _doing: dict[str, Task] = field(default_factory=dict)  # by device
    _group_of: dict[str, str] = field(default_factory=dict)  # by device: what it has compiled last
    _compiled: set[str] = field(default_factory=set)  # groups of which one task has been compiled
    _known: set[int] = field(default_factory=set)

    def add(self, task: Task) -> bool:
        """Take in a task; False if it is known already."""
        if task.number in self._known:
            return False
        self._known.add(task.number)
        self._open[task.number] = task
        return True

    def take(self, device: str, devices: Set[str]) -> Task | None:
        """The next task for a device; None if there is none for it at the moment.

        Args:
            device: Its name.
            devices: Those that there are: what a process of one ended in is tried on another one first.
        """
        task = min(self._fitting(device, devices), key=self._ranks(device), default=None)
        if task is not None:
            del self._open[task.number]
            self._doing[device] = task
            self._group_of[device] = task.group
        return task

    def compiled(self, device: str) -> None:
        """All that a device's task needs is compiled: others of its group find the binaries."""
        if device in self._doing:
            self._compiled.add(self._doing[device].group)

    def done(self, device: str, row: dict[str, Json]) -> None:
        """A device is done with its task."""
        self.compiled(device)
        task = self._doing.pop(device)
        self.rows[task.number] = row

    def give_back(self, device: str) -> None:
        """A device's process ended: its task goes first to whoever is free."""
        task = self._doing.pop(device, None)
        if task is not None:
            self._open = {task.number: task, **self._open}

    def drop(self) -> list[Task]:
        """Take out all that nobody has begun."""
        tasks, self._open = list(self._open.values()), {}
        return tasks

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do or to come."""
        return self.listed and not self._open and not self._doing

    @property
    def known(self) -> int:
        """How many tasks are known."""
        return len(self._known)

    @property
    def open_count(self) -> int:
        """How often the recorded calls that nobody has begun were made, together."""
        return sum(task.count for task in self._open.values())

    def _fitting(self, device: str, devices: Set[str]) -> list[Task]:
        """What may be begun: no key that another device is at, nor what another one compiles for the first time."""
        busy = {task.digest for task in self._doing.values()} - {""}
        compiling = {task.group for task in self._doing.values()} - self._compiled - {""}
        # A recording's calls come in its order, most called first; what was called about as often may change places.
        most = max((task.count for task in self._open.values()), default=0)
        return [
            task
            for task in self._open.values()
            if task.digest not in busy
            and task.group not in compiling
            and (task.ended_on or task.count * 2 >= most)
            and (device not in task.ended_on or devices <= set(task.ended_on))
        ]

    def _ranks(self, device: str) -> Callable[[Task], tuple[bool, int, int, int]]:
        """Lower is sooner: what a process ended in; the device's own group; one that is nobody's; the largest."""
        sizes = Counter(task.group for task in self._open.values())
        owned = {group for other, group in self._group_of.items() if other != device}

        def rank(task: Task) -> tuple[bool, int, int, int]:
            mine = task.group and task.group == self._group_of.get(device)
            place = 0 if mine else 1 if task.group not in owned or not task.group else 2
            return not task.ended_on, place, -sizes[task.group] if place == 2 else 0, task.number

        return rank
