"""Where `tune` measures: a slot for each device, the process that measures there, and who starts those."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from autotuned.offline.results import DeviceResult
from autotuned.offline.workers.process import Doing
from autotuned.offline.workers.queue import QueuedCase
from autotuned.typed_json import Json


class Process(Protocol):
    """What measures: `process.Worker`, or one that is elsewhere.

    Attributes:
        lost: Whether its host went, which no config can be blamed for.
    """

    lost: bool

    @property
    def is_over(self) -> bool:
        """Whether it has ended and everything it said has been read."""

    def send(self, command: Mapping[str, Json]) -> None:
        """One command for it."""

    def messages(self) -> list[dict[str, Json]]:
        """What it has said since the last time."""

    def why(self) -> str:
        """How it ended."""

    def interrupt(self) -> None:
        """Let it keep what it has, and end."""

    def kill(self) -> None:
        """End it and everything it has started."""


class Executor(Protocol):
    """Where processes run.

    Attributes:
        gathers: Whether records are to come back, since the stores are elsewhere.
    """

    gathers: bool

    def slots(self) -> list[Slot]:
        """One for each device."""

    def start(self, slot: Slot, given: Mapping[str, Json]) -> Process:
        """A process for a device."""

    def wait(self, processes: Sequence[Process], limit_s: float) -> None:
        """Return when one of them has said something, or the time is over."""

    def is_needed(self, slot: Slot) -> bool:
        """Whether a device that is not ready is to be waited for when all else is done."""

    def close(self) -> None:
        """Let go of everything."""


@dataclass
class Slot:
    """A device, and the process that measures on it.

    Attributes:
        name: In few words. `kind`: The product, as far as it is known without a process. `uuid`: of the device, or "".
        host: Its name, where that is another one.
        model: What its choices hold for; None until its process has said so.
        ends: Of its processes, in a row, with no config to blame. `starts`: of processes, in all.
        gone: Why it is given up; "" while it is not.
    """

    name: str
    kind: str = ""
    uuid: str = ""
    host: str = ""
    settings: Mapping[str, str | None] = field(default_factory=dict)
    process: Process | None = None
    model: str | None = None
    ready: bool = False
    case: QueuedCase | None = None
    listing: bool = False
    doing: Doing = field(default_factory=Doing)
    begun: float = 0.0
    ends: int = 0
    starts: int = 0
    done: int = 0
    gone: str = ""

    def reset(self, process: Process) -> None:
        """A new process has taken over."""
        self.process, self.doing, self.begun = process, Doing(), time.monotonic()
        self.ready, self.listing, self.case = False, False, None
        self.starts += 1

    def result(self) -> DeviceResult:
        """What it did."""
        return DeviceResult(
            self.name, self.kind or None, self.uuid or None, self.host or None, self.model, self.done,
            max(0, self.starts - 1), self.gone or None,
        )  # fmt: skip
