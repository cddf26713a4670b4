"""When a search goes on without the configs that compile much longer than the others."""

from concurrent.futures import CancelledError, Future

import pytest

from autotuned.errors import SealedError
from autotuned.search.compiling import stragglers
from autotuned.search.compiling.stragglers import Stragglers


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(stragglers.time, "monotonic", lambda: now[0])
    return now


def compiling(count: int) -> dict[str, Future]:
    return {str(number): Future() for number in range(count)}


def left_after(clock, ready_s: list[float], count: int, ok: bool = True) -> float | None:
    """Seconds after which `count` configs are left, when others were ready at these times; None if never."""
    slow, clock[0] = Stragglers(), 0.0
    slow.begin()
    for second in ready_s:
        clock[0] = second
        slow.note(ok)
    for step in range(1, 1000):
        clock[0] = ready_s[-1] + step / 10 if ready_s else step / 10
        if slow.leave(compiling(count)):
            assert len(slow) == count
            return clock[0]
    assert len(slow) == 0
    return None


@pytest.mark.parametrize(
    ("ready_s", "count", "expected_s"),
    [
        ([0.1] * 11, 1, pytest.approx(1.2)),  # at least a second after the latest
        ([0.7, 1.5, 2.8], 1, pytest.approx(4.3)),  # half of the time that the others took
        ([20.0], 1, pytest.approx(30.1)),  # of two, one may be left
        ([1.0] * 12, 4, pytest.approx(2.1)),
        ([1.0] * 11, 4, None),  # more than a quarter
        ([1.0], 2, None),
        ([], 1, None),  # nothing could run
    ],
)
def test_it_goes_on_without_the_few_that_take_much_longer(clock, ready_s, count, expected_s):
    assert left_after(clock, ready_s, count) == expected_s


def test_it_waits_if_no_other_has_compiled(clock):
    assert left_after(clock, [0.1] * 11, 1, ok=False) is None


def test_what_follows_is_called_once_when_all_have_ended_with_what_failed():
    slow, calls = Stragglers(), []
    slow.note(True)
    slow._latest_s = slow._begun_s = -1e9
    left = compiling(1)
    assert slow.leave(left)
    slow.then(calls.append)
    assert calls == []
    left["0"].set_exception(ValueError("no such layout"))
    assert calls == [{"0": "ValueError: no such layout"}]
    slow.then(calls.append)
    assert len(calls) == 2  # at once


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_several_end_in_any_order(order):
    slow, calls = Stragglers(), []
    for _ in range(9):
        slow.note(True)
    slow._latest_s = slow._begun_s = -1e9
    left = compiling(3)
    assert slow.leave(left)
    slow.then(calls.append)
    ends = [lambda: left["0"].set_result(None), lambda: left["1"].set_exception(MemoryError()), left["2"].cancel]
    for place in order:
        assert calls == []
        ends[place]()
        if place == 2:
            left["2"].set_running_or_notify_cancel()
    assert calls == [{}]  # passing reasons exclude nothing


def test_what_an_earlier_search_has_left_is_left_at_once():
    slow = Stragglers()
    assert not slow.leave(compiling(1), overdue=True)  # nothing could run
    slow.note(True)
    assert slow.leave(compiling(1), overdue=True)


@pytest.mark.parametrize("error", [SealedError("sealed", kernel="k", what="compile", reason=""), CancelledError()])
def test_what_is_no_fault_of_a_config_excludes_nothing(error):
    assert failures_after(error) == {}


def test_a_config_whose_hook_may_mend_it_is_not_excluded():
    assert failures_after(ValueError("no such layout"), mendable=["0"]) == {}


def failures_after(error, **options):
    slow, calls, left = Stragglers(), [], compiling(1)
    slow.note(True)
    assert slow.leave(left, overdue=True, **options)
    slow.then(calls.append)
    left["0"].set_exception(error)
    return calls[0]
