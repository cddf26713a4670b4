import collections
import copy
import dataclasses
import enum
import json
import pickle
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from fakes import CONTEXT, DEVICE, FakeDescriptor, FakeTensor, TorchTensor, make_key
from hypothesis import given, settings
from hypothesis import strategies as st

from autotuned.errors import EncodingError
from autotuned.key.key import Key, KeySpec, call_part, is_tensor, pow2, stride_pattern, strides_of
from autotuned.key.nearest_key import Difference, differences
from autotuned.typed_json import canonical


class Act(enum.Enum):
    RELU = 1


def part(spec: KeySpec = KeySpec(), /, options: Mapping[str, Any] | None = None, **arguments: Any) -> dict[str, Any]:
    return call_part(spec, arguments, options or {}, "app.k")


def names(*names: str, **rest: Any) -> KeySpec:
    return KeySpec(names, **rest)


# -- strides ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "strides", "pattern"),
    [
        pytest.param((), (), "", id="scalar"),
        pytest.param((8,), (1,), "1", id="dense vector"),
        pytest.param((8,), (2,), "*", id="every other element"),
        pytest.param((8,), (0,), "0", id="broadcast vector"),
        pytest.param((8,), (-1,), "*", id="reversed vector"),
        pytest.param((4, 8), (8, 1), "*1", id="contiguous"),
        pytest.param((4, 8), (4096, 1), "*1", id="rows of a wider matrix"),
        pytest.param((4, 8), (1, 4), "1*", id="transposed"),
        pytest.param((4, 8), (0, 1), "01", id="expanded rows"),
        pytest.param((4, 8), (1, 0), "10", id="expanded columns"),
        pytest.param((4, 8), (0, 0), "00", id="one element expanded"),
        pytest.param((4, 8), (1, 1), "11", id="overlapping windows"),
        pytest.param((2, 3, 4), (12, 1, 3), "*1*", id="channels last"),
        pytest.param((1, 8), (8, 1), "*1", id="batch of one"),
        pytest.param((1, 8), (1, 1), "*1", id="batch of one, stride 1"),
        pytest.param((1, 8), (0, 1), "*1", id="batch of one, expanded"),
        pytest.param((1, 8), (999, 1), "*1", id="batch of one, any stride"),
        pytest.param((8, 1), (1, 1), "11", id="one column"),
        pytest.param((8, 1), (1, 77), "11", id="one column, any stride"),
        pytest.param((4, 1, 8), (8, 5, 1), "**1", id="one in the middle"),
        pytest.param((1, 1, 1), (3, 0, 7), "111", id="one element"),
        pytest.param((0, 8), (8, 1), "*1", id="no rows"),
        pytest.param((0, 8), (1, 0), "*1", id="no rows, any strides"),
        pytest.param((4, 0), (1, 1), "11", id="no columns"),
        pytest.param((4, 0, 8), (0, 0, 0), "**1", id="empty in the middle"),
    ],
)
def test_stride_pattern(shape: tuple[int, ...], strides: tuple[int, ...], pattern: str) -> None:
    assert stride_pattern(shape, strides) == pattern


def test_strides_count_elements_whichever_way_the_library_counts() -> None:
    array = np.zeros((4, 6), np.float64)
    assert strides_of(array[:, ::2]) == (6, 2)
    assert strides_of(array[::-1]) == (-6, 1)
    assert strides_of(FakeTensor(4, 6)) == (6, 1)


View = collections.namedtuple("View", "pointer shape stride dtype")


@pytest.mark.parametrize(
    ("value", "answer"),
    [
        pytest.param(FakeTensor(2), True, id="tensor"),
        pytest.param(np.zeros(2), True, id="array"),
        pytest.param(np.zeros(()), True, id="array without dimensions"),
        pytest.param(np.int64(3), False, id="numpy scalar"),
        pytest.param(np.float32(3), False, id="numpy float"),
        pytest.param(3, False, id="int"),
        pytest.param(np.dtype("int8"), False, id="dtype"),
        pytest.param(range(3), False, id="range"),
        pytest.param(np.float32, False, id="class of numpy scalars"),
        pytest.param(np.ndarray, False, id="class of arrays"),
        pytest.param(View(FakeTensor(4), (4,), (1,), "fp32"), False, id="named tuple"),
    ],
)
def test_what_counts_as_a_tensor(value: Any, answer: bool) -> None:
    assert is_tensor(value) is answer


# -- the call part ---------------------------------------------------------------------------------------------------


def test_without_a_list_every_shape_and_every_integer_is_in_the_key() -> None:
    arguments = {"x": FakeTensor(4, 8), "n": 7, "flag": True, "eps": 1e-5, "mode": "fast", "bias": None}
    assert part(**arguments) == {
        "tensors": {"x": {"dtype": "torch.float32", "strides": "*1", "shape": [4, 8]}},
        "values": {"n": 7, "flag": True},
        "none": ["bias"],
    }


def test_with_a_list_only_what_it_names_enters_by_value_or_shape() -> None:
    spec = names("eps", "w", "mode")
    assert part(spec, x=FakeTensor(4, 8), w=FakeTensor(8), n=7, eps=0.5, mode="fast", bias=None) == {
        "tensors": {
            "x": {"dtype": "torch.float32", "strides": "*1"},
            "w": {"dtype": "torch.float32", "strides": "1", "shape": [8]},
        },
        "values": {"eps": {"float": "0x1.0000000000000p-1"}, "mode": "fast"},
        "none": ["bias"],
    }


@pytest.mark.parametrize("value", [2, 2.0, "relu", True, Act.RELU, (1, 2), np.int8(2)], ids=repr)
@pytest.mark.parametrize("listed", [None, ()], ids=["no list", "empty list"])
def test_a_constexpr_that_the_caller_passes_is_always_in_the_key(value: Any, listed: Any) -> None:
    spec = KeySpec(listed, constexprs=frozenset({"C"}))
    assert set(part(spec, C=value)["values"]) == {"C"}


def test_integers_of_numpy_are_integers() -> None:
    assert part(n=np.int64(7))["values"] == {"n": {"numpy": ["int64", 7]}}
    assert part(names("n"), n=np.int64(7))["values"] == {"n": {"numpy": ["int64", 7]}}
    assert part(x=np.float32(7)) == {"tensors": {}, "values": {}, "none": []}
    assert part(flag=np.bool_(True))["values"] != part(flag=np.bool_(False))["values"] != {}


X = FakeTensor(64, 2048)
HITS = {
    "stride of the rows": (FakeTensor(64, 2048), FakeTensor(64, 2048, strides=(4096, 1))),
    "address": (X, FakeTensor(64, 2048, address=4100)),
    "device index": (X, FakeTensor(64, 2048, device=1)),
    "stride of a batch of one": (FakeTensor(1, 2048), FakeTensor(1, 2048, strides=(1, 1))),
    "strides of an empty tensor": (FakeTensor(0, 8), FakeTensor(0, 8, strides=(1, 1))),
}
MISSES = {
    "transposed": (FakeTensor(64, 64), FakeTensor(64, 64, strides=(1, 64))),
    "expanded": (X, FakeTensor(64, 2048, strides=(0, 1))),
    "strided": (FakeTensor(64), FakeTensor(64, strides=(2,))),
    "shape": (X, FakeTensor(64, 2047)),
    "rank": (FakeTensor(64), FakeTensor(64, 1)),
    "rank of 0": (FakeTensor(1), FakeTensor()),
    "dtype": (X, FakeTensor(64, 2048, dtype="torch.float16")),
    "none": (X, None),
    "no tensor": (X, 5),
    "batch of one and of many": (FakeTensor(1, 2048), FakeTensor(2, 2048)),
}


@pytest.mark.parametrize("change", HITS)
def test_the_key_does_not_see(change: str) -> None:
    one, other = HITS[change]
    assert canonical(part(x=one)) == canonical(part(x=other))


@pytest.mark.parametrize("change", MISSES)
def test_the_key_sees(change: str) -> None:
    one, other = MISSES[change]
    assert canonical(part(x=one)) != canonical(part(x=other))


@pytest.mark.parametrize("change", ["transposed", "expanded", "strided", "rank", "dtype", "none"])
def test_the_key_sees_layout_dtype_and_none_also_where_a_list_does_not_name_the_tensor(change: str) -> None:
    one, other = MISSES[change]
    assert canonical(part(names("n"), x=one, n=1)) != canonical(part(names("n"), x=other, n=1))


def test_where_a_list_does_not_name_the_tensor_a_batch_of_one_equals_a_batch_of_many() -> None:
    keys = {canonical(part(names(), x=FakeTensor(batch, 2048))) for batch in (0, 1, 2, 100)}
    assert len(keys) == 1


def test_inputs_of_other_layouts_are_told_apart_where_the_output_is_the_same() -> None:
    out = FakeTensor(10, 10)
    outer = part(names(), a=FakeTensor(10, 1), b=FakeTensor(1, 10), out=out)
    assert canonical(outer) != canonical(part(names(), a=FakeTensor(10, 10), b=FakeTensor(10, 10), out=out))


def test_a_tuple_enters_item_by_item_with_its_path() -> None:
    nested = (FakeTensor(4), (None, 5), 0.5)
    assert part(t=nested) == {
        "tensors": {"t[0]": {"dtype": "torch.float32", "strides": "1", "shape": [4]}},
        "values": {"t[1][1]": 5},
        "none": ["t[1][0]"],
    }
    assert part(names("t"), t=nested)["values"] == {"t[1][1]": 5, "t[2]": {"float": "0x1.0000000000000p-1"}}
    assert part(names("n"), t=nested, n=1)["values"] == {"n": 1}


def test_a_named_tuple_is_its_items_whatever_its_fields_are_called() -> None:
    assert part(t=View(FakeTensor(4), (4, 5), (1, 7), None)) == {
        "tensors": {"t[0]": {"dtype": "torch.float32", "strides": "1", "shape": [4]}},
        "values": {"t[1][0]": 4, "t[1][1]": 5, "t[2][0]": 1, "t[2][1]": 7},
        "none": ["t[3]"],
    }
    block = collections.namedtuple("block", "base block_shape strides")
    assert part(t=block(FakeTensor(4), 16, 1))["values"] == {"t[1]": 16, "t[2]": 1}


def test_a_descriptor_enters_by_its_own_layout_and_its_bases_dtype_without_the_block_shape() -> None:
    base = FakeTensor(64, 32, dtype="torch.float16")
    expected = {"dtype": "torch.float16", "strides": "*1", "shape": [64, 32]}
    assert part(d=FakeDescriptor(base, (16, 16)))["tensors"] == {"d": expected}
    assert part(d=FakeDescriptor(base, (32, 32)))["tensors"] == {"d": expected}


def test_launch_options_of_the_call_are_in_the_key() -> None:
    assert part(options={"num_warps": 8}, n=1)["options"] == {"num_warps": 8}
    assert "options" not in part(n=1)


def test_a_key_function_gets_the_arguments_and_enters_by_its_answer() -> None:
    spec = names(functions={"ratio": lambda arguments: (arguments["m"] // arguments["n"], "wide")})
    assert part(spec, m=8, n=2)["values"] == {"ratio()": {"tuple": [4, "wide"]}}


@pytest.mark.parametrize(
    ("spec", "arguments", "where"),
    [
        (names("a"), {"a": object()}, "argument 'a' of 'app.k'"),
        (names("a"), {"a": (1, object())}, "argument 'a[1]' of 'app.k'"),
        (names(functions={"f": lambda a: object()}), {}, "key function 'f' of 'app.k'"),
    ],
    ids=["argument", "item of a tuple", "key function"],
)
def test_what_json_cannot_write_is_refused_with_its_place(spec: KeySpec, arguments: Any, where: str) -> None:
    with pytest.raises(EncodingError) as caught:
        part(spec, **arguments)
    assert caught.value.where == where
    assert call_part(spec, arguments, {}, "app.k", lambda value, where: "written")["values"] != {}


# -- buckets ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "bucket"),
    [(0, 0), (1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (1023, 1024), (1024, 1024), (1025, 2048), (2**40 + 1, 2**41)],
)
def test_pow2_is_the_smallest_power_of_two_not_below(n: int, bucket: int) -> None:
    assert pow2(n) == bucket


def test_pow2_refuses_what_is_no_size() -> None:
    with pytest.raises(ValueError, match="pow2: expected a size of 0 or more, got -1"):
        pow2(-1)


def test_lengths_up_to_4096_have_thirteen_buckets() -> None:
    assert len({pow2(n) for n in range(1, 4097)}) == 13


def test_the_key_holds_the_bucket_of_an_argument_and_the_value_of_the_others() -> None:
    spec = names("T", "D", buckets={"T": pow2})
    assert part(spec, T=1025, D=1025)["values"] == {"T": 2048, "D": 1025}
    assert part(spec, T=1024, D=64) != part(spec, T=1025, D=64)
    assert part(spec, T=1025, D=64) == part(spec, T=2048, D=64)


# -- the whole key ---------------------------------------------------------------------------------------------------


def test_the_digest_of_schema_1_is_pinned() -> None:
    # Records and shipped config files are found by it: whoever changes this number drops all of them.
    spec = KeySpec(("n", "eps"), {"f": lambda arguments: (1, "x")})
    call = part(spec, {"num_warps": 8}, x=FakeTensor(4, 8), bias=None, n=7, eps=-0.0)
    digest = "cb51a12c8cd5949eb53b15579da4d13a4aca94ed4ba3a2b4e5b78ed02862d245"
    assert Key("app.k", call, CONTEXT).digest == digest


def test_keys_are_equal_exactly_when_their_digests_are() -> None:
    one, same, other = make_key(1), make_key(1), make_key(True)
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    assert one.digest != other.digest
    assert one != "a key"


def test_a_key_gives_both_its_parts_as_json() -> None:
    assert make_key(5).to_json() == {"call": make_key(5).call, "context": CONTEXT}


def test_the_order_of_fields_does_not_reach_the_digest() -> None:
    key = make_key()
    backwards = Key("app.k", dict(reversed(key.call.items())), dict(reversed(key.context.items())))
    assert backwards == key


AXES = {
    "kernel": make_key(kernel="app.other"),
    "call": make_key(2048),
    "device name": make_key(device={**DEVICE, "name": "NVIDIA H100 PCIe"}),
    "arch": make_key(device={**DEVICE, "arch": "sm_80"}),
    "sm_count": make_key(device={**DEVICE, "sm_count": 114}),
    "mig": make_key(device={**DEVICE, "mig": "1g.10gb"}),
    "triton": make_key(triton="3.9.1"),
    "triton_key": make_key(triton_key="ab"),
    "ptxas": make_key(ptxas="13.0.89"),
    "environment": make_key(environment={"TRITON_DISABLE_LINE_INFO": "1"}),
    "source": make_key(source="bc"),
    "version": make_key(version=1),
}


@pytest.mark.parametrize("axis", AXES)
def test_each_axis_alone_is_another_key_and_the_difference_is_named(axis: str) -> None:
    assert AXES[axis] != make_key()
    assert make_key(**CONTEXT) == make_key()  # the control: the same parts, made anew
    if axis != "kernel":
        found = list(differences(AXES[axis].to_json(), make_key().to_json()))
        assert len(found) == 1
        assert found[0].path.rpartition(".")[2] in {axis, "n", "name", "TRITON_DISABLE_LINE_INFO"}


WORDS = st.fixed_dictionaries({
    "n": st.sampled_from([0, 1, True, 16, 1.0, "1", None]),
    "x": st.sampled_from([FakeTensor(2, 3), FakeTensor(2, 3, strides=(1, 2)), FakeTensor(6), None, 1]),
    "C": st.sampled_from([1, True, 1.0, (1,), "a"]),
})  # fmt: skip


@settings(max_examples=30, deadline=None, database=None, derandomize=True)
@given(WORDS, WORDS, st.sampled_from([None, ("n",), ("x", "n")]))
def test_equal_in_memory_is_equal_on_disk(one: Any, other: Any, listed: Any) -> None:
    spec = KeySpec(listed, constexprs=frozenset({"C"}))
    keys = [Key("app.k", part(spec, **arguments), CONTEXT) for arguments in (one, other)]
    assert (keys[0] == keys[1]) == (canonical(keys[0].to_json()) == canonical(keys[1].to_json()))


# -- differences -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "theirs", "found"),
    [
        pytest.param({"a": 1}, {"a": 1}, [], id="equal"),
        pytest.param({"a": 1}, {"a": True}, [("a", 1, True)], id="types"),
        pytest.param({"a": 1}, {"a": 2}, [("a", 1, 2)], id="values"),
        pytest.param({"b": 1, "a": {"x": 1, "y": 2}}, {"b": 2, "a": {"x": 3, "y": 2}},
                     [("a.x", 1, 3), ("b", 1, 2)], id="nested, in order"),
        pytest.param({"a": {"x": 1}}, {}, [("a", {"x": 1}, None)], id="missing there"),
        pytest.param({}, {"a": [1]}, [("a", None, [1])], id="missing here"),
        pytest.param({"a": None}, {}, [("a", None, None)], id="none is not missing"),
        pytest.param({"a": [1, 2]}, {"a": [1, 3]}, [("a", [1, 2], [1, 3])], id="a list is one leaf"),
        pytest.param(1, 2, [("", 1, 2)], id="no fields"),
    ],
)  # fmt: skip
def test_differences(ours: Any, theirs: Any, found: list[Any]) -> None:
    assert list(differences(ours, theirs)) == [Difference(*each) for each in found]


def test_a_difference_reads_as_a_line() -> None:
    assert str(Difference("context.triton", "3.6.0", "3.9.0")) == "context.triton: '3.6.0' here, '3.9.0' there"


def test_a_key_can_be_copied_and_pickled():
    part = call_part(KeySpec(), {"x": TorchTensor(4, 8), "n": 5}, {}, "app.k")
    key = Key("app.k", part, CONTEXT)

    @dataclasses.dataclass
    class Row:
        call: Any

    for copied in (copy.deepcopy(part), pickle.loads(pickle.dumps(part)), dataclasses.asdict(Row(part))["call"]):
        assert copied == part
        assert Key("app.k", copied, CONTEXT).digest == key.digest
        copied["tensors"]["x"] = {**copied["tensors"]["x"], "dtype": "torch.int8"}
        assert Key("app.k", copied, CONTEXT).digest != key.digest
    assert Key("app.k", json.loads(json.dumps(part)), CONTEXT).digest == key.digest


def test_the_call_part_alone_makes_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first launch of a shipped binary needs the part, and no key."""

    def refuse(data: Any) -> str:
        raise AssertionError(data)

    with monkeypatch.context() as patch:
        patch.setattr("autotuned.key.key.canonical", refuse)
        patch.setattr("autotuned.typed_json.canonical", refuse)
        found = part(x=np.empty((12_347, 3), np.int8), n=3)
    assert "12347" in Key("app.k", found, CONTEXT).text
