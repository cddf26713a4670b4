"""Kernels and fixtures for tests of compiling ahead: which thread compiled what, and what was measured."""

import threading
from types import SimpleNamespace

import fake_cuda
import pytest
import torch
import triton
import triton.language as tl
from triton import Config, knobs
from triton.runtime.autotuner import Autotuner

from autotuned.dropin import install

BLOCKS = (16, 32, 64, 128)
TIMES = {16: 2.0, 32: 3.0, 64: 1.0, 128: 4.0}
STOCK = Autotuner._bench, Autotuner.prune_configs


def add(x_ptr, n, BLOCK: tl.constexpr, EVEN: tl.constexpr = False):
    """`x = x + 1`."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + i, tl.load(x_ptr + i, mask=i < n) + 1, mask=i < n)


def refuses_some(x_ptr, n, BLOCK: tl.constexpr):
    """The same, which does not compile for a BLOCK of 16."""
    tl.static_assert(BLOCK != 16)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + i, tl.load(x_ptr + i, mask=i < n) + 1, mask=i < n)


@pytest.fixture
def ahead_cold(tmp_path, monkeypatch):
    """An empty Triton cache and two threads; nothing stays installed."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.setenv("AUTOTUNED_COMPILE_WORKERS", "2")
    yield
    install.uninstall()
    assert (Autotuner._bench, Autotuner.prune_configs) == STOCK


@pytest.fixture
def x():
    """The tensor that kernels are launched on."""
    return torch.zeros(256)


@pytest.fixture
def events(monkeypatch):
    """Compilations, by thread and block, and measurements, in order."""
    seen = []

    def compiled(*, src, cache_hit, **event):
        if not cache_hit:
            block = src.constants[(src.fn.arg_names.index("BLOCK"),)]
            seen.append(("compiled", threading.current_thread().name.partition("_")[0], block))

    monkeypatch.setattr(knobs.compilation, "listener", compiled)
    seen_bench = by_config()

    def bench(call, quantiles):
        times = seen_bench(call, quantiles)
        seen.append(("measured", seen_bench.calls[-1]))
        return times

    return SimpleNamespace(all=seen, bench=bench, measured=seen_bench.calls)


def by_config():
    """A benchmark in which 64 is the fastest."""
    return fake_cuda.by_config(TIMES)


def configs(blocks=BLOCKS, **options):
    """One config per block."""
    return [Config({"BLOCK": block}, **options) for block in blocks]


def tuned(fn=add, kind=Autotuner, listed=None, do_bench=None, outer=lambda kernel: kernel, **options):
    """A kernel under Triton's tuner, or another kind of tuner."""
    jit = outer(triton.jit(fn))
    bench = do_bench or by_config()
    return kind(jit, jit.arg_names, listed or configs(), ["n"], None, None, do_bench=bench, **options)


def blocks_compiled(events, where="autotuned-ahead"):
    """The blocks compiled by threads with this name, in order."""
    return [event[2] for event in events.all if event[0] == "compiled" and event[1] == where]
