"""One process of `test_fresh_process.py`: Triton's tuner under `install()`, sealed after its first call."""

import fake_cuda
import pytest
import torch
import triton
import triton.language as tl
from triton import Config

import autotuned
from autotuned.errors import SealedError

times = fake_cuda.by_config({16: 2.0, 32: 1.0})


@triton.autotune([Config({"BLOCK": block}) for block in (16, 32)], key=["n"], do_bench=times)
@triton.jit
def add(x_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + i, 1.0, mask=i < n)


if __name__ == "__main__":
    with pytest.MonkeyPatch.context() as patch:
        fake_cuda.install(patch)
        autotuned.install()
        x = torch.zeros(512)
        add[(4,)](x, 96)
        with autotuned.seal():
            add[(4,)](x, 96)
            try:
                add[(4,)](x[1:], 96)
            except SealedError as error:
                print(error.what, error.reason)
