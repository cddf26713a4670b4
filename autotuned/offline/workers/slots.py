"""Slots for the devices that `tune` measures on, their processes, and the executors that start them."""

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
    """A measuring process: `process.Worker`, or a remote one; no config can be blamed if its host is `lost`."""

    lost: bool

    @property
    def is_over(self) -> bool:
        """Whether it has ended and all its messages have been read."""

    def send(self, command: Mapping[str, Json]) -> None:
        """Send a command."""

    def messages(self) -> list[dict[str, Json]]:
        """Messages since the last call."""

    def why(self) -> str:
        """How it ended."""

    def interrupt(self) -> None:
        """Let it store its results and end."""

    def kill(self) -> None:
        """Kill it and all its children."""


class Executor(Protocol):
    """Starts processes; `gathers` if they must send records back, since their stores are on other hosts."""

    gathers: bool

    def slots(self) -> list[DeviceSlot]:
        """A slot per device."""

    def start(self, slot: DeviceSlot, given: Mapping[str, Json]) -> Process:
        """Start a process for a device."""

    def wait(self, processes: Sequence[Process], limit_s: float) -> None:
        """Return when a process has sent a message, or after the time limit."""

    def is_needed(self, slot: DeviceSlot) -> bool:
        """Whether to wait for a device that is not ready when all other work is done."""

    def close(self) -> None:
        """Release all resources."""


@dataclass
class DeviceSlot:
    """A device and its measuring process."""

    name: str  # short name
    kind: str = ""  # the product, if known without a process
    uuid: str = ""  # the device's UUID, or ""
    host: str = ""  # its host, if another one
    settings: Mapping[str, str | None] = field(default_factory=dict)
    process: Process | None = None
    model: str | None = None  # the device that its choices are valid for; None until its process has reported it
    ready: bool = False
    case: QueuedCase | None = None
    listing: bool = False
    doing: Doing = field(default_factory=Doing)
    begun: float = 0.0
    ends: int = 0  # consecutive ends of its processes without a config to blame
    starts: int = 0  # number of processes started
    done: int = 0
    gone: str = ""  # why it was given up, or ""

    def reset(self, process: Process) -> None:
        """Use a new process."""
        self.process, self.doing, self.begun = process, Doing(), time.monotonic()
        self.ready, self.listing, self.case = False, False, None
        self.starts += 1

    def result(self) -> DeviceResult:
        """The device's result."""
        return DeviceResult(
            self.name, self.kind or None, self.uuid or None, self.host or None, self.model, self.done,
            max(0, self.starts - 1), self.gone or None,
        )  # fmt: skip
