"""Shapes over sequences and tokens: a recurrence, 75 arguments by place, a scatter, paged decode."""

import torch
import triton
import triton.language as tl
from shape import Shape, random
from triton import Config

from autotuned import autotune

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
