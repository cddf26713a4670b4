"""A search beside a full device: memory that runs out at every moment of it, and what is left afterwards."""

import logging
import weakref
from types import SimpleNamespace

import fake_cuda
import pytest
import torch
import triton
import triton.language as tl
from triton import Config

from autotuned import Check, autotune
from autotuned.search import timers
from autotuned.search.safety import protection as snapshots
from autotuned.store import listing

MIB = 1 << 20
ELEMENTS = 1 << 18  # 1 MiB of float32
CONFIGS = [Config({"BLOCK": block}) for block in (16, 32, 64)]
FLUSH = 100 * MIB  # twice the cache of an H100
MODULE = 2 * MIB


def add(x_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + i, tl.load(x_ptr + i, mask=i < n) + 1, mask=i < n)


def grid(meta):
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)


class OnDevice(torch.Tensor):
    """A tensor that says it lies on a GPU."""

    @property
    def is_cuda(self):
        return True


class Memory:
    """A device's memory: what the driver has, and what torch keeps for later once it had it from there."""

    def __init__(self, free):
        self.free, self.cached = free, 0
        self.held_now, self.peak = 0, 0

    def torch_takes(self, size):
        if self.cached >= size:
            self.cached -= size
        elif self.free >= size:
            self.free -= size
        else:
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size} bytes.")

    def driver_takes(self, size):
        if self.free < size:
            raise RuntimeError("Triton Error [CUDA]: out of memory")
        self.free -= size

    def held(self, size, thing):
        """Something of torch's that takes memory for as long as it lives."""
        self.torch_takes(size)
        self.held_now += size
        self.peak = max(self.peak, self.held_now)
        weakref.finalize(thing, self.give, size)
        return thing

    def give(self, size):
        self.held_now -= size
        self.cached += size

    def empty_cache(self):
        self.free, self.cached = self.free + self.cached, 0


class Buffer:
    def zero_(self):
        pass


class Timer(timers.HostTimer):
    """The flush buffer of the timer for GPUs, and the clock of the host."""

    _flush_buffer, free, _SMALLEST_FLUSH = (
        timers.CudaTimer._flush_buffer, timers.CudaTimer.free, timers.CudaTimer._SMALLEST_FLUSH
    )  # fmt: skip

    def __init__(self, memory):
        super().__init__()
        cuda = SimpleNamespace(
            get_device_properties=lambda: SimpleNamespace(L2_cache_size=FLUSH // 2), empty_cache=memory.empty_cache
        )
        self._torch = SimpleNamespace(
            cuda=cuda, int8="int8", empty=lambda size, dtype, device: memory.held(size, Buffer())
        )
        self._flush = self._flush_buffer()


@pytest.fixture
def memory(monkeypatch, launches):
    """A device with room for everything; tests take from it."""
    found = Memory(1 << 40)
    clone = torch.Tensor.clone

    def taking(tensor):
        return found.held(tensor.numel() * tensor.element_size(), clone(tensor).as_subclass(OnDevice))

    def load(self, name, kernel, shared, device):
        found.driver_takes(MODULE)
        return 1, 1, 32, 0, 1024

    def launched(self, *arguments):
        recorded(self, *arguments)
        launches[-1].arguments["x_ptr"].add_(1)

    recorded = fake_cuda.Launcher.__call__
    monkeypatch.setattr(fake_cuda.Launcher, "__call__", launched)
    monkeypatch.setattr(torch.Tensor, "clone", taking)
    monkeypatch.setattr(fake_cuda.Utils, "load_binary", load)
    monkeypatch.setattr(timers, "CudaTimer", lambda *_: Timer(found))
    return found


@pytest.fixture
def said(caplog):
    caplog.set_level(logging.WARNING, "autotuned")
    return lambda: [record.getMessage() for record in caplog.records]


def statuses():
    timings = [timing for _, record in listing.all_records() for timing in record.timings]
    return {timing.config["kwargs"]["BLOCK"]: timing.status for timing in timings}


def tuned(**options):
    return autotune(CONFIGS, key=["n"], **options)(triton.jit(add))


def call(kernel, expected, x):
    kernel[grid](x, ELEMENTS)
    assert bool((x == expected).all())


# What is free, and what is said: of the flush buffer, and of copies in host memory.
ROOMS = {
    "everything": (1 << 30, []),
    "half a flush buffer and the rest": (FLUSH // 2 + MIB + 3 * MODULE, ["flush"]),
    "no module beside the flush buffer": (FLUSH + MIB, []),
    "nothing beside the flush buffer": (FLUSH, []),
    "no module beside half a flush buffer": (FLUSH // 2 + MIB, ["flush"]),
    "modules and the copy": (MIB + 3 * MODULE, ["flush"]),
    "modules alone": (3 * MODULE, ["flush", "host"]),
}
LINES = {"flush": "flush the cache between samples", "host": "is kept in host memory"}


@pytest.mark.parametrize("room", ROOMS)
def test_with_little_room_the_key_is_tuned_all_the_same_and_what_was_free_is_free_again(memory, said, room):
    memory.free, lines = ROOMS[room]
    before = memory.free
    x = torch.zeros(ELEMENTS)
    kernel = tuned()
    for expected in (1, 2):
        call(kernel, expected, x)
    assert kernel.cache_info().searches == 1
    assert statuses() == {16: "ok", 32: "ok", 64: "ok"}
    assert [next(word for word, line in LINES.items() if line in text) for text in said()] == lines
    assert memory.free + memory.cached == before - 3 * MODULE
    if room != "everything":
        assert memory.cached == 0  # the next module, of whatever kernel, must find it at the driver's


@pytest.mark.parametrize("restore", [None, ["x_ptr"]], ids=["found out", "named"])
def test_a_search_takes_the_protected_bytes_once_and_the_flush_buffer(memory, restore):
    call(tuned(restore_value=restore), 1, torch.zeros(ELEMENTS))
    assert memory.peak == MIB + FLUSH
    assert memory.held_now == 0


def test_what_finds_no_room_is_left_out_and_measured_another_time(memory, said):
    memory.free = 2 * MODULE
    x = torch.zeros(ELEMENTS)
    call(kernel := tuned(), 1, x)
    assert statuses() == {16: "ok", 32: "ok"}
    memory.free = 1 << 30
    call(kernel, 2, x)  # bound
    call(again := tuned(), 3, x)
    assert statuses() == {16: "ok", 32: "ok", 64: "ok"}
    assert again.cache_info().searches == 1


def test_without_room_for_a_copy_anywhere_the_program_runs_untuned_until_there_is(memory, said, monkeypatch):
    def no_room(view):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1048576 bytes.")

    x = torch.zeros(ELEMENTS)
    kernel = tuned()
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "clone", no_room)
        patch.setattr(snapshots, "_host_memory", no_room)
        for expected in (1, 2):
            call(kernel, expected, x)
    assert statuses() == {}
    assert memory.cached == 0
    assert sum("it runs untuned until there is" in line for line in said()) == 1
    for expected in (3, 4):  # the pause is one call by now
        call(kernel, expected, x)
    assert statuses() == {16: "ok", 32: "ok", 64: "ok"}


def test_a_kernel_that_could_not_be_loaded_is_loaded_when_there_is_room(memory):
    """Triton itself would take it for loaded, and launch nothing, for as long as the process lives."""
    x = torch.zeros(ELEMENTS)
    kernel = autotune(CONFIGS[:1], key=["n"])(triton.jit(add))
    memory.free = MODULE - 1
    for _ in range(2):
        with pytest.raises(RuntimeError, match="out of memory"):
            kernel[grid](x, ELEMENTS)
    memory.free = MODULE
    call(kernel, 1, x)
    assert kernel.fn.device_caches[0][0].popitem()[1].function == 1


@pytest.mark.parametrize("full", ["always", "once", "never"])
def test_a_check_for_which_there_is_no_room_leaves_the_key_untuned(memory, said, full):
    """The reference, or the comparison: neither is an error of the user's, and neither judges a config."""
    left = {"always": 100, "once": 1, "never": 0}[full]

    def reference(x_ptr):
        nonlocal left
        left -= 1
        if left >= 0:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return x_ptr + 1

    x = torch.zeros(ELEMENTS)
    kernel = tuned(check=Check(reference))
    call(kernel, 1, x)
    ((_, record),) = listing.all_records()
    assert (record.winner is None) == (full == "always")
    assert sum("runs untuned" in line for line in said()) == (full == "always")


def full(times):
    """A function that finds no room for so many calls."""
    left = [None] * times

    def refuse(*arguments):
        if left:
            left.pop()
            raise RuntimeError("CUDA error: out of memory")

    return refuse


MOMENTS = {
    "a launch": (fake_cuda.Launcher, "__call__"),
    "a copy aside": (snapshots.Snapshot, "__init__"),
    "what was written": (snapshots.Snapshot, "changed"),
    "a restore": (snapshots.Snapshot, "restore"),
    "the warm-up": (Timer, "warm_up"),
    "a sample": (Timer, "sample"),
    "waiting for the device": (Timer, "synchronize"),
}


@pytest.mark.parametrize("times", [1, 2, 7])
@pytest.mark.parametrize("moment", MOMENTS)
def test_memory_that_runs_out_at_any_moment_breaks_nothing(memory, said, monkeypatch, moment, times):
    owner, name = MOMENTS[moment]
    times -= moment == "a launch" and times == 7  # six are tried by the search; the seventh would be the user's own
    refuse, act = full(times), getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *arguments, **named: (refuse(), act(*arguments, **named))[1])
    x = torch.zeros(ELEMENTS)
    kernel = tuned()
    for expected in range(1, 20):
        call(kernel, expected, x)
    assert set(statuses().values()) == {"ok"}
