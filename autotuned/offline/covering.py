"""`tune` over ranges of sizes: a few shapes first, then the most informative ones, until the loss is known."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from autotuned.offline import ranges
from autotuned.offline.ranges import Estimate, Known, Point, Ranges, WantedSizes
from autotuned.offline.results import CaseResult, Covered, TuneOptions, TuneResult
from autotuned.rules import fit, table
from autotuned.store import layout, records

Session = Callable[[TuneOptions], TuneResult]

# Why no more shapes are tuned, as the end of a sentence about the loss between them.
ENOUGH = f"calls between them lose at most {ranges.MEAN:.1%} on average and {ranges.WORST:.0%} in the worst case"
NO_MORE, MANY = "no shape between them would tell more", f"{ranges.MOST} is the most for one group"
TIME, NO_RECORDS = "the budget is used up, or it was interrupted", "no times of them are stored"


def run(options: TuneOptions, asked: Ranges, session: Session) -> TuneResult:
    """Tune the shapes of ranges in rounds.

    The stored times decide which shapes come next, so the same command continues where it ended.

    Args:
        options: Options of the whole run.
        asked: The ranges.
        session: Tunes the wanted shapes.
    """
    start, names = time.monotonic(), tuple(asked)
    result: TuneResult | None = None
    wanted: WantedSizes | None = ranges.first_wanted(asked)
    while wanted is not None:
        left_s = options.left_s(start)
        if result is not None and left_s == 0:
            break
        try:
            found = session(replace(options, wanted=wanted, budget_s=None if left_s is None else max(left_s, 1e-9)))
        except BaseException as error:
            last = vars(error).get("result")
            vars(error)["result"] = _joined(result, last, options) if result and last else result or last
            raise
        result = found if result is None else _joined(result, found, options)
        wanted = None if found.interrupted else _next(result, names)
    assert result is not None
    result.budget_s = options.budget_s
    result.cover = _covered(result, names, wanted is not None or result.interrupted or bool(result.unfinished))
    return result


def _joined(before: TuneResult, found: TuneResult, options: TuneOptions) -> TuneResult:
    """Join two rounds into one result."""
    devices = {one.name: one for one in before.devices}
    for one in found.devices:
        if one.name in devices:
            one.cases += devices[one.name].cases
            one.restarts += devices[one.name].restarts
    return replace(
        found, cases=[*before.cases, *found.cases], files=sorted({*before.files, *found.files}),
        seconds=before.seconds + found.seconds, budget_s=options.budget_s,
    )  # fmt: skip


def _groups(result: TuneResult, names: Sequence[str]) -> dict[tuple[str, str], Known]:
    """The losses of all configs at each point, by group and device; omits points without stored times."""
    groups: dict[tuple[str, str], dict[Point, Mapping[str, float]]] = {}
    for case in result.cases:
        if case.sizes is not None and case.group is not None:
            known = groups.setdefault((case.group, case.device or ""), {})
            if case.status == "done":
                known[tuple(case.sizes[name] for name in names)] = _losses(case)
    return {group: {point: losses for point, losses in known.items() if losses} for group, known in groups.items()}


def _losses(case: CaseResult) -> Mapping[str, float]:
    """The loss of each config of a case; empty without stored times."""
    found = records.read(layout.kernel_folder(case.kernel) / f"{case.digest}.json")
    times = {one.identity: one.median_us or 0.0 for one in (found.timings if found else ()) if one.usable}
    best_us = min(times.values(), default=1.0)
    return {name: us / best_us - 1 for name, us in times.items()}


def _next(result: TuneResult, names: tuple[str, ...]) -> WantedSizes | None:
    """The shapes of the next round; None if none are needed."""
    only: dict[str, list[Point]] = {}
    tried = {(case.group, tuple((case.sizes or {}).get(name) for name in names)) for case in result.cases}
    for (group, _), known in _groups(result, names).items():
        count = min(ranges.ROUND, ranges.MOST - len(known))
        if known and count > 0 and not _best_estimate(known, names)[0].is_enough:
            new = [point for point in ranges.further(known, count) if (group, point) not in tried]
            only.setdefault(group, []).extend(new)
    points = sorted({point for some in only.values() for point in some})
    return WantedSizes(names, tuple(points), only) if points else None


def _best_estimate(known: Known, names: Sequence[str]) -> tuple[Estimate, str]:
    """The loss of calls between the points, served by a rule if that loses less, otherwise by the nearest point."""
    estimate = ranges.estimate(known)
    if estimate.is_enough or len(known) < ranges.LEAST:
        return estimate, "nearest"
    times = [{name: 1.0 + loss for name, loss in losses.items()} for losses in known.values()]
    found = fit.fit(table.Table(tuple(names), list(known), times), ranges.WITHIN)
    by_rule = Estimate(*found.compared.get("rule", (math.inf, math.inf)))
    return (by_rule, "rule") if not found.why_not and by_rule.mean < estimate.mean else (estimate, "nearest")


def _covered(result: TuneResult, names: Sequence[str], cut: bool) -> list[Covered]:
    found = []
    for (group, device), known in _groups(result, names).items():
        estimate, by = _best_estimate(known, names)
        is_known = bool(known) and estimate.mean < math.inf
        why = ENOUGH if is_known and estimate.is_enough else MANY if len(known) >= ranges.MOST else TIME if cut else ""
        mean, worst = (round(estimate.mean, 4), round(estimate.worst, 4)) if is_known else (None, None)
        why = why or (NO_MORE if known else NO_RECORDS)
        found.append(Covered(group, device, len(known), by, mean, worst, why, why != TIME))
    return found
