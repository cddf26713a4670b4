"""What a grid says on a hit: nothing to launch for the bound config, or another value for an argument."""

from __future__ import annotations

import fake_cuda
import pytest
import torch
import triton
import triton.language as tl
from fake_driver import Device
from triton import Config

from autotuned import autotune

LAUNCHERS = ["c", "python", "verify", "triton"]


@triton.jit
def double(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, 2 * tl.load(x_ptr + i, mask=i < n), mask=i < n)


class Hook:
    """Counts the launches of one config."""

    def __init__(self):
        self.count = 0

    def __call__(self, arguments):
        self.count += 1


@pytest.fixture(params=LAUNCHERS)
def kernel(request, driver, monkeypatch):
    """A kernel of three configs, of which the largest is the fastest."""
    monkeypatch.setenv("AUTOTUNED_LAUNCHER", request.param)
    device = Device()
    if request.param in ("c", "verify"):
        _launch = pytest.importorskip("autotuned._launch")
        driver.get_current_stream = lambda index: device.stream
        _launch.use_driver(*device.addresses())
    hooks = {block: Hook() for block in (64, 32, 16)}
    configs = [Config({"BLOCK": block}, pre_hook=hook) for block, hook in hooks.items()]
    bench = fake_cuda.by_config({64: 1.0, 32: 2.0, 16: 3.0})
    made = autotune(configs, key=[], do_bench=bench, restore_value=[], name=f"again.{request.param}")(double)
    made.hooks = hooks
    yield made
    if request.param in ("c", "verify"):
        _launch.use_driver(0, 0, 0, 0)


def counts(kernel):
    return [hook.count for hook in kernel.hooks.values()]


def test_a_call_whose_grid_is_empty_for_the_bound_config_gets_one_that_launches(kernel):
    x, y = torch.ones(64), torch.zeros(64)
    for _ in range(3):
        kernel[lambda meta: (triton.cdiv(64, meta["BLOCK"]),)](x, y, 64)
    assert kernel.cache_info().searches == 1
    for _ in range(3):
        before = counts(kernel)
        kernel[lambda meta: (32 // meta["BLOCK"],)](x, y, 32)
        large, middle, small = (now - then for now, then in zip(counts(kernel), before))
        assert (middle, small) == (1, 0)
    assert kernel.cache_info().searches == 1


def test_a_call_whose_grid_is_empty_for_all_launches_nothing_and_keeps_the_choice(kernel):
    x, y = torch.ones(64), torch.zeros(64)
    for grid in ((1,), (0,), lambda meta: (0, 1), [0], (1,)):
        kernel[grid](x, y, 64)
    assert kernel.cache_info().searches == 1
    assert kernel.best_config.kwargs["BLOCK"] == 64
