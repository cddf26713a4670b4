"""A GPU that only keeps time: what a timer enqueues takes so long on the device, and so long of the host's clock."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from autotuned.search import timers


@dataclass(frozen=True)
class Costs:
    """Microseconds: of the host for each thing that it enqueues, and of the device for what it does between launches.

    As on the host of an H100: Triton's own launch with a dozen arguments, torch's operators, 100 MiB written.
    """

    launch_us: float = 25.0
    operator_us: float = 6.0
    event_us: float = 2.0
    query_us: float = 1.0
    synchronize_us: float = 10.0
    flush_us: float = 45.0


class Bursts:
    """Another user of the device, as `tests/bench/quality.py --load 0.3` is: bursts of 0.3 ms, each with its own effect.

    What runs meanwhile gets 30% to 80% of its speed.
    """

    def __init__(self, seed: int, share: float = 0.3) -> None:
        self._chance, self._share = random.Random(f"bursts {seed}"), share
        self._begin_us = self._end_us = 0.0
        self._speed = 1.0

    def __call__(self, start_us: float, device_us: float) -> float:
        """What takes so long alone takes, from some time on, which never goes back."""
        now_us = start_us
        while True:
            if now_us >= self._end_us:
                self._next()
            elif now_us < self._begin_us:
                alone_us = min(device_us, self._begin_us - now_us)
                now_us, device_us = now_us + alone_us, device_us - alone_us
            else:
                took_us = min(device_us / self._speed, self._end_us - now_us)
                now_us, device_us = now_us + took_us, device_us - took_us * self._speed
            if device_us < 1e-6:
                return now_us - start_us

    def _next(self) -> None:
        length_us = self._chance.uniform(280, 420)
        pause_us = length_us * (1 / self._share - 1) + self._chance.uniform(40, 120)  # `time.sleep` is late
        self._begin_us = self._end_us + pause_us
        self._end_us, self._speed = self._begin_us + length_us, self._chance.uniform(0.3, 0.8)


def alone(start_us: float, device_us: float) -> float:
    """What it takes with nobody else on the device."""
    return device_us


@dataclass
class Gpu:
    """Two clocks, in microseconds: the host's, and when the device will have done all that it was given.

    Attributes:
        counts: How often each thing was asked of it.
        held_us: What sleeping kernels took.
        stall: Microseconds that the host loses at a launch besides; asked at each.
        shared: What work takes that begins at some microsecond and takes so many alone.
    """

    costs: Costs = field(default_factory=Costs)
    now_us: float = 0.0
    busy_until_us: float = 0.0
    held_us: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    stall: Callable[[], float] = lambda: 0.0
    shared: Callable[[float, float], float] = alone

    def enqueue(self, device_us: float, host_us: float) -> None:
        """Work for the device, which begins when it has done what it has, and not before it was enqueued."""
        self.now_us += host_us
        start_us = max(self.busy_until_us, self.now_us)
        self.busy_until_us = start_us + self.shared(start_us, device_us)

    def launch(self, device_us: float) -> None:
        """A kernel of so many microseconds."""
        self.counts["launches"] += 1
        self.enqueue(device_us, self.costs.launch_us + self.stall())

    def operator(self, device_us: float) -> None:
        """A copy or a memset of torch's."""
        self.counts["operators"] += 1
        self.enqueue(device_us, self.costs.operator_us)

    def synchronize(self) -> None:
        """Wait until the device is idle."""
        self.counts["synchronisations"] += 1
        self.now_us = max(self.now_us + self.costs.synchronize_us, self.busy_until_us)

    def _sleep(self, cycles: int) -> None:
        self.counts["holds"] += 1
        self.held_us += cycles / 2000
        self.enqueue(cycles / 2000, self.costs.operator_us)

    def torch(self) -> Any:
        """`torch` as `CudaTimer` uses it."""
        flush = SimpleNamespace(zero_=lambda: self.operator(self.costs.flush_us))
        cuda = SimpleNamespace(
            get_device_properties=lambda: SimpleNamespace(L2_cache_size=50 << 20, uuid="simulated"),
            Event=lambda enable_timing: Event(self),
            current_stream=lambda: SimpleNamespace(synchronize=self.synchronize),
            synchronize=self.synchronize,
            empty_cache=lambda: None,
            _sleep=self._sleep,
        )
        return SimpleNamespace(cuda=cuda, int8="int8", OutOfMemoryError=MemoryError, empty=lambda *size, **how: flush)

    def install(self, monkeypatch: Any) -> timers.CudaTimer:
        """Let `measure` see this device and this clock; undone by `monkeypatch`. Returns a timer of it."""
        monkeypatch.setitem(sys.modules, "torch", self.torch())
        monkeypatch.setattr(timers, "time", self.time())
        return timers.CudaTimer()

    def time(self) -> Any:
        """The module `time` by the host's clock."""
        return SimpleNamespace(
            perf_counter=lambda: self.now_us / 1e6, monotonic=lambda: self.now_us / 1e6, sleep=self._wait
        )

    def _wait(self, seconds: float) -> None:
        self.now_us += seconds * 1e6


class Event:
    """Done when the device has come to it."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu, self._at_us = gpu, 0.0

    def record(self) -> None:
        """Enqueue it."""
        self._gpu.enqueue(0.0, self._gpu.costs.event_us)
        self._at_us = self._gpu.busy_until_us

    def query(self) -> bool:
        """Whether the device has come to it."""
        self._gpu.now_us += self._gpu.costs.query_us
        return self._at_us <= self._gpu.now_us

    def elapsed_time(self, other: Event) -> float:
        """Milliseconds from this event to another."""
        return (other._at_us - self._at_us) / 1e3
