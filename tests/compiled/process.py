"""One process of `test_fresh_process.py`: tunes or serves one kernel and prints what it took, as JSON."""

import json

import fake_cuda
import pytest
import torch
import triton
import triton.language as tl
from triton import Config, knobs

from autotuned import autotune
from autotuned.search import timers

compiled = []
knobs.runtime.jit_post_compile_hook = lambda **info: compiled.append(info["compile"]["constants"][(3,)])
bench = fake_cuda.by_config({16: 3.0, 32: 1.0, 64: 2.0})


@autotune([Config({"BLOCK": block}) for block in (16, 32, 64)], key=["n"], do_bench=bench)
@triton.jit
def add(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n) + 1, mask=i < n)


if __name__ == "__main__":
    with pytest.MonkeyPatch.context() as patch:
        triton.runtime.driver._active = fake_cuda.Driver()
        patch.setattr(timers, "CudaTimer", timers.HostTimer)
        fake_cuda.install(patch)
        for _ in range(3):
            add[(4,)](torch.zeros(100), torch.zeros(100), 100)
        info = add.cache_info()
        launched = [launch.arguments["BLOCK"] for launch in fake_cuda.Launcher.launches]
        print(json.dumps({
            "benchmarks": len(bench.calls), "compiled": compiled, "launched": launched, "name": add.tuner.tunable.name,
            "searches": info.searches, "hits": info.hits,
        }))  # fmt: skip
