"""Blocked matrix product of NumPy arrays: a plain callable that is worth tuning without a GPU."""
# mypy: allow-untyped-decorators

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from autotuned import Config, autotune
from autotuned.kernels._inputs import require

Matrix = npt.NDArray[Any]


@autotune(
    configs=[
        Config({"block_m": 64, "block_n": 64, "block_k": 64}),
        Config({"block_m": 64, "block_n": 512, "block_k": 128}),
        Config({"block_m": 128, "block_n": 128, "block_k": 128}),
        Config({"block_m": 128, "block_n": 512, "block_k": 512}),
        Config({"block_m": 256, "block_n": 256, "block_k": 256}),
        Config({"block_m": 512, "block_n": 512, "block_k": 64}),
        Config({"block_m": 512, "block_n": 512, "block_k": 512}),
        Config({"block_m": 1024, "block_n": 1024, "block_k": 1024}),
    ],
)
def blocked_matmul(a: Matrix, b: Matrix, out: Matrix, *, block_m: int, block_n: int, block_k: int) -> None:
    """Overwrite `out` with the product of `a` and `b`, one block after the other.

    Args:
        a: (M, K).
        b: (K, N).
        out: (M, N).
        block_m: Rows of `out` a block.
        block_n: Columns of `out` a block.
        block_k: Summands a step.
    """
    for m in range(0, a.shape[0], block_m):
        for n in range(0, b.shape[1], block_n):
            tile = out[m : m + block_m, n : n + block_n]
            tile[...] = 0
            for k in range(0, a.shape[1], block_k):
                tile += a[m : m + block_m, k : k + block_k] @ b[k : k + block_k, n : n + block_n]


def matmul(a: Matrix, b: Matrix) -> Matrix:
    """The matrix product of `a` and `b`.

    Args:
        a: (M, K), floating point, any strides.
        b: (K, N), dtype of `a`, any strides.

    Returns:
        (M, N), contiguous, dtype of `a`.

    Raises:
        ValueError: A shape or dtype does not fit.
    """
    require(a.ndim == 2, "matmul: a", "a matrix (M, K)", a.shape, "Reshape it.")
    fits = b.ndim == 2 and b.shape[0] == a.shape[1]
    require(fits, "matmul: b", "a matrix (K, N) with the K of a", b.shape, "Transpose or slice it.")
    require(a.dtype.kind == "f", "matmul: a", "a floating-point dtype", a.dtype, "Convert it with astype.")
    require(b.dtype == a.dtype, "matmul: b", "the dtype of a", b.dtype, "Convert one with astype.")
    out = np.empty((a.shape[0], b.shape[1]), a.dtype)
    if out.size:
        blocked_matmul(a, b, out)
    return out


def reference(a: Matrix, b: Matrix) -> Matrix:
    """The same in plain NumPy."""
    product: Matrix = np.matmul(a, b)
    return product


@blocked_matmul.case
def cases(device: Any) -> Iterator[dict[str, Any]]:
    """Square, wide and deep products; the arrays are on the CPU whatever `device` says."""
    generator = np.random.default_rng(0)
    for m, n, k in ((256, 256, 256), (64, 768, 384), (384, 96, 512)):
        a = generator.standard_normal((m, k), np.float32)
        b = generator.standard_normal((k, n), np.float32)
        yield {"args": (a, b, np.empty((m, n), np.float32)), "kwargs": {}}
