"""Shapes that multiply matrices: split-K, tensor descriptors, int4 and fp8 weights."""

import torch
import triton
import triton.language as tl
from shape import Shape, random
from triton import Config
from triton.tools.tensor_descriptor import TensorDescriptor

from autotuned import autotune

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
