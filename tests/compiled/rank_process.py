"""One rank of `test_ahead_ranks.py`: tunes one kernel under `install()` and prints what it chose and compiled, as JSON."""

import json
import sys
import threading
import time

import fake_cuda
import pytest
import torch
import triton
import triton.language as tl
from triton import Config, knobs

import autotuned

TIMES = {block: 1.0 + (block != 64) for block in (16, 32, 64, 128, 256, 512)}
compiled = []


@triton.autotune([Config({"BLOCK": block}) for block in TIMES], key=["n"], do_bench=fake_cuda.by_config(TIMES))
@triton.jit
def add(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n) + 1, mask=i < n)


def note(*, cache_hit, **event):
    if not cache_hit:
        compiled.append(threading.current_thread().name.partition("_")[0])


if __name__ == "__main__":
    knobs.compilation.listener = note
    with pytest.MonkeyPatch.context() as patch:
        fake_cuda.install(patch)
        autotuned.install()
        print("ready", flush=True)
        sys.stdin.readline()  # all begin together
        start = time.perf_counter()
        add[(4,)](torch.zeros(600), torch.zeros(600), 600)
        seconds = time.perf_counter() - start
        print(json.dumps({"chosen": add.best_config.kwargs["BLOCK"], "compiled": compiled, "seconds": seconds}))
