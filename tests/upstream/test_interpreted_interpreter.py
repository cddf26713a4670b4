"""M14 of the contract: in Triton's interpreter, where nothing can be asked of a driver."""

import pytest
import torch
import triton
import triton.language as tl
from triton import Config

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a driver")
CONFIGS = [Config({"BLOCK": 32}), Config({"BLOCK": 128})]


@triton.jit
def grow(x, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(x + i, mask=i < n) + 1, mask=i < n)


@pytest.fixture(autouse=True)
def no_driver(subject, monkeypatch):
    monkeypatch.setattr(triton.runtime.driver, "_active", None)


@pytest.mark.subjects(["replaced", "autotuned"])
def test_m14_the_clock_measures_where_there_is_no_driver(subject):
    kernel = subject.autotune(CONFIGS, key=["n"], restore_value=["x"])(grow)
    for n in (100, 100, 64):
        x = torch.zeros(128)
        assert kernel[(4,)](x, n) is None  # the interpreter has no compiled kernel to return
        assert torch.equal(x, (torch.arange(128) < n).float())
    assert kernel.best_config in CONFIGS
    assert len(kernel.cache) == 2


@pytest.mark.subjects(["triton", "seeded", "beside"])
def test_m14_tritons_own_tuner_needs_one(subject):
    kernel = subject.autotune(CONFIGS, key=["n"])(grow)
    with pytest.raises(RuntimeError, match="0 active drivers"):
        kernel[(4,)](torch.zeros(128), 100)


def test_m14_the_users_benchmark_needs_none(subject):
    kernel = subject.autotune(
        CONFIGS, key=["n"], restore_value=["x"], do_bench=lambda call, quantiles: (call(), 1.0)[1]
    )(grow)
    x = torch.zeros(128)
    kernel[(4,)](x, 100)
    assert torch.equal(x, (torch.arange(128) < 100).float())
