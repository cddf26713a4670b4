"""Checks, arguments and cases of the matrix products."""

from typing import Any

import torch

from autotuned.kernels._inputs import require


def require_product(a_name: str, b_name: str, a: torch.Tensor, b: torch.Tensor) -> None:
    """Refuse matrices that these kernels cannot multiply; names as for `require`."""
    # Triton's interpreter multiplies the bits of bfloat16 as if they were integers (3.6 to 3.9).
    half = a.dtype == torch.float16 or (a.dtype == torch.bfloat16 and a.device.type != "cpu")
    require(half, a_name, "float16, or bfloat16 on a GPU", a.dtype, "Convert it, or use torch.matmul.")
    require(a.dim() == 2, a_name, "a matrix (M, K)", a.shape, "Flatten the leading dimensions.")
    fits = b.dim() == 2 and b.shape[0] == a.shape[1]
    require(fits, b_name, "a matrix (K, N) with the K of a", b.shape, "Transpose or slice it.")
    require(b.dtype == a.dtype, b_name, "the dtype of a", b.dtype, "Convert one of them.")
    require(b.device == a.device, b_name, "the device of a", b.device, "Move one of them.")


def product_arguments(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[Any, ...]:
    """Arguments of a kernel: matrices, M and N, strides, K."""
    m, n, k = a.shape[0], b.shape[1], a.shape[1]
    return a, b, c, m, n, *a.stride(), *b.stride(), *c.stride(), k


def random_product(device: torch.device | str, m: int, n: int, k: int, dtype: torch.dtype, out: torch.dtype) -> Any:
    """Arguments with random matrices and a zeroed result of dtype `out`."""
    generator = torch.Generator(device).manual_seed(0)
    a = torch.randn((m, k), generator=generator, device=device).to(dtype)
    b = torch.randn((k, n), generator=generator, device=device).to(dtype)
    return product_arguments(a, b, torch.zeros((m, n), dtype=out, device=device))
