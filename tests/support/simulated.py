"""A simulated GPU that only keeps time: enqueued work takes given times on the device and of the host's clock."""

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
    """Microseconds of the host to enqueue each operation, and of the device for its work between launches.

    Measured on the host of an H100: Triton's own launch with a dozen arguments, torch's operators, 100 MiB written.
    """

    launch_us: float = 25.0
    operator_us: float = 6.0
    event_us: float = 2.0
    query_us: float = 1.0
    synchronize_us: float = 10.0
    flush_us: float = 45.0


class Bursts:
    """Another user of the device, like `tests/bench/quality.py --load 0.3`: bursts of 0.3 ms, each with its own effect.

    Work that runs meanwhile gets 30% to 80% of its speed.
    """

    def __init__(self, seed: int, share: float = 0.3) -> None:
        self._chance, self._share = random.Random(f"bursts {seed}"), share
        self._begin_us = self._end_us = 0.0
        self._speed = 1.0

    def __call__(self, start_us: float, device_us: float) -> float:
        """Duration of work that takes `device_us` alone and starts at `start_us`, which never decreases."""
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
        pause_us = length_us * (1 / self._share - 1) + self._chance.uniform(40, 120)  # `time.sleep` returns late
        self._begin_us = self._end_us + pause_us
        self._end_us, self._speed = self._begin_us + length_us, self._chance.uniform(0.3, 0.8)


def alone(start_us: float, device_us: float) -> float:
    """Duration of work without other users."""
    return device_us


@dataclass
class Gpu:
    """Two clocks, in microseconds: the host's, and the time at which the device will have finished its work.

    Attributes:
        counts: Number of calls of each operation.
        held_us: Total time of sleeping kernels.
        stall: Gives extra microseconds that the host loses at a launch; called at each.
        shared: Gives the duration of work from its start and its duration without other users.
    """

    costs: Costs = field(default_factory=Costs)
    now_us: float = 0.0
    busy_until_us: float = 0.0
    held_us: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    stall: Callable[[], float] = lambda: 0.0
    shared: Callable[[float, float], float] = alone

    def enqueue(self, device_us: float, host_us: float) -> None:
        """Enqueue work for the device, which begins after earlier work, and not before it is enqueued."""
        self.now_us += host_us
        start_us = max(self.busy_until_us, self.now_us)
        self.busy_until_us = start_us + self.shared(start_us, device_us)

    def launch(self, device_us: float) -> None:
        """Launch a kernel of this many microseconds."""
        self.counts["launches"] += 1
        self.enqueue(device_us, self.costs.launch_us + self.stall())

    def operator(self, device_us: float) -> None:
        """Run a copy or a memset of torch."""
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
        """The part of `torch` that `CudaTimer` uses."""
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
        """Let `measure` use this device and clock; undone by `monkeypatch`. Returns its timer."""
        monkeypatch.setitem(sys.modules, "torch", self.torch())
        monkeypatch.setattr(timers, "time", self.time())
        return timers.CudaTimer()

    def time(self) -> Any:
        """The module `time` with the host's clock."""
        return SimpleNamespace(
            perf_counter=lambda: self.now_us / 1e6, monotonic=lambda: self.now_us / 1e6, sleep=self._wait
        )

    def _wait(self, seconds: float) -> None:
        self.now_us += seconds * 1e6


class Event:
    """Done when the device reaches it."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu, self._at_us = gpu, 0.0

    def record(self) -> None:
        """Enqueue it."""
        self._gpu.enqueue(0.0, self._gpu.costs.event_us)
        self._at_us = self._gpu.busy_until_us

    def query(self) -> bool:
        """Whether the device has reached it."""
        self._gpu.now_us += self._gpu.costs.query_us
        return self._at_us <= self._gpu.now_us

    def elapsed_time(self, other: Event) -> float:
        """Milliseconds from this event to another."""
        return (other._at_us - self._at_us) / 1e3
