"""What `tune` is asked for, what it tells while it runs, and what comes of it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from autotuned.errors import OptionError
from autotuned.typed_json import Json

if TYPE_CHECKING:
    from autotuned.offline.ranges import Wanted
    from autotuned.search.job import Progress
    from autotuned.store.record import Quality

EXECUTORS = ("local", "ray")


def _refused(option: str, problem: str) -> OptionError:
    return OptionError(f"{option}: {problem}.", option=option, problem=problem)


@dataclass(frozen=True)
class Options:
    """The options of `tune`; see there. `wanted`: the sizes of a round of `cover`.

    Raises:
        OptionError: One cannot have its value, or two do not go together.
    """

    out: Path | None = None
    force: bool = False
    budget_s: float | None = None
    isolate: bool | None = None
    timeout_s: float = 60.0
    devices: str | None = None
    executor: str = "local"
    ray_address: str | None = None
    follows: bool = False
    wanted: Wanted | None = None

    def __post_init__(self) -> None:
        for option, seconds in (("budget_s", self.budget_s), ("timeout_s", self.timeout_s)):
            if seconds is not None and not seconds > 0:
                raise _refused(option, f"expected seconds above 0, got {seconds:g}")
        if self.executor not in EXECUTORS:
            raise _refused("executor", f"expected {' or '.join(EXECUTORS)}, got {self.executor!r}")
        if self.ray_address is not None and self.executor != "ray":
            raise _refused("ray_address", "expected with executor ray only")
        if self.executor == "ray" and self.devices not in (None, "all"):
            text = f"expected all, or nothing, with executor ray, which finds the GPUs itself; got {self.devices!r}"
            raise _refused("devices", text)
        if self.several and self.isolate is False:
            raise _refused("isolate", f"expected without {self._several}, which needs processes")
        if self.several and os.name != "posix":
            raise _refused(self._several, f"expected Linux, got {os.name!r}")

    @property
    def several(self) -> bool:
        """Whether devices were named, or a cluster: then each has a process of its own."""
        return bool(self._several)

    @property
    def _several(self) -> str:
        return "devices" if self.devices is not None else "executor ray" if self.executor != "local" else ""


@dataclass
class CaseResult:
    """What came of one case; the fields are those of the command's JSON."""

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


@dataclass
class DeviceResult:
    """What one of several devices did; the fields are those of the command's JSON."""

    name: str
    product: str | None
    uuid: str | None
    host: str | None
    model: str | None
    cases: int
    restarts: int
    given_up: str | None


@dataclass(frozen=True)
class Covered:
    """What is known of one group of cases, which differ in the covered sizes alone.

    Attributes:
        group: The kernel, the generator and the place among what it yields. `device`: the slug.
        shapes: How many have been tuned, now or before.
        by: What serves calls between them: the winner of the "nearest", or a "rule" that is worth it.
        mean, worst: What these lose then, as far as shapes that are left out tell; None where too few are known.
        why: Why no more were tuned. `finished`: whether another run would not go on.
    """

    group: str
    device: str
    shapes: int
    by: str
    mean: float | None
    worst: float | None
    why: str
    finished: bool = True

    def to_json(self) -> dict[str, Json]:
        """What `autotuned tune --json` prints of it."""
        return dict(vars(self))


@dataclass
class TuneResult:
    """What came of `tune`.

    Attributes:
        device: "cuda" or "interpreter".
        devices: Those that were named, or found in a cluster.
        without_cases: Kernels that have none.
        files: The config files that were written.
        interrupted: Whether Ctrl-C ended it.
        budget_s: What it was given.
        binaries: What came of the compiled kernels beside the files; None where none were asked for.
        cover: What is known of the ranges of sizes; None where none were asked for.
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
        """The cases that nothing was chosen for."""
        return [case for case in self.cases if case.status == "failed"]

    @property
    def unfinished(self) -> list[CaseResult]:
        """The cases that the budget left out, or cut off before every config was measured: another run goes on."""
        return [case for case in self.cases if case.status == "skipped" or self._is_cut(case)]

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
    """What came of one config file.

    Attributes:
        path: Of the config file. `entries`: how many have binaries now, of `of`.
        variants: How many were built, `generic` of them without assumptions. `bytes`: of the file beside it.
        missing: Which entries or variants there are not, and why, in a line each.
        is_foreign: Whether it is of no NVIDIA GPU, so that nothing can be compiled for it.
    """

    path: str
    kernel: str
    of: int
    entries: int = 0
    variants: int = 0
    generic: int = 0
    bytes: int = 0
    missing: list[str] = field(default_factory=list)
    is_foreign: bool = False

    def to_json(self) -> dict[str, Json]:
        """What commands print of it."""
        return {name: value for name, value in vars(self).items() if name != "is_foreign"}


@dataclass
class BuildResult:
    """The binaries that were built, file by file."""

    files: list[BuiltFile] = field(default_factory=list)

    @property
    def missing(self) -> list[str]:
        """What could not be built, in a line each."""
        return [f"{file.path}: {line}" for file in self.files for line in file.missing]

    def to_json(self) -> dict[str, Json]:
        """What commands print of it."""
        return {"files": [file.to_json() for file in self.files]}


class Observer:
    """Is told how far `tune` is; derive from it and override what is of interest.

    `device` is the name of the device where several measure, else "".
    """

    def begin(self, case: CaseResult, device: str = "") -> None:
        """A case is tuned from now on."""

    def observe(self, progress: Progress, device: str = "") -> None:
        """How far a search is, and which config is next; called between launches."""

    def done(self, case: CaseResult, device: str = "") -> None:
        """What came of a case."""

    def count(self, done: int, known: int) -> None:
        """How many cases are done, of those that are known so far."""

    def note(self, line: str, device: str = "") -> None:
        """Something that is worth a line in a log: a config that is left out, a process that is started anew."""
