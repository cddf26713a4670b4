"""Shapes that reduce rows: locked sums, two norms, cross entropy."""

import torch
import triton
import triton.language as tl
from shape import Shape, random
from triton import Config

from autotuned import autotune

# -- 1: sums guarded by spin locks, in the backward pass --------------------------------------------------------------


@triton.jit
def locked_sums(x_ptr, out_ptr, lock_ptr, GROUPS, N: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    group = row % GROUPS
    for start in range(0, N, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        lock = lock_ptr + group * (N // 16) * 2 + start // 16
        count = lock + N // 16
        part = tl.load(x_ptr + row * N + cols)
        while tl.atomic_cas(lock, 0, 1) == 1:
            pass
        if tl.load(count) == 0:  # the first to come overwrites: what is there counts for nothing
            tl.atomic_xchg(count, 1)
        else:
            part += tl.load(out_ptr + group * N + cols)
        tl.store(out_ptr + group * N + cols, part)
        tl.debug_barrier()
        tl.atomic_xchg(lock, 0)


class Columns(torch.autograd.Function):
    """A sum over rows whose backward is the kernel: on a GPU it runs on a thread of autograd's."""

    @staticmethod
    def forward(ctx, x, tuned, data):
        ctx.tuned, ctx.data = tuned, data
        return x.sum()

    @staticmethod
    def backward(ctx, gradient):
        data = ctx.data
        x, groups = data["x"], data["out"].shape[0]
        ctx.tuned[(x.shape[0],)](x, data["out"], data["locks"], groups, x.shape[1])
        return torch.zeros_like(x), None, None


def launch_locked(tuned, data):
    Columns.apply(data["x"].clone().requires_grad_(), tuned, data).backward()
    return {"out": data["out"]}


LOCKS = Shape(
    [Config({"BLOCK": 16}), Config({"BLOCK": 32})],
    lambda configs, **options: autotune(configs, key=["N"], reset_to_zero=["lock_ptr"], **options)(locked_sums),
    lambda device: {
        "x": random(device, 12, 64),
        "out": torch.full((4, 64), 7.0, device=device),
        "locks": torch.zeros(4 * 2 * 4, dtype=torch.int32, device=device),
    },
    launch_locked,
    lambda data: {"out": data["x"].double().reshape(3, 4, 64).sum(0)},
)


# -- 2: add and RMS norm, both in place -------------------------------------------------------------------------------


@triton.jit
def add_rms_norm(x_ptr, r_ptr, w_ptr, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0) * n
    squares = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        total = tl.load(x_ptr + row + i, mask=i < n, other=0.0) + tl.load(r_ptr + row + i, mask=i < n, other=0.0)
        tl.store(r_ptr + row + i, total, mask=i < n)
        squares += total * total
    scale = 1 / tl.sqrt(tl.sum(squares) / n + eps)
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        total = tl.load(r_ptr + row + i, mask=i < n, other=0.0)
        tl.store(x_ptr + row + i, total * scale * tl.load(w_ptr + i, mask=i < n, other=0.0), mask=i < n)


def launch_add_rms_norm(tuned, data):
    tuned[(data["x"].shape[0],)](data["x"], data["r"], data["w"], data["x"].shape[1], 1e-6)
    return {"x": data["x"], "r": data["r"]}


def expect_add_rms_norm(data):
    total = data["x"].double() + data["r"].double()
    return {"r": total, "x": total / (total.pow(2).mean(1, keepdim=True) + 1e-6).sqrt() * data["w"].double()}


IN_PLACE = Shape(
    [Config({"BLOCK": 32}), Config({"BLOCK": 128})],
    lambda configs, **options: autotune(configs, key=["n"], restore_value=["x_ptr", "r_ptr"], **options)(add_rms_norm),
    lambda device: {"x": random(device, 8, 100), "r": random(device, 8, 100, seed=1), "w": random(device, 100)},
    launch_add_rms_norm,
    expect_add_rms_norm,
    bounds=True,
)


# -- 7: cross entropy with the gradient written over the logits -------------------------------------------------------


@triton.jit
def cross_entropy(x_ptr, label_ptr, loss_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    label = tl.load(label_ptr + row)
    most, total = -float("inf"), 0.0
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * n + i, mask=i < n, other=-float("inf"))
        higher = tl.maximum(most, tl.max(x))
        total = total * tl.exp(most - higher) + tl.sum(tl.exp(x - higher))
        most = higher
    tl.store(loss_ptr + row, tl.log(total) + most - tl.load(x_ptr + row * n + label))
    tl.debug_barrier()
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * n + i, mask=i < n, other=-float("inf"))
        tl.store(x_ptr + row * n + i, tl.exp(x - most) / total - tl.where(i == label, 1.0, 0.0), mask=i < n)


def launch_cross_entropy(tuned, data):
    tuned[(6,)](data["x"], data["labels"], data["loss"], 90)
    return {"loss": data["loss"], "x": data["x"]}


def expect_cross_entropy(data):
    x = data["x"].double().requires_grad_()
    loss = torch.nn.functional.cross_entropy(x, data["labels"].long(), reduction="none")
    loss.sum().backward()
    return {"loss": loss.detach(), "x": x.grad}


CROSS_ENTROPY = Shape(
    [Config({"BLOCK": 32}), Config({"BLOCK": 128})],
    lambda configs, **options: autotune(configs, key=["n"], **options)(cross_entropy),  # found out: x_ptr is put back
    lambda device: {
        "x": random(device, 6, 90),
        "labels": (torch.arange(6, device=device, dtype=torch.int32) * 13) % 90,
        "loss": torch.zeros(6, device=device),
    },
    launch_cross_entropy,
    expect_cross_entropy,
    bounds=True,
)


# -- 11: a norm with 50 parameters, flags as keys, inside an operator of torch's --------------------------------------


@triton.jit
def norm(x, y, w, b, residual, x1, w1, b1, y1, residual_out, seeds, mask, mask1, mean, rstd, rowscale, M, N, eps, dropout_p,
         zero_centered, sx, sy, sres, sres_out, sx1, sy1, r0, r1, r2, r3, r4, r5, r6, r7, r8, r9, r10, r11, r12, r13,
         IS_RMS: tl.constexpr, BLOCK: tl.constexpr, HAS_RESIDUAL: tl.constexpr, STORE_RESIDUAL: tl.constexpr,
         HAS_BIAS: tl.constexpr, HAS_DROPOUT: tl.constexpr, HAS_ROWSCALE: tl.constexpr, HAS_X1: tl.constexpr,
         HAS_W1: tl.constexpr):  # fmt: skip
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    value = tl.load(x + row * sx + i, mask=i < N, other=0.0)
    if HAS_RESIDUAL:
        value += tl.load(residual + row * sres + i, mask=i < N, other=0.0)
    if STORE_RESIDUAL:
        tl.store(residual_out + row * sres_out + i, value, mask=i < N)
    if not IS_RMS:
        value = tl.where(i < N, value - tl.sum(value) / N, 0.0)
    scale = 1 / tl.sqrt(tl.sum(value * value) / N + eps)
    tl.store(rstd + row, scale)
    out = value * scale * tl.load(w + i, mask=i < N, other=0.0)
    if HAS_BIAS:
        out += tl.load(b + i, mask=i < N, other=0.0)
    tl.store(y + row * sy + i, out, mask=i < N)


NORM_KEYS = ["N", "HAS_RESIDUAL", "STORE_RESIDUAL", "IS_RMS", "HAS_BIAS"]


def launch_norm(tuned, data):
    x, y = data["x"], torch.zeros_like(data["x"])
    rstd, stored = torch.zeros(6, device=x.device), torch.zeros_like(x)
    tuned[(6,)](
        x, y, data["w"], data["b"], data["residual"], None, None, None, None, stored, None, None, None, None, rstd, None, 6, 50, 1e-6,
        0.0, 0, x.stride(0), y.stride(0), 50, 50, 0, 0, *range(14), IS_RMS=False, BLOCK=64, HAS_RESIDUAL=True,
        STORE_RESIDUAL=True, HAS_BIAS=True, HAS_DROPOUT=False, HAS_ROWSCALE=False, HAS_X1=False, HAS_W1=False,
    )  # fmt: skip
    return {"y": y, "rstd": rstd, "stored": stored}


def expect_norm(data):
    value = data["x"].double() + data["residual"].double()
    centred = value - value.mean(1, keepdim=True)
    rstd = 1 / (centred.pow(2).mean(1) + 1e-6).sqrt()
    return {"y": centred * rstd[:, None] * data["w"].double() + data["b"].double(), "rstd": rstd, "stored": value}


NORM = Shape(
    [Config({}, num_warps=warps) for warps in (1, 2)],
    lambda configs, **options: autotune(configs, key=NORM_KEYS, **options)(norm),
    lambda device: {
        "x": random(device, 6, 50),
        "residual": random(device, 6, 50, seed=1),
        "w": random(device, 50),
        "b": random(device, 50, seed=1),
    },
    launch_norm,
    expect_norm,
)
