"""The cases of a report: each choice with its gain and timings, and summaries of groups."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from autotuned.key import words
from autotuned.offline.report.stored import Stored
from autotuned.store.record import Timing, identity_of
from autotuned.tunable import configs
from autotuned.typed_json import Json, JsonFields, canonical

SLOWER = 0.99  # a `vs_default` below is slower than untuned by over 1%
Place = tuple[str, str]  # device and toolchain


@dataclass(frozen=True)
class ReportConfig(JsonFields):
    """One config in canonical form; `roles` are "chosen" and "default" (the untuned config)."""

    config: Json
    label: str
    median_us: float | None
    low_us: float | None
    high_us: float | None
    samples: int
    status: str
    error: str | None
    roles: tuple[str, ...] = ()

    @property
    def usable_us(self) -> float | None:
        """Its time if it may be chosen."""
        return self.median_us if self.median_us and self.status in ("ok", "same") else None


@dataclass(frozen=True)
class ReportCase:
    """One choice with all measured configs in list order, its search time in seconds, and its count in a recording."""

    stored: Stored
    configs: Sequence[ReportConfig] = ()
    seconds: float | None = None
    count: int | None = None

    @property
    def vs_default(self) -> float | None:
        """Time of the untuned config over the choice's, above 1 if tuning helps; None if unknown."""
        return self.stored.vs_default

    @property
    def place(self) -> Place:
        """Device and toolchain."""
        return self.stored.device, self.stored.toolchain

    @property
    def is_interpreted(self) -> bool:
        """Whether it was measured in Triton's interpreter, whose times mean nothing for a GPU."""
        return bool(self.stored.key.context["device"].get("name") == "interpreter")

    @property
    def is_noisy(self) -> bool:
        """Whether its times were too noisy or too short for a certain choice."""
        return self.stored.quality in ("noisy", "unresolved") and not self.is_interpreted

    @property
    def times_us(self) -> list[float]:
        """Times of the usable configs, fastest first."""
        return sorted(config.usable_us for config in self.configs if config.usable_us)

    @property
    def spread(self) -> float | None:
        """Time of the slowest config over the fastest."""
        times = self.times_us
        return slowdown(times[-1], times[0]) if times else None

    def failures(self, status: str = "failed") -> list[ReportConfig]:
        """Configs that failed or crashed, or with "wrong" those with wrong results."""
        alike = ("failed", "crashed") if status == "failed" else (status,)
        return [config for config in self.configs if config.status in alike]

    @property
    def failed(self) -> int:
        """Number of configs that failed or gave wrong results."""
        return len(self.failures()) + len(self.failures("wrong"))

    def to_json(self) -> dict[str, Json]:
        """The case as `report --json` prints it."""
        return {
            **self.stored.to_json(),
            "toolchain": self.stored.toolchain,
            "vs_default": self.vs_default,
            "spread": self.spread,
            "failed": len(self.failures()),
            "wrong": len(self.failures("wrong")),
            "seconds": self.seconds,
            "count": self.count,
            "configs": [config.to_json() for config in self.configs],
        }


class CaseReader:
    """Creates cases from choices; shares equal configs and labels to save memory."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, bool], tuple[Json, str]] = {}

    def case(self, choice: Stored, count: int | None = None) -> ReportCase:
        """The case of a choice, without the record's timings."""
        record = choice.record
        if record is None or not record.timings:
            return ReportCase(choice, count=count)
        default = record.untuned or record.timings[0].identity
        roles = {"chosen": identity_of(choice.config or {}), "default": default}
        measured = [self._measured(timing, roles, choice.key.is_of_triton) for timing in record.timings]
        light = replace(choice, record=record.replace(timings=()))
        return ReportCase(light, measured, record.provenance.get("seconds"), count)

    def _measured(self, timing: Timing, roles: dict[str, str], options: bool) -> ReportConfig:
        identity = timing.identity
        config, label = self._known.get((identity, options)) or (timing.config, configs.label(timing.config, options))
        self._known[identity, options] = config, label
        return ReportConfig(
            config, label, *(timing.median_us, timing.low_us, timing.high_us, timing.samples, timing.status),
            timing.error, tuple(role for role, name in roles.items() if name == identity),
        )  # fmt: skip


def current(cases: Iterable[ReportCase]) -> list[ReportCase]:
    """Omit choices for an older source of a kernel if there is a newer one for the same call and context."""
    newest: dict[str, tuple[str, str, ReportCase]] = {}
    for case in cases:
        key = case.stored.key
        rest = {name: part for name, part in key.context.items() if name != "source"}
        same = canonical([key.kernel, key.call, rest])
        record = case.stored.record
        date = str(record.provenance.get("date", "")) if record is not None else ""
        if same not in newest or newest[same][:2] < (date, case.stored.digest):
            newest[same] = date, case.stored.digest, case
    return [case for _, _, case in newest.values()]


@dataclass(frozen=True)
class Summary(JsonFields):
    """Summary of the cases of one device and toolchain, for one kernel or (None) all.

    Attributes:
        vs_default: Geometric mean over the cases; None if no case has one.
        least, most: The extremes of `vs_default`.
        slower: Cases slower than untuned by over 1%.
        noisy: Cases whose times are noisy or unresolved.
        configs: Number of measured configs.
        failed: Number of configs that failed or gave wrong results.
        seconds: Total search time.
    """

    kernel: str | None
    device: str
    toolchain: str
    interpreted: bool
    cases: int
    vs_default: float | None
    least: float | None
    most: float | None
    slower: int
    tied: int
    noisy: int
    configs: int
    failed: int
    seconds: float


def summed(cases: Sequence[ReportCase], kernel: str | None = None) -> Summary:
    """The summary of cases of one device and toolchain."""
    ratios = [case.vs_default for case in cases if case.vs_default]
    qualities = Counter(case.stored.quality for case in cases)
    return Summary(
        kernel, *cases[0].place, cases[0].is_interpreted, len(cases),
        *(mean(ratios), min(ratios, default=None), max(ratios, default=None)),
        slower=sum(ratio < SLOWER for ratio in ratios),
        tied=qualities["tied"],
        noisy=qualities["noisy"] + qualities["unresolved"],
        configs=sum(len(case.configs) for case in cases),
        failed=sum(case.failed for case in cases),
        seconds=round(sum(case.seconds or 0.0 for case in cases), 3),
    )  # fmt: skip


def by_place(cases: Iterable[ReportCase]) -> dict[Place, list[ReportCase]]:
    """Cases by device and toolchain, the interpreter last."""
    found: dict[Place, list[ReportCase]] = {}
    for case in cases:
        found.setdefault(case.place, []).append(case)
    return dict(sorted(found.items(), key=lambda item: (item[1][0].is_interpreted, *map(words.in_order, item[0]))))


def by_kernel(cases: Iterable[ReportCase]) -> dict[str, list[ReportCase]]:
    """Cases by kernel."""
    found: dict[str, list[ReportCase]] = {}
    for case in cases:
        found.setdefault(case.stored.key.kernel, []).append(case)
    return found


def slowdown(us: float, fastest_us: float) -> float:
    """A time over the fastest, bounded, since a damaged record may hold any number."""
    return min(us / fastest_us, 1e9)


def mean(ratios: Iterable[float | None]) -> float | None:
    """Geometric mean of the known ratios, or None."""
    known = [math.log(ratio) for ratio in ratios if ratio]  # importing `statistics` would take 10 ms
    return math.exp(math.fsum(known) / len(known)) if known else None
