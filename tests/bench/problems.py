"""Kernels, configs and calls for the benchmark of tuning: compute-bound, slow to compile, and short."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import triton
import triton.language as tl
from triton import Config


def matmul(
    a_ptr, b_ptr, c_ptr, M, N, K, a_stride_m, a_stride_k, b_stride_k, b_stride_n, c_stride_m, c_stride_n,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """Half-precision matrix product; every size is a scalar of the launch, so one binary serves all shapes."""
    program = tl.program_id(0)
    band = GROUP_M * tl.cdiv(N, BLOCK_N)
    first_m = program // band * GROUP_M
    rows_in_band = min(tl.cdiv(M, BLOCK_M) - first_m, GROUP_M)
    tile_m = first_m + program % band % rows_in_band
    tile_n = program % band // rows_in_band
    rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + (rows % M)[:, None] * a_stride_m + ks[None, :] * a_stride_k
    b_ptrs = b_ptr + ks[:, None] * b_stride_k + (cols % N)[None, :] * b_stride_n
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(tl.cdiv(K, BLOCK_K)):
        a = tl.load(a_ptrs, mask=ks[None, :] < K - start * BLOCK_K, other=0.0)
        b = tl.load(b_ptrs, mask=ks[:, None] < K - start * BLOCK_K, other=0.0)
        sums = tl.dot(a, b, sums)
        a_ptrs += BLOCK_K * a_stride_k
        b_ptrs += BLOCK_K * b_stride_k
    c_ptrs = c_ptr + rows[:, None] * c_stride_m + cols[None, :] * c_stride_n
    tl.store(c_ptrs, sums.to(tl.float16), mask=(rows[:, None] < M) & (cols[None, :] < N))


def attention(
    q_ptr, k_ptr, v_ptr, o_ptr, scale, head_stride, row_stride, LENGTH,
    D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Causal attention forward with a running softmax: one block of queries of one head a program."""
    block, base = tl.program_id(0), tl.program_id(1).to(tl.int64) * head_stride
    rows = block * BLOCK_M + tl.arange(0, BLOCK_M)
    cols, dims = tl.arange(0, BLOCK_N), tl.arange(0, D)
    q = tl.load(q_ptr + base + rows[:, None] * row_stride + dims[None, :], mask=rows[:, None] < LENGTH, other=0.0)
    peak = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    sums = tl.zeros((BLOCK_M, D), tl.float32)
    for start in range(0, (block + 1) * BLOCK_M, BLOCK_N):
        inside = start + cols < LENGTH
        keys = base + (start + cols)[:, None] * row_stride + dims[None, :]
        k = tl.load(k_ptr + keys, mask=inside[:, None], other=0.0)
        scores = tl.dot(q, tl.trans(k)) * scale
        seen = (rows[:, None] >= start + cols[None, :]) & inside[None, :]
        scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, axis=1))
        shares = tl.exp2(scores - higher[:, None])
        shrink = tl.exp2(peak - higher)
        v = tl.load(v_ptr + keys, mask=inside[:, None], other=0.0)
        sums = tl.dot(shares.to(tl.float16), v, sums * shrink[:, None])
        total = total * shrink + tl.sum(shares, axis=1)
        peak = higher
    out = sums / total[:, None]
    places = o_ptr + base + rows[:, None] * row_stride + dims[None, :]
    tl.store(places, out.to(tl.float16), mask=rows[:, None] < LENGTH)


def rmsnorm(x_ptr, w_ptr, y_ptr, row_stride, n_cols, eps, COLS: tl.constexpr):
    """One row a program, kept in registers: `num_stages` changes nothing, so half of a usual list is duplicates."""
    row = tl.program_id(0).to(tl.int64) * row_stride
    cols = tl.arange(0, COLS)
    x = tl.load(x_ptr + row + cols, mask=cols < n_cols, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / n_cols + eps)
    w = tl.load(w_ptr + cols, mask=cols < n_cols, other=0.0).to(tl.float32)
    tl.store(y_ptr + row + cols, (x * scale * w).to(tl.float16), mask=cols < n_cols)


def softmax(x_ptr, y_ptr, row_stride, n_cols, BLOCK: tl.constexpr):
    """One row a program in two sweeps with a running maximum."""
    row = tl.program_id(0).to(tl.int64) * row_stride
    peak, total = tl.full((BLOCK,), float("-inf"), tl.float32), tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row + cols, mask=cols < n_cols, other=-1.0e30).to(tl.float32)
        higher = tl.maximum(peak, x)
        total = total * tl.exp(peak - higher) + tl.exp(x - higher)
        peak = higher
    top = tl.max(peak, axis=0)
    scale = 1.0 / tl.sum(total * tl.exp(peak - top), axis=0)
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row + cols, mask=cols < n_cols, other=-1.0e30).to(tl.float32)
        tl.store(y_ptr + row + cols, (tl.exp(x - top) * scale).to(tl.float16), mask=cols < n_cols)


def add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """The trivial kernel."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    tl.store(out_ptr + i, x + tl.load(y_ptr + i, mask=i < n), mask=i < n)


def splitk(
    a_ptr, b_ptr, c_ptr, M, N, K, a_stride, b_stride, c_stride,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLIT_K: tl.constexpr,
):  # fmt: skip
    """A matrix product of few rows, split over programs that add into an output of zeros."""
    tiles_n = tl.cdiv(N, BLOCK_N)
    rows = tl.program_id(0) // tiles_n * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.program_id(0) % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = tl.program_id(1) * BLOCK_K + tl.arange(0, BLOCK_K)
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, K, BLOCK_K * SPLIT_K):
        k = start + ks
        a = tl.load(a_ptr + rows[:, None] * a_stride + k[None, :], mask=(rows[:, None] < M) & (k[None, :] < K), other=0)
        b = tl.load(b_ptr + k[:, None] * b_stride + cols[None, :], mask=(k[:, None] < K) & (cols[None, :] < N), other=0)
        sums = tl.dot(a, b, sums)
    places = c_ptr + rows[:, None] * c_stride + cols[None, :]
    tl.atomic_add(places, sums, mask=(rows[:, None] < M) & (cols[None, :] < N))


Shape = tuple[int, ...]


@dataclass(frozen=True)
class Problem:
    """One kernel with its list and its calls.

    Attributes:
        arguments: Creates the arguments of a call for a shape on a device.
        grid: The grid for a shape, a function of META.
        shapes: The headline shape first, then others with the same specialization.
        zero: `reset_to_zero` of the tuner.
    """

    name: str
    function: Callable[..., Any]
    configs: Sequence[Config]
    key: Sequence[str]
    arguments: Callable[[Shape, str], tuple[Any, ...]]
    grid: Callable[[Shape], Callable[[dict[str, Any]], tuple[int, ...]]]
    shapes: Sequence[Shape]
    zero: Sequence[str] = field(default_factory=list)

    def tuned(self, decorator: Callable[..., Any], **options: Any) -> Any:
        """The kernel under a tuner, compiled again by Triton."""
        zero = {"reset_to_zero": list(self.zero)} if self.zero else {}
        return decorator(configs=list(self.configs), key=list(self.key), **zero, **options)(triton.jit(self.function))


def _half(*shape: int, device: str) -> torch.Tensor:
    return torch.randn(shape, device=device, dtype=torch.float32).half()


def _matmul_arguments(shape: Shape, device: str) -> tuple[Any, ...]:
    m, n, k = shape
    a, b = _half(m, k, device=device), _half(k, n, device=device)
    c = torch.empty((m, n), device=device, dtype=torch.float16)
    return a, b, c, m, n, k, *a.stride(), *b.stride(), *c.stride()


def _attention_arguments(shape: Shape, device: str) -> tuple[Any, ...]:
    heads, length, dims = shape
    q, k, v = (_half(heads, length, dims, device=device) for _ in range(3))
    return q, k, v, torch.empty_like(q), 1.4427 / dims**0.5, q.stride(0), q.stride(1), length, dims


def _rmsnorm_arguments(shape: Shape, device: str) -> tuple[Any, ...]:
    x = _half(*shape, device=device)
    return x, _half(shape[1], device=device), torch.empty_like(x), x.stride(0), shape[1], 1e-6, shape[1]


def _softmax_arguments(shape: Shape, device: str) -> tuple[Any, ...]:
    x = _half(*shape, device=device)
    return x, torch.empty_like(x), x.stride(0), shape[1]


def _add_arguments(shape: Shape, device: str) -> tuple[Any, ...]:
    x, y = (torch.randn(shape, device=device) for _ in range(2))
    return x, y, torch.empty_like(x), shape[0]


def _splitk_arguments(shape: Shape, device: str) -> tuple[Any, ...]:
    m, n, k = shape
    a, b = _half(m, k, device=device), _half(k, n, device=device)
    c = torch.zeros((m, n), device=device, dtype=torch.float32)
    return a, b, c, m, n, k, a.stride(0), b.stride(0), c.stride(0)


def _tiles(shape: Shape) -> Callable[[dict[str, Any]], tuple[int, ...]]:
    return lambda meta: (triton.cdiv(shape[0], meta["BLOCK_M"]) * triton.cdiv(shape[1], meta["BLOCK_N"]),)


def _matmul_configs() -> list[Config]:
    tiles = [(64, 64, 32), (64, 128, 64), (128, 64, 64), (128, 128, 32), (128, 128, 64), (128, 256, 64)]
    listed = [(*tile, warps, stages) for tile in tiles for warps in (4, 8) for stages in (2, 3, 4)]
    listed += [(32, 64, 64, 4, 3), (64, 32, 64, 4, 3), (256, 64, 32, 4, 4), (256, 128, 32, 8, 3)]
    return [
        Config({"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUP_M": 8}, num_warps=warps, num_stages=stages)
        for m, n, k, warps, stages in listed
    ]


PROBLEMS = {
    problem.name: problem
    for problem in (
        Problem(
            "matmul", matmul, _matmul_configs(), ["M", "N", "K"], _matmul_arguments, _tiles,
            [(4096, 4096, 4096), *((m, n, k) for m in (512, 1024, 2048, 4096, 8192)
                                   for n, k in ((4096, 1024), (6144, 4096), (4096, 14336), (28672, 4096)))][:21],
        ),
        Problem(
            "attention", attention,
            [Config({"BLOCK_M": m, "BLOCK_N": n}, num_warps=warps, num_stages=stages)
             for m in (64, 128) for n in (32, 64, 128) for warps in (4, 8) for stages in (2, 3, 4)],
            ["LENGTH"], _attention_arguments,
            lambda shape: lambda meta: (triton.cdiv(shape[1], meta["BLOCK_M"]), shape[0]),
            [(32, 4096, 128), (64, 1024, 128), (16, 8192, 128), (128, 2048, 128)],
        ),
        Problem(
            "rmsnorm", rmsnorm,
            [Config({}, num_warps=warps, num_stages=stages) for warps in (1, 2, 4, 8, 16, 32) for stages in (1, 2)],
            ["n_cols", "COLS"], _rmsnorm_arguments, lambda shape: lambda meta: (shape[0],), [(4096, 4096)],
        ),
        Problem(
            "softmax", softmax,
            [Config({"BLOCK": block}, num_warps=warps) for block in (512, 1024, 2048, 4096, 8192) for warps in (4, 8, 16)],
            ["n_cols"], _softmax_arguments, lambda shape: lambda meta: (shape[0],),
            [(4096, 8192), (4096, 16384), (16384, 2048)],
        ),
        Problem(
            "add", add,
            [Config({"BLOCK": block}, num_warps=warps) for block in (256, 512, 1024, 2048, 4096) for warps in (1, 2, 4, 8)],
            ["n"], _add_arguments, lambda shape: lambda meta: (triton.cdiv(shape[0], meta["BLOCK"]),),
            [(1 << 24,), (1 << 22,), (1 << 26,)],
        ),
        Problem(
            "splitk", splitk,
            [Config({"BLOCK_M": 16, "BLOCK_N": n, "BLOCK_K": k, "SPLIT_K": split}, num_warps=warps, num_stages=4)
             for n in (32, 64, 128) for k in (64, 128) for split in (1, 2, 4, 8) for warps in (4, 8)],
            ["M", "N", "K"], _splitk_arguments,
            lambda shape: lambda meta: (triton.cdiv(shape[0], meta["BLOCK_M"]) * triton.cdiv(shape[1], meta["BLOCK_N"]),
                                        meta["SPLIT_K"]),
            [(16, 4096, 8192)], ["c_ptr"],
        ),
        Problem(
            "pair", add, [Config({"BLOCK": 1024}), Config({"BLOCK": 2048})], ["n"], _add_arguments,
            lambda shape: lambda meta: (triton.cdiv(shape[0], meta["BLOCK"]),), [(1 << 20,)],
        ),
    )
}  # fmt: skip
