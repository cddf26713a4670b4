"""Half-precision matrix product with float32 sums and a grouped order of programs."""
# mypy: allow-untyped-decorators

from collections.abc import Callable, Iterator
from typing import Any

import torch
import triton
import triton.language as tl

from autotuned import Config, Space, autotune, pow2s
from autotuned.kernels._products import product_arguments, random_product, require_product


def _config(block_m: int, block_n: int, block_k: int, group_m: int, num_warps: int, num_stages: int) -> Any:
    blocks = {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k, "GROUP_M": group_m}
    return Config(blocks, num_warps=num_warps, num_stages=num_stages)


CONFIGS = [
    _config(64, 64, 32, 8, num_warps=4, num_stages=3),
    _config(32, 64, 64, 8, num_warps=4, num_stages=4),
    _config(64, 32, 64, 8, num_warps=4, num_stages=4),
    _config(64, 128, 64, 8, num_warps=4, num_stages=4),
    _config(128, 64, 64, 8, num_warps=4, num_stages=4),
    _config(128, 128, 32, 8, num_warps=4, num_stages=4),
    _config(128, 128, 64, 1, num_warps=8, num_stages=3),
    _config(128, 128, 64, 8, num_warps=8, num_stages=3),
    _config(128, 128, 64, 8, num_warps=4, num_stages=4),
    _config(128, 256, 32, 8, num_warps=8, num_stages=5),  # found in SPACE on an H200, faster than the others
    _config(128, 256, 64, 8, num_warps=8, num_stages=3),
    _config(128, 256, 64, 16, num_warps=8, num_stages=4),
    _config(256, 128, 64, 8, num_warps=8, num_stages=3),
]
# 8 to 128 sums per thread, and buffers that fit into an H100's shared memory: 2,010 configs.
SPACE = Space(
    {
        "BLOCK_M": pow2s(32, 256),
        "BLOCK_N": pow2s(32, 256),
        "BLOCK_K": pow2s(32, 128),
        "GROUP_M": pow2s(1, 16),
        "num_warps": pow2s(2, 8),
        "num_stages": range(2, 6),
    },
    where=[
        lambda BLOCK_M, BLOCK_N, num_warps: 256 * num_warps <= BLOCK_M * BLOCK_N <= 4096 * num_warps,
        lambda BLOCK_M, BLOCK_N, BLOCK_K, num_stages: 2 * (BLOCK_M + BLOCK_N) * BLOCK_K * num_stages <= 227 << 10,
    ],
    first=CONFIGS,
)


@autotune(
    configs=CONFIGS,
    key=["M", "N", "K"],
)
@triton.jit
def matmul_kernel(  # type: ignore[no-untyped-def]
    a_ptr,
    b_ptr,
    c_ptr,
    M,
    N,
    a_stride_m,
    a_stride_k,
    b_stride_k,
    b_stride_n,
    c_stride_m,
    c_stride_n,
    K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    """One tile of C a program; programs that run at a time share a band of GROUP_M tile rows, and so columns of B.

    K is a constant: Triton 3.6's interpreter (with NumPy 2.4) cannot take a loop's bound from a scalar that arrives at
    run time, and a `while` loop would not be pipelined on the GPU.
    """
    program = tl.program_id(0)
    tiles_m = tl.cdiv(M, BLOCK_M)
    band_size = GROUP_M * tl.cdiv(N, BLOCK_N)
    first_m = program // band_size * GROUP_M
    band_rows = tl.minimum(GROUP_M, tiles_m - first_m)
    within = program % band_size
    tile_m = first_m + within % band_rows
    tile_n = within // band_rows

    # 64 bits, since an index times a stride may exceed 2**31.
    rows = (tile_m * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)[:, None]
    cols = (tile_n * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)[None, :]
    ks = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + rows * a_stride_m + ks[None, :] * a_stride_k
    b_ptrs = b_ptr + ks[:, None] * b_stride_k + cols * b_stride_n

    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, K, BLOCK_K):
        a = tl.load(a_ptrs, mask=(rows < M) & (ks[None, :] < K - start), other=0.0)
        b = tl.load(b_ptrs, mask=(cols < N) & (ks[:, None] < K - start), other=0.0)
        sums = tl.dot(a, b, sums)
        a_ptrs += BLOCK_K * a_stride_k
        b_ptrs += BLOCK_K * b_stride_k

    c_ptrs = c_ptr + rows * c_stride_m + cols * c_stride_n
    tl.store(c_ptrs, sums.to(c_ptr.dtype.element_ty), mask=(rows < M) & (cols < N))


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The matrix product of `a` and `b`.

    Args:
        a: (M, K), float16, or bfloat16 on a GPU; any strides.
        b: (K, N), dtype of `a`, any strides.

    Returns:
        (M, N), contiguous, dtype of `a`; summed in float32 and rounded once.

    Raises:
        ValueError: A shape, dtype or device does not fit.
    """
    require_product("matmul: a", "matmul: b", a, b)
    c = torch.empty((a.shape[0], b.shape[1]), dtype=a.dtype, device=a.device)
    if c.numel():
        matmul_kernel[_grid(*c.shape)](*product_arguments(a, b, c))
    return c


def reference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The same in plain PyTorch."""
    return (a.float() @ b.float()).to(a.dtype)


@matmul_kernel.case
def cases(device: torch.device | str, *, M: int | None = None) -> Iterator[dict[str, Any]]:
    """Square matmuls and the projections of a transformer block; with M, these projections with M rows."""
    for shape in dict.fromkeys((M or m, *rest) for m, *rest in _shapes(device)):
        yield make_case(device, *shape)


def make_case(device: torch.device | str, m: int, n: int, k: int, dtype: torch.dtype) -> dict[str, Any]:
    """A case with an (m, k) by (k, n) product."""
    args = random_product(device, m, n, k, dtype, dtype)
    return {"args": args, "kwargs": {}, "grid": _grid(m, n)}


def _shapes(device: torch.device | str) -> list[tuple[int, int, int, torch.dtype]]:
    if torch.device(device).type == "cpu":
        return [(48, 80, 70, torch.float16), (70, 40, 33, torch.float16)]
    sizes = ((1024, 1024, 1024), (4096, 4096, 4096), (2048, 12288, 4096), (2048, 4096, 11008), (512, 4096, 4096))
    return [(m, n, k, dtype) for m, n, k in sizes for dtype in (torch.float16, torch.bfloat16)]


def _grid(m: int, n: int) -> Callable[[dict[str, Any]], tuple[int]]:
    return lambda meta: (triton.cdiv(m, meta["BLOCK_M"]) * triton.cdiv(n, meta["BLOCK_N"]),)
