"""Compares and merges two records of one key."""

from __future__ import annotations

from autotuned.store import conditions
from autotuned.store.record import QUALITIES, Timing, TuningRecord


def merged(some: TuningRecord, other: TuningRecord) -> TuningRecord:
    """The better record, completed with the other's timings; `some` if they are equally good.

    Records are compared by: having a winner, stronger conditions, better quality (an unknown one is the worst), more
    configs, more samples. The other record adds check verdicts and, under the same protection, timings of further
    configs; the winner stays.
    """
    return joined(other, some) if _is_better(other, some) else joined(some, other)


def joined(taken: TuningRecord, left: TuningRecord) -> TuningRecord:
    """The first record with its winner, plus the second one's timings and checks."""
    found = with_verdicts_of(left, taken)
    return found.extended(left.timings) if left.conditions.restore == taken.conditions.restore else found


def is_same(one: TuningRecord, other: TuningRecord) -> bool:
    """Whether both have the same winner and timings."""
    return one.winner == other.winner and one.timings == other.timings


def _is_better(one: TuningRecord, other: TuningRecord) -> bool:
    if (one.winner is None) != (other.winner is None):
        return other.winner is None
    if conditions.is_more(one.conditions, other.conditions) or conditions.is_more(other.conditions, one.conditions):
        return conditions.is_more(one.conditions, other.conditions)
    return _measured(one) > _measured(other)


def _measured(found: TuningRecord) -> tuple[int, int, int]:
    usable = [timing for timing in found.timings if timing.usable]
    rank = len(QUALITIES) if found.quality is None else QUALITIES.index(found.quality)
    return -rank, len(found.timings), sum(timing.samples for timing in usable)


def with_verdicts_of(earlier: TuningRecord, result: TuningRecord) -> TuningRecord:
    """A record plus earlier check verdicts on its configs; new verdicts take precedence."""
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
