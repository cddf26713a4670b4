"""The kernel of the application: `y = gelu(x + bias)`, row by row."""

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl

from autotuned import Config, autotune


# With a name of its own, the function may be renamed or moved and keeps its files.
@autotune(
    configs=[
        Config({"BLOCK": 256}, num_warps=2),
        Config({"BLOCK": 1024}, num_warps=4),
        Config({"BLOCK": 4096}, num_warps=8),
    ],
    key=["N_COLS"],
    name="example.bias_gelu",
)
@triton.jit
def bias_gelu_kernel(y_ptr, x_ptr, bias_ptr, N_COLS: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """One program a row."""
    row = tl.program_id(0).to(tl.int64) * N_COLS
    for start in range(0, N_COLS, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        inside = cols < N_COLS
        x = tl.load(x_ptr + row + cols, mask=inside, other=0.0).to(tl.float32)
        x += tl.load(bias_ptr + cols, mask=inside, other=0.0).to(tl.float32)
        y = x * tl.sigmoid(1.702 * x)  # the usual approximation
        tl.store(y_ptr + row + cols, y.to(y_ptr.dtype.element_ty), mask=inside)


def bias_gelu(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Add `bias` to every row of `x` and apply GELU; `x` is a contiguous matrix."""
    y = torch.empty_like(x)
    bias_gelu_kernel[(x.shape[0],)](y, x, bias, x.shape[1])
    return y


def inputs(device: Any, n_cols: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch and a bias."""
    rows = 8 if torch.device(device).type == "cpu" else 4096
    return torch.randn(rows, n_cols, device=device), torch.randn(n_cols, device=device)


SIZES = (256, 1000, 4096)


@bias_gelu_kernel.case
def cases(device: Any) -> Iterator[dict[str, Any]]:
    """The sizes that the application uses."""
    for n_cols in SIZES:
        x, bias = inputs(device, n_cols)
        yield {"args": (torch.empty_like(x), x, bias, n_cols), "grid": (x.shape[0],)}
