"""Timers: what one launch of a config takes, without its preparations.

Two objectives. "kernel" is the device's time, for launches that others keep it busy between. "call" is what one call
costs where the host may be the limit: the longer of the device's time and the host's, which run side by side.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from autotuned import env
from autotuned.gpu import clocks
from autotuned.gpu.device import INTERPRETER, Device
from autotuned.search import benchmark
from autotuned.search.failures import is_memory_error
from autotuned.search.trial import Trial
from autotuned.typed_json import Json


class Timer(Protocol):
    """What measures launches on one kind of device.

    Attributes:
        resolution_us: What the clock can tell apart.
        overlaps: Whether times can be believed that are taken while other threads compile.
        device: What names on this host the device that one search at a time should measure on; None for none.
        is_short: Whether the device had less memory left than it should have.
        repeats: Whether a race that ended noisy is worth another one.
    """

    resolution_us: float
    repeats: bool
    overlaps: bool
    device: str | None
    is_short: bool

    @property
    def regime(self) -> Mapping[str, Json]:
        """What the times are times of, for the record: a choice made in one regime may be poor in another."""

    def sample(self, trial: Trial, count: int) -> list[float]:
        """Times of `count` launches in microseconds, each after its own preparation."""

    def turn(self, trials: Sequence[Trial]) -> list[float] | None:
        """One time of each in microseconds, taken one right after the other; None where each is sampled by itself."""

    def synchronize(self) -> None:
        """Wait until what was launched has ended; raises the device's error if it has one."""

    def warm_up(self) -> None:
        """Bring the device's clocks up before a race."""

    def free(self) -> None:
        """Give back what memory can be spared."""

    def ran_well(self) -> bool:
        """Whether the device ran at its clocks; if not, after a pause that lets it recover."""


def host_us(call: Callable[[], Any]) -> float:
    """Microseconds that a call takes by the clock of the host."""
    start = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - start) / 1e3


class HostTimer:
    """Wall clock of the CPU, for the interpreter and for callables that run on the CPU.

    Args:
        objective: The two are one here: whatever a trial's launch does takes the host's time.
        repeats: Not so in the interpreter, of which the clock says nothing in any case.
    """

    resolution_us = 0.1
    overlaps = False
    device: str | None = None
    is_short = False
    regime: Mapping[str, Json] = {"clock": "host", "cache": "warm"}

    def __init__(self, objective: str = "kernel", repeats: bool = False) -> None:
        self.repeats = repeats

    def sample(self, trial: Trial, count: int) -> list[float]:
        """Times of `count` calls in microseconds."""
        return [self._once(trial) for _ in range(count)]

    def turn(self, trials: Sequence[Trial]) -> list[float] | None:
        """None: there is nothing to gain."""
        return None

    @staticmethod
    def _once(trial: Trial) -> float:
        trial.prepare()
        elapsed_us = host_us(trial.launch)
        trial.finish()
        return elapsed_us

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def warm_up(self) -> None:
        """The launches before the race have done it."""

    def free(self) -> None:
        """Nothing is held."""

    def ran_well(self) -> bool:
        """Nobody says that it did not."""
        return True


class CudaTimer:
    """Events on the caller's current stream, with the L2 cache flushed before each launch.

    The stream is held by a sleeping kernel until the host is ahead of the device, and stays so: launch overhead on
    the host is not measured. Only the launch lies between the two events.

    Args:
        objective: "call" times the host too, in the same launches; a callable that itself waits for the device is timed
            alone, by the host's clock, until the device has ended.
    """

    resolution_us = 0.5  # documented resolution of CUDA events
    overlaps = repeats = True
    _CYCLES_PER_US = 2000  # about 2 GHz; a longer sleep only costs tuning time
    _SHORTEST_HOLD_US, _LONGEST_HOLD_US = 50.0, 20_000.0
    _LEAD = 2  # launches by which the host is ahead when the device begins; it loses what it is slower, and a quarter
    _SMALLEST_FLUSH = 1 << 20
    # Clocks rise within some tens of milliseconds of work, and fall again when the device is idle.
    _WARM_S, _STAYS_WARM_S = 0.05, 1.0
    _warm_since = float("-inf")  # of all timers: many keys are tuned one after the other
    _COOL_S = 0.2  # what a device whose clocks are held down is left alone before a round is repeated
    _TRIES = 3  # blocks measured again because the host was too slow; then what there is must do
    # A sample of a short kernel is the mean of several launches, each with its own flush: the clock's steps, of which
    # there are few in it, then even out. No more than so many, and none for a kernel that takes so long by itself.
    _MOST_LAUNCHES, _LONG_US = 8, 40.0
    _TOLD = 12  # samples after which a kernel's time is known well enough for that
    _PROBE_US = 5000.0  # a call that outlasts this hold of the stream is one that waits for the device

    def __init__(self, objective: str = "kernel") -> None:
        import torch

        self._torch = torch
        properties = torch.cuda.get_device_properties()
        self.device: str | None = str(getattr(properties, "uuid", "") or getattr(properties, "name", "gpu"))
        self._times_host = objective == "call"
        self._device_us: dict[int, float] = {}  # by trial: the device's own share of its latest sample
        self._waits: dict[int, bool] = {}  # by trial: whether its call waits for the device
        self._host_us = 50.0  # enqueueing one launch: a first guess, corrected by every block
        self._between_us = math.inf  # what the device does between two launches: flush, restore; least seen
        self._events: list[tuple[Any, Any]] = []
        self._clocks = clocks.of(str(getattr(properties, "uuid", "") or "") or None)
        self._flush_bytes = 0
        self._flush = self._flush_buffer()

    def _flush_buffer(self) -> Any:
        """Twice the L2 cache, or as much of it as there is room for; None for less than 1 MiB."""
        wanted = 2 * (getattr(self._torch.cuda.get_device_properties(), "L2_cache_size", 0) or 64 << 20)
        size, buffer = wanted, None
        while buffer is None and size >= self._SMALLEST_FLUSH:
            try:
                buffer = self._torch.empty(size, dtype=self._torch.int8, device="cuda")
                self._flush_bytes = size
            except Exception as error:
                if not is_memory_error(error):
                    raise
                size //= 2
        self.is_short = buffer is None or size < wanted
        if self.is_short:
            env.warn_once(
                "flush",
                "device memory is short: %d MiB instead of %d flush the cache between samples; times may be those of a "
                "warm cache.", size >> 20 if buffer is not None else 0, wanted >> 20,
            )  # fmt: skip
        return buffer

    def sample(self, trial: Trial, count: int) -> list[float]:
        """`count` times of a launch in microseconds; for a short kernel each is the mean of several launches."""
        if self._times_host and self._is_waiting(trial):
            return [self._alone(trial) for _ in range(count)]
        each = self._launches_a_sample(trial)
        return self._means([trial] * count, [each] * count)

    def turn(self, trials: Sequence[Trial]) -> list[float] | None:
        """One time of each in microseconds; the host waits for the device once."""
        if self._times_host and any(map(self._is_waiting, trials)):
            return None
        return self._means(trials, [self._launches_a_sample(trial) for trial in trials])

    def _is_waiting(self, trial: Trial) -> bool:
        """Whether a call waits for the device, as one that reads a result back does; tried once, on a held stream."""
        if trial.index not in self._waits:
            before, after = self._event_pairs(1)[0]
            self._torch.cuda._sleep(int(self._PROBE_US * self._CYCLES_PER_US))
            self._enqueue(trial, before, after)
            self._waits[trial.index] = bool(before.query())
            self.synchronize()
        return self._waits[trial.index]

    def _alone(self, trial: Trial) -> float:
        """What a call takes by the host's clock, from an idle device until it is idle again."""
        self._prepare(trial)
        self.synchronize()
        start = time.perf_counter()
        trial.launch()
        self.synchronize()
        elapsed_us = (time.perf_counter() - start) * 1e6
        trial.finish()
        return elapsed_us

    def _means(self, trials: Sequence[Trial], counts: Sequence[int]) -> list[float]:
        """Of each trial, in this order, the mean of so many launches."""
        launches = [trial for trial, count in zip(trials, counts) for _ in range(count)]
        hold_us = self._hold_us(launches)
        for _ in range(self._TRIES):
            times, starved = self._block(launches, hold_us)
            if not starved:
                break  # else the device waited for the host within an interval: once more, all enqueued beforehand
            hold_us = 2 * len(launches) * self._host_us
        left = iter(times)
        return [math.fsum(next(left) for _ in range(count)) / count for count in counts]

    def _launches_a_sample(self, trial: Trial) -> int:
        if 0 < len(trial.samples_us) < self._TOLD:
            trial.launches = max(1, min(self._MOST_LAUNCHES, int(self._LONG_US / trial.median_us)))
        return trial.launches

    def _hold_us(self, launches: Sequence[Trial]) -> float:
        """How long to hold the stream so that the host stays ahead of these launches."""
        between_us = self._between_us if math.isfinite(self._between_us) else 0.0
        device_us = self._device_us.get
        behind_us = (max(0.0, self._host_us - between_us - device_us(trial.index, 0.0)) for trial in launches)
        return self._LEAD * self._host_us + 1.25 * math.fsum(behind_us)

    def _block(self, launches: Sequence[Trial], hold_us: float) -> tuple[list[float], bool]:
        """Times of these launches, and whether the device came to one before the host had enqueued it."""
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
        """The device's own clock, a cold cache if there was room, and what the host spent on one launch around it."""
        cold = self._flush is not None
        flush_bytes = self._flush_bytes if cold else 0
        return {"clock": "device", "cache": "cold" if cold else "warm", "flush_bytes": flush_bytes,
                "host_us": round(self._host_us, 1), **({"host": "timed"} if self._times_host else {})}  # fmt: skip

    def _event_pairs(self, count: int) -> list[tuple[Any, Any]]:
        """Events, made once and recorded anew in each block."""
        make = self._torch.cuda.Event
        self._events += [(make(enable_timing=True), make(enable_timing=True)) for _ in range(count - len(self._events))]
        return self._events[:count]

    def _prepare(self, trial: Trial) -> None:
        trial.prepare()
        if self._flush is not None:
            self._flush.zero_()

    def _enqueue(self, trial: Trial, before: Any, after: Any) -> float:
        """Launch between two events; the host's microseconds for the launch alone."""
        self._prepare(trial)
        before.record()
        start = time.perf_counter()
        trial.launch()
        host_us = (time.perf_counter() - start) * 1e6
        after.record()
        trial.finish()
        return host_us

    def warm_up(self) -> None:
        """Write the flush buffer for 50 ms, unless that was done within the last second."""
        start = time.monotonic()
        if self._flush is not None and start - CudaTimer._warm_since > self._STAYS_WARM_S:
            while time.monotonic() - start < self._WARM_S:
                for _ in range(20):
                    self._flush.zero_()
                self._torch.cuda.current_stream().synchronize()
        CudaTimer._warm_since = time.monotonic()

    def ran_well(self) -> bool:
        """Whether neither heat nor the hardware holds the clocks down now; if they do, after a pause."""
        slowed = self._clocks.slowed
        if slowed:
            time.sleep(self._COOL_S)
        return not slowed

    def free(self) -> None:
        """Let go of the flush buffer, and of what torch keeps for later."""
        self._flush = None
        self._torch.cuda.empty_cache()

    def synchronize(self) -> None:
        """Wait for what was launched; a sticky error of an earlier launch is raised here.

        For the stream, not the device: to wait for all of that would break a capture on another thread.
        """
        self._torch.cuda.current_stream().synchronize()


class AnswerError(ValueError):
    """A user's benchmark gave what is no time; the text says what was expected and what came."""


class GivenTimer:
    """The user's `do_bench`, with Triton's meaning: it calls a closure that restores, runs hooks and launches."""

    resolution_us = 0.0
    repeats = False
    overlaps = False  # how much of the host it measures is its own affair
    regime: Mapping[str, Json] = {"clock": "do_bench"}

    def __init__(self, do_bench: Callable[..., Any], inner: Timer) -> None:
        self._do_bench = do_bench
        self.synchronize, self.free, self.device = inner.synchronize, inner.free, inner.device
        self.is_short = inner.is_short

    def warm_up(self) -> None:
        """`do_bench` has warm-up launches of its own."""

    def turn(self, trials: Sequence[Trial]) -> list[float] | None:
        """None: it is asked for each config by itself."""
        return None

    def ran_well(self) -> bool:
        """It was asked for one answer, and that is taken."""
        return True

    def sample(self, trial: Trial, count: int) -> list[float]:
        """The three quantiles that `do_bench` gives, in microseconds, once; it repeats as it sees fit."""
        if trial.samples_us:
            return []

        def call() -> None:
            trial.prepare()
            trial.launch()
            trial.finish()

        answer = self._do_bench(call, quantiles=(0.5, 0.2, 0.8))
        try:
            return benchmark.microseconds(answer)
        except ValueError as error:
            raise AnswerError(str(error)) from None


def for_device(where: Device, objective: str = "kernel") -> Timer:
    """The timer for a device, and for what of a call is timed."""
    return CudaTimer(objective) if where.kind == "cuda" else HostTimer(objective, repeats=where != INTERPRETER)
