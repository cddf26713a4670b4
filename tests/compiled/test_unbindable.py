"""A kernel that cannot be launched directly: Triton's own launch from then on, one line of log, no exception."""

import logging

import fake_cuda
import pytest
import torch
import triton
import triton.language as tl
from triton import Config

from autotuned import autotune
from autotuned.triton_compat import compiled as compiledkernel


def add(x_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + i, tl.load(x_ptr + i, mask=i < n) + 1, mask=i < n)


@pytest.fixture
def warnings(caplog):
    caplog.set_level(logging.WARNING, "autotuned")
    return lambda: [record.getMessage() for record in caplog.records]


@pytest.fixture
def tuned():
    bench = fake_cuda.by_config({16: 2.0, 32: 1.0})
    return autotune([Config({"BLOCK": 16}), Config({"BLOCK": 32})], key=["n"], do_bench=bench)(triton.jit(add))


def test_falls_back_for_good_with_one_line(tuned, launches, warnings, monkeypatch):
    asked = []

    def refuse(jit, compiled, device):
        asked.append(compiled)
        raise compiledkernel.UnbindableError("a field is gone")

    monkeypatch.setattr(compiledkernel, "handle", refuse)
    x = torch.zeros(100)
    for n in (100, 64, 100, 64, 100):
        compiled = tuned[(4,)](x, n)
        assert compiled is tuned.fn[(4,)](x, n, **tuned.best_config.all_kwargs())
        assert fake_cuda.same(launches[-2], launches[-1])
        assert launches[-1].arguments["BLOCK"] == 32
    assert len(asked) == 1
    (line,) = warnings()
    assert "cannot be launched directly (a field is gone)" in line
    assert "Triton's own launch is used from now on" in line
    assert tuned.cache_info().hits == 3  # the choice is still a table look-up


def test_unknown_internals_of_triton(tuned, launches, warnings):
    from triton.compiler.compiler import CompiledKernel

    class Strange(CompiledKernel):
        pass

    x = torch.zeros(100)
    tuned[(4,)](x, 100)
    tuned.cache_clear()
    (cache, *_) = tuned.fn.device_caches[0]
    for kernel in cache.values():
        kernel.__class__ = Strange
    for _ in range(2):
        tuned[(4,)](x, 100)
    (line,) = warnings()
    assert "expected a CompiledKernel, got Strange" in line


def test_a_kernel_that_left_the_cache_before_it_was_bound(tuned, launches, warnings, monkeypatch):
    original = type(tuned.fn).run

    def run_and_evict(self, *args, **kwargs):
        compiled = original(self, *args, **kwargs)
        self.device_caches[0][0].clear()
        return compiled

    x = torch.zeros(100)
    with monkeypatch.context() as patch:
        patch.setattr(type(tuned.fn), "run", run_and_evict)
        for _ in range(3):
            assert tuned[(4,)](x, 100).metadata.name == "add"
    assert tuned.cache_info().hits == 0  # not bound, and the kernel is none that cannot be
    for _ in range(2):
        assert tuned[(4,)](x, 100).metadata.name == "add"
    assert tuned.cache_info().hits == 1
    assert warnings() == []


def test_the_launcher_can_be_switched_off(tuned, launches, warnings, monkeypatch):
    monkeypatch.setenv("AUTOTUNED_LAUNCHER", "triton")
    monkeypatch.setattr(compiledkernel, "handle", None)
    x = torch.zeros(100)
    for _ in range(2):
        tuned[(4,)](x, 100)
    assert tuned.cache_info().hits == 1
    assert warnings() == []
