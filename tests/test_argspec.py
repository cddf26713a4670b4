"""Tests of `argspec`: what is made from a description has the layout, and the data as far as it decides anything."""

import collections
import json
import types

import numpy as np
import pytest
import torch

from autotuned import argspec, walk
from autotuned.errors import EncodingError, RecordError


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
    found = walk.tensors(made["x"])
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
    with pytest.raises(EncodingError, match="argument 'x': expected values within values up to an end, got a list"):
        argspec.describe({"x": items})
