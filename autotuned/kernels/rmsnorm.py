"""Residual add and RMSNorm in one kernel, both tensors updated in place."""
# mypy: allow-untyped-decorators

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl

from autotuned import Config, autotune
from autotuned.kernels._inputs import require


@triton.jit
def _added(x_row, residual_row, cols, inside):  # type: ignore[no-untyped-def]
    x = tl.load(x_row + cols, mask=inside, other=0.0).to(tl.float32)
    residual = tl.load(residual_row + cols, mask=inside, other=0.0)
    # Rounded before it is normalized, so that the result matches the caller's `residual`, and is the same for every
    # BLOCK.
    return (x + residual.to(tl.float32)).to(residual.dtype)


@autotune(
    configs=[
        Config({"BLOCK": 256}, num_warps=1),
        Config({"BLOCK": 512}, num_warps=2),
        Config({"BLOCK": 1024}, num_warps=2),
        Config({"BLOCK": 1024}, num_warps=4),
        Config({"BLOCK": 2048}, num_warps=4),
        Config({"BLOCK": 2048}, num_warps=8),
        Config({"BLOCK": 4096}, num_warps=8),
        Config({"BLOCK": 8192}, num_warps=8),
        Config({"BLOCK": 8192}, num_warps=16),
    ],
    key=["N_COLS"],
    restore_value=["x_ptr", "residual_ptr"],
)
@triton.jit
def rmsnorm_kernel(  # type: ignore[no-untyped-def]
    x_ptr,
    residual_ptr,
    weight_ptr,
    x_row_stride,
    residual_row_stride,
    eps,
    N_COLS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program a row, swept twice in blocks.

    N_COLS is a constant: where BLOCK covers the row, the compiler sees two loops of one round with the same loads and
    keeps the row in registers in between. Triton 3.6's interpreter needs it too: with NumPy 2.4 it cannot take a loop's
    bound from a scalar that arrives at run time.
    """
    # 64 bits, since a row index times a row stride may exceed 2**31.
    row = tl.program_id(0).to(tl.int64)
    x_row = x_ptr + row * x_row_stride
    residual_row = residual_ptr + row * residual_row_stride

    squares = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, N_COLS, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        added = _added(x_row, residual_row, cols, cols < N_COLS).to(tl.float32)
        squares += added * added
    scale = tl.rsqrt(tl.sum(squares, axis=0) / N_COLS + eps)

    # The first sweep stores nothing and this one adds again: reloading what another thread stored would need a barrier,
    # since loads and stores of a block may have different layouts.
    for start in range(0, N_COLS, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        inside = cols < N_COLS
        added = _added(x_row, residual_row, cols, inside)
        weight = tl.load(weight_ptr + cols, mask=inside, other=0.0).to(tl.float32)
        normed = added.to(tl.float32) * scale * weight
        tl.store(residual_row + cols, added, mask=inside)
        tl.store(x_row + cols, normed.to(x_ptr.dtype.element_ty), mask=inside)


def rmsnorm_(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> None:
    """Add `x` to `residual`, then overwrite `x` with the normalized, weighted rows of `residual`.

    Args:
        x: (rows, columns), floating point; elements of a row adjacent, rows at any stride. Overwritten.
        residual: Same shape and dtype as `x`, in other memory. Overwritten with the sum, rounded to its dtype.
        weight: (columns,), contiguous.
        eps: Added to the mean square.

    Raises:
        ValueError: A shape, dtype, stride or device does not fit, or `x` and `residual` start at the same address
            (other overlaps are not detected).
    """
    _check(x, residual, weight)
    if x.numel():
        rmsnorm_kernel[(x.shape[0],)](*_arguments(x, residual, weight, eps))


def reference(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same in plain PyTorch, out of place: the expected `x` and `residual`."""
    added = (residual.float() + x.float()).to(residual.dtype)
    scale = torch.rsqrt(added.float().square().mean(dim=1, keepdim=True) + eps)
    return (added.float() * scale * weight.float()).to(x.dtype), added


@rmsnorm_kernel.case
def cases(device: torch.device | str) -> Iterator[dict[str, Any]]:
    """Token batches of common hidden sizes."""
    for shape in _shapes(device):
        yield make_case(device, *shape)


def make_case(device: torch.device | str, rows: int, n_cols: int, dtype: torch.dtype) -> dict[str, Any]:
    """A case with a batch of this shape."""
    generator = torch.Generator(device).manual_seed(0)
    x, residual = torch.randn((2, rows, n_cols), generator=generator, device=device).to(dtype)
    weight = torch.randn(n_cols, generator=generator, device=device).to(dtype)
    return {"args": _arguments(x, residual, weight, 1e-6), "kwargs": {}, "grid": (rows,)}


def _shapes(device: torch.device | str) -> list[tuple[int, int, torch.dtype]]:
    if torch.device(device).type == "cpu":
        return [(3, 100, torch.float16), (2, 640, torch.float32)]
    dtypes = (torch.float16, torch.bfloat16, torch.float32)
    return [(4096, n_cols, dtype) for n_cols in (1024, 2048, 4096, 8192) for dtype in dtypes]


def _arguments(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> tuple[Any, ...]:
    return x, residual, weight, x.stride(0), residual.stride(0), eps, x.shape[1]


def _check(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> None:
    require(x.dim() == 2, "rmsnorm_: x", "a matrix (rows, columns)", x.shape, "Flatten the leading dimensions.")
    require(residual.shape == x.shape, "rmsnorm_: residual", "the shape of x", residual.shape, "Slice it.")
    require(residual.dtype == x.dtype, "rmsnorm_: residual", "the dtype of x", residual.dtype, "Convert one of them.")
    for name, tensor in (("rmsnorm_: x", x), ("rmsnorm_: residual", residual)):
        adjacent = tensor.shape[1] <= 1 or tensor.stride(1) == 1
        require(adjacent, name, "column stride 1", tensor.stride(), "Pass a tensor with contiguous rows.")
    fits = weight.dim() == 1 and weight.shape[0] == x.shape[1] and weight.is_contiguous()
    require(fits, "rmsnorm_: weight", "a contiguous vector, one element per column", weight.shape, "Copy it.")
    one_device = x.device == residual.device == weight.device
    require(one_device, "rmsnorm_", "one device", (x.device, residual.device, weight.device), "Move them together.")
    apart = x.data_ptr() != residual.data_ptr() or not x.numel()
    require(apart, "rmsnorm_: residual", "memory of its own", "that of x", "Clone one: both are written.")
