"""The options, progress reports and results of `tune`."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from autotuned.errors import refused
from autotuned.typed_json import Json, JsonFields

if TYPE_CHECKING:
    from autotuned.offline.ranges import WantedSizes
    from autotuned.search.job import Progress
    from autotuned.store.record import Quality

EXECUTORS = ("local", "ray")
# The reasons of cases that are skipped, or cut off by Ctrl-C with their times kept.
OUT_OF_TIME, INTERRUPTED = "the budget is used up", "interrupted"


@dataclass(frozen=True)
class TuneOptions:
    """The options of `tune`; `wanted` are the sizes of a round of `cover`. OptionError if they conflict."""

    out: Path | None = None
    force: bool = False
    budget_s: float | None = None
    isolate: bool | None = None
    timeout_s: float = 60.0
    devices: str | None = None
    executor: str = "local"
    ray_address: str | None = None
    follows: bool = False
    wanted: WantedSizes | None = None

    def __post_init__(self) -> None:
        for option, seconds in (("budget_s", self.budget_s), ("timeout_s", self.timeout_s)):
            if seconds is not None and not seconds > 0:
                raise refused(option, f"expected seconds above 0, got {seconds:g}")
        if self.executor not in EXECUTORS:
            raise refused("executor", f"expected {' or '.join(EXECUTORS)}, got {self.executor!r}")
        if self.ray_address is not None and self.executor != "ray":
            raise refused("ray_address", "expected with executor ray only")
        if self.executor == "ray" and self.devices not in (None, "all"):
            text = f"expected all, or nothing, with executor ray, which finds the GPUs itself; got {self.devices!r}"
            raise refused("devices", text)
        if self.several and self.isolate is False:
            raise refused("isolate", f"expected without {self.several}, which needs processes")
        if self.several and os.name != "posix":
            raise refused(self.several, f"expected Linux, got {os.name!r}")

    @property
    def several(self) -> str:
        """The option that makes several processes measure, one per device, or ""."""
        return "devices" if self.devices is not None else "executor ray" if self.executor != "local" else ""

    def left_s(self, start: float) -> float | None:
        """Seconds left of the budget of a run that began at `start`, by the monotonic clock; None without a budget."""
        return None if self.budget_s is None else max(0.0, start + self.budget_s - time.monotonic())


@dataclass
class CaseResult:
    """The result of one case; the fields are those of the command's JSON."""

    kernel: str
    status: str
    reason: str | None = None
    digest: str | None = None
    device: str | None = None
    triton: str | None = None
    call: Json = None
    config: Mapping[str, Json] | None = None
    median_us: float | None = None
    vs_first: float | None = None
    vs_default: float | None = None
    quality: Quality | None = None
    source: str | None = None
    configs: int | None = None
    measured_configs: int | None = None
    remark: str | None = None
    members: list[dict[str, Json]] | None = None
    sizes: dict[str, int] | None = None
    group: str | None = None
    kept: bool | None = None  # whether a measured choice is in the store


@dataclass
class DeviceResult:
    """The part of one of several devices; the fields are those of the command's JSON."""

    name: str
    product: str | None
    uuid: str | None
    host: str | None
    model: str | None
    cases: int
    restarts: int
    given_up: str | None


@dataclass(frozen=True)
class Covered(JsonFields):
    """Coverage of one group of cases, which differ only in the covered sizes.

    Attributes:
        group: The kernel, the generator and the index of the case in it.
        device: The device's slug.
        shapes: Number of tuned shapes, from this run or earlier ones.
        by: What serves calls between the shapes: the winner of the "nearest", or a "rule" if it loses less.
        mean, worst: The estimated loss of such calls, by cross-validation; None if too few shapes are known.
        why: Why no more shapes were tuned.
        finished: Whether another run would tune no more shapes.
    """

    group: str
    device: str
    shapes: int
    by: str
    mean: float | None
    worst: float | None
    why: str
    finished: bool = True


@dataclass
class TuneResult:
    """The result of `tune`.

    Attributes:
        device: "cuda" or "interpreter".
        devices: The devices that were named, or found in a cluster.
        without_cases: Kernels without cases.
        files: The config files written.
        interrupted: Whether Ctrl-C ended it.
        budget_s: The given budget.
        binaries: The files' compiled kernels; None if not requested.
        cover: Coverage of the ranges of sizes; None if not requested.
    """

    device: str = ""
    devices: list[DeviceResult] = field(default_factory=list)
    cases: list[CaseResult] = field(default_factory=list)
    without_cases: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    interrupted: bool = False
    seconds: float = 0.0
    budget_s: float | None = None
    binaries: BuildResult | None = None
    cover: Sequence[Covered] | None = None

    @property
    def failed(self) -> list[CaseResult]:
        """The cases without a choice."""
        return [case for case in self.cases if case.status == "failed"]

    @property
    def unfinished(self) -> list[CaseResult]:
        """The cases that the budget skipped or cut off; another run continues them."""
        return [case for case in self.cases if case.status == "skipped" or self._is_cut(case)]

    @property
    def lost(self) -> list[CaseResult]:
        """The measured cases whose choice is neither in the store nor in a file."""
        return [case for case in self.cases if case.kept is False] if not self.files else []

    def _is_cut(self, case: CaseResult) -> bool:
        short = case.source == "measured" and (case.measured_configs or 0) < (case.configs or 0)
        return short and self.budget_s is not None and self.seconds >= self.budget_s

    def to_json(self) -> dict[str, Json]:
        """What `autotuned tune --json` prints."""
        return {
            "device": self.device,
            "devices": [asdict(device) for device in self.devices],
            "cases": [asdict(case) for case in self.cases],
            "skipped": [{"kernel": name, "reason": "no cases"} for name in self.without_cases],
            "files": self.files,
            "interrupted": self.interrupted,
            "seconds": round(self.seconds, 3),
            **({} if self.binaries is None else {"binaries": self.binaries.to_json()}),
            **({} if self.cover is None else {"cover": [one.to_json() for one in self.cover]}),
        }


@dataclass
class BuiltFile:
    """The binaries of one config file."""

    path: str  # the config file
    kernel: str
    of: int
    entries: int = 0  # number of entries with binaries, out of `of`
    variants: int = 0  # number of variants built, `generic` of them without assumptions
    generic: int = 0
    bytes: int = 0  # size of its file of binaries
    missing: list[str] = field(default_factory=list)  # entries or variants without binaries, and why, one line each
    is_foreign: bool = False  # True if it is not for an NVIDIA GPU, so that nothing can be compiled

    def to_json(self) -> dict[str, Json]:
        """The file as commands print it with `--json`."""
        return {name: value for name, value in vars(self).items() if name != "is_foreign"}


@dataclass
class BuildResult(JsonFields):
    """The binaries built, file by file."""

    files: list[BuiltFile] = field(default_factory=list)

    @property
    def missing(self) -> list[str]:
        """What could not be built, one line each."""
        return [f"{file.path}: {line}" for file in self.files for line in file.missing]


class Observer:
    """Override the methods of interest to follow a run of `tune`.

    `device` is the device's name if several measure, otherwise "".
    """

    def begin(self, case: CaseResult, device: str = "") -> None:
        """A case starts."""

    def observe(self, progress: Progress, device: str = "") -> None:
        """A search's progress and its next config; called between launches."""

    def done(self, case: CaseResult, device: str = "") -> None:
        """A case is done."""

    def count(self, done: int, known: int) -> None:
        """The number of cases done, and of cases known so far."""

    def note(self, line: str, device: str = "") -> None:
        """A line for the log: a config is excluded, or a process restarts."""
