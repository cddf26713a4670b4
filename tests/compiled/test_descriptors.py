"""Tensor descriptors and tuples on the C launcher: each launch is Triton's own, parameter by parameter and byte by byte."""

from __future__ import annotations

import collections
import copy as copier
import enum
import shutil

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from triton import Config
from triton.backends.compiler import GPUTarget
from triton.tools.tensor_descriptor import TensorDescriptor
from tritons_packer import seen

from autotuned import autotune

_launch = pytest.importorskip("autotuned._launch")
pytestmark = [
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
    pytest.mark.usefixtures("no_machine_code"),
]
often = settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
CONFIG = Config({"BLOCK": 32}, num_warps=2)
MEMORY = {dtype: torch.zeros(1 << 14, dtype=dtype) for dtype in (torch.float16, torch.float32, torch.int8)}


@triton.jit
def copy(source, target, n, BLOCK: tl.constexpr):
    target.store([0], source.load([0]))


@triton.jit
def copy_rows(source, target, n, BLOCK: tl.constexpr):
    target.store([0, n], source.load([n, 0]))


@triton.jit
def copy_within(pair, n, BLOCK: tl.constexpr):
    pair[0].store([0], pair[1][0].load([0]))


@triton.jit
def sum_all(out, values, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, values[0] + values[1][0] + n)


@triton.jit
def act(out, values, MODE: tl.constexpr, BLOCK: tl.constexpr):
    tl.store(out + tl.arange(0, BLOCK), values[0])


ROUNDS = hasattr(TensorDescriptor, "round_f32_to_tf32")  # from Triton 3.7 on
Pair = collections.namedtuple("Pair", "a b")


class Act(enum.Enum):
    RELU = 1
    GELU = 2


class Level(enum.IntEnum):
    LOW, HIGH = 3, 48


def one_row(dtype, offset, length, block, padding, rounds):
    base = MEMORY[dtype][offset:]
    padding = padding if dtype.is_floating_point else "zero"
    more = [rounds and dtype is torch.float32] if ROUNDS else []
    return TensorDescriptor(base, [length], [1], [block], padding, *more)


def rows(dtype, sizes, block, kind):
    base = MEMORY[dtype]
    return TensorDescriptor(base, kind(sizes), kind((sizes[1], 1)), kind(block))


ROW = st.builds(
    one_row, st.sampled_from([*MEMORY]), st.sampled_from([0, 16, 64]), st.integers(1, 4000), st.sampled_from([16, 32, 64]),
    st.sampled_from(["zero", "nan"]), st.booleans(),
)  # fmt: skip
ROWS = st.builds(
    rows, st.sampled_from([torch.float16, torch.float32]),
    st.sampled_from([(16, 32), (64, 64), (3, 128), (1, 4096), (1 << 20, 16), (70000, 70000)]),
    st.sampled_from([(16, 32), (16, 16)]), st.sampled_from([list, tuple, torch.Size]),
)  # fmt: skip


def ways(kernel, monkeypatch, **options):
    """Triton itself, and the kernel tuned for each launcher; anew, since Triton keeps the architecture in it."""
    kernel = triton.jit(kernel.fn)
    config = Config(CONFIG.kwargs, num_warps=2, pre_hook=options.pop("pre_hook", None))
    found = {"triton": lambda grid, *args: kernel[grid](*args, **config.all_kwargs())}
    for launcher in ("c", "python"):
        monkeypatch.setenv("AUTOTUNED_LAUNCHER", launcher)
        tuned = autotune(
            [config], **{"key": [], "restore_value": [], **options}, name=f"desc.{kernel.__name__}.{launcher}"
        )(kernel)
        found[launcher] = lambda grid, *args, tuned=tuned: tuned[grid](*args)
        found[launcher].tuned = tuned
    return found


def check(device, found, *args):
    """Each launcher does what Triton does; the number of launches that Python has not seen."""
    wanted = seen(device, lambda: found["triton"]((2,), *args))
    for name in ("c", "python"):
        got = seen(device, lambda name=name: found[name]((2,), *args))
        assert got == wanted, (name, args)
    return wanted


def by_c(found):
    """Whether the C table itself answers, and launches."""
    return found["c"].tuned.tuner.launcher.in_c


@often
@given(calls=st.lists(st.tuples(ROW, ROW, st.sampled_from([1, 5, 16])), min_size=1, max_size=3))
def test_rows_are_passed_as_triton_passes_them(shared_device, monkeypatch, calls):
    found = ways(copy, monkeypatch)
    for source, target, n in calls + calls:
        target = TensorDescriptor(source.base, target.shape, [1], source.block_shape)
        compiled, error, _ = check(shared_device, found, source, target, n)
        assert error is None
        passed = by_c(found).passed((source, target, n), (2,))
        assert passed is not None
        assert len(passed[-1][0]) == 128


@pytest.mark.parametrize("arch", [80, 90])
@often
@given(calls=st.lists(st.tuples(ROWS, st.integers(0, 3)), min_size=1, max_size=3))
def test_matrices_are_passed_as_triton_passes_them(arch, shared_device, driver, monkeypatch, calls):
    """Also where the architecture has no maps, and a descriptor is taken apart."""
    driver.get_current_target = lambda: GPUTarget("cuda", arch, 32)
    found = ways(copy_rows, monkeypatch)
    for source, n in calls + calls:
        target = TensorDescriptor(source.base, [*source.shape], [*source.strides], [*source.block_shape][::-1])
        if source.block_shape[0] != source.block_shape[1]:
            target = source
        compiled, error, _ = check(shared_device, found, source, target, n)
        assert error is None
        passed = by_c(found).passed((source, target, n), (2,))
        assert passed is not None
        assert len(passed[-1][0]) == (128 if arch == 90 else 8)


@pytest.mark.skipif(triton.__version__ < "3.8", reason="this Triton takes no descriptors in tuples")
@often
@given(calls=st.lists(st.tuples(ROW, ROW), min_size=1, max_size=3), named=st.booleans())
def test_descriptors_in_tuples(shared_device, monkeypatch, calls, named):
    found = ways(copy_within, monkeypatch)
    for source, target in calls + calls:
        target = TensorDescriptor(source.base, target.shape, [1], source.block_shape)
        pair = (Pair if named else lambda *items: items)(target, (source,))
        assert check(shared_device, found, pair, 5)[1] is None
        assert by_c(found).passed((pair, 5), (2,)) is not None


@pytest.mark.parametrize("start", [[1], [32], [16]])
def test_a_hook_sets_the_block(start, shared_device, monkeypatch):
    def hook(arguments):
        for name in ("source", "target"):
            arguments[name].block_shape = [arguments["BLOCK"]]

    made = lambda: [TensorDescriptor.from_tensor(MEMORY[torch.float16], start) for _ in "ab"]
    found = ways(copy, monkeypatch, pre_hook=hook)
    wanted = seen(
        shared_device,
        lambda: found["triton"]((2,), *[TensorDescriptor.from_tensor(MEMORY[torch.float16], [32])] * 2, 5),
    )
    kept = made()
    for args in (made(), made(), kept, kept, made()):
        for name in ("c", "python"):
            assert seen(shared_device, lambda name=name, args=args: found[name]((2,), *args, 5)) == wanted
    assert found["c"].tuned.cache_info().misses == 1


def test_what_a_hook_or_grid_does_to_a_descriptor_is_launched(shared_device, monkeypatch):
    """Another tensor, another size, another block: each is read after them."""
    changes = []

    def hook(arguments):
        for change in changes:
            change(arguments["source"])

    found = ways(copy, monkeypatch, pre_hook=hook)
    other = torch.zeros(4096, dtype=torch.float16)
    half = MEMORY[torch.float16]
    cases = [
        [], [lambda d: setattr(d, "base", other)], [lambda d: setattr(d, "shape", [100])],
        [lambda d: setattr(d, "padding", "nan")], [],
    ]  # fmt: skip
    for case in [*cases, *cases]:
        wanted = TensorDescriptor.from_tensor(half, [32])
        for change in case:
            change(wanted)
        target = TensorDescriptor.from_tensor(half, [32])
        changes[:] = []
        expected = seen(shared_device, lambda: found["triton"]((2,), wanted, target, 5))
        changes[:] = case
        for name in ("c", "python"):
            source = TensorDescriptor.from_tensor(half, [32])
            assert seen(shared_device, lambda name=name: found[name]((2,), source, target, 5)) == expected


BAD = {
    "stride": lambda d: setattr(d, "strides", [2]),
    "unaligned": lambda d: setattr(d, "base", d.base[1:]),
    "long": lambda d: setattr(d, "shape", [1 << 40]),
    "text": lambda d: setattr(d, "shape", ["a"]),
    "empty": lambda d: setattr(d, "shape", [0]),
    "float": lambda d: setattr(d, "strides", [1.0]),
    "rank": lambda d: setattr(d, "shape", [4, 4]),
    "none": lambda d: setattr(d, "base", None),
    "gone": lambda d: delattr(d, "padding"),
    "dtype": lambda d: setattr(d, "base", MEMORY[torch.float32]),
    "bool": lambda d: setattr(d, "shape", [True]),
    "other": lambda d: setattr(d, "more", 1),
}


@pytest.mark.parametrize("change", BAD.values(), ids=BAD)
def test_what_triton_refuses_or_converts_goes_to_triton(change, shared_device, monkeypatch):
    found = ways(copy, monkeypatch)
    made = lambda: TensorDescriptor.from_tensor(MEMORY[torch.float16], [32])
    for _ in range(2):
        check(shared_device, found, made(), made(), 5)
        source = made()
        change(source)
        wanted = seen(shared_device, lambda: found["triton"]((2,), source, made(), 5))
        for name in ("c", "python"):
            got = seen(shared_device, lambda name=name: found[name]((2,), source, made(), 5))
            assert got[0] is wanted[0]
            assert (got[1] is None, got[2]) == (wanted[1] is None, wanted[2])


def test_a_property_of_the_class_is_seen(shared_device, monkeypatch):
    found = ways(copy, monkeypatch)
    made = [TensorDescriptor.from_tensor(MEMORY[torch.float16], [32]) for _ in "ab"]
    check(shared_device, found, *made, 5)
    other = torch.zeros(64, dtype=torch.float16)
    monkeypatch.setattr(TensorDescriptor, "base", property(lambda self: other, lambda self, value: None), raising=False)
    check(shared_device, found, *made, 5)


SMALL = st.sampled_from([0, 1, 2, 16, -1, 1 << 31, 1 << 40, True, 2.5, -0.0, 1.0])
TENSOR = st.sampled_from([torch.zeros(64), torch.zeros(65)[1:], torch.zeros(64, dtype=torch.int32)])


@often
@given(calls=st.lists(st.tuples(TENSOR, SMALL, SMALL, SMALL, st.booleans()), min_size=1, max_size=4))
def test_tuples_are_passed_as_triton_passes_them(shared_device, monkeypatch, calls):
    found = ways(sum_all, monkeypatch)
    for out, first, second, n, named in calls + calls:
        values = (Pair if named else lambda *items: items)(first, (second,))
        check(shared_device, found, out, values, n)


@often
@given(data=st.data())
def test_tuples_with_tensors_keys_and_enums(shared_device, monkeypatch, data):
    found = ways(act, monkeypatch, key=data.draw(st.sampled_from([[], ["values"], None])))
    for _ in range(4):
        item = data.draw(st.one_of(SMALL, st.sampled_from([*Level])))
        rest = data.draw(st.lists(st.one_of(TENSOR, SMALL, st.sampled_from([None, *Level])), max_size=3))
        mode = data.draw(st.sampled_from([*Act, *Level, (1, "x"), (1, ("x", Act.RELU)), "x", None, 2.5]))
        for _ in range(2):
            check(shared_device, found, MEMORY[torch.float32], (item, *rest), mode)


def test_a_tuple_is_answered_by_c(shared_device, monkeypatch):
    found = ways(sum_all, monkeypatch)
    for _ in range(3):
        assert check(shared_device, found, torch.zeros(64), Pair(3, (2.5,)), 5)[1] is None
    table = by_c(found)
    assert len(table) == 1
    assert table.hits > 2
    assert found["c"].tuned.tuner.launcher._rest is None


def test_a_hook_moves_a_tensor_in_a_tuple(shared_device, monkeypatch):
    @triton.jit
    def fill(n, values, BLOCK: tl.constexpr):
        tl.store(values[1] + tl.arange(0, BLOCK), n)

    hook = lambda arguments: arguments["values"][1].resize_(arguments["values"][1].numel() * 2)
    found = ways(fill, monkeypatch, pre_hook=hook)
    for _ in range(3):
        for name in ("c", "python"):
            moved = torch.zeros(1 << 10)
            _, error, calls = seen(shared_device, lambda name=name, moved=moved: found[name]((2,), 5, (1, moved)))
            assert error is None
            assert calls[0].raw[1] == moved.data_ptr().to_bytes(8, "little")


def test_what_is_zeroed_may_lie_in_a_tuple_too(shared_device, monkeypatch):
    @triton.jit
    def fill(out, values, BLOCK: tl.constexpr):
        tl.store(out + tl.arange(0, BLOCK), tl.load(values[0]))

    found = ways(fill, monkeypatch, reset_to_zero=["out"])
    out = torch.zeros(64)
    for name in ("c", "python"):
        found[name]((2,), out, (torch.zeros(4), 3))
        found[name]((2,), out, (torch.zeros(4), 3))
        with pytest.raises(ValueError, match="out"):
            found[name]((2,), out, (out[3:], 3))


def test_a_copy_or_a_new_attribute_of_the_class_leaves_c_in_place(shared_device, monkeypatch):
    """`copy` and `pickle` write into the class of what they copy; a property that hides a field sends C away."""
    found = ways(copy, monkeypatch)
    source, target = (TensorDescriptor(MEMORY[torch.float32], [256], [1], [32]) for _ in "ab")
    for _ in range(2):
        check(shared_device, found, source, target, 5)
    monkeypatch.setattr(TensorDescriptor, "__slotnames__", [], raising=False)
    copier.copy(source)
    monkeypatch.setattr(TensorDescriptor, "of_a_user", 1, raising=False)
    assert by_c(found).passed((source, target, 5), (2,)) is not None
    check(shared_device, found, source, target, 5)
    with monkeypatch.context() as patch:
        patch.setattr(TensorDescriptor, "shape", property(lambda self: [128]), raising=False)
        assert by_c(found).passed((source, target, 5), (2,)) is None
    assert by_c(found).passed((source, target, 5), (2,)) is not None
