"""Softmax over the rows of a matrix, out of place, with a running maximum so that rows of any width fit."""
# mypy: allow-untyped-decorators

from collections.abc import Callable, Iterator
from typing import Any

import torch
import triton
import triton.language as tl

from autotuned import Config, autotune
from autotuned.kernels._inputs import require


@autotune(
    configs=[
        Config({"ROWS": 4, "BLOCK": 256}, num_warps=4),
        Config({"ROWS": 2, "BLOCK": 512}, num_warps=4),
        Config({"ROWS": 4, "BLOCK": 1024}, num_warps=8),
        Config({"ROWS": 1, "BLOCK": 512}, num_warps=2),
        Config({"ROWS": 1, "BLOCK": 1024}, num_warps=4),
        Config({"ROWS": 1, "BLOCK": 2048}, num_warps=4),
        Config({"ROWS": 1, "BLOCK": 4096}, num_warps=8),
        Config({"ROWS": 1, "BLOCK": 8192}, num_warps=16),
    ],
    key=["x_ptr"],
)
@triton.jit
def softmax_kernel(  # type: ignore[no-untyped-def]
    out_ptr,
    x_ptr,
    out_row_stride,
    x_row_stride,
    n_rows,
    N_COLS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """ROWS rows a program: a sweep for maximum and sum, a second one that writes.

    N_COLS is a constant: where BLOCK covers the row, the compiler keeps it in registers from one sweep to the next, and
    Triton 3.6's interpreter (with NumPy 2.4) cannot take a loop's bound from a scalar that arrives at run time.
    """
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_row = rows < n_rows
    # Programs that reach past the end read the last row again, without storing it: the sum of an empty row is zero, and
    # 0 / 0 is a warning in the interpreter.
    rows = tl.minimum(rows, n_rows - 1).to(tl.int64)
    x_rows = x_ptr + rows[:, None] * x_row_stride
    out_rows = out_ptr + rows[:, None] * out_row_stride

    peak = tl.full((ROWS,), float("-inf"), tl.float32)
    shift = tl.zeros((ROWS,), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    for start in range(0, N_COLS, BLOCK):
        cols = start + tl.arange(0, BLOCK)[None, :]
        x = tl.load(x_rows + cols, mask=cols < N_COLS, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(peak, tl.max(x, axis=1))
        # The shift of a row that is only -inf so far stays finite, since -inf - -inf is NaN.
        shift = tl.where(higher == float("-inf"), 0.0, higher)
        total = total * tl.exp(peak - shift) + tl.sum(tl.exp(x - shift[:, None]), axis=1)
        peak = higher

    for start in range(0, N_COLS, BLOCK):
        cols = start + tl.arange(0, BLOCK)[None, :]
        inside = cols < N_COLS
        x = tl.load(x_rows + cols, mask=inside, other=float("-inf")).to(tl.float32)
        y = tl.exp(x - shift[:, None]) / total[:, None]
        tl.store(out_rows + cols, y.to(out_ptr.dtype.element_ty), mask=inside & is_row[:, None])


def softmax(x: torch.Tensor) -> torch.Tensor:
    """Softmax of every row, like `torch.softmax(x, dim=1)`.

    Args:
        x: (rows, columns), floating point; elements of a row adjacent, rows at any stride.

    Returns:
        A contiguous tensor of the shape and dtype of `x`; sums are kept in float32.

    Raises:
        ValueError: `x` is not a matrix, or the elements of its rows are not adjacent.
    """
    require(x.dim() == 2, "softmax: x", "a matrix (rows, columns)", x.shape, "Flatten the leading dimensions.")
    adjacent = x.shape[1] <= 1 or x.stride(1) == 1
    require(adjacent, "softmax: x", "column stride 1", x.stride(), "Pass a tensor with contiguous rows.")
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel():
        softmax_kernel[_grid(x.shape[0])](*_arguments(out, x))
    return out


def reference(x: torch.Tensor) -> torch.Tensor:
    """The same in plain PyTorch."""
    return torch.softmax(x.float(), dim=1).to(x.dtype)


@softmax_kernel.case
def cases(device: torch.device | str) -> Iterator[dict[str, Any]]:
    """Attention scores and logits over small and large vocabularies."""
    for shape in _shapes(device):
        yield make_case(device, *shape)


def make_case(device: torch.device | str, n_rows: int, n_cols: int, dtype: torch.dtype) -> dict[str, Any]:
    """A case with a matrix of this shape."""
    generator = torch.Generator(device).manual_seed(0)
    x = torch.randn((n_rows, n_cols), generator=generator, device=device).to(dtype)
    return {"args": _arguments(torch.empty_like(x), x), "kwargs": {}, "grid": _grid(n_rows)}


def _shapes(device: torch.device | str) -> list[tuple[int, int, torch.dtype]]:
    if torch.device(device).type == "cpu":
        return [(5, 300, torch.float32), (2, 77, torch.float16)]
    sizes = ((16384, 256), (8192, 1000), (4096, 4096), (4096, 8192), (1024, 32000))
    return [(n_rows, n_cols, dtype) for n_rows, n_cols in sizes for dtype in (torch.float16, torch.float32)]


def _arguments(out: torch.Tensor, x: torch.Tensor) -> tuple[Any, ...]:
    return out, x, out.stride(0), x.stride(0), x.shape[0], x.shape[1]


def _grid(n_rows: int) -> Callable[[dict[str, Any]], tuple[int]]:
    return lambda meta: (triton.cdiv(n_rows, meta["ROWS"]),)
