"""Tests of `argspec`: what is made from a description has the layout, and the data as far as it decides anything."""

import base64
import collections
import copy
import json
import random
import types
import zlib

import numpy as np
import pytest
import torch
import triton.language as tl
from hostile import changed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from stored import says
from triton.tools.tensor_descriptor import TensorDescriptor

from autotuned.errors import EncodingError, RecordError
from autotuned.key import memory
from autotuned.recording import arguments as argspec
from autotuned.search.compiling import parallelism


def again(**arguments):
    """Described, written as JSON, read, and made anew."""
    return argspec.build(json.loads(json.dumps(argspec.describe(arguments), allow_nan=False)), "cpu")


def layout(tensor):
    return tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()), tensor.data_ptr() % 16


BIG = torch.arange(1 << 16, dtype=torch.float32)


@pytest.mark.parametrize(
    "tensor",
    [
        pytest.param(torch.zeros(4, 5), id="contiguous"),
        pytest.param(torch.zeros(4, 5).t(), id="transposed"),
        pytest.param(torch.zeros(8, 8)[::2, 1::3], id="strided"),
        pytest.param(BIG[1:1000], id="offset by 4 bytes"),
        pytest.param(BIG[3:1000:7], id="offset and strided"),
        pytest.param(torch.zeros(1, 5).expand(4, 5), id="expanded"),
        pytest.param(torch.zeros(9).as_strided((3, 5), (2, 1)), id="overlapping itself"),
        pytest.param(torch.zeros(0, 4), id="empty"),
        pytest.param(torch.zeros(()), id="no dimension"),
        *(pytest.param(torch.zeros(64, dtype=dtype), id=str(dtype)) for dtype in (
            torch.float16, torch.bfloat16, torch.float64, torch.float8_e4m3fn, torch.complex64, torch.bool, torch.int8,
            torch.uint8, torch.int16, torch.int32, torch.int64)),
        pytest.param(torch.zeros(5, requires_grad=True), id="requiring grad"),
    ],
)  # fmt: skip
def test_layout_and_dtype_are_the_same(tensor):
    made = again(x=tensor)["x"]
    assert layout(made) == layout(tensor)
    assert not made.requires_grad


def test_random_data_is_neither_zero_nor_different_from_time_to_time():
    spec = argspec.describe({"x": torch.zeros(1000), "y": torch.zeros(1000, dtype=torch.float8_e5m2)})
    one, other, third = (
        argspec.build(spec, "cpu"),
        argspec.build(spec, "cpu"),
        argspec.build(spec, "cpu", random_seed=1),
    )
    assert torch.equal(one["x"], other["x"])
    assert not torch.equal(one["x"], third["x"])
    assert 0.9 < one["x"].std() < 1.1
    assert one["y"].float().std() > 0.5


@pytest.mark.parametrize(
    "tensor",
    [
        pytest.param(torch.tensor([0, 7, 7, 100]), id="offsets"),
        pytest.param(torch.arange(12).reshape(3, 4).t(), id="transposed"),
        pytest.param(torch.arange(40)[1::3], id="strided"),
        pytest.param(torch.tensor([[5]]).expand(3, 4), id="expanded"),
        pytest.param(torch.tensor([True, False, True]), id="booleans"),
        pytest.param(torch.arange(-5, 5, dtype=torch.int8), id="int8"),
        pytest.param(torch.arange(8 << 10), id="as much as is kept"),
    ],
)
def test_small_integer_tensors_come_by_value(tensor):
    assert torch.equal(again(x=tensor)["x"], tensor)


def test_large_integer_tensors_come_by_their_range():
    torch.manual_seed(0)
    shuffled, ascending = torch.randint(3, 1000, (1 << 16,)), torch.arange(1 << 16) // 8
    spec = argspec.describe({"shuffled": shuffled, "ascending": ascending})
    assert len(json.dumps(spec)) < 1000
    made = argspec.build(spec, "cpu")
    assert 3 <= made["shuffled"].min() < 10
    assert 990 < made["shuffled"].max() < 1000
    assert (made["ascending"].diff() >= 0).all()
    assert made["ascending"].max() <= ascending.max()


LARGE = (np.arange(1 << 16) * 7919 % 251).astype("i8")


@pytest.mark.parametrize("piece", [1 << 22, 1000, 1])
@pytest.mark.parametrize("dtype", [
    torch.bool, torch.int8, torch.uint8, torch.int16, torch.uint16, torch.int32, torch.uint32, torch.int64, torch.uint64
], ids=str)  # fmt: skip
def test_large_integers_are_summarised_where_they_are(dtype, piece, monkeypatch):
    monkeypatch.setattr(argspec, "_array", None)  # what copies to the host
    monkeypatch.setattr(argspec, "PIECE", piece)
    monkeypatch.setattr(argspec, "BY_VALUE_BYTES", 64)
    values = torch.from_numpy(LARGE[:200] % 2 if dtype is torch.bool else LARGE[:200] % 100).to(dtype)
    wide = values.to(torch.int64)
    for view, same in (
        (values.view(4, 50).t(), wide.view(4, 50).t()),
        (values[None, ::2], wide[None, ::2]),
        (values.to(torch.int64).sort().values.to(dtype), wide.sort().values),
        (values[:1].expand(200), wide[:1].expand(200)),
    ):
        data = argspec.describe({"x": view})["values"]["x"]["tensor"]["data"]
        flat = same.reshape(-1)
        assert data == {"range": [int(flat.min()), int(flat.max())], "ascending": bool((flat.diff() >= 0).all())}
        assert argspec.describe({"x": view.numpy()})["values"]["x"]["tensor"]["data"] == data


@pytest.mark.parametrize("library", ["torch", "numpy"])
@pytest.mark.parametrize(
    ("name", "low", "high"),
    [("int64", -(1 << 63), (1 << 63) - 1), ("uint64", (1 << 64) - 9, (1 << 64) - 2), ("uint64", 5, (1 << 64) - 1),
     ("uint16", 3, 65535), ("int8", -128, 127), ("bool", 0, 1)],
)  # fmt: skip
def test_ranges_up_to_the_ends_of_a_dtype_are_drawn_within_them(name, low, high, library):
    array = np.array([low, high], name).repeat(1 << 16)
    made = again(x=torch.from_numpy(array) if library == "torch" else array)["x"]
    made = made.numpy() if library == "torch" else made
    assert made.dtype == array.dtype
    assert low <= int(made.min()) <= int(made.max()) <= high
    assert (made[1:] >= made[:-1]).all()  # ascending, as it was


def test_a_large_mask_is_drawn():
    mask = torch.ones(1 << 17, dtype=torch.bool)
    assert again(mask=mask)["mask"].dtype is torch.bool


def test_tensors_of_one_memory_are_so_again():
    x = torch.zeros(100)
    made = again(x=x, same=x, part=x[10:20], apart=torch.zeros(100))
    assert made["same"].data_ptr() == made["x"].data_ptr()
    assert made["part"].data_ptr() == made["x"].data_ptr() + 40
    assert made["apart"].untyped_storage().data_ptr() != made["x"].untyped_storage().data_ptr()


@pytest.mark.parametrize("part", [slice(0, 0), slice(70, 70), slice(100, 100)], ids=str)
def test_a_tensor_without_elements_needs_no_memory_whatever_it_is_a_part_of(part):
    """Torch says that it is at address 0."""
    x = torch.zeros(100)
    described = argspec.describe({"x": x, "none": x[part], "again": x[:0].view(torch.int32)})
    assert [memory["bytes"] for memory in described["memories"]] == [400, 0, 0]
    made = argspec.build(described, "cpu")
    assert layout(made["none"]) == layout(x[part]) and layout(made["x"]) == layout(x)


@pytest.mark.skipif(not hasattr(torch, "float4_e2m1fn_x2"), reason="of a later torch")
def test_a_dtype_that_torch_cannot_convert_to_is_drawn():
    given = torch.zeros(64, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    made = again(x=given)["x"]
    assert layout(made) == layout(given) and len(set(made.view(torch.uint8).tolist())) > 10


def test_of_a_large_memory_only_what_is_used_is_made():
    pool = torch.zeros(1 << 20)
    [memory] = argspec.describe({"x": pool[1000:1100]})["memories"]
    assert memory == {"library": "torch", "device": "cpu", "bytes": 400, "align": pool[1000:].data_ptr() % 16}


def test_plain_values_and_tuples_come_back_as_they_are():
    given = {
        "n": 5, "big": 1 << 40, "flag": True, "nothing": None, "eps": 1e-6, "minus_zero_is_zero": 0.5, "text": "relu",
        "pair": (1, 2.5, (None, "x")), "dtype": torch.float16, "raw": b"ab", "z": 1 + 2j,
    }  # fmt: skip
    assert again(**given) == given
    made = again(nested=(torch.zeros(3), 1))
    assert made["nested"][0].shape == (3,)
    assert float("inf") == again(x=float("inf"))["x"]


@pytest.mark.parametrize(
    "array",
    [np.zeros((3, 4), np.float32), np.arange(10)[::2], np.zeros((4, 4)).T, np.zeros((2, 0))],
    ids=lambda a: a.shape,
)
def test_numpy_arrays(array):
    made = again(x=array)["x"]
    assert (made.dtype, made.shape) == (array.dtype, array.shape)
    assert array.size == 0 or made.strides == array.strides
    if array.dtype.kind == "i":
        assert (made == array).all()


@pytest.mark.parametrize(
    "value",
    [np.float32(2.5), np.int64(-3), np.bool_(True), np.float16("nan"), {"a": 1, 2: (1.5, None)}, torch.device("cpu")],
    ids=repr,
)
def test_scalars_of_numpy_dicts_and_devices_are_made_anew(value):
    """They were written, and no recorded call that has one could be tuned."""
    made = again(x=value)["x"]
    assert type(made) is type(value) and (made == value or made != made)


@pytest.mark.parametrize("value", [print, object(), np.zeros(4)[::-1]], ids=["function", "object", "negative stride"])
def test_what_has_no_form_is_refused(value):
    with pytest.raises(EncodingError):
        argspec.describe({"x": value})


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"memories": [], "values": {"x": {"tensor": {"memory": 0}}}},
        {"memories": [], "values": {"x": {"pickle": "..."}}},
        {"memories": [], "values": {"x": {"float": "no number"}}},
        {"memories": [{"bytes": 4}], "values": {}},
    ],
    ids=["nothing", "no memory", "unknown kind", "no float", "half a memory"],
)
def test_what_was_never_described_is_refused(spec):
    with pytest.raises(RecordError):
        argspec.build(spec, "cpu")


Pair = collections.namedtuple("Pair", "first t")


@pytest.mark.parametrize(
    "wrap",
    [
        lambda t: [t],
        lambda t: {"t": t},
        lambda t: {1: [t, 2]},
        lambda t: Pair(1, t),
        lambda t: ([t], {"p": Pair(t, t)}),
    ],
    ids=["list", "dict", "list in dict", "named tuple", "all"],
)
def test_tensors_in_containers_are_written_and_made_anew(wrap):
    t = np.arange(6, dtype=np.int32)
    made = again(x=wrap(t), t=t)
    found = memory.tensors(made["x"])
    assert str(made["x"]) == str(wrap(t))
    assert found
    for tensor in found:
        assert tensor.tolist() == t.tolist()
        assert np.shares_memory(tensor, made["t"])


@pytest.mark.parametrize(
    "value",
    [
        np.empty(2, object), np.array(["a"]), np.array(["2020-01-01"], "datetime64[D]"), np.zeros(2, [("a", "f4")]),
        collections.deque([np.zeros(2)]), types.SimpleNamespace(t=np.zeros(2)), collections.OrderedDict(t=np.zeros(2)),
        type("Derived", (tuple,), {})([1]), [np.empty(2, object)], {"x": collections.UserList([np.zeros(2)])},
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_made_anew_is_said(value):
    with pytest.raises(EncodingError, match=r"expected .*, got "):
        argspec.describe({"x": value})


def test_what_holds_itself_is_said():
    items = []
    items.append({"items": items})
    with pytest.raises(EncodingError, match="argument 'x': expected nested values of limited depth, got a list"):
        argspec.describe({"x": items})


# -- what somebody else wrote ----------------------------------------------------------------------------------------


MATRIX = torch.zeros(4, 8)
MANY = {
    "x": MATRIX,
    "y": MATRIX[1:, ::2],
    "i": torch.arange(6, dtype=torch.int16).reshape(2, 3),
    "m": torch.ones(3, dtype=torch.bool),
    "h": torch.zeros(4, dtype=torch.bfloat16),
    "d": TensorDescriptor(torch.zeros(16, 16), [16, 16], [16, 1], [4, 4]),
    "a": np.arange(12, dtype=np.int32).reshape(3, 4)[:, ::2],
    "f": np.zeros((2, 5), np.float64),
    "t": (torch.zeros(2), 1.5, "text"),
    "s": np.float32(2.5),
    "e": torch.float16,
    "w": torch.device("cpu"),
}


def described(**arguments):
    return json.loads(json.dumps(argspec.describe(arguments), allow_nan=False))


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(st.integers(0, 2**32).map(random.Random))
def test_a_description_that_was_changed_is_built_within_its_memory_or_refused(chance):
    spec = changed(described(**MANY), chance)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parallelism, "memory_bytes", lambda: 1 << 20)
        try:
            made = argspec.build(spec, "cpu")
        except RecordError:
            return
    for name, value in made.items():
        if torch.is_tensor(value) and value.numel():
            first, room = value.data_ptr(), value.untyped_storage()
            assert first >= room.data_ptr()
            last = sum((size - 1) * stride for size, stride in zip(value.shape, value.stride()))
            assert first + (last + 1) * value.itemsize <= room.data_ptr() + room.nbytes(), name
        if isinstance(value, np.ndarray) and value.size <= 1 << 20:
            value.sum()  # reads all of it


def tensor_of(spec, name):
    return spec["values"][name]["tensor"]


def bomb(size):
    return base64.b64encode(zlib.compress(bytes(size))).decode()


def put(name, field, value):
    return lambda spec: tensor_of(spec, name).update({field: value})


def put_memory(name, field, value):
    return lambda spec: spec["memories"][tensor_of(spec, name)["memory"]].update({field: value})


def nest(spec):
    value = 1
    for _ in range(100_000):
        value = {"tuple": [value]}
    spec["values"]["x"] = value


BEYOND = {
    "negative strides": (put("a", "strides", [4, -2]), "strides[1]: expected a number of 0 or more, got int -2"),
    "negative strides of torch": (put("x", "strides", [8, -1]), "strides[1]: expected a number of 0 or more"),
    "a shape beyond its memory": (put("a", "shape", [300, 400]), "expected elements within its memory of 44 bytes"),
    "a shape beyond all memory": (put("x", "shape", [1 << 40, 1 << 40]), "of less than 2**63 elements"),
    "a negative size": (put("x", "shape", [-4, 8]), "shape[0]: expected a number of 0 or more"),
    "a size of a hundred bits": (put("f", "shape", [10**30, 5]), "shape[0]: expected a number of 0 or more"),
    "an offset beyond": (put("f", "offset", 72), "expected elements within its memory"),
    "a negative offset": (put("f", "offset", -8), "offset: expected a number of 0 or more"),
    "a part of its memory": (put("h", "shape", [1]), None),
    "half an element": (put("h", "offset", 1), "expected elements within its memory"),
    "more strides than sizes": (put("x", "strides", [8, 1, 1]), "as many sizes as strides"),
    "another memory": (put("x", "memory", -1), "memory: expected a number of 0 to"),
    "a memory that is not there": (put("x", "memory", 99), "memory: expected a number of 0 to"),
    "a memory without end": (put_memory("x", "bytes", 1 << 50), "bytes of host memory, got int 11258999"),
    "a negative memory": (put_memory("f", "bytes", -1), "bytes: expected a number of 0 or more"),
    "an unknown device": (put_memory("x", "device", "gpu"), "a kind of device, such as cpu or cuda, got str 'gpu'"),
    "a device without memory": (put_memory("x", "device", "meta"), "a kind of device"),
    "an unknown library": (put_memory("x", "library", "os"), "expected torch or numpy, got str 'os'"),
    "an alignment of 17": (put_memory("x", "align", 17), "align: expected a number of 0 to 15"),
    "a quantized dtype": (put("x", "dtype", "torch.quint8"), "a dtype of torch such as torch.float32"),
    "an attribute of torch": (put("x", "dtype", "torch.load"), "a dtype of torch such as torch.float32"),
    "a module of torch": (put("x", "dtype", "torch.cuda.empty_cache"), "a dtype of torch"),
    "objects": (put("f", "dtype", "O"), "expected a dtype of numbers"),
    "a dtype of a gigabyte": (put("f", "dtype", "V1000000000"), "expected a dtype of numbers"),
    "fields": (put("f", "dtype", "f4,O"), "expected a dtype of numbers"),
    "a range upside down": (put("i", "data", {"range": [5, 1], "ascending": True}), "the smallest and the largest"),
    "a range beyond": (put("i", "data", {"range": [0, 1 << 15], "ascending": True}), "-32768 to 32767"),
    "a range of text": (put("a", "data", {"range": "09", "ascending": True}), "range: expected list"),
    "three ends": (put("a", "data", {"range": [1, 2, 3], "ascending": True}), "the smallest and the largest"),
    "data of another size": (put("i", "data", {"values": bomb(6)}), "expected 12 bytes, got int 6"),
    "megabytes in a few thousand bytes": (put("i", "data", {"values": bomb(1 << 22)}), "at most 12 bytes, got more"),
    "no base64": (put("i", "data", {"values": "\x00"}), "expected 12 bytes, compressed, in base64"),
    "random indices": (put("i", "data", None), "values or a range of integers"),
    "values of floats": (put("x", "data", {"values": bomb(128)}), "and of other data nothing"),
    "deep nesting": (nest, "RecursionError"),
    "a function for a dtype": (lambda spec: spec["values"].update(e={"dtype": "torch.load"}), "a dtype of torch"),
    "a device that is none": (lambda spec: spec["values"].update(w={"device": "nowhere"}), "RuntimeError"),
    "a float beyond": (lambda spec: spec["values"].update(s={"float": "0x1p+99999"}), "OverflowError"),
    "a scalar beyond its dtype": (lambda spec: spec["values"].update(s={"numpy": ["float16", {"float": "0x1p+99"}]}), "FloatingPointError"),
    "a scalar of a gigabyte": (lambda spec: spec["values"].update(s={"numpy": ["V1000000000", 1]}), "a dtype of numbers"),
}  # fmt: skip


@pytest.mark.parametrize("name", BEYOND)
def test_what_reaches_beyond_its_memory_or_means_nothing_is_refused(name):
    change, expected = BEYOND[name]
    spec = copy.deepcopy(described(**MANY))
    change(spec)
    if expected is None:
        argspec.build(spec, "cpu")
        return
    with pytest.raises(RecordError) as caught:
        argspec.build(spec, "cpu")
    says(caught, expected)


def test_a_dtype_of_triton_is_made_anew():
    assert again(x=tl.float32)["x"] == tl.float32


@pytest.mark.parametrize(
    "field, value",
    [("shape", [8, 10**12]), ("shape", [9, 8]), ("shape", [8, -8]), ("shape", [8]), ("strides", [80, 1]),
     ("strides", [8, 10**30]), ("block_shape", [4]), ("block_shape", [4, None]), ("base", None), ("base", 1)],
)  # fmt: skip
def test_a_descriptor_reaches_nothing_beyond_its_memory(field, value):
    """A launch through one read, and wrote, wherever its shape said."""
    spec = argspec.describe({"d": TensorDescriptor(torch.zeros(8, 8), [8, 8], [8, 1], [4, 4])})
    spec["values"]["d"]["descriptor"][field] = value
    with pytest.raises(RecordError) as caught:
        argspec.build(spec, "cpu")
    says(caught, "values.d")


def test_a_descriptor_over_a_row_reaches_the_others():
    x = torch.arange(64, dtype=torch.float32).reshape(8, 8)
    made = again(d=TensorDescriptor(x[0], [8, 8], [8, 1], [4, 4]))["d"]
    assert (made.shape, made.strides, made.block_shape) == ([8, 8], [8, 1], [4, 4])
    assert made.base.shape == (8,) and made.base.untyped_storage().nbytes() >= x.nbytes
    with pytest.raises(EncodingError, match="within the memory of its tensor"):
        argspec.describe({"d": TensorDescriptor(x[1], [8, 8], [8, 1], [4, 4])})
