"""Snapshots in `search/safety/protection.py` on torch tensors: views, dtypes, and what autograd must not see."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fakes import FakeDescriptor

from autotuned.key.memory import aliases, elements
from autotuned.launch.bound import zero_named
from autotuned.search.safety import poison
from autotuned.search.safety import protection as snapshots
from autotuned.search.safety.protection import Protection, Snapshot


def matrix() -> torch.Tensor:
    return torch.arange(1, 25, dtype=torch.float32).reshape(4, 6)


# The buffer, and the view of it that a kernel gets.
VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "whole": lambda buffer: buffer,
    "strided": lambda buffer: buffer.view(-1)[::2],
    "every other row": lambda buffer: buffer[::2],
    "columns": lambda buffer: buffer[:, 1:3],
    "transposed": lambda buffer: buffer.t(),
    "storage offset": lambda buffer: buffer.view(-1)[3:],
    "row expanded": lambda buffer: buffer[1:2].expand(9, 6),
    "column expanded": lambda buffer: buffer[:, :1].expand(4, 9),
    "element expanded": lambda buffer: buffer[2, 3].expand(8, 8),
    "overlapping windows": lambda buffer: buffer.view(-1).as_strided((5, 4), (2, 1), 2),
    "overlapping in both": lambda buffer: buffer.view(-1).as_strided((3, 3), (1, 1)),
    "overlapping, with gaps": lambda buffer: buffer.view(-1).as_strided((3, 3), (4, 2), 1),
    "many times over, with gaps": lambda buffer: buffer.view(-1).as_strided((5, 5), (2, 2)),
    "overlapping inside, apart outside": lambda buffer: buffer.view(-1).as_strided((2, 2, 2), (10, 1, 1), 3),
    "steps that do not divide": lambda buffer: buffer.view(-1).as_strided((3, 4), (3, 2)),
    "interleaved": lambda buffer: buffer.view(-1).as_strided((2, 3), (3, 2)),
    "windows, expanded": lambda buffer: buffer.view(-1).as_strided((2, 5, 4), (0, 2, 1), 2),
    "channels last": lambda buffer: buffer.view(1, 4, 2, 3).permute(0, 2, 3, 1),
    "no dimensions": lambda buffer: buffer[1, 1],
    "zero-size": lambda buffer: buffer[:0],
    "zero-size, expanded": lambda buffer: buffer[:1, :0].expand(4, 0),
}


@pytest.mark.parametrize("view", VIEWS)
def test_restoring_puts_back_the_elements_of_a_view_and_touches_nothing_between_them(view: str) -> None:
    buffer = matrix()
    tensor = VIEWS[view](buffer)
    seen = tensor.data_ptr(), tensor.stride(), tensor.shape
    snapshot = Snapshot(["x"], tensor)
    assert not snapshot.changed()
    buffer += 100  # the elements, and what lies between them
    assert snapshot.changed() is (tensor.numel() > 0)
    snapshot.restore()
    assert not snapshot.changed()
    assert torch.equal(tensor, VIEWS[view](matrix()))
    assert (tensor.data_ptr(), tensor.stride(), tensor.shape) == seen
    members = torch.zeros_like(buffer)
    elements = VIEWS[view](members)
    for index in itertools.product(*map(range, elements.shape)):
        elements[index] = 1
    outside = members == 0
    assert torch.equal(buffer[outside], matrix()[outside] + 100)


DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool, torch.complex64,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_each_dtype_is_compared_and_restored_by_its_bits(dtype: torch.dtype) -> None:
    tensor = torch.ones(4, 6).to(dtype)[:, ::2]
    snapshot = Snapshot(["x"], tensor)
    assert not snapshot.changed()
    tensor[3, 2] = 0
    assert snapshot.changed()
    snapshot.restore()
    assert not snapshot.changed()
    assert torch.equal(tensor.to(torch.complex64), torch.ones(4, 3, dtype=torch.complex64))


@pytest.mark.parametrize("view", ["whole", "strided", "transposed", "row expanded", "overlapping windows"])
def test_any_byte_that_a_kernel_writes_into_bools_is_a_change_and_undone(view: str) -> None:
    buffer = torch.ones(4, 6, dtype=torch.uint8)
    snapshot = Snapshot(["x"], VIEWS[view](buffer.view(torch.bool)))
    VIEWS[view](buffer).fill_(36)
    assert snapshot.changed()
    snapshot.restore()
    assert torch.equal(buffer, torch.ones_like(buffer))


# Not those with a scale, of which no part is a view, nor one that torch can neither fill nor print.
NO_TENSORS = ("torch.quint", "torch.qint", "torch.bits16")
NAMED_DTYPES = {found for found in vars(torch).values() if isinstance(found, torch.dtype)}


@pytest.mark.parametrize(
    "dtype", sorted((found for found in NAMED_DTYPES if not str(found).startswith(NO_TENSORS)), key=str), ids=str
)
@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_every_dtype_that_torch_names_is_restored_and_poisoned(dtype: torch.dtype) -> None:
    """Torch copies and fills not all of them, such as those of four bits."""
    memory = torch.full((64,), 5, dtype=torch.uint8)
    tensor = memory.view(dtype)[::2]
    snapshot = Snapshot(["x"], tensor)
    memory.fill_(3)
    assert snapshot.changed()
    snapshot.restore()
    assert not snapshot.changed()
    untouched = (memory == 3).sum()
    assert (untouched, (memory == 5).sum()) == (32, 32)
    poison.fill([tensor])
    assert snapshot.changed()
    assert (memory == 3).sum() == 32


@pytest.mark.parametrize("view", ["conjugated", "negated"])
def test_a_view_that_torch_computes_when_it_is_read_is_its_memory(view: str) -> None:
    buffer = torch.tensor([1 + 2j, -0.0 + 0j, complex("nan-nanj"), 3 - 4j])
    tensor = buffer.conj() if view == "conjugated" else buffer.conj().imag
    assert tensor.is_conj() or tensor.is_neg()
    before = buffer.view(torch.int64).clone()
    snapshot = Snapshot(["x"], tensor)
    assert not snapshot.changed()
    buffer.fill_(9 + 9j)
    assert snapshot.changed()
    snapshot.restore()
    assert not snapshot.changed()
    if view == "conjugated":
        assert torch.equal(buffer.view(torch.int64), before)
    else:
        assert torch.equal(buffer.imag.view(torch.int32), before.view(torch.int32)[1::2])
        assert (buffer.real == 9).all()


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        pytest.param(0x7FC00000, 0x7FC00000, False, id="the same NaN"),
        pytest.param(0x7FC00000, 0x7FC00001, True, id="a NaN of another payload"),
        pytest.param(0x00000000, -0x80000000, True, id="minus zero"),
    ],
)
def test_a_change_is_a_change_of_bits(before: int, after: int, changed: bool) -> None:
    bits = torch.tensor([before], dtype=torch.int32)
    snapshot = Snapshot(["x"], bits.view(torch.float32))
    bits[0] = after
    assert snapshot.changed() is changed
    snapshot.restore()
    assert bits.tolist() == [before]


def trial(protection: Protection, *written: torch.Tensor) -> None:
    """A launch that writes memory, as a kernel does: without autograd's knowledge."""
    protection.prepare()
    for tensor in written:
        tensor.data.fill_(9)
    protection.learn()


def test_autograd_sees_no_write_to_what_it_saved() -> None:
    x = torch.ones(3, requires_grad=True)
    saved = x.exp()
    loss = (saved * saved).sum()  # saves `saved` for its backward
    version = saved._version
    for restore, zeroed in ((None, []), (["out"], []), ([], ["out"])):
        protection = Protection({"out": saved}, restore, zeroed)
        trial(protection, saved)
        protection.release()
        saved.data.copy_(x.data.exp())  # what zeroing without protection leaves behind
    assert saved._version == version
    loss.backward()
    assert torch.allclose(x.grad, 2 * x.detach().exp() ** 2)


@pytest.mark.parametrize("grad", [True, False], ids=["grad mode", "no_grad"])
def test_a_leaf_that_requires_grad_is_protected(grad: bool) -> None:
    weight = torch.ones(3, requires_grad=True)
    view = torch.ones(3, 3, requires_grad=True)[::2]
    with torch.set_grad_enabled(grad):
        protection = Protection({"weight": weight, "view": view}, None, [])
        trial(protection, weight, view)
        assert protection.written == ["weight", "view"]
        protection.release()
        assert (weight._version, weight.grad_fn, weight.requires_grad) == (0, None, True)
        assert torch.equal(weight, torch.ones(3))
        assert torch.equal(view, torch.ones(2, 3))
        zero_named({"weight": weight}, ["weight"], "app.k")
        assert torch.equal(weight, torch.zeros(3))
        assert (weight._version, weight.requires_grad) == (0, True)


@pytest.mark.parametrize("made_inside", [True, False], ids=["inference tensor", "ordinary tensor"])
@pytest.mark.parametrize("used_inside", [True, False], ids=["in inference mode", "outside"])
def test_inference_tensors_are_protected_in_and_out_of_inference_mode(made_inside: bool, used_inside: bool) -> None:
    with torch.inference_mode(made_inside):
        x, out = torch.ones(4, 4), torch.full((4,), 7.0)
    assert x.is_inference() is made_inside
    with torch.inference_mode(used_inside):
        protection = Protection({"x": x[:, ::2], "out": out}, None, ["out"])
        for _ in range(2):
            protection.prepare()
            assert out.tolist() == [0] * 4
            assert torch.equal(x[:, ::2], torch.ones(4, 2))
            with torch.inference_mode(made_inside):
                x.data.fill_(9)
            protection.learn()
        protection.release()
    assert torch.equal(x[:, ::2], torch.ones(4, 2))
    assert out.tolist() == [7] * 4


def test_tensors_in_tuples_and_descriptors_are_protected_and_none_is_skipped() -> None:
    first, second, third = (torch.ones(2) for _ in range(3))
    arguments = {"pair": (first, (None, second)), "desc": FakeDescriptor(third), "none": None, "n": 5}
    protection = Protection(arguments, ["pair", "desc", "none", "n", "absent"], [])
    trial(protection, first, second, third)
    protection.release()
    assert all(torch.equal(tensor, torch.ones(2)) for tensor in (first, second, third))
    assert Protection(arguments, ["none", "n"], []).written == []


@pytest.mark.parametrize(
    "other", [lambda x: x, lambda x: x[1:], lambda x: x.view(2, 4).t(), lambda x: x[2:3].expand(5)],
    ids=["same", "partial", "transposed", "expanded"],
)  # fmt: skip
@pytest.mark.parametrize("restore", [None, ["x", "out"]], ids=["watching", "declared"])
def test_arguments_that_share_memory_are_restored_together(other: Callable[[Any], Any], restore: Any) -> None:
    x = torch.arange(8)
    protection = Protection({"x": x, "out": other(x)}, restore, [])
    for _ in range(2):
        trial(protection, x)
    protection.release()
    assert torch.equal(x, torch.arange(8))


@pytest.mark.parametrize(
    ("make", "shared"),
    [
        pytest.param(lambda x: x, True, id="same"),
        pytest.param(lambda x: x[-1:], True, id="the last element"),
        pytest.param(lambda x: x.view(torch.int32)[1:2], True, id="another dtype"),
        pytest.param(lambda x: x[:0], False, id="empty"),
        pytest.param(lambda x: torch.ones(8), False, id="another tensor"),
    ],
)
def test_which_tensors_share_memory(make: Callable[[torch.Tensor], torch.Tensor], shared: bool) -> None:
    x = torch.ones(8)
    assert aliases({"out": make(x), "x": x}, ["out"]) == (("out", "x") if shared else None)


def test_halves_of_a_buffer_share_no_memory() -> None:
    buffer = torch.ones(8)
    assert aliases({"out": buffer[:4], "x": buffer[4:]}, ["out"]) is None


@pytest.mark.parametrize("view", VIEWS)
def test_where_the_device_is_full_the_copy_lies_in_host_memory(
    view: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Part by part, so that no second copy is made on the device; said once."""

    def full(self: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(torch.Tensor, "clone", full)
    monkeypatch.setattr(snapshots, "CHUNK_BYTES", 16)
    buffer = matrix()
    tensor = VIEWS[view](buffer)
    for _ in range(2):
        protection = Protection({"x": tensor}, None, [])
        protection.learn()
        assert protection.written == []
        buffer += 100
        protection.learn()
        assert protection.written == (["x"] if tensor.numel() else [])
        protection.release()
        assert torch.equal(tensor, VIEWS[view](matrix()))
        buffer.copy_(matrix())
    assert [record.getMessage()[:22] for record in caplog.records] == ["device memory is short"]


def test_a_comparison_takes_smaller_parts_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    equal, sizes = torch.equal, []

    def short(one: torch.Tensor, other: torch.Tensor) -> bool:
        sizes.append(one.numel())
        if one.numel() > snapshots.SMALLEST_CHUNK_BYTES:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return equal(one, other)

    x = torch.zeros(1 << 18)
    protection = Protection({"x": x}, None, [])
    x[-1] = 1
    monkeypatch.setattr(torch, "equal", short)
    protection.learn()
    assert protection.written == ["x"]
    assert max(sizes) == 1 << 20
    assert sizes[-1] <= snapshots.SMALLEST_CHUNK_BYTES


def test_where_there_is_no_room_to_compare_what_may_be_written_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(one: torch.Tensor, other: torch.Tensor) -> bool:
        raise RuntimeError("CUDA error: out of memory")

    x, y = torch.zeros(1 << 18), torch.zeros(8)
    protection = Protection({"x": x, "y": y}, None, [])
    x[-1] = 1
    monkeypatch.setattr(torch, "equal", full)
    protection.learn()
    assert protection.written == ["x", "y"]
    protection.release()
    assert not x.any()


@pytest.mark.parametrize("most", [1, 3, 16], ids="room for {} elements".format)
@pytest.mark.parametrize("view", VIEWS)
def test_copies_from_and_to_the_host_take_smaller_parts_where_memory_is_short(
    view: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part that is not dense takes room for itself on the device, while it is copied."""
    copy, parts = torch.Tensor.copy_, []

    def short(self: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        if max(self.numel(), source.numel()) > most:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        parts.append(self.numel())
        return copy(self, source, non_blocking)

    buffer = matrix()
    tensor = VIEWS[view](buffer)
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "copy_", short)
        saved = snapshots._to_host(elements(tensor))
        buffer += 100
        snapshots._across(elements(tensor), saved, snapshots.CHUNK_BYTES)
    assert torch.equal(tensor, VIEWS[view](matrix()))
    assert max(parts, default=0) <= most


def test_what_could_not_be_put_back_for_want_of_memory_is_put_back_at_the_next_try(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tensors = {name: torch.ones(4) for name in "xyz"}
    protection = Protection(tensors, list(tensors), [])
    for tensor in tensors.values():
        tensor.fill_(2)
    restore = Snapshot.restore
    full = [True]

    def refuse(self: Snapshot) -> None:
        if self.names == ["y"] and full:
            full.pop()
            raise torch.OutOfMemoryError("CUDA out of memory.")
        restore(self)

    monkeypatch.setattr(Snapshot, "restore", refuse)
    with pytest.raises(torch.OutOfMemoryError):
        protection.release()
    protection.release()
    assert [tensor.tolist() for tensor in tensors.values()] == [[1] * 4] * 3


def test_one_view_under_several_names_is_copied_once() -> None:
    x = torch.ones(100)
    protection = Protection({"x": x, "y": x.view(10, 10), "again": x, "pair": (x, x[1:])}, None, [])
    assert protection.nbytes[0] == 400 + 400 + 396
    x.fill_(2)
    protection.learn()
    assert protection.written == ["x", "again", "pair", "y"]
    protection.release()
    assert x.tolist() == [1] * 100


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_poison_is_no_value_that_a_kernel_leaves(dtype: torch.dtype) -> None:
    tensor = torch.zeros(4, 6).to(dtype)
    poison.fill([tensor[:, ::2]])
    poisoned = tensor.to(torch.complex64)[:, ::2]
    assert bool((poisoned != 0).all())
    assert bool(poisoned.isnan().all()) == (dtype.is_floating_point or dtype.is_complex)
    assert bool((tensor.to(torch.complex64)[:, 1::2] == 0).all())


def test_a_copy_can_be_moved_to_the_host() -> None:
    x = torch.ones(4)
    protection = Protection({"x": x}, ["x"], [])
    protection.move_to_host()
    x.fill_(2)
    protection.release()
    assert x.tolist() == [1] * 4


@pytest.mark.filterwarnings("ignore")  # torch says that quantized tensors will go
@pytest.mark.parametrize("name", ["qint8", "quint8", "qint32"])
def test_a_quantized_tensor_is_kept_by_its_integers(name):
    x = torch.quantize_per_tensor(torch.arange(4.0), 0.5, 0, getattr(torch, name))
    kept = Snapshot(["x"], x)
    assert not kept.changed()
    x.copy_(torch.zeros(4))
    assert kept.changed()
    kept.restore()
    assert x.dequantize().tolist() == [0.0, 1.0, 2.0, 3.0]
