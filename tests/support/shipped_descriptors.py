"""Tuned kernels over tuples and tensor descriptors that ship with binaries."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from fake_cuda import by_config
from triton import Config
from triton.tools.tensor_descriptor import TensorDescriptor

from autotuned import autotune

CONFIGS = [Config({"BLOCK": block}) for block in (16, 32, 64)]


class Pair(NamedTuple):
    """Two tensors by name."""

    source: object
    target: object


def block(data, size, **more):
    """The first elements of a tensor, as blocks."""
    return TensorDescriptor(data, [data.numel()], [1], [size], **more)


@autotune(CONFIGS, key=["n"], do_bench=by_config({16: 3.0, 32: 1.0, 64: 2.0}), name="app.copy_block")
@triton.jit
def copy_block(source, target, n, BLOCK: tl.constexpr):
    target.store([n], source.load([0]) + BLOCK)


@autotune(CONFIGS, key=["n"], do_bench=by_config({16: 3.0, 32: 1.0, 64: 2.0}), name="app.add_pair")
@triton.jit
def add_pair(pair, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(pair[0] + i, tl.load(pair[1][0] + i, mask=i < n) + pair[1][1], mask=i < n)


@autotune(CONFIGS, key=["n"], do_bench=by_config({16: 3.0, 32: 1.0, 64: 2.0}), name="app.add_named")
@triton.jit
def add_named(pair, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(pair.target + i, tl.load(pair.source + i, mask=i < n), mask=i < n)


def set_blocks(arguments):
    """What the hook of a config does for descriptors that the caller made with any block."""
    for name in ("source", "target"):
        arguments[name].block_shape = [arguments["BLOCK"]]


HOOKED = [Config(config.kwargs, pre_hook=set_blocks) for config in CONFIGS]


@autotune(HOOKED, key=["n"], do_bench=by_config({16: 3.0, 32: 1.0, 64: 2.0}), name="app.copy_hooked")
@triton.jit
def copy_hooked(source, target, n, BLOCK: tl.constexpr):
    target.store([n], source.load([0]) + BLOCK)


def tensors(count=2):
    """Memory on the host, where a GPU is only pretended."""
    return [torch.zeros(256) for _ in range(count)]


def blocks(n=0, size=32):
    """A call of `copy_block`."""
    x, y = tensors()
    return block(x, size), block(y, size), n


def pairs(n=96, s=2):
    """A call of `add_pair`."""
    x, y = tensors()
    return (x, (y, s)), n


def named(n=96):
    """A call of `add_named`."""
    return Pair(*tensors()), n


@copy_block.case
@copy_hooked.case
def block_cases(device):
    """One call."""
    yield {"args": blocks(), "grid": (4,)}


@add_pair.case
def pair_cases(device):
    """Numbers of three classes in the tuple."""
    for s in (1, 2, 16):
        yield {"args": pairs(s=s), "grid": (4,)}


@add_named.case
def named_cases(device):
    """One call."""
    yield {"args": named(), "grid": (4,)}
