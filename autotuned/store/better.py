"""Of two records of one key: what both know together, and which of them was measured better."""

from __future__ import annotations

from autotuned.store import conditions
from autotuned.store.record import QUALITIES, Timing, TuningRecord


def merged(some: TuningRecord, other: TuningRecord) -> TuningRecord:
    """The one that was measured better, with what the other knows besides; of two that are equally good `some`.

    It is the one that has chosen; then the one under stronger conditions; then the one of the better quality, of more
    configs, of more samples. What it lacks comes from the other: verdicts of checks, and under the same protection
    timings of further configs, which do not change what it chose.
    """
    return joined(other, some) if _is_better(other, some) else joined(some, other)


def joined(taken: TuningRecord, left: TuningRecord) -> TuningRecord:
    """The first, with what the second knows besides; it keeps its choice."""
    found = with_verdicts_of(left, taken)
    return found.extended(left.timings) if left.conditions.restore == taken.conditions.restore else found


def is_same(one: TuningRecord, other: TuningRecord) -> bool:
    """Whether both have chosen the same by the same timings."""
    return one.winner == other.winner and one.timings == other.timings


def _is_better(one: TuningRecord, other: TuningRecord) -> bool:
    if (one.winner is None) != (other.winner is None):
        return other.winner is None
    if conditions.is_more(one.conditions, other.conditions) or conditions.is_more(other.conditions, one.conditions):
        return conditions.is_more(one.conditions, other.conditions)
    return _measured(one) > _measured(other)


def _measured(found: TuningRecord) -> tuple[int, int, int]:
    usable = [timing for timing in found.timings if timing.usable]
    return -QUALITIES.index(found.quality), len(found.timings), sum(timing.samples for timing in usable)


def with_verdicts_of(earlier: TuningRecord | None, result: TuningRecord) -> TuningRecord:
    """A record with what earlier searches know of its configs' results; what the new one found comes first."""
    if earlier is None:
        return result
    before = {timing.identity: timing for timing in earlier.timings}
    timings = tuple(_with_verdicts(timing, before.get(timing.identity)) for timing in result.timings)
    found = result.replace(timings=timings)
    won = found.timing_of(found.winner) if found.winner is not None else None
    return found if won is None else found.replace(conditions=found.conditions.replace(checks=won.passed))


def _with_verdicts(timing: Timing, before: Timing | None) -> Timing:
    if before is None:
        return timing
    passed, failed = conditions.with_verdicts((timing.passed, timing.failed), (before.passed, before.failed))
    found = timing.replace(passed=passed, failed=failed)
    if timing.status != "wrong" or timing.median_us or not passed:
        return found
    return found.replace(
        median_us=before.median_us, low_us=before.low_us, high_us=before.high_us, samples=before.samples
    )
