"""Reports the gain from tuning by device and kernel, important parameters, worst choices, and what to tune next."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from autotuned.errors import KernelNameError
from autotuned.offline.report import parameters, reported, stored
from autotuned.offline.report.parameters import Tunables
from autotuned.offline.report.reported import ReportCase, Summary, by_kernel, by_place, summed
from autotuned.offline.report.stored import Filter
from autotuned.offline.report.suggestions import Suggestion, suggestions, worst
from autotuned.offline.report.usage import Usage
from autotuned.recording import file
from autotuned.store import layout, listing
from autotuned.typed_json import Json

WORST = 10


@dataclass(frozen=True)
class Report:
    """The gain from tuning. Nothing is averaged over devices or toolchains.

    Attributes:
        cases: One per key, sorted by kernel, device and call.
        coverage: How much of a recording is tuned; None without a recording.
        older: Number of omitted choices for earlier kernel sources.
    """

    cases: Sequence[ReportCase]
    coverage: Usage | None = None
    older: int = 0

    def __repr__(self) -> str:
        """A line, since the fields fill a notebook; `str` has them."""
        calls, kernels = len(self.cases), len(by_kernel(self.cases))
        counts = f"{calls} call{'s' * (calls != 1)} of {kernels} kernel{'s' * (kernels != 1)}"
        return f"<Report on {counts}: see .kernels, .devices, .worst and .suggestions>"

    def __str__(self) -> str:
        return f"Report(cases={self.cases!r}, coverage={self.coverage!r}, older={self.older!r})"

    @cached_property
    def devices(self) -> list[Summary]:
        """A summary for each device and toolchain, the interpreter last."""
        return [summed(some) for some in by_place(self.cases).values()]

    @cached_property
    def kernels(self) -> list[Summary]:
        """A summary for each kernel, device and toolchain."""
        return [summed(some, kernel) for kernel, some in self._groups]

    @cached_property
    def tunables(self) -> list[Tunables]:
        """Which parameters matter, by kernel, device and toolchain."""
        groups = [some for _, some in self._groups]
        real = [some for some in groups if not some[0].is_interpreted]
        return list(filter(None, map(parameters.tunables, real or groups)))

    @property
    def _groups(self) -> list[tuple[str, list[ReportCase]]]:
        kernels = by_kernel(self.cases).items()
        return [(kernel, some) for kernel, cases in kernels for some in by_place(cases).values()]

    @cached_property
    def worst(self) -> list[ReportCase]:
        """The cases to look at first: slower than untuned, then noisy, then smallest gain."""
        return worst(self.cases, WORST)

    @cached_property
    def suggestions(self) -> list[Suggestion]:
        """What to tune next, most important first."""
        return suggestions(self.cases, self.kernels, self.tunables, self.coverage)

    def to_json(self) -> dict[str, Json]:
        """What `autotuned report --json` prints."""
        return {
            "cases": [case.to_json() for case in self.cases],
            "devices": [one.to_json() for one in self.devices],
            "kernels": [one.to_json() for one in self.kernels],
            "tunables": [one.to_json() for one in self.tunables],
            "next": [one.to_json() for one in self.suggestions],
            "worst": [case.stored.digest for case in self.worst],
            "older": self.older,
            "coverage": None if self.coverage is None else self.coverage.to_json(),
        }


def report(
    kernel: str | None = None,
    *,
    calls: str | os.PathLike[str] | None = None,
    device: str | None = None,
    triton: str | None = None,
) -> Report:
    """Report the gain from tuning over the untuned config: `default=`, or the first of the list.

    Each key enters once, with the choice that a call gets. Unfinished searches and choices for an older source of a
    kernel are omitted.

    Args:
        kernel: Only kernels with this name, or this dotted suffix. This package's own choices are reported only by a
            kernel's name.
        calls: A recording: report how much of it is tuned.
        device: Only devices whose slug contains this, such as "h200" or "interpreter".
        triton: Only this version of Triton, or versions that begin with it, such as "3.6".

    Raises:
        KernelNameError: No kernel has this name, or no choice matches.
        RecordingError: The recording cannot be read.
    """
    wanted = Filter(kernel, device, triton)
    used = None if calls is None else Usage(call for call in file.read(Path(calls)) if wanted.fits(call.key))
    counts = None if used is None else {key.digest: count for key, count in used.counts.items()}
    reader = reported.CaseReader()
    found = [
        reader.case(choice, None if counts is None else counts.get(choice.digest, 0))
        for choice in stored.choices(wanted, once=True)
    ]
    if not found:
        raise _nothing(kernel)
    cases = reported.current(found)
    return Report(cases, used, len(found) - len(cases))


def _nothing(kernel: str | None) -> KernelNameError:
    if kernel is not None:
        listing.named(stored.kernels(), kernel)
    return KernelNameError(f"nothing is tuned in {layout.named()}, nor in config files: tune something first.", name="")
