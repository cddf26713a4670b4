"""`plan`: lists what `tune` would measure, with time estimates from earlier searches."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from autotuned import env
from autotuned.gpu.device import from_json
from autotuned.offline import cases, ranges
from autotuned.offline.cases import Cases
from autotuned.offline.device import check_environment, use_device
from autotuned.offline.measure import Measurer
from autotuned.offline.results import CaseResult, Observer
from autotuned.offline.targets import texts
from autotuned.store import listing
from autotuned.typed_json import Json

MOST_READ = 100  # records of a kernel; enough for the mean


@dataclass
class PlannedCase:
    """What `tune` would do with one case; the fields are those of the command's JSON.

    Attributes:
        status: "stored", "measure", "empty" for a call with an empty grid, or "failed".
        reason: Why it failed.
        configs: Number of configs.
        source: Where the choice is stored: "stored" for the store, or the config file.
        seconds: Estimated time from earlier searches of the kernel; None if there were none.
    """

    kernel: str
    status: str
    call: Json = None
    digest: str | None = None
    device: str | None = None
    triton: str | None = None
    configs: int | None = None
    source: str | None = None
    seconds: float | None = None
    reason: str | None = None


@dataclass
class Plan:
    """What `tune` would do on a device, "cuda" or "interpreter"; `without_cases` lists kernels without cases."""

    device: str
    cases: list[PlannedCase] = field(default_factory=list)
    without_cases: list[str] = field(default_factory=list)

    @property
    def to_measure(self) -> list[PlannedCase]:
        """The cases that would be measured."""
        return [case for case in self.cases if case.status == "measure"]

    @property
    def configs(self) -> int:
        """Total number of configs to measure."""
        return sum(case.configs or 0 for case in self.to_measure)

    @property
    def seconds(self) -> float:
        """Total of the known estimates."""
        return sum(case.seconds or 0.0 for case in self.to_measure)

    @property
    def unknown(self) -> list[PlannedCase]:
        """The cases to measure without an estimate, since no search of the kernel is stored."""
        return [case for case in self.to_measure if case.seconds is None]

    def to_json(self) -> dict[str, Json]:
        """What `autotuned tune --dry-run --json` prints."""
        return {
            "device": self.device,
            "cases": [dict(vars(case)) for case in self.cases],
            "skipped": [{"kernel": name, "reason": "no cases"} for name in self.without_cases],
            "measure": len(self.to_measure),
            "configs": self.configs,
            "seconds": round(self.seconds, 3),
            "unknown": len(self.unknown),
        }


@env.interpreter_put_back()
def plan(
    targets: str | Sequence[str], *, force: bool = False, cover: Mapping[str, Sequence[int]] | None = None
) -> Plan:
    """List what `tune` would measure, without launching or storing anything: `autotuned tune --dry-run` from Python.

    The tensors of each case are created, one case after the other, since keys depend on them.

    Args:
        targets: As for `tune`.
        force: Also plan to measure stored cases again.
        cover: As for `tune`; plans only the first round, whose times decide the next.

    Raises:
        OptionError, TargetError, RecordingError, NoDeviceError: As for `tune`.
    """
    check_environment()
    texts_given, device = texts(targets), use_device()
    found = Cases(
        cases.load(texts_given), device, None if cover is None else ranges.first_wanted(ranges.checked(cover))
    )
    measurer, paces = Measurer(found, device, force, Observer()), functools.cache(_paces)  # reads a kernel's once
    return Plan(device, [_planned(measurer.plan(case), paces) for case in found], found.without_cases)


def _planned(result: CaseResult, paces: Callable[[str], Mapping[str, float]]) -> PlannedCase:
    status = {"done": "stored", "skipped": "measure"}.get(result.status, result.status)
    seconds = None
    if status == "measure" and (each_s := paces(result.kernel).get(result.device or "")) is not None:
        seconds = round(each_s * (result.configs or 0), 3)
    same = {name: getattr(result, name) for name in ("call", "digest", "device", "triton", "configs", "source")}
    return PlannedCase(result.kernel, status, seconds=seconds, reason=result.reason, **same)


def _paces(kernel: str) -> dict[str, float]:
    """Seconds per config of a kernel's earlier searches, by device."""
    took: dict[str, tuple[float, int]] = {}
    for _, record in islice(listing.all_records(kernel, quietly=True), MOST_READ):
        seconds = record.provenance.get("seconds")
        if seconds and record.timings:
            slug = from_json(record.key.context["device"]).slug
            before_s, count = took.get(slug, (0.0, 0))
            took[slug] = before_s + seconds, count + len(record.timings)
    return {device: seconds / count for device, (seconds, count) in took.items()}
