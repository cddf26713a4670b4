"""Suggests what to tune next: choices that are missing, slower than untuned, uncertain, or at the edge of a range."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from autotuned.key.words import in_order
from autotuned.offline.report.parameters import Tunables
from autotuned.offline.report.reported import SLOWER, ReportCase, Summary
from autotuned.offline.report.usage import Usage
from autotuned.typed_json import JsonFields, canonical

MOST_FAILED = 0.5  # of a kernel's configs; with more, a search mostly wastes time


@dataclass(frozen=True)
class Suggestion(JsonFields):
    """A suggestion of what to tune next.

    Attributes:
        kind: "missing": called but not tuned; "slower": than untuned; "noisy": uncertain; "toolchain": tuned only for
            an earlier one; "edge": a parameter's best value is the last one tried; "failing": most configs fail.
        kernel: The kernel; None for several.
        count: Number of calls or cases; for "failing", of configs.
        text: The finding and what to do.
    """

    kind: str
    kernel: str | None
    device: str | None
    toolchain: str | None
    count: int
    text: str


def suggestions(
    cases: Sequence[ReportCase], kernels: Sequence[Summary], found: Sequence[Tunables], covered: Usage | None
) -> list[Suggestion]:
    """What to tune next, most important first, for the latest toolchain on each device.

    Times of the interpreter are ignored.

    Args:
        cases, kernels: All cases, and their summaries by kernel, device and toolchain.
        found: Each kernel's tunables.
        covered: How much of a recording is tuned.
    """
    latest: dict[tuple[str | None, str], str] = {}
    for one in kernels:
        if not one.interpreted:
            toolchains = (one.toolchain, latest.get((one.kernel, one.device), one.toolchain))
            latest[one.kernel, one.device] = max(toolchains, key=in_order)
    real = [one for one in kernels if latest.get((one.kernel, one.device)) == one.toolchain]
    edges = (one for one in found if latest.get((one.kernel, one.device)) == one.toolchain)
    return [*_missing(covered), *_unsure(real), *_earlier(cases, latest), *_edges(edges), *_failing(real)]


def _missing(covered: Usage | None) -> Iterator[Suggestion]:
    counts: Counter[str] = Counter()
    for one in covered.missing if covered is not None else ():
        counts[one.key.kernel] += one.count
    for kernel, count in counts.most_common():
        text = f"{_calls(count)} recorded and not tuned: give the recording to `autotuned tune`."
        yield Suggestion("missing", kernel, None, None, count, text)


def _calls(count: int) -> str:
    return "1 call is" if count == 1 else f"{count} calls are"


def _unsure(kernels: Sequence[Summary]) -> Iterator[Suggestion]:
    how = {
        "slower": f"over {1 - SLOWER:.0%} slower than untuned: `autotuned tune --force` measures",
        "noisy": "noisy or too short to be sure: on a quiet device `autotuned tune` measures",
    }
    for kind, least in how.items():
        for one in sorted(kernels, key=lambda one: -getattr(one, kind)):
            if count := getattr(one, kind):
                text = f"{count} of {one.cases} choices {'is' if count == 1 else 'are'} {least} again."
                yield Suggestion(kind, one.kernel, one.device, one.toolchain, count, text)


def _earlier(cases: Iterable[ReportCase], latest: Mapping[tuple[str | None, str], str]) -> Iterator[Suggestion]:
    """Calls tuned on a device only for an earlier toolchain than the kernel's latest there."""
    tuned: dict[tuple[str, str], dict[str, set[str]]] = {}
    for case in cases:
        calls = tuned.setdefault((case.stored.key.kernel, case.stored.device), {})
        calls.setdefault(case.stored.toolchain, set()).add(canonical(case.stored.key.call))
    for (kernel, device), toolchains in tuned.items():
        last = latest.get((kernel, device))
        if last is not None and (left := len(set().union(*toolchains.values()) - toolchains[last])):
            text = f"{_calls(left)} tuned for an earlier toolchain only: tune them with {last}."
            yield Suggestion("toolchain", kernel, device, last, left, text)


def _edges(found: Iterable[Tunables]) -> Iterator[Suggestion]:
    for one in found:
        for parameter in one.parameters:
            if parameter.edge:
                value = parameter.values[-1 if parameter.edge == "largest" else 0]
                more = "larger" if parameter.edge == "largest" else "smaller"
                text = (
                    f"{parameter.name}={value.value} is the {parameter.edge} value tried and the best in "
                    f"{value.chosen} of {one.cases} calls: add {more} ones."
                )
                yield Suggestion("edge", one.kernel, one.device, one.toolchain, value.chosen, text)


def _failing(kernels: Iterable[Summary]) -> Iterator[Suggestion]:
    for one in kernels:
        if one.failed > MOST_FAILED * one.configs:
            text = (
                f"{one.failed} of {one.configs} configs failed: a pruner that leaves them out makes searches shorter."
            )
            yield Suggestion("failing", one.kernel, one.device, one.toolchain, one.failed, text)


def worst(cases: Iterable[ReportCase], most: int) -> list[ReportCase]:
    """The cases to look at first: slower than untuned, then noisy, then smallest gain; on devices if there are any."""
    found = list(cases)
    known = [case for case in found if not case.is_interpreted] or found
    loses = [(case.vs_default or 1.0) < SLOWER for case in known]
    order = sorted(
        (not lost, not case.is_noisy, case.vs_default or 1.0, number)
        for number, (lost, case) in enumerate(zip(loses, known))
    )
    return [known[number] for *_, number in order[:most]]
