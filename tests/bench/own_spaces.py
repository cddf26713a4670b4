"""Our own spaces of Triton kernels, measured completely: matrix product, attention, normalisation of rows.

Each has two shapes with the same specialization, so that the second needs no compilation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from autotuned import Space, pow2s
from autotuned.kernels import matmul

Shape = tuple[int, ...]


@triton.jit
def _attend(
    peak, total, sums, q, k_ptr, v_ptr, base, first, last, rows, scale, row_stride, LENGTH,
    D: tl.constexpr, BLOCK_N: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Go over the keys from `first` to `last`; where MASKED, without those after each row."""
    cols, dims = tl.arange(0, BLOCK_N), tl.arange(0, D)
    for start in range(first, last, BLOCK_N):
        inside = start + cols < LENGTH
        keys = base + (start + cols)[:, None] * row_stride + dims[None, :]
        k = tl.load(k_ptr + keys, mask=inside[:, None], other=0.0)
        scores = tl.dot(q, tl.trans(k)) * scale
        if MASKED:
            scores = tl.where((rows[:, None] >= start + cols[None, :]) & inside[None, :], scores, float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, axis=1))
        shares = tl.exp2(scores - higher[:, None])
        shrink = tl.exp2(peak - higher)
        v = tl.load(v_ptr + keys, mask=inside[:, None], other=0.0)
        sums = tl.dot(shares.to(tl.float16), v, sums * shrink[:, None])
        total = total * shrink + tl.sum(shares, axis=1)
        peak = higher
    return peak, total, sums


@triton.jit
def attention(
    q_ptr, k_ptr, v_ptr, o_ptr, scale, head_stride, row_stride, LENGTH,
    D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """Causal attention forward with a running softmax, one block of queries of one head a program.

    With SPLIT the blocks of keys that all rows see have a loop of their own, without a mask.
    """
    block, base = tl.program_id(0), tl.program_id(1).to(tl.int64) * head_stride
    rows = block * BLOCK_M + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, D)
    q = tl.load(q_ptr + base + rows[:, None] * row_stride + dims[None, :], mask=rows[:, None] < LENGTH, other=0.0)
    peak = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    sums = tl.zeros((BLOCK_M, D), tl.float32)
    seen_by_all = 0
    if SPLIT:
        seen_by_all = block * BLOCK_M // BLOCK_N * BLOCK_N
        peak, total, sums = _attend(
            peak, total, sums, q, k_ptr, v_ptr, base, 0, seen_by_all, rows, scale, row_stride, LENGTH, D, BLOCK_N, False
        )
    last = tl.minimum((block + 1) * BLOCK_M, LENGTH)
    peak, total, sums = _attend(
        peak, total, sums, q, k_ptr, v_ptr, base, seen_by_all, last, rows, scale, row_stride, LENGTH, D, BLOCK_N, True
    )
    places = o_ptr + base + rows[:, None] * row_stride + dims[None, :]
    tl.store(places, (sums / total[:, None]).to(tl.float16), mask=rows[:, None] < LENGTH)


@triton.jit
def rows_norm(
    x_ptr, w_ptr, y_ptr, row_stride, n_rows, eps,
    COLS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """RMSNorm of ROWS rows a program, swept twice in blocks of columns that are loaded STAGES ahead."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    row = rows.to(tl.int64)[:, None] * row_stride
    squares = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in tl.range(0, COLS, BLOCK, num_stages=STAGES):
        cols = start + tl.arange(0, BLOCK)[None, :]
        x = tl.load(x_ptr + row + cols, mask=(rows[:, None] < n_rows) & (cols < COLS), other=0.0).to(tl.float32)
        squares += x * x
    scale = tl.rsqrt(tl.sum(squares, axis=1) / COLS + eps)[:, None]
    for start in tl.range(0, COLS, BLOCK, num_stages=STAGES):
        cols = start + tl.arange(0, BLOCK)[None, :]
        inside = (rows[:, None] < n_rows) & (cols < COLS)
        x = tl.load(x_ptr + row + cols, mask=inside, other=0.0).to(tl.float32)
        w = tl.load(w_ptr + cols, mask=cols < COLS, other=0.0).to(tl.float32)
        tl.store(y_ptr + row + cols, (x * scale * w).to(tl.float16), mask=inside)


@dataclass(frozen=True)
class Case:
    """One call: its arguments in order, the tensor that it writes, the expected result, and a grid of META."""

    arguments: tuple[Any, ...]
    out: torch.Tensor
    expected: torch.Tensor
    grid: Callable[[dict[str, Any]], tuple[int, ...]]


@dataclass(frozen=True)
class Problem:
    """A kernel with its space.

    Attributes:
        shapes: On a GPU; `small` without one.
    """

    name: str
    kernel: Any
    space: Space
    case: Callable[[Shape, str], Case]
    shapes: Sequence[Shape]
    small: Sequence[Shape]


def _half(*shape: int, device: str, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(shape, generator=generator, device=device).half()


def _matmul(shape: Shape, device: str) -> Case:
    made = matmul.make_case(device, *shape, torch.float16)
    a, b, c = made["args"][:3]
    return Case(made["args"], c, matmul.reference(a, b), made["grid"])


def _attention(shape: Shape, device: str) -> Case:
    heads, length, dims = shape
    q, k, v = (_half(heads, length, dims, device=device, seed=seed) for seed in range(3))
    expected = torch.empty_like(q)
    after = torch.ones(length, length, dtype=torch.bool, device=device).triu(1)
    for head in range(heads):  # one by one: all scores at once would take gigabytes
        scores = (q[head].float() @ k[head].float().T / dims**0.5).masked_fill(after, -math.inf)
        expected[head] = (scores.softmax(1) @ v[head].float()).half()
    out = torch.empty_like(q)
    arguments = q, k, v, out, math.log2(math.e) / dims**0.5, q.stride(0), q.stride(1), length, dims
    return Case(arguments, out, expected, lambda meta: (triton.cdiv(length, meta["BLOCK_M"]), heads))


def _rows_norm(shape: Shape, device: str) -> Case:
    x, w = _half(*shape, device=device), _half(shape[1], device=device, seed=1)
    scale = torch.rsqrt(x.float().square().mean(1, keepdim=True) + 1e-6)
    out = torch.empty_like(x)
    grid = lambda meta: (triton.cdiv(shape[0], meta["ROWS"]),)
    return Case((x, w, out, x.stride(0), shape[0], 1e-6, shape[1]), out, (x.float() * scale * w.float()).half(), grid)


PROBLEMS = {
    problem.name: problem
    for problem in (
        Problem(
            "matmul",
            matmul.matmul_kernel.fn,
            matmul.SPACE,
            _matmul,
            [(4096, 4096, 2048), (512, 8192, 2048)],
            [(64, 48, 32), (32, 64, 32)],
        ),
        Problem(
            "attention",
            attention,
            Space(
                {
                    "BLOCK_M": pow2s(16, 256),
                    "BLOCK_N": pow2s(16, 256),
                    "SPLIT": [0, 1],
                    "num_warps": pow2s(2, 8),
                    "num_stages": range(1, 7),
                },
                # Sums and scores in registers, keys and values in shared memory: 128 dimensions of 2 bytes.
                where=[
                    lambda BLOCK_M, BLOCK_N, num_warps: 8192 * num_warps >= BLOCK_M * (128 + BLOCK_N),
                    lambda BLOCK_N, num_stages: 2 * BLOCK_N * 128 * 2 * num_stages <= 227 << 10,
                ],
            ),
            _attention,
            [(32, 2048, 128), (64, 1024, 128)],
            [(2, 64, 16), (3, 48, 16)],
        ),
        Problem(
            "rmsnorm",
            rows_norm,
            Space(
                {
                    "ROWS": pow2s(1, 16),
                    "BLOCK": pow2s(256, 8192),
                    "STAGES": [1, 2, 3],
                    "num_warps": pow2s(1, 16),
                },
                where=[lambda ROWS, BLOCK, num_warps: 256 * num_warps <= ROWS * BLOCK <= 2048 * num_warps],
            ),
            _rows_norm,
            [(8192, 8192), (2048, 8192)],
            [(20, 300), (8, 300)],
        ),
    )
}
