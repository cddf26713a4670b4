"""A tuned kernel that ships with binaries: tests tune it, build its binaries, and launch them."""

import torch
import triton
import triton.language as tl
from fake_cuda import by_config
from triton import Config

from autotuned import autotune

bench = by_config({16: 3.0, 32: 1.0, 64: 2.0})


@autotune([Config({"BLOCK": block}) for block in (16, 32, 64)], key=["n"], do_bench=bench, name="app.add")
@triton.jit
def add(x_ptr, y_ptr, n, s, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i * s, tl.load(x_ptr + i * s, mask=i < n) + 1, mask=i < n)


def on(device):
    """The host where a GPU is only pretended."""
    return "cpu" if torch.cuda.is_available() else device


@add.case
def cases(device):
    """Two sizes."""
    for n in (96, 100):
        yield {"args": (torch.empty(n, device=on(device)), torch.empty(n, device=on(device)), n, 1), "grid": (4,)}


bench_padded = by_config({16: 3.0, 32: 1.0, 64: 2.0})


@autotune([Config({"BLOCK": block}) for block in (16, 32, 64)], key=["n"], do_bench=bench_padded, name="app.padded")
@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def padded(x_ptr, n, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        tl.store(x_ptr + i, 1.0)
    else:
        tl.store(x_ptr + i, 1.0, mask=i < n)


@padded.case
def padded_cases(device):
    """One size of each kind."""
    for n in (96, 100):
        yield {"args": (torch.empty(n, device=on(device)), n), "grid": (4,)}


@autotune([Config({"BLOCK": 32})], key=["n"], name="app.only")
@triton.jit
def only(x_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + i, 1.0, mask=i < n)


@only.case
def only_cases(device):
    """One size."""
    yield {"args": (torch.empty(96, device=on(device)), 96), "grid": (4,)}
