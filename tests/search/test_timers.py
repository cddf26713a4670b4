"""Tests of `measure`."""

import sys
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from simulated import Costs, Gpu

from autotuned.search.race import Track, race
from autotuned.search.timers import CudaTimer, GivenTimer, HostTimer
from autotuned.search.trial import Trial


def nothing() -> None: ...


def trial(index: int = 0, *samples_us: float) -> Trial:
    return Trial(index, nothing, nothing, samples_us=list(samples_us))


def noted(events: list[str], launch: Callable[[], Any] = nothing) -> Trial:
    def note(word: str, then: Callable[[], Any] = nothing) -> Callable[[], None]:
        def both() -> None:
            events.append(word)
            then()

        return both

    return Trial(0, note("prepare"), note("launch", launch), note("finish"))


def test_the_host_timer_times_the_launch_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0]
    monkeypatch.setattr(time, "perf_counter_ns", lambda: now[0])

    def taking(nanoseconds: int) -> Callable[[], None]:
        return lambda: now.__setitem__(0, now[0] + nanoseconds)

    slow_around = Trial(0, taking(10**9), taking(2_500), taking(10**9))
    assert HostTimer().sample(slow_around, 3) == [2.5, 2.5, 2.5]
    HostTimer().synchronize()


def test_each_sample_of_the_host_timer_has_its_own_preparation() -> None:
    events: list[str] = []
    assert all(us > 0 for us in HostTimer().sample(noted(events, lambda: sum(range(100))), 2))
    assert events == ["prepare", "launch", "finish"] * 2


@pytest.mark.parametrize(
    ("answer_ms", "samples_us"),
    [((0.010, 0.009, 0.011), [10.0, 9.0, 11.0]), ([0.010, 0.009, 0.011], [10.0, 9.0, 11.0]), (0.01, [10.0])],
    ids=["tuple", "list", "one number"],
)
def test_a_users_benchmark_answers_once_in_milliseconds(answer_ms: Any, samples_us: list[float]) -> None:
    events: list[str] = []
    asked = []

    def do_bench(call: Callable[[], None], quantiles: Sequence[float]) -> Any:
        asked.append(quantiles)
        call()
        call()
        return answer_ms

    inner = SimpleNamespace(synchronize=lambda: events.append("synchronize"), free=nothing, device=None, is_short=False)
    timer = GivenTimer(do_bench, inner)
    noticed = noted(events)
    noticed.samples_us += timer.sample(noticed, 3)
    assert noticed.samples_us == pytest.approx(samples_us)
    assert timer.sample(noticed, 3) == []
    assert asked == [(0.5, 0.2, 0.8)]
    timer.synchronize()
    assert events == ["prepare", "launch", "finish"] * 2 + ["synchronize"]


def test_a_race_with_a_users_benchmark_measures_each_config_once() -> None:
    calls = []

    def do_bench(call: Callable[[], None], quantiles: Sequence[float]) -> Any:
        calls.append(1)
        return [0.1, 0.09, 0.11]

    timer = GivenTimer(do_bench, HostTimer())
    trials = [trial(0), trial(1)]

    def sample(turn: Sequence[Trial]) -> None:
        for one in turn:
            one.samples_us += timer.sample(one, 1)

    race(trials, Track(sample, drifts=False))
    assert len(calls) == 2


class FakeCuda:
    """torch.cuda as `CudaTimer` uses it; notes what is enqueued."""

    def __init__(self, events: list[str], l2_bytes: int = 1 << 20, is_full: bool = False) -> None:
        self.int8, self.version, self.OutOfMemoryError = "int8", None, MemoryError
        self.events, self.l2_bytes, self.is_full = events, l2_bytes, is_full
        self.asked_bytes = 0
        self.held_us = 0.0
        self.cuda = SimpleNamespace(
            get_device_properties=lambda: SimpleNamespace(L2_cache_size=l2_bytes),
            Event=lambda enable_timing: SimpleNamespace(
                record=lambda: events.append("event"), elapsed_time=lambda other: 0.0125, query=lambda: False
            ),
            _sleep=lambda cycles: events.append("hold"),
            current_stream=lambda: SimpleNamespace(synchronize=lambda: events.append("wait for the stream")),
            synchronize=lambda: events.append("wait for the device"),
        )

    def empty(self, size: int, dtype: str, device: str) -> Any:
        self.asked_bytes = self.asked_bytes or size
        if self.is_full:
            raise self.OutOfMemoryError
        return SimpleNamespace(zero_=lambda: self.events.append("flush"))


@pytest.mark.parametrize(("is_full", "flush"), [(False, ["flush"]), (True, [])], ids=["flushing", "no memory to flush"])
def test_the_gpu_timer_puts_only_the_launch_between_its_events(
    monkeypatch: pytest.MonkeyPatch, is_full: bool, flush: list[str]
) -> None:
    events: list[str] = []
    fake = FakeCuda(events, is_full=is_full)
    monkeypatch.setitem(sys.modules, "torch", fake)
    timer = CudaTimer()
    assert fake.asked_bytes == 2 << 20
    assert timer.sample(noted(events), 2) == [12.5, 12.5]
    assert events == ["hold", *["prepare", *flush, "event", "launch", "event", "finish"] * 2, "wait for the stream"]
    events.clear()
    timer.synchronize()
    assert events == ["wait for the stream"]  # for the device would break a capture on another thread


def test_a_gpu_that_does_not_say_its_cache_size_gets_a_large_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeCuda([], l2_bytes=0)
    monkeypatch.setitem(sys.modules, "torch", fake)
    CudaTimer()
    assert fake.asked_bytes == 128 << 20


@pytest.mark.parametrize(("median_us", "launches"), [(4.0, 8), (10.0, 4), (30.0, 1), (500.0, 1)])
def test_a_sample_of_a_short_kernel_is_the_mean_of_several_launches(
    monkeypatch: pytest.MonkeyPatch, median_us: float, launches: int
) -> None:
    events: list[str] = []
    monkeypatch.setitem(sys.modules, "torch", FakeCuda(events))
    timer, measured = CudaTimer(), noted(events)
    measured.samples_us = [median_us]
    assert timer.sample(measured, 3) == [12.5] * 3
    assert events.count("launch") == events.count("flush") == 3 * launches


def test_b81_the_host_that_launches_slowly_does_not_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Host 50 us, device 5 and 10 us: what lies between the events is the device's time."""

    class Device(FakeCuda):
        def __init__(self) -> None:
            super().__init__([])
            self.device_us = 0.0
            self.cuda.Event = lambda enable_timing: self.event()

        def event(self) -> SimpleNamespace:
            one = SimpleNamespace(query=lambda: False, elapsed_time=lambda other: other.device_us / 1e3)
            one.record = lambda: setattr(one, "device_us", self.device_us)
            return one

    device = Device()
    monkeypatch.setitem(sys.modules, "torch", device)
    timer = CudaTimer()

    def launch(device_us: float) -> None:
        time.sleep(50e-6)
        device.device_us = device_us

    trials = [Trial(0, nothing, lambda: launch(10.0)), Trial(1, nothing, lambda: launch(5.0))]

    def sample(turn: Sequence[Trial]) -> None:
        for one, time_us in zip(turn, timer.turn(turn) or ()):
            one.samples_us.append(time_us)

    race(trials, Track(sample))
    assert [trial.median_us for trial in trials] == [10.0, 5.0]


# -- how long the stream is held, on a simulated device -----------------------------------------------------------------


def launching(gpu: Gpu, device_us: float) -> Trial:
    return Trial(0, nothing, lambda: gpu.launch(device_us))


@pytest.mark.parametrize("device_us", [3.0, 12.0, 200.0])
@pytest.mark.parametrize("flush_us", [0.0, 45.0])
def test_b81_the_host_is_ahead_whichever_is_faster(
    monkeypatch: pytest.MonkeyPatch, device_us: float, flush_us: float
) -> None:
    gpu = Gpu(Costs(flush_us=flush_us))
    timer, trial = gpu.install(monkeypatch), launching(gpu, device_us)
    for count in (3, 3, 8, 16):
        samples = timer.sample(trial, count)
        assert samples == pytest.approx([device_us] * count)
        trial.samples_us += samples
    assert gpu.counts["holds"] == 4  # none was repeated


def test_where_the_device_is_slower_the_stream_is_held_for_two_launches_and_no_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = Gpu()
    timer, trial = gpu.install(monkeypatch), launching(gpu, 300.0)
    trial.samples_us += timer.sample(trial, 3)
    before_us = gpu.held_us
    timer.sample(trial, 40)
    assert gpu.held_us - before_us < 100


def test_where_the_host_is_slower_the_stream_is_held_for_what_it_loses(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu(Costs(flush_us=5.0))
    timer, trial = gpu.install(monkeypatch), launching(gpu, 5.0)
    timer.sample(trial, 3)
    trial.samples_us[:] = [41.0]  # so that a sample is one launch
    before_us, host_us = gpu.held_us, 25 + 6 + 2 * 2 + 1
    assert timer.sample(trial, 40) == pytest.approx([5.0] * 40)
    assert gpu.held_us - before_us < 2 * 40 * host_us + 1


@pytest.mark.parametrize("place", [0, 7, 15])
def test_a_block_in_which_the_device_waited_for_the_host_is_measured_again(
    monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    gpu = Gpu()
    timer, trial = gpu.install(monkeypatch), launching(gpu, 50.0)
    trial.samples_us += timer.sample(trial, 3)
    launches = iter([0.0] * place + [5000.0])  # another thread has Python's lock for 5 ms
    gpu.stall = lambda: next(launches, 0.0)
    assert timer.sample(trial, 16) == pytest.approx([50.0] * 16)
    assert gpu.counts["holds"] == 3


def test_a_host_that_always_stalls_is_put_up_with(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu()
    timer = gpu.install(monkeypatch)
    gpu.stall = lambda: 50_000.0
    assert len(timer.sample(launching(gpu, 5.0), 3)) == 3
    assert gpu.counts["holds"] == 3


def test_b81_the_record_says_in_which_regime_times_were_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", FakeCuda([]))
    timer = CudaTimer()
    timer.sample(trial(), 3)
    regime = timer.regime
    assert (regime["clock"], regime["cache"], regime["flush_bytes"]) == ("device", "cold", 2 << 20)
    assert regime["host_us"] > 0
    assert GivenTimer(lambda call, quantiles: 1.0, HostTimer()).regime == {"clock": "do_bench"}
    assert HostTimer().regime == {"clock": "host", "cache": "warm"}


def test_b81_without_room_to_flush_the_cache_is_said_to_be_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", FakeCuda([], is_full=True))
    assert CudaTimer().regime["cache"] == "warm"
