"""Small kernels in the shape of twelve that real libraries tune, each with its data, its launch and its reference."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from triton import Config
from triton.tools.tensor_descriptor import TensorDescriptor

from autotuned import autotune

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Shape:
    """One of the twelve.

    Attributes:
        make: `make(configs, **options)` decorates.
        data: Fresh inputs on a device, always the same.
        launch: `launch(tuned, data)` launches and returns the outputs by name; inputs may be overwritten.
        expect: The same outputs from untouched inputs, in float64 where that is possible.
        gpu: Why it needs a GPU, or "".
        bounds: It has loops with bounds known at run time, which Triton 3.6 does not interpret with NumPy 2.
    """

    configs: list[Any]
    make: Callable[..., Any]
    data: Callable[[str], dict[str, Any]]
    launch: Callable[[Any, dict[str, Any]], Tensors]
    expect: Callable[[dict[str, Any]], Tensors]
    tolerance: float = 1e-5
    gpu: str = ""
    bounds: bool = False


def random(device, *shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed + 31 * sum(shape))
    return torch.randn(*shape, generator=generator).to(device, dtype)


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


# -- 3: split-K with hooks on some configs, from a generator ----------------------------------------------------------


@triton.jit
def split_k(a_ptr, b_ptr, c_ptr, M, N, K, sam, sak, sbk, sbn, scm, scn, ACC: tl.constexpr, BLOCK_M: tl.constexpr,
            BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SPLIT_K: tl.constexpr):  # fmt: skip
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros([BLOCK_M, BLOCK_N], ACC)
    for start in range(tl.program_id(2) * BLOCK_K, K, BLOCK_K * SPLIT_K):
        k = start + tl.arange(0, BLOCK_K)
        a = tl.load(a_ptr + rows[:, None] * sam + k[None, :] * sak)
        b = tl.load(b_ptr + k[:, None] * sbk + cols[None, :] * sbn)
        total += tl.dot(a, b, input_precision="ieee")
    c = c_ptr + rows[:, None] * scm + cols[None, :] * scn
    if SPLIT_K == 1:
        tl.store(c, total)
    else:
        tl.atomic_add(c, total)


def zero_c(arguments):
    arguments["c_ptr"].zero_()


def splits(configs, named, **kwargs):
    """New configs, with a hook where the parts are added up."""
    for config in configs:
        for split in (1, 2):
            hook = zero_c if split > 1 else None
            yield Config({**config.kwargs, "SPLIT_K": split}, num_warps=config.num_warps, pre_hook=hook)


def launch_split_k(tuned, data):
    a, b, c = data["a"], data["b"], data["c"]
    grid = lambda meta: (2, 2, meta["SPLIT_K"])
    tuned[grid](a, b, c, 32, 32, 64, *a.stride(), *b.stride(), *c.stride(), tl.float32)
    return {"c": c}


PROBLEM = ["M", "N", "K"]
SPLIT_K = Shape(
    [Config({"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": k, "SPLIT_K": 1}) for k in (16, 32)],
    lambda configs, **options: autotune(
        configs, key=PROBLEM, prune_configs_by={"early_config_prune": splits}, restore_value=[], **options
    )(split_k),
    lambda device: {
        "a": random(device, 32, 64),
        "b": random(device, 64, 32),
        "c": torch.full((32, 32), 5.0, device=device),
    },
    launch_split_k,
    lambda data: {"c": data["a"].double() @ data["b"].double()},
    tolerance=1e-4,
    bounds=True,
)


# -- 4: tensor descriptors whose blocks are set by hooks --------------------------------------------------------------


@triton.jit
def described(a_desc, b_desc, c_desc, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    row, col = tl.program_id(0) * BLOCK_M, tl.program_id(1) * BLOCK_N
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for k in range(0, K, BLOCK_K):
        total = tl.dot(a_desc.load([row, k]), b_desc.load([k, col]), total)
    c_desc.store([row, col], total.to(tl.float16))


def set_blocks(arguments):
    m, n, k = (arguments[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K"))
    for name, block in {"a_desc": [m, k], "b_desc": [k, n], "c_desc": [m, n]}.items():
        arguments[name].block_shape = block


def launch_described(tuned, data):
    a, b, c = (TensorDescriptor.from_tensor(data[name], [1, 8]) for name in "abc")
    tuned[lambda meta: (128 // meta["BLOCK_M"], 128 // meta["BLOCK_N"])](a, b, c, 128)
    return {"c": data["c"]}


DESCRIPTORS = Shape(
    [Config({"BLOCK_M": m, "BLOCK_N": 64, "BLOCK_K": 32}, pre_hook=set_blocks) for m in (32, 64)],
    lambda configs, **options: autotune(configs, key=["K"], **options)(described),
    lambda device: {
        "a": random(device, 128, 128, dtype=torch.float16),
        "b": random(device, 128, 128, dtype=torch.float16, seed=1),
        "c": torch.zeros(128, 128, device=device, dtype=torch.float16),
    },
    launch_described,
    lambda data: {"c": data["a"].double() @ data["b"].double()},
    tolerance=2e-3,
    gpu="descriptors are loaded by the hardware",
)


@triton.jit
def described_on_device(a_ptr, c_ptr, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    a = tl.make_tensor_descriptor(a_ptr, shape=[M, N], strides=[N, 1], block_shape=[BLOCK_M, BLOCK_N])
    c = tl.make_tensor_descriptor(c_ptr, shape=[M, N], strides=[N, 1], block_shape=[BLOCK_M, BLOCK_N])
    place = [tl.program_id(0) * BLOCK_M, tl.program_id(1) * BLOCK_N]
    c.store(place, a.load(place) * 2)


def launch_described_on_device(tuned, data):
    triton.set_allocator(lambda size, alignment, stream: torch.empty(size, device=data["a"].device, dtype=torch.int8))
    tuned[lambda meta: (64 // meta["BLOCK_M"], 64 // meta["BLOCK_N"])](data["a"], data["c"], 64, 64)
    return {"c": data["c"]}


DEVICE_DESCRIPTORS = Shape(
    [Config({"BLOCK_M": m, "BLOCK_N": 32}) for m in (16, 32)],
    lambda configs, **options: autotune(configs, key=["M", "N"], **options)(described_on_device),
    lambda device: {"a": random(device, 64, 64), "c": torch.zeros(64, 64, device=device)},
    launch_described_on_device,
    lambda data: {"c": data["a"].double() * 2},
    gpu="descriptors are loaded by the hardware",
)


# -- 5: a recurrence over chunks, six heuristics outside, keywords only -----------------------------------------------


@triton.jit(do_not_specialize=["T"])
def recurrence(x, g, scale, bias, h0, ht, cu_seqlens, o, T, D: tl.constexpr, USE_G: tl.constexpr, USE_SCALE: tl.constexpr,
               USE_BIAS: tl.constexpr, USE_H0: tl.constexpr, STORE_HT: tl.constexpr, IS_VARLEN: tl.constexpr,
               BT: tl.constexpr):  # fmt: skip
    sequence = tl.program_id(0)
    cols = tl.arange(0, D)
    if IS_VARLEN:
        first, last = tl.load(cu_seqlens + sequence), tl.load(cu_seqlens + sequence + 1)
    else:
        first, last = sequence * T, sequence * T + T
    state = tl.zeros([D], tl.float32)
    if USE_H0:
        state += tl.load(h0 + sequence * D + cols)
    for start in range(first, last, BT):
        rows = start + tl.arange(0, BT)
        inside = (rows < last)[:, None]
        at = rows[:, None] * D + cols[None, :]
        value = tl.load(x + at, mask=inside, other=0.0)
        if USE_G:
            value *= tl.load(g + at, mask=inside, other=0.0)
        sums = tl.cumsum(value, axis=0) + state[None, :]
        out = sums
        if USE_SCALE:
            out *= tl.load(scale + cols)[None, :]
        if USE_BIAS:
            out += tl.load(bias + cols)[None, :]
        tl.store(o + at, out, mask=inside)
        state += tl.sum(value, axis=0)
    if STORE_HT:
        tl.store(ht + sequence * D + cols, state)


FLAGS = {
    "USE_G": "g",
    "USE_SCALE": "scale",
    "USE_BIAS": "bias",
    "USE_H0": "h0",
    "STORE_HT": "ht",
    "IS_VARLEN": "cu_seqlens",
}


def launch_recurrence(tuned, data):
    stack = tuned
    for flag, name in FLAGS.items():
        stack = triton.heuristics({flag: lambda arguments, name=name: arguments[name] is not None})(stack)
    stack[(2,)](
        x=data["x"],
        g=data["g"],
        scale=None,
        bias=None,
        h0=None,
        ht=data["ht"],
        cu_seqlens=data["ends"],
        o=data["o"],
        T=40,
        D=16,
    )
    return {"o": data["o"], "ht": data["ht"]}


def expect_recurrence(data):
    value = (data["x"] * data["g"]).double()
    parts = [value[:25], value[25:40]]
    return {"o": torch.cat([part.cumsum(0) for part in parts]), "ht": torch.stack([part.sum(0) for part in parts])}


CHUNKS = Shape(
    [Config({"BT": 8}), Config({"BT": 16})],
    lambda configs, **options: autotune(configs, key=["D", *FLAGS], **options)(recurrence),
    lambda device: {
        "x": random(device, 40, 16),
        "g": random(device, 40, 16, seed=1),
        "ends": torch.tensor([0, 25, 40], dtype=torch.int32, device=device),
        "o": torch.zeros(40, 16, device=device),
        "ht": torch.zeros(2, 16, device=device),
    },
    launch_recurrence,
    expect_recurrence,
    bounds=True,
)


# -- 6: 75 arguments by place, and a config that says how many rows count ---------------------------------------------


@triton.jit
def many(x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, partial, total, M, N,
         a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15, a16, a17, a18, a19,
         b0, b1, b2, b3, b4, b5, b6, b7, b8, b9, b10, b11, b12, b13, b14, b15, b16, b17, b18, b19,
         c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11, c12, c13, c14, c15, c16, c17, c18, c19, c20,
         BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):  # fmt: skip
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.arange(0, BLOCK_N)
    inside = (rows < M)[:, None] & (cols < N)[None, :]
    value = tl.load(x0 + rows[:, None] * a0 + cols[None, :] * b0, mask=inside, other=0.0)
    if x1 is not None:
        value += tl.load(x1 + rows[:, None] * a1 + cols[None, :] * b1, mask=inside, other=0.0)
    if x9 is not None:
        value *= tl.load(x9 + rows[:, None] * a9 + cols[None, :] * b9, mask=inside, other=0.0)
    sums = tl.sum(value, axis=0) * c0 + c20
    tl.store(partial + tl.program_id(0) * N + cols, sums, mask=cols < N)
    tl.atomic_add(total + cols, sums, mask=cols < N)


def zero_total(arguments):
    arguments["total"].zero_()


def launch_many(tuned, data):
    x, y = data["x"], data["y"]
    tensors = (x, None, None, None, None, None, None, None, None, y, data["partial"], data["total"])
    steps = tuple(x.stride(0) for _ in range(20)) + tuple(x.stride(1) for _ in range(20))
    tuned[lambda meta: (triton.cdiv(40, meta["BLOCK_M"]),)](*tensors, 40, 24, *steps, 2, *range(19), 0)
    rows = -(-40 // tuned.best_config.kwargs["BLOCK_M"])  # what lies below was written by another config
    return {"partial": data["partial"][:rows].sum(0), "total": data["total"]}


def expect_many(data):
    sums = (data["x"].double() * data["y"].double()).sum(0) * 2
    return {"partial": sums, "total": sums}


MANY = Shape(
    [Config({"BLOCK_M": m, "BLOCK_N": 32}, pre_hook=zero_total) for m in (8, 16)],
    lambda configs, **options: autotune(configs, key=["M", "N"], **options)(many),
    lambda device: {
        "x": random(device, 40, 24),
        "y": random(device, 40, 24, seed=1),
        "partial": torch.full((40 // 8, 24), 9.0, device=device),
        "total": torch.full((24,), 9.0, device=device),
    },
    launch_many,
    expect_many,
    tolerance=1e-4,
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


# -- 8: rows scattered and added, a size that is not in the key -------------------------------------------------------


@triton.jit
def scatter(x_ptr, index_ptr, weight_ptr, out_ptr, T, H: tl.constexpr, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    cols = tl.arange(0, H)
    inside = (rows < T)[:, None]
    to = tl.load(index_ptr + rows, mask=rows < T, other=0)
    value = tl.load(x_ptr + rows[:, None] * H + cols[None, :], mask=inside, other=0.0)
    value *= tl.load(weight_ptr + rows, mask=rows < T, other=0.0)[:, None]
    tl.atomic_add(out_ptr + to[:, None] * H + cols[None, :], value, mask=inside)


def launch_scatter(tuned, data):
    results = {}
    for t in (30, 50):
        tuned[lambda meta, t=t: (triton.cdiv(t, meta["BLOCK"]),)](
            data["x"], data["index"], data["weight"], data["out"], t, 16
        )
        results[f"out{t}"] = data["out"].clone()
    return results


def expect_scatter(data):
    value = data["x"].double() * data["weight"].double()[:, None]
    empty = torch.zeros(8, 16, dtype=torch.float64, device=value.device)
    return {f"out{t}": empty.index_add(0, data["index"][:t].long(), value[:t]) for t in (30, 50)}


SCATTER = Shape(
    [Config({"BLOCK": 16}), Config({"BLOCK": 32})],
    lambda configs, **options: autotune(configs, key=["H"], reset_to_zero=["out_ptr"], **options)(scatter),
    lambda device: {
        "x": random(device, 50, 16),
        "index": (torch.arange(50, device=device, dtype=torch.int32) * 5) % 8,
        "weight": random(device, 50),
        "out": torch.full((8, 16), 3.0, device=device),
    },
    launch_scatter,
    expect_scatter,
    tolerance=1e-4,
)


# -- 9: paged decode, a key from a heuristic, under capture -----------------------------------------------------------


@triton.jit
def paged_decode(q_ptr, k_ptr, v_ptr, table_ptr, length_ptr, o_ptr, pages, BUCKET: tl.constexpr, D: tl.constexpr,
                 PAGE: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    request = tl.program_id(0)
    cols = tl.arange(0, D)
    q = tl.load(q_ptr + request * D + cols)
    length = tl.load(length_ptr + request)
    most, total = -float("inf"), 0.0
    out = tl.zeros([D], tl.float32)
    for start in range(0, length, BLOCK):
        token = start + tl.arange(0, BLOCK)
        inside = token < length
        page = tl.load(table_ptr + request * pages + token // PAGE, mask=inside, other=0)
        at = (page * PAGE + token % PAGE)[:, None] * D + cols[None, :]
        score = tl.sum(tl.load(k_ptr + at, mask=inside[:, None], other=0.0) * q[None, :], axis=1)
        score = tl.where(inside, score, -float("inf"))
        higher = tl.maximum(most, tl.max(score))
        weight = tl.exp(score - higher)
        keep = tl.exp(most - higher)
        out = out * keep + tl.sum(weight[:, None] * tl.load(v_ptr + at, mask=inside[:, None], other=0.0), axis=0)
        total = total * keep + tl.sum(weight)
        most = higher
    tl.store(o_ptr + request * D + cols, out / total)


def launch_paged(tuned, data):
    stack = triton.heuristics({"BUCKET": lambda arguments: 1 if arguments["pages"] <= 4 else 8})(tuned)
    stack[(3,)](data["q"], data["k"], data["v"], data["table"], data["lengths"], data["o"], 4, D=16, PAGE=8)
    return {"o": data["o"]}


def expect_paged(data):
    rows = []
    for request, length in enumerate(data["lengths"].tolist()):
        tokens = [int(data["table"][request, t // 8]) * 8 + t % 8 for t in range(length)]
        k, v = data["k"].double()[tokens], data["v"].double()[tokens]
        rows.append(torch.softmax(k @ data["q"].double()[request], 0) @ v)
    return {"o": torch.stack(rows)}


PAGED = Shape(
    [Config({"BLOCK": 8}), Config({"BLOCK": 16})],
    lambda configs, **options: autotune(configs, key=["BUCKET"], restore_value=["o_ptr"], **options)(paged_decode),
    lambda device: {
        "q": random(device, 3, 16),
        "k": random(device, 96, 16),
        "v": random(device, 96, 16, seed=1),
        "table": torch.tensor([[3, 1, 7, 0], [2, 5, 0, 0], [11, 4, 6, 9]], dtype=torch.int32, device=device),
        "lengths": torch.tensor([20, 9, 32], dtype=torch.int32, device=device),
        "o": torch.zeros(3, 16, device=device),
    },
    launch_paged,
    expect_paged,
    bounds=True,
)


# -- 10: int4 weights, constexprs that the caller passes --------------------------------------------------------------


@triton.jit
def int4_product(a_ptr, q_ptr, scale_ptr, c_ptr, N, K, GROUP: tl.constexpr, BLOCK_M: tl.constexpr, SPLIT_K: tl.constexpr,
                 BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):  # fmt: skip
    rows = tl.arange(0, BLOCK_M)
    cols = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(tl.program_id(1) * BLOCK_K, K, BLOCK_K * SPLIT_K):
        k = start + tl.arange(0, BLOCK_K)
        word = tl.load(q_ptr + (k[:, None] // 8) * N + cols[None, :])
        weight = ((word >> (k[:, None] % 8) * 4) & 15) - 8
        weight = weight.to(tl.float32) * tl.load(scale_ptr + (k[:, None] // GROUP) * N + cols[None, :])
        total += tl.dot(tl.load(a_ptr + rows[:, None] * K + k[None, :]), weight, input_precision="ieee")
    tl.atomic_add(c_ptr + rows[:, None] * N + cols[None, :], total)


def launch_int4(tuned, data):
    def grid(META):
        return (triton.cdiv(32, META["BLOCK_N"]), META["SPLIT_K"])

    # SPLIT_K is the caller's business: not named in key=, and in ours all the same.
    tuned[grid](
        data["a"], data["q"], data["scale"], data["c"], 32, 64, GROUP=32, BLOCK_M=16, SPLIT_K=data.get("split", 2)
    )
    return {"c": data["c"]}


def expect_int4(data):
    shifts = torch.arange(8, device=data["q"].device) * 4
    weight = ((data["q"][:, None, :] >> shifts[None, :, None]) & 15).reshape(64, 32) - 8
    return {"c": data["a"].double() @ (weight.double() * data["scale"].double().repeat_interleave(32, 0))}


INT4 = Shape(
    [Config({"BLOCK_N": 16, "BLOCK_K": k}) for k in (16, 32)],
    lambda configs, **options: autotune(configs, key=["N", "K"], reset_to_zero=["c_ptr"], **options)(int4_product),
    lambda device: {
        "a": random(device, 16, 64),
        "q": (torch.arange(8 * 32, dtype=torch.int64) * 2654435761 % 2**31).int().reshape(8, 32).to(device),
        "scale": random(device, 2, 32).abs(),
        "c": torch.full((16, 32), 4.0, device=device),
    },
    launch_int4,
    expect_int4,
    tolerance=1e-4,
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


# -- 12: fp8 in blocks, each with its scale, a dtype as constexpr -----------------------------------------------------


@triton.jit
def fp8_product(a_ptr, b_ptr, as_ptr, bs_ptr, c_ptr, M, N, K, OUT: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_M: tl.constexpr,
                BLOCK_N: tl.constexpr):  # fmt: skip
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for block in range(K // BLOCK_K):
        k = block * BLOCK_K + tl.arange(0, BLOCK_K)
        part = tl.dot(
            tl.load(a_ptr + rows[:, None] * K + k[None, :]),
            tl.load(b_ptr + k[:, None] + cols[None, :] * K),
            out_dtype=tl.float32,
        )
        a_scale = tl.load(as_ptr + rows * (K // BLOCK_K) + block)
        b_scale = tl.load(bs_ptr + (cols // BLOCK_K) * (K // BLOCK_K) + block)
        total += part * a_scale[:, None] * b_scale[None, :]
    tl.store(c_ptr + rows[:, None] * N + cols[None, :], total.to(OUT))


def launch_fp8(tuned, data):
    c = torch.zeros(64, 128, device=data["a"].device, dtype=torch.float16)
    grid = lambda meta: (64 // meta["BLOCK_M"], 128 // meta["BLOCK_N"])
    tuned[grid](data["a"], data["b"], data["as"], data["bs"], c, 64, 128, 256, OUT=tl.float16, BLOCK_K=128)
    return {"c": c}


def expect_fp8(data):
    a = data["a"].double() * data["as"].double().repeat_interleave(128, 1)
    b = data["b"].double() * data["bs"].double().repeat_interleave(128, 0).repeat_interleave(128, 1)
    return {"c": a @ b.T}


FP8 = Shape(
    [Config({"BLOCK_M": m, "BLOCK_N": 64}) for m in (32, 64)],
    lambda configs, **options: autotune(configs, key=["M", "N", "K", "BLOCK_K"], **options)(fp8_product),
    lambda device: {
        "a": random(device, 64, 256).to(torch.float8_e4m3fn),
        "b": random(device, 128, 256).to(torch.float8_e4m3fn),
        "as": random(device, 64, 2).abs(),
        "bs": random(device, 1, 2).abs(),
    },
    launch_fp8,
    expect_fp8,
    tolerance=2e-3,
    gpu="the interpreter has no fp8 product",
)

SHAPES = {
    "1-spin-locks": LOCKS,
    "2-in-place-norm": IN_PLACE,
    "3-split-k": SPLIT_K,
    "4-descriptors": DESCRIPTORS,
    "4-device-descriptors": DEVICE_DESCRIPTORS,
    "5-heuristics-outside": CHUNKS,
    "6-75-arguments": MANY,
    "7-cross-entropy": CROSS_ENTROPY,
    "8-scatter": SCATTER,
    "9-paged-decode": PAGED,
    "10-int4": INT4,
    "11-norm-50-parameters": NORM,
    "12-fp8-blocks": FP8,
}
