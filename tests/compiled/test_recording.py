"""Recording a kernel: hits are counted on both launchers, launch the same, and grids of all configs are kept."""

import fake_cuda
import pytest
import torch
import triton
import triton.language as tl
from triton import Config

import autotuned
from autotuned import autotune
from autotuned.recording import file

CONFIGS = [Config({"BLOCK": 16}), Config({"BLOCK": 32}, num_warps=2)]


def scale(x_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + i, tl.load(x_ptr + i, mask=i < n) * 2, mask=i < n)


@pytest.mark.parametrize("launcher", ["c", "python"], indirect=True)
def test_hits_are_counted_and_launch_the_same(launcher, launches, tmp_path):
    tuned = autotune(CONFIGS, key=["n"], do_bench=fake_cuda.by_config({16: 2.0, 32: 1.0}))(triton.jit(scale))
    x, asked = torch.zeros(100), []

    def grid(meta):
        asked.append(meta["BLOCK"])
        return (triton.cdiv(meta["n"], meta["BLOCK"]),)

    tuned[grid](x, 100)
    tuned[grid](x, 100)
    plain = launches[-1]
    with autotuned.record(tmp_path / "calls.jsonl"):
        tuned[grid](x, 100)
        asked.clear()
        for _ in range(4):
            tuned[grid](x, 100)
        assert fake_cuda.same(plain, launches[-1])
        assert asked == [32] * 4  # the launch's own, once each
        tuned[(9,)](x, 100)
    first, second = file.read(tmp_path / "calls.jsonl")
    assert (first.count, second.count) == (5, 1)
    assert first.grid == {"configs": ['{"BLOCK":16}', '{"BLOCK":32}'], "sizes_of": [[7], [4]]}
    assert second.grid == {"sizes": [9]}
    tuned[grid](x, 100)
    tuned[grid](x, 100)
    assert fake_cuda.same(plain, launches[-1])
