"""What `objective="call"` times of a compiled kernel: zeroing, the config's hook and the launch without a look-up."""

import pytest
import torch
import triton
import triton.language as tl
from triton import Config

import autotuned
from autotuned import autotune
from autotuned.launch import bound
from autotuned.tunable.kernel import TunableKernel


@triton.jit
def add(x_ptr, total_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(total_ptr, tl.sum(tl.load(x_ptr + i, mask=i < n)))


def grid(meta):
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)


@pytest.fixture
def by_triton(monkeypatch):
    """The configs that were launched through Triton's look-up, one after the other."""
    seen, launch = [], TunableKernel.launch

    def noted(self, call, config):
        seen.append(config.kwargs["BLOCK"])
        return launch(self, call, config)

    monkeypatch.setattr(TunableKernel, "launch", noted)
    return seen


@pytest.mark.parametrize("objective", ["kernel", "call"])
def test_after_the_first_launch_a_call_needs_no_look_up(by_triton, launches, objective):
    hooked = []
    configs = [Config({"BLOCK": block}, pre_hook=lambda arguments: hooked.append(1)) for block in (16, 32)]
    tuned = autotune(configs, key=["n"], objective=objective, reset_to_zero=["total_ptr"])(add)
    before = len(launches)
    with autotuned.mode("search"):
        tuned[grid](torch.ones(64), torch.zeros(1), 64)
    trials = len(launches) - before
    assert trials > 6 and len(hooked) >= trials
    if objective == "call":
        assert set(by_triton) == {16, 32} and len(by_triton) <= 3  # each once, and the call itself
    else:
        assert len(by_triton) >= trials - 1


def test_what_is_zeroed_is_zeroed_before_each_call(launches, monkeypatch):
    zeroed, zero = [], bound.zero_named

    def noted(arguments, names, kernel):
        zeroed.append(names)
        zero(arguments, names, kernel)

    monkeypatch.setattr(bound, "zero_named", noted)
    configs = [Config({"BLOCK": 16}), Config({"BLOCK": 32})]
    tuned = autotune(configs, key=["n"], objective="call", reset_to_zero=["total_ptr"])(add)
    before = len(launches)
    with autotuned.mode("search"):
        tuned[grid](torch.ones(64), torch.ones(1), 64)
    assert len(zeroed) >= len(launches) - before
