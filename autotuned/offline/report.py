"""What tuning bought: each stored or shipped choice against the first config and the default, and the spread of all."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotuned.offline import stored
from autotuned.offline.stored import Stored
from autotuned.offline.usage import Usage
from autotuned.recording import file
from autotuned.store import listing
from autotuned.store.record import Timing, identity_of
from autotuned.tunable import configs
from autotuned.typed_json import Json


@dataclass(frozen=True)
class ReportConfig:
    """One config of a case; `roles` are among "chosen", "first" and "default"."""

    label: str
    median_us: float | None
    low_us: float | None
    high_us: float | None
    samples: int
    status: str
    error: str | None
    roles: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Json]:
        """What `report --json` prints of it."""
        return {**vars(self), "roles": list(self.roles)}


@dataclass(frozen=True)
class ReportCase:
    """One choice and what it is worth.

    Attributes:
        vs_first, vs_default: Time of the first config, or of what runs untuned, over that of the chosen one; None where
            it was not measured, or (from config files) is not known.
        configs: All that were measured, in list order; none from config files.
        seconds: What the search took.
        count: How often a recording has it; None without one.
    """

    stored: Stored
    vs_first: float | None
    vs_default: float | None
    configs: Sequence[ReportConfig] = ()
    seconds: float | None = None
    count: int | None = None

    @property
    def times_us(self) -> list[float]:
        """Of the configs that may be chosen, fastest first."""
        return sorted(c.median_us for c in self.configs if c.median_us and c.status in ("ok", "same"))

    @property
    def spread(self) -> float | None:
        """Time of the slowest config over that of the fastest."""
        times = self.times_us
        return times[-1] / times[0] if times else None

    def failures(self, status: str = "failed") -> list[ReportConfig]:
        """Those that failed, whose process ended in their launch included, or computed something else ("wrong")."""
        alike = ("failed", "crashed") if status == "failed" else (status,)
        return [config for config in self.configs if config.status in alike]

    @property
    def failed(self) -> int:
        """How many configs failed, or computed something else."""
        return len(self.failures()) + len(self.failures("wrong"))

    def to_json(self) -> dict[str, Json]:
        """What `report --json` prints of it."""
        return {
            **self.stored.to_json(),
            "vs_first": self.vs_first,
            "vs_default": self.vs_default,
            "spread": self.spread,
            "failed": len(self.failures()),
            "wrong": len(self.failures("wrong")),
            "seconds": self.seconds,
            "count": self.count,
            "configs": [config.to_json() for config in self.configs],
        }


@dataclass(frozen=True)
class Report:
    """What tuning bought: a case each choice, and how much of a recording has one; None without a recording."""

    cases: Sequence[ReportCase]
    coverage: Usage | None

    @property
    def totals(self) -> dict[str, Json]:
        """All cases in a few numbers; the ratios are geometric means."""
        qualities = Counter(case.stored.quality for case in self.cases)
        return {
            "kernels": len({case.stored.key.kernel for case in self.cases}),
            "cases": len(self.cases),
            "configs": sum(len(case.configs) for case in self.cases),
            "failed": sum(case.failed for case in self.cases),
            "tied": qualities["tied"],
            "noisy": qualities["noisy"] + qualities["unresolved"],
            "seconds": round(sum(case.seconds or 0.0 for case in self.cases), 3),
            "vs_first": mean(case.vs_first for case in self.cases),
            "vs_default": mean(case.vs_default for case in self.cases),
        }

    def to_json(self) -> dict[str, Json]:
        """What `autotuned report --json` prints."""
        return {
            "cases": [case.to_json() for case in self.cases],
            "totals": self.totals,
            "coverage": None if self.coverage is None else self.coverage.to_json(),
        }


def report(kernel: str | None = None, *, calls: str | os.PathLike[str] | None = None) -> Report:
    """What tuning bought: each choice against the first config and the default, and the spread of all configs.

    Searches that are not finished are left out.

    Args:
        kernel: Only kernels of this name, or whose name ends in it after a dot. The choices that come with this
            package are reported only by a kernel's name.
        calls: A recording: the report says how much of it is tuned.

    Raises:
        KernelNameError: No kernel has this name.
        RecordingError: The recording cannot be read.
    """
    own = kernel is not None
    names = stored.kernels(own=own)
    used = None if calls is None else Usage(file.read(Path(calls)))
    counts = None if used is None else {key.digest: count for key, count in used.counts.items()}
    cases = [
        _case(choice, None if counts is None else counts.get(choice.key.digest, 0))
        for name in (names if kernel is None else listing.named(names, kernel))
        for choice in stored.of_kernel(name, own=own)
        if choice.config is not None
    ]
    return Report(cases, used)


def _case(choice: Stored, count: int | None) -> ReportCase:
    record = choice.record
    if record is None or not record.timings:
        return ReportCase(choice, None, choice.vs_default, count=count)
    default = record.provenance.get("default")
    names = {"chosen": identity_of(choice.config or {}), "default": identity_of(default) if default else ""}
    names["first"] = record.timings[0].identity
    measured = [_measured(timing, names, choice.key.is_of_triton) for timing in record.timings]
    vs_first = record.ratio_of(record.timings[0].config)
    return ReportCase(choice, vs_first, choice.vs_default, measured, record.provenance.get("seconds"), count)


def _measured(timing: Timing, names: Mapping[str, str], options: bool) -> ReportConfig:
    return ReportConfig(
        configs.label(timing.config, options),
        *(timing.median_us, timing.low_us, timing.high_us, timing.samples, timing.status, timing.error),
        roles=tuple(role for role, identity in names.items() if identity == timing.identity),
    )


def mean(ratios: Iterable[float | None]) -> float | None:
    """Geometric mean of what is known; None where nothing is."""
    known = [ratio for ratio in ratios if ratio]
    return math.exp(math.fsum(map(math.log, known)) / len(known)) if known else None
