"""Gradients of layer normalization: rows add their share of dw and db to partial sums under spin locks."""
# mypy: allow-untyped-decorators

from collections.abc import Callable, Iterator
from typing import Any

import torch
import triton
import triton.language as tl

from autotuned import Config, autotune
from autotuned.kernels._inputs import require

# State of the lock of a block of columns in a group: EMPTY after reset_to_zero, HELD while a program adds, READY once
# there is a sum to add to.
_EMPTY = tl.constexpr(0)
_HELD = tl.constexpr(1)
_READY = tl.constexpr(2)

_CONFIGS = [
    Config({"BLOCK": 512, "GROUPS": 64}, num_warps=2),
    Config({"BLOCK": 512, "GROUPS": 128}, num_warps=4),
    Config({"BLOCK": 1024, "GROUPS": 32}, num_warps=4),
    Config({"BLOCK": 1024, "GROUPS": 64}, num_warps=4),
    Config({"BLOCK": 1024, "GROUPS": 128}, num_warps=4),
    Config({"BLOCK": 2048, "GROUPS": 64}, num_warps=8),
    Config({"BLOCK": 2048, "GROUPS": 128}, num_warps=8),
    Config({"BLOCK": 4096, "GROUPS": 128}, num_warps=8),
    Config({"BLOCK": 8192, "GROUPS": 128}, num_warps=16),
]
# The host function allocates its buffers before a config is chosen, so they must be large enough for any.
_MAX_GROUPS: int = max(config.kwargs["GROUPS"] for config in _CONFIGS)
_MIN_BLOCK: int = min(config.kwargs["BLOCK"] for config in _CONFIGS)


@autotune(configs=_CONFIGS, key=["x_ptr"], reset_to_zero=["lock_ptr"])
@triton.jit
def layernorm_bwd_kernel(  # type: ignore[no-untyped-def]
    dx_ptr,
    dw_partial_ptr,
    db_partial_ptr,
    lock_ptr,
    dy_ptr,
    x_ptr,
    weight_ptr,
    mean_ptr,
    rstd_ptr,
    dx_row_stride,
    dy_row_stride,
    x_row_stride,
    lock_row_stride,
    N_COLS: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUPS: tl.constexpr,
):
    """One program a row: dx of the row, and its share of dw and db into the partial sums of one of GROUPS groups.

    N_COLS is a constant for the reasons given in `rmsnorm`.
    """
    # 64 bits, since a row index times a row stride may exceed 2**31.
    row = tl.program_id(0).to(tl.int64)
    group = row % GROUPS
    x_row = x_ptr + row * x_row_stride
    dy_row = dy_ptr + row * dy_row_stride
    mean = tl.load(mean_ptr + row)
    rstd = tl.load(rstd_ptr + row)

    weighted = tl.zeros((BLOCK,), tl.float32)
    correlated = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, N_COLS, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        dy, normed, weight = _row_block(dy_row, x_row, weight_ptr, mean, rstd, cols, cols < N_COLS)
        weighted += dy * weight
        correlated += dy * weight * normed
    mean_weighted = tl.sum(weighted, axis=0) / N_COLS
    mean_correlated = tl.sum(correlated, axis=0) / N_COLS

    for start in range(0, N_COLS, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        inside = cols < N_COLS
        dy, normed, weight = _row_block(dy_row, x_row, weight_ptr, mean, rstd, cols, inside)
        dx = (dy * weight - mean_weighted - normed * mean_correlated) * rstd
        tl.store(dx_ptr + row * dx_row_stride + cols, dx.to(dx_ptr.dtype.element_ty), mask=inside)

        lock = lock_ptr + group * lock_row_stride + start // BLOCK
        dw_partial = dw_partial_ptr + group * N_COLS + cols
        db_partial = db_partial_ptr + group * N_COLS + cols
        # Exchanging HELD takes the lock and returns its state; while another program holds it, that changes nothing.
        # One lock per block, so that rows of a group can add to different blocks at the same time.
        state = tl.atomic_xchg(lock, _HELD)
        while state == _HELD:
            state = tl.atomic_xchg(lock, _HELD)
        dw, db = dy * normed, dy
        if state == _READY:
            dw += tl.load(dw_partial, mask=inside, other=0.0)
            db += tl.load(db_partial, mask=inside, other=0.0)
        tl.store(dw_partial, dw, mask=inside)
        tl.store(db_partial, db, mask=inside)
        # One thread releases the lock: without the barrier, it might do so before other threads have stored.
        tl.debug_barrier()
        tl.atomic_xchg(lock, _READY)


@triton.jit
def _row_block(dy_row, x_row, weight_ptr, mean, rstd, cols, inside):  # type: ignore[no-untyped-def]
    # Masked columns have dy = weight = 0, so they add nothing to any sum, whatever `normed` is.
    dy = tl.load(dy_row + cols, mask=inside, other=0.0).to(tl.float32)
    x = tl.load(x_row + cols, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + cols, mask=inside, other=0.0).to(tl.float32)
    return dy, (x - mean) * rstd, weight


@autotune(
    configs=[
        Config({"BLOCK_GROUPS": 128, "BLOCK_COLS": 16}, num_warps=4),
        Config({"BLOCK_GROUPS": 64, "BLOCK_COLS": 32}, num_warps=4),
        Config({"BLOCK_GROUPS": 32, "BLOCK_COLS": 32}, num_warps=2),
        Config({"BLOCK_GROUPS": 32, "BLOCK_COLS": 64}, num_warps=4),
        Config({"BLOCK_GROUPS": 32, "BLOCK_COLS": 128}, num_warps=8),
        Config({"BLOCK_GROUPS": 16, "BLOCK_COLS": 128}, num_warps=4),
    ],
    key=["n_cols"],
)
@triton.jit
def layernorm_bwd_reduce_kernel(  # type: ignore[no-untyped-def]
    dw_ptr,
    db_ptr,
    dw_partial_ptr,
    db_partial_ptr,
    lock_ptr,
    lock_row_stride,
    n_cols,
    N_GROUPS: tl.constexpr,
    BLOCK_GROUPS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
):
    """Sums dw and db of BLOCK_COLS columns a program, from the groups that some row has written."""
    cols = tl.program_id(0) * BLOCK_COLS + tl.arange(0, BLOCK_COLS)
    dw = tl.zeros((BLOCK_GROUPS, BLOCK_COLS), tl.float32)
    db = tl.zeros((BLOCK_GROUPS, BLOCK_COLS), tl.float32)
    for start in range(0, N_GROUPS, BLOCK_GROUPS):
        groups = start + tl.arange(0, BLOCK_GROUPS)
        # The first kernel's config decides which groups are used. Their first lock says so: a row visits every block.
        state = tl.load(lock_ptr + groups * lock_row_stride, mask=groups < N_GROUPS, other=_EMPTY)
        written = (state == _READY)[:, None] & (cols < n_cols)[None, :]
        places = groups[:, None] * n_cols + cols[None, :]
        dw += tl.load(dw_partial_ptr + places, mask=written, other=0.0)
        db += tl.load(db_partial_ptr + places, mask=written, other=0.0)
    tl.store(dw_ptr + cols, tl.sum(dw, axis=0).to(dw_ptr.dtype.element_ty), mask=cols < n_cols)
    tl.store(db_ptr + cols, tl.sum(db, axis=0).to(db_ptr.dtype.element_ty), mask=cols < n_cols)


def layernorm_bwd(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of `weight * (x - mean) * rstd + bias` with respect to `x`, `weight` and `bias`.

    Not bitwise reproducible in dw and db: rows are added in the order in which they take a lock.

    Args:
        dy: (rows, columns), the gradient of the output; elements of a row adjacent, rows at any stride.
        x: Same shape, the input of the forward pass, strided likewise.
        weight: (columns,), contiguous.
        mean: (rows,), float32, contiguous, saved by the forward pass.
        rstd: (rows,), float32, contiguous: 1 / sqrt(variance + eps), saved likewise.

    Returns:
        dx (contiguous, dtype of `x`), dw and db (dtype of `weight`).

    Raises:
        ValueError: A shape, dtype, stride or device does not fit.
    """
    _check(dy, x, weight, mean, rstd)
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if not x.numel():
        return dx, torch.zeros_like(weight), torch.zeros_like(weight)
    partial, lock = _buffers(x)
    layernorm_bwd_kernel[(x.shape[0],)](*_arguments(dx, partial, lock, dy, x, weight, mean, rstd))
    dw, db = torch.empty_like(weight), torch.empty_like(weight)
    layernorm_bwd_reduce_kernel[_reduce_grid(x.shape[1])](*_reduce_arguments(dw, db, partial, lock))
    return dx, dw, db


def reference(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same in plain PyTorch."""
    normed = (x.float() - mean[:, None]) * rstd[:, None]
    weighted = dy.float() * weight.float()
    correlated = (weighted * normed).mean(dim=1, keepdim=True)
    dx = (weighted - weighted.mean(dim=1, keepdim=True) - normed * correlated) * rstd[:, None]
    dw, db = (dy.float() * normed).sum(dim=0), dy.float().sum(dim=0)
    return dx.to(x.dtype), dw.to(weight.dtype), db.to(weight.dtype)


@layernorm_bwd_kernel.case
def cases(device: torch.device | str) -> Iterator[dict[str, Any]]:
    """Token batches of common hidden sizes."""
    for shape in _shapes(device):
        yield make_case(device, *shape)


def make_case(device: torch.device | str, rows: int, n_cols: int, dtype: torch.dtype) -> dict[str, Any]:
    """A case with a batch of this shape."""
    generator = torch.Generator(device).manual_seed(0)
    dy, x = torch.randn((2, rows, n_cols), generator=generator, device=device).to(dtype)
    weight = torch.randn(n_cols, generator=generator, device=device).to(dtype)
    variance, mean = torch.var_mean(x.float(), dim=1, correction=0)
    partial, lock = _buffers(x)
    args = _arguments(torch.empty_like(x), partial, lock, dy, x, weight, mean, torch.rsqrt(variance + 1e-5))
    return {"args": args, "kwargs": {}, "grid": (rows,)}


@layernorm_bwd_reduce_kernel.case
def reduce_cases(device: torch.device | str) -> Iterator[dict[str, Any]]:
    """The second step of the same batches."""
    for _, n_cols, dtype in _shapes(device):
        yield make_reduce_case(device, n_cols, dtype)


def make_reduce_case(device: torch.device | str, n_cols: int, dtype: torch.dtype) -> dict[str, Any]:
    """A case with this many columns, and all groups used."""
    generator = torch.Generator(device).manual_seed(0)
    partial = torch.randn((2, _MAX_GROUPS, n_cols), generator=generator, device=device)
    blocks = triton.cdiv(n_cols, _MIN_BLOCK)
    lock = torch.full((_MAX_GROUPS, blocks), _READY.value, dtype=torch.int32, device=device)
    dw, db = torch.empty((2, n_cols), dtype=dtype, device=device)
    return {"args": _reduce_arguments(dw, db, partial, lock), "kwargs": {}, "grid": _reduce_grid(n_cols)}


def _shapes(device: torch.device | str) -> list[tuple[int, int, torch.dtype]]:
    if torch.device(device).type == "cpu":
        return [(3, 100, torch.float16), (2, 48, torch.float32)]
    return [(4096, n_cols, dtype) for n_cols in (1024, 4096, 8192) for dtype in (torch.float16, torch.float32)]


def _buffers(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Uninitialized partial sums (dw, db) and locks: reset_to_zero clears the locks, which say what the sums hold."""
    partial = torch.empty((2, _MAX_GROUPS, x.shape[1]), dtype=torch.float32, device=x.device)
    blocks = triton.cdiv(x.shape[1], _MIN_BLOCK)
    return partial, torch.empty((_MAX_GROUPS, blocks), dtype=torch.int32, device=x.device)


def _arguments(
    dx: torch.Tensor,
    partial: torch.Tensor,
    lock: torch.Tensor,
    dy: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    mean: torch.Tensor,
    rstd: torch.Tensor,
) -> tuple[Any, ...]:
    tensors = (dx, partial[0], partial[1], lock, dy, x, weight, mean, rstd)
    return *tensors, dx.stride(0), dy.stride(0), x.stride(0), lock.stride(0), x.shape[1]


def _reduce_arguments(dw: torch.Tensor, db: torch.Tensor, partial: torch.Tensor, lock: torch.Tensor) -> tuple[Any, ...]:
    return dw, db, partial[0], partial[1], lock, lock.stride(0), dw.shape[0], lock.shape[0]


def _reduce_grid(n_cols: int) -> Callable[[dict[str, Any]], tuple[int]]:
    return lambda meta: (triton.cdiv(n_cols, meta["BLOCK_COLS"]),)


def _check(dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor) -> None:
    require(x.dim() == 2, "layernorm_bwd: x", "a matrix (rows, columns)", x.shape, "Flatten the leading dimensions.")
    require(dy.shape == x.shape, "layernorm_bwd: dy", "the shape of x", dy.shape, "Pass the gradient of the output.")
    for name, tensor in (("layernorm_bwd: dy", dy), ("layernorm_bwd: x", x)):
        adjacent = tensor.shape[1] <= 1 or tensor.stride(1) == 1
        require(adjacent, name, "column stride 1", tensor.stride(), "Pass a tensor with contiguous rows.")
    fits = weight.shape == x.shape[1:] and weight.is_contiguous()
    require(fits, "layernorm_bwd: weight", "a contiguous vector, one element per column", weight.shape, "Copy it.")
    for name, saved in (("layernorm_bwd: mean", mean), ("layernorm_bwd: rstd", rstd)):
        fits = saved.shape == x.shape[:1] and saved.dtype == torch.float32 and saved.is_contiguous()
        got = (saved.dtype, saved.shape)
        require(fits, name, "a contiguous float32 vector, one element per row", got, "Save one in the forward pass.")
    devices = {tensor.device for tensor in (dy, x, weight, mean, rstd)}
    require(len(devices) == 1, "layernorm_bwd", "one device", devices, "Move the arguments together.")
