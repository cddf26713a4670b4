"""What a kernel reads and writes, found in the TTIR that the installed Triton really makes."""

import pytest
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from autotuned.kernels import layernorm_bwd, matmul, rmsnorm, softmax, splitk_matmul
from autotuned.triton_compat import compiled as compiledkernel


@triton.jit
def carried(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    source, target = x_ptr + i, out_ptr + i
    total = tl.zeros((BLOCK,), tl.float32)
    for _ in range(0, n, BLOCK):
        total += tl.load(source)
        tl.store(target, total)
        source += BLOCK
        target += BLOCK


@triton.jit
def swapped(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    one, other = x_ptr, out_ptr
    for _ in range(n):
        tl.store(one, 1.0)
        one, other = other, one


@triton.jit
def renamed(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    if n > 3:  # noqa: SIM108 a branch is what is tested
        chosen = x_ptr
    else:
        chosen = out_ptr
    tl.store(chosen, 1.0)


@triton.jit
def indexed(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.load(x_ptr + tl.arange(0, BLOCK)).to(tl.int32)
    tl.store(out_ptr + i, 1.0)


@triton.jit
def waiting(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    while tl.atomic_cas(out_ptr.to(tl.pointer_type(tl.int32)), 0, 1) == 1:
        pass
    tl.atomic_add(x_ptr, 1.0)
    if n == 7:
        return
    tl.debug_barrier()


@triton.jit
def optional(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    if BLOCK > 16:
        tl.store(x_ptr, 1.0)
    tl.store(out_ptr, tl.sum(tl.load(x_ptr + tl.arange(0, BLOCK))))


@triton.jit
def advanced(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = 0
    while i < n:
        tl.store(out_ptr, tl.exp(tl.load(x_ptr)))
        out_ptr += 1
        i += 1


@triton.jit(noinline=True)
def helper(p):
    tl.store(p, 1.0)


@triton.jit
def calling(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    helper(x_ptr)


@triton.jit
def assembled(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    j = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [i], dtype=tl.int32, is_pure=True, pack=1)
    tl.store(out_ptr + j, 1.0)


@triton.jit
def effectful(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [n], dtype=tl.int32, is_pure=False, pack=1)
    tl.store(out_ptr, 1.0)


@triton.jit
def cast(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    tl.store((x_ptr.to(tl.int64) + n * 4).to(tl.pointer_type(tl.float32)), 1.0)


@pytest.mark.parametrize(
    ("kernel", "read", "written"),
    [
        (carried, "x_ptr", "out_ptr"),
        (swapped, "", "x_ptr out_ptr"),
        (renamed, "", "x_ptr out_ptr"),
        (indexed, "x_ptr", "out_ptr"),
        (waiting, "x_ptr out_ptr", "x_ptr out_ptr"),
        (optional, "x_ptr", "x_ptr out_ptr"),
        (advanced, "x_ptr", "out_ptr"),
        (assembled, "", "out_ptr"),
        (calling, None, None),
        (effectful, None, None),
        (cast, None, None),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_access(kernel, read, written):
    x = torch.zeros(64)
    found = compiledkernel.accesses(kernel.warmup(x, torch.zeros(64), 5, BLOCK=32, grid=(1,)))
    if read is None:
        assert found is None
    else:
        assert (found.read, found.written) == (frozenset(read.split()), frozenset(written.split()))


def test_a_constexpr_that_hides_a_store():
    found = compiledkernel.accesses(optional.warmup(torch.zeros(64), torch.zeros(64), 5, BLOCK=16, grid=(1,)))
    assert found.written == {"out_ptr"}


@pytest.mark.parametrize("stage", ["ttir", "ttgir", "ptx"])
def test_what_takes_the_place_of_a_later_stage_is_not_judged_by_the_ttir_before_it(stage, tmp_path):
    x, y = torch.zeros(64), torch.zeros(64)
    other = swapped.warmup(x, y, 5, 16, grid=(1,))
    (tmp_path / f"other.{stage}").write_text(other.asm[stage].replace("swapped", "indexed"))
    compiled = indexed.warmup(x, y, 5, 16, ir_override=str(tmp_path / f"other.{stage}"), grid=(1,))
    found = compiledkernel.accesses(compiled)
    assert found == (compiledkernel.accesses(other) if stage == "ttir" else None)


def test_where_triton_may_take_stages_from_files_nothing_is_known(monkeypatch):
    compiled = indexed.warmup(torch.zeros(64), torch.zeros(64), 5, 16, grid=(1,))
    monkeypatch.setattr(triton.knobs.compilation, "override", True)
    assert compiledkernel.accesses(compiled) is None


@triton.jit
def packed(pair, desc, none_ptr, x_ptr, n, BLOCK: tl.constexpr):
    value = desc.load([0, 0])
    tl.store(pair[0], tl.load(x_ptr))
    desc.store([0, 0], value)
    if none_ptr is not None:
        tl.store(none_ptr, 1.0)


def test_tuples_and_descriptors_count_as_their_argument():
    x = torch.zeros(64, 64)
    descriptor = TensorDescriptor.from_tensor(x, [16, 16])
    found = compiledkernel.accesses(packed.warmup((x, (x, 3)), descriptor, None, x, 1, BLOCK=32, grid=(1,)))
    assert (found.read, found.written) == ({"desc", "x_ptr"}, {"pair", "desc"})


OWN = {
    rmsnorm.rmsnorm_kernel: {"x_ptr", "residual_ptr"},
    softmax.softmax_kernel: {"out_ptr"},
    matmul.matmul_kernel: {"c_ptr"},
    splitk_matmul.splitk_matmul_kernel: {"c_ptr"},
    layernorm_bwd.layernorm_bwd_kernel: {"dx_ptr", "dw_partial_ptr", "db_partial_ptr", "lock_ptr"},
    layernorm_bwd.layernorm_bwd_reduce_kernel: {"dw_ptr", "db_ptr"},
}


@pytest.mark.parametrize("kernel", OWN, ids=lambda kernel: kernel.tuner.tunable.name.rpartition(".")[2])
def test_our_own_kernels(kernel):
    """The last config of each, of the largest blocks, compiles, and the kernel writes what it should."""
    case = next(iter(kernel.cases[0](torch.device("cpu"))))
    call = kernel.tuner.call(case["args"], case.get("kwargs", {}), case["grid"])
    compiled = kernel.tuner.tunable.compile(call, kernel.configs[-1])
    found = compiledkernel.accesses(compiled)
    assert found is not None and compiled.asm["cubin"]
    names = {name for name in kernel.arg_names if name in found.written}
    assert names == OWN[kernel]


def test_equal_binaries_and_others():
    x = torch.zeros(64)

    def identity(**options):
        return compiledkernel.binary_identity(carried.warmup(x, x, 64, grid=(1,), **options))

    assert identity(BLOCK=32, num_warps=4) != identity(BLOCK=32, num_warps=8) != identity(BLOCK=16, num_warps=4)
    straight = [optional.warmup(x, x, 5, BLOCK=32, grid=(1,), num_stages=stages) for stages in (1, 2)]
    assert straight[0] is not straight[1]
    assert compiledkernel.binary_identity(straight[0]) == compiledkernel.binary_identity(straight[1])
    assert compiledkernel.binary_identity(None) is None
