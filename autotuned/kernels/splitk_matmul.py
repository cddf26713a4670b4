"""Half-precision matrix product for few rows and a long K, which is split over programs that add into float32."""
# mypy: allow-untyped-decorators

from collections.abc import Callable, Iterator
from typing import Any

import torch
import triton
import triton.language as tl

from autotuned import Config, autotune
from autotuned.kernels._products import product_arguments, random_product, require_product


def _config(block_m: int, block_n: int, block_k: int, split_k: int, num_warps: int, num_stages: int) -> Any:
    blocks = {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k, "SPLIT_K": split_k}
    return Config(blocks, num_warps=num_warps, num_stages=num_stages)


@autotune(
    configs=[
        _config(16, 64, 64, 1, num_warps=4, num_stages=4),
        _config(16, 64, 128, 2, num_warps=4, num_stages=4),
        _config(16, 64, 128, 4, num_warps=4, num_stages=4),
        _config(16, 64, 128, 8, num_warps=4, num_stages=3),
        _config(16, 128, 64, 4, num_warps=4, num_stages=4),
        _config(16, 128, 64, 8, num_warps=4, num_stages=5),
        _config(16, 32, 256, 4, num_warps=4, num_stages=3),
        _config(32, 64, 128, 4, num_warps=4, num_stages=4),
        _config(64, 64, 64, 2, num_warps=4, num_stages=4),
        _config(64, 64, 64, 8, num_warps=4, num_stages=4),
        _config(64, 128, 64, 4, num_warps=8, num_stages=4),
        _config(64, 128, 64, 16, num_warps=8, num_stages=4),
    ],
    key=["M", "N", "K"],
    # The kernel adds into C. This zeroes C before every launch, tuning or not, so that the host function may pass
    # uninitialized memory.
    reset_to_zero=["c_ptr"],
)
@triton.jit
def splitk_matmul_kernel(  # type: ignore[no-untyped-def]
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
    SPLIT_K: tl.constexpr,
):
    """One tile of C and every SPLIT_K-th block of K a program; K is a constant for the reason given in `matmul`."""
    tiles_n = tl.cdiv(N, BLOCK_N)
    tile = tl.program_id(0)
    first_k = tl.program_id(1) * BLOCK_K

    # 64 bits, since an index times a stride may exceed 2**31.
    rows = (tile // tiles_n * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)[:, None]
    cols = (tile % tiles_n * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)[None, :]
    ks = first_k + tl.arange(0, BLOCK_K).to(tl.int64)
    a_ptrs = a_ptr + rows * a_stride_m + ks[None, :] * a_stride_k
    b_ptrs = b_ptr + ks[:, None] * b_stride_k + cols * b_stride_n

    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    # All programs do as many iterations as the first; beyond K, everything is masked.
    for start in range(0, K, BLOCK_K * SPLIT_K):
        a = tl.load(a_ptrs, mask=(rows < M) & (ks[None, :] < K - start), other=0.0)
        b = tl.load(b_ptrs, mask=(cols < N) & (ks[:, None] < K - start), other=0.0)
        sums = tl.dot(a, b, sums)
        a_ptrs += BLOCK_K * SPLIT_K * a_stride_k
        b_ptrs += BLOCK_K * SPLIT_K * b_stride_k

    c_ptrs = c_ptr + rows * c_stride_m + cols * c_stride_n
    # Relaxed, since no other memory is published with the sums.
    tl.atomic_add(c_ptrs, sums, mask=(rows < M) & (cols < N), sem="relaxed")


def splitk_matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The matrix product of `a` and `b`, in float32.

    Not bitwise reproducible: parts of a sum are added in the order in which programs finish.

    Args:
        a: (M, K), float16, or bfloat16 on a GPU; any strides.
        b: (K, N), dtype of `a`, any strides.

    Returns:
        (M, N), float32, contiguous.

    Raises:
        ValueError: A shape, dtype or device does not fit.
    """
    require_product("splitk_matmul: a", "splitk_matmul: b", a, b)
    c = torch.empty((a.shape[0], b.shape[1]), dtype=torch.float32, device=a.device)
    if c.numel():
        splitk_matmul_kernel[_grid(*c.shape)](*product_arguments(a, b, c))
    return c


def reference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The same in plain PyTorch."""
    return a.float() @ b.float()


@splitk_matmul_kernel.case
def cases(device: torch.device | str, *, M: int | None = None) -> Iterator[dict[str, Any]]:
    """Decoding: few tokens, or M of them, times the weights of a transformer block."""
    for shape in dict.fromkeys((M or m, *rest) for m, *rest in _shapes(device)):
        yield make_case(device, *shape)


def make_case(device: torch.device | str, m: int, n: int, k: int, dtype: torch.dtype) -> dict[str, Any]:
    """A case with an (m, k) by (k, n) product."""
    args = random_product(device, m, n, k, dtype, torch.float32)
    return {"args": args, "kwargs": {}, "grid": _grid(m, n)}


def _shapes(device: torch.device | str) -> list[tuple[int, int, int, torch.dtype]]:
    if torch.device(device).type == "cpu":
        return [(7, 32, 300, torch.float16), (20, 24, 200, torch.float16)]
    sizes = ((16, 4096, 4096), (16, 4096, 14336), (32, 1024, 8192), (64, 4096, 4096), (64, 1024, 16384))
    return [(m, n, k, dtype) for m, n, k in sizes for dtype in (torch.float16, torch.bfloat16)]


def _grid(m: int, n: int) -> Callable[[dict[str, Any]], tuple[int, int]]:
    return lambda meta: (triton.cdiv(m, meta["BLOCK_M"]) * triton.cdiv(n, meta["BLOCK_N"]), meta["SPLIT_K"])
