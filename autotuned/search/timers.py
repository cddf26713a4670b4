"""Timers: the time of one launch of a config, without its preparation.

The objective "kernel" is the device's time while the host keeps it busy; "call" is the longer of the device's and the
host's time, which overlap.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from autotuned import env
from autotuned.gpu import clocks
from autotuned.gpu.device import INTERPRETER, Device
from autotuned.search import benchmark
from autotuned.search.failures import suppress_memory_errors
from autotuned.search.trial import Trial
from autotuned.typed_json import Json


class Timer:
    """Measures launches on one kind of device; the defaults ignore clocks and memory."""

    resolution_us: float = 0.0  # resolution of the clock
    repeats: bool = False  # whether to repeat a noisy race
    overlaps: bool = False  # whether times are valid while other threads compile
    device: str | None = None  # host-wide name of the device, on which one search at a time measures; None for no lock
    is_short: bool = False  # whether device memory was short

    @property
    def regime(self) -> Mapping[str, Json]:
        """Conditions of the measurement, for the record: a choice may be poor under other ones."""
        raise NotImplementedError

    def sample(self, trial: Trial, count: int) -> list[float]:
        """Times of `count` launches in microseconds, each after its own preparation."""
        raise NotImplementedError

    def turn(self, trials: Sequence[Trial]) -> list[float] | None:
        """One time of each in microseconds, back to back; None to sample each by itself."""
        return None

    def synchronize(self) -> None:
        """Wait for all launches; raises the device's error if it has one."""

    def warm_up(self) -> None:
        """Raise the device's clocks before a race."""

    def free(self) -> None:
        """Release memory that can be spared."""

    def ran_well(self) -> bool:
        """Whether the device ran at full clocks; if not, pauses first so that it recovers."""
        return True


def host_us(call: Callable[[], Any]) -> float:
    """Duration of a call on the host's clock, in microseconds."""
    start = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - start) / 1e3


class HostTimer(Timer):
    """Wall clock of the CPU, for callables on the CPU and for the interpreter, where races are not repeated."""

    resolution_us = 0.1
    regime: Mapping[str, Json] = {"clock": "host", "cache": "warm"}

    def __init__(self, objective: str = "kernel", repeats: bool = False) -> None:
        self.repeats = repeats

    def sample(self, trial: Trial, count: int) -> list[float]:
        """Times of `count` calls in microseconds."""
        return [self._once(trial) for _ in range(count)]

    @staticmethod
    def _once(trial: Trial) -> float:
        trial.prepare()
        elapsed_us = host_us(trial.launch)
        trial.finish()
        return elapsed_us


class CudaTimer(Timer):
    """Events on the current stream, with the L2 cache flushed before each launch.

    A sleeping kernel holds the stream until the host is ahead of the device, so that host overhead is not measured.
    Only the launch is between the two events.

    Args:
        objective: "call" times the host too, in the same launches; a callable that waits for the device is timed alone
            by the host's clock.
    """

    resolution_us = 0.5  # documented resolution of CUDA events
    overlaps = repeats = True
    _CYCLES_PER_US = 2000  # about 2 GHz; a longer sleep only costs tuning time
    _SHORTEST_HOLD_US, _LONGEST_HOLD_US = 50.0, 20_000.0
    _LEAD = 2  # launches by which the host is ahead when the device begins
    _SMALLEST_FLUSH = 1 << 20
    # Clocks rise within tens of milliseconds of work, and fall when the device is idle.
    _WARM_S, _STAYS_WARM_S = 0.05, 1.0
    _warm_since = float("-inf")  # shared: many keys are tuned one after the other
    _COOL_S = 0.2  # pause before a round is repeated, for a device whose clocks are held down
    _TRIES = 3  # tries to measure a block with the host fast enough
    # A sample of a short kernel is the mean of several launches, each with a flush, to even out the clock's steps: at
    # most this many, one for a kernel that takes this long.
    _MOST_LAUNCHES, _LONG_US = 8, 40.0
    _TOLD = 12  # samples that settle the number of launches
    _PROBE_US = 5000.0  # a call that outlasts this hold of the stream waits for the device

    def __init__(self, objective: str = "kernel") -> None:
        import torch

        self._torch = torch
        properties = torch.cuda.get_device_properties()
        uuid = str(getattr(properties, "uuid", None) or "")
        self.device: str | None = uuid or str(getattr(properties, "name", "gpu"))
        self._times_host = objective == "call"
        self._device_us: dict[int, float] = {}  # by trial: the device's own share of its latest sample
        self._waits: dict[int, bool] = {}  # by trial: whether its call waits for the device
        self._host_us = 50.0  # enqueueing one launch; a guess, updated by every block
        self._between_us = math.inf  # least device time between two launches: flush, restore
        self._events: list[tuple[Any, Any]] = []
        self._clocks = clocks.of(uuid or None)
        self._flush_bytes = 0
        self._flush = self._flush_buffer()

    def _flush_buffer(self) -> Any:
        """Twice the L2 cache, or as much as fits; None below 1 MiB."""
        wanted = 2 * (getattr(self._torch.cuda.get_device_properties(), "L2_cache_size", 0) or 64 << 20)
        size, buffer = wanted, None
        while buffer is None and size >= self._SMALLEST_FLUSH:
            with suppress_memory_errors():
                buffer = self._torch.empty(size, dtype=self._torch.int8, device="cuda")
                self._flush_bytes = size
            if buffer is None:
                size //= 2
        self.is_short = buffer is None or size < wanted
        if self.is_short:
            env.warn_once(
                "flush",
                "device memory is short: %d MiB instead of %d flush the cache between samples; the cache may be "
                "warm.", size >> 20 if buffer is not None else 0, wanted >> 20,
            )  # fmt: skip
        return buffer

    def sample(self, trial: Trial, count: int) -> list[float]:
        """`count` times in microseconds; for a short kernel each is the mean of several launches."""
        if self._times_host and self._is_waiting(trial):
            return [self._alone(trial) for _ in range(count)]
        each = self._launches_a_sample(trial)
        return self._means([trial] * count, [each] * count)

    def turn(self, trials: Sequence[Trial]) -> list[float] | None:
        """One time of each in microseconds; waits for the device once."""
        if self._times_host and any(map(self._is_waiting, trials)):
            return None
        return self._means(trials, [self._launches_a_sample(trial) for trial in trials])

    def _is_waiting(self, trial: Trial) -> bool:
        """Whether a call waits for the device, as one that reads a result does; tried once on a held stream."""
        if trial.index not in self._waits:
            before, after = self._event_pairs(1)[0]
            self._torch.cuda._sleep(int(self._PROBE_US * self._CYCLES_PER_US))
            self._enqueue(trial, before, after)
            self._waits[trial.index] = bool(before.query())
            self.synchronize()
        return self._waits[trial.index]

    def _alone(self, trial: Trial) -> float:
        """Host time of a call from an idle device until it is idle again."""
        self._prepare(trial)
        self.synchronize()
        start = time.perf_counter()
        trial.launch()
        self.synchronize()
        elapsed_us = (time.perf_counter() - start) * 1e6
        trial.finish()
        return elapsed_us

    def _means(self, trials: Sequence[Trial], counts: Sequence[int]) -> list[float]:
        """For each trial in order, the mean of `counts` launches."""
        launches = [trial for trial, count in zip(trials, counts) for _ in range(count)]
        hold_us = self._hold_us(launches)
        for _ in range(self._TRIES):
            times, starved = self._block(launches, hold_us)
            if not starved:
                break  # else try again with everything enqueued beforehand
            hold_us = 2 * len(launches) * self._host_us
        left = iter(times)
        return [math.fsum(next(left) for _ in range(count)) / count for count in counts]

    def _launches_a_sample(self, trial: Trial) -> int:
        if 0 < len(trial.samples_us) < self._TOLD:
            trial.launches = max(1, min(self._MOST_LAUNCHES, int(self._LONG_US / trial.median_us)))
        return trial.launches

    def _hold_us(self, launches: Sequence[Trial]) -> float:
        """How long to hold the stream so that the host stays ahead."""
        between_us = self._between_us if math.isfinite(self._between_us) else 0.0
        device_us = self._device_us.get
        behind_us = (max(0.0, self._host_us - between_us - device_us(trial.index, 0.0)) for trial in launches)
        return self._LEAD * self._host_us + 1.25 * math.fsum(behind_us)

    def _block(self, launches: Sequence[Trial], hold_us: float) -> tuple[list[float], bool]:
        """Times of these launches, and whether the device had to wait for the host."""
        count = len(launches)
        events, starved = self._event_pairs(count), False
        hold_us = min(max(hold_us, self._SHORTEST_HOLD_US), self._LONGEST_HOLD_US)
        self._torch.cuda._sleep(int(hold_us * self._CYCLES_PER_US))
        start, hosts_us = time.perf_counter(), []
        for trial, (before, after) in zip(launches, events):
            hosts_us.append(self._enqueue(trial, before, after))
            starved = starved or bool(before.query())
        self._host_us = (time.perf_counter() - start) / count * 1e6
        self._torch.cuda.current_stream().synchronize()
        times = [before.elapsed_time(after) * 1e3 for before, after in events]
        self._device_us.update((trial.index, time_us) for trial, time_us in zip(launches, times))
        if not starved and count > 1:
            between_us = events[0][0].elapsed_time(events[-1][1]) * 1e3 - math.fsum(times)
            self._between_us = min(self._between_us, max(0.0, between_us / (count - 1)))
        return list(map(max, times, hosts_us)) if self._times_host else times, starved

    @property
    def regime(self) -> dict[str, Json]:
        """Device clock, cold cache if there was room, and the host's time per launch."""
        cold = self._flush is not None
        flush_bytes = self._flush_bytes if cold else 0
        return {"clock": "device", "cache": "cold" if cold else "warm", "flush_bytes": flush_bytes,
                "host_us": round(self._host_us, 1), **({"host": "timed"} if self._times_host else {})}  # fmt: skip

    def _event_pairs(self, count: int) -> list[tuple[Any, Any]]:
        """Reusable pairs of events."""
        make = self._torch.cuda.Event
        self._events += [(make(enable_timing=True), make(enable_timing=True)) for _ in range(count - len(self._events))]
        return self._events[:count]

    def _prepare(self, trial: Trial) -> None:
        trial.prepare()
        if self._flush is not None:
            self._flush.zero_()

    def _enqueue(self, trial: Trial, before: Any, after: Any) -> float:
        """Launch between two events; the host's microseconds of the launch alone."""
        self._prepare(trial)
        before.record()
        start = time.perf_counter()
        trial.launch()
        elapsed_us = (time.perf_counter() - start) * 1e6
        after.record()
        trial.finish()
        return elapsed_us

    def warm_up(self) -> None:
        """Write the flush buffer for 50 ms, unless done within the last second."""
        start = time.monotonic()
        if self._flush is not None and start - CudaTimer._warm_since > self._STAYS_WARM_S:
            while time.monotonic() - start < self._WARM_S:
                for _ in range(20):
                    self._flush.zero_()
                self._torch.cuda.current_stream().synchronize()
        CudaTimer._warm_since = time.monotonic()

    def ran_well(self) -> bool:
        """Whether the clocks are free of heat and hardware limits; if not, pauses first."""
        slowed = self._clocks.slowed
        if slowed:
            time.sleep(self._COOL_S)
        return not slowed

    def free(self) -> None:
        """Release the flush buffer and torch's cached memory."""
        self._flush = None
        self._torch.cuda.empty_cache()

    def synchronize(self) -> None:
        """Wait for the stream; raises a sticky error of an earlier launch.

        Not for the whole device, which would break a capture on another thread.
        """
        self._torch.cuda.current_stream().synchronize()


class GivenTimer(Timer):
    """The user's `do_bench`, called as Triton does: with a closure that restores, runs hooks and launches."""

    regime: Mapping[str, Json] = {"clock": "do_bench"}

    def __init__(self, do_bench: Callable[..., Any], inner: Timer) -> None:
        self._do_bench = do_bench
        self.device, self.is_short = inner.device, inner.is_short
        self.synchronize, self.free = inner.synchronize, inner.free  # type: ignore[method-assign]

    def sample(self, trial: Trial, count: int) -> list[float]:
        """Its three quantiles in microseconds, once."""
        if trial.samples_us:
            return []

        def call() -> None:
            trial.prepare()
            trial.launch()
            trial.finish()

        return benchmark.microseconds(self._do_bench(call, quantiles=(0.5, 0.2, 0.8)))


def for_device(where: Device, objective: str = "kernel") -> Timer:
    """The timer for a device and an objective."""
    return CudaTimer(objective) if where.kind == "cuda" else HostTimer(objective, repeats=where != INTERPRETER)
