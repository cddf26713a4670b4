import collections
import copy
import enum
import math
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fakes import CONTEXT, TorchDtype, TorchTensor, named_type
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import (
    ALL,
    BUCKET,
    CONSTEXPR,
    LISTED,
    NOT_LISTED,
    Bound,
    every_spec,
    launcher,
    of_callable,
    of_kernel,
    shares_words,
)

from autotuned.key.key import Key, KeySpec, call_part, pow2
from autotuned.launch import table as _launch_py
from autotuned.launch.codegen import MISSING
from autotuned.launch.table import PyLauncher, integer_class, result_word


class Level(enum.IntEnum):
    ONE = 1
    TWO = 2


def key(spec: KeySpec, value: Any) -> Key:
    return Key("app.k", call_part(spec, {"a": value}, {}, "app.k"), CONTEXT)


# -- the table -------------------------------------------------------------------------------------------------------


def test_what_was_bound_is_found_and_counted() -> None:
    table, bound = launcher("x", "n", "eps"), Bound()
    values = (np.zeros((2, 3)), 5, 0.5)
    assert table.find(values) is None
    assert table.bind(values, bound)
    assert table.find((np.ones((2, 3)), 5, 0.25)) is bound
    assert table.find((np.zeros((2, 4)), 5, 0.5)) is None
    assert (table.hits, len(table), table.evictions) == (1, 1, 0)


def test_binding_again_replaces() -> None:
    table, bound = launcher("n"), Bound()
    table.bind((5,), Bound())
    table.bind((5,), bound)
    assert table.find((5,)) is bound
    assert len(table) == 1


def test_clearing_forgets_what_is_bound_and_keeps_the_counters() -> None:
    table = launcher("n")
    table.bind((5,), Bound())
    table.find((5,))
    table.clear()
    assert table.find((5,)) is None
    assert (table.hits, len(table)) == (1, 0)


def test_each_device_has_its_own_entries() -> None:
    current = [0]
    table, bound = launcher("n", device=lambda: current[0]), Bound()
    table.bind((5,), bound)
    current[0] = 1
    assert table.find((5,)) is None
    current[0] = 0
    assert table.find((5,)) is bound


def test_a_kernel_without_arguments_has_one_entry() -> None:
    table, bound = launcher(), Bound()
    assert table.bind((), bound)
    assert table.find(()) is bound


def test_the_oldest_entry_of_the_fullest_kind_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_launch_py, "LIMIT", 3)
    table, text = launcher("n"), Bound()
    for n in range(5):
        table.bind((n,), Bound())
    assert [table.find((n,)) is not None for n in range(5)] == [False, False, True, True, True]
    assert (len(table), table.evictions) == (3, 2)
    table.bind(("text",), text)  # another plan: its only entry is not the one to go
    assert table.find(("text",)) is text
    assert (len(table), table.evictions) == (3, 3)


def test_the_bound_is_4096_entries_a_kernel() -> None:
    assert _launch_py.LIMIT == 4096


# -- integers --------------------------------------------------------------------------------------------------------


def triton_specialization(value: int) -> tuple[str, str]:
    """Type and attribute that Triton compiles an integer argument for (`specialize_impl` of 3.6 and 3.9)."""
    if value == 1:
        return "constexpr", "1"
    kind = "i32" if -(2**31) <= value < 2**31 else "u64" if 2**63 <= value < 2**64 else "i64"
    return kind, "D" if value % 16 == 0 else ""


EDGES = [0, 1, -1, 8, 15, 16, 17, -16, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**63 - 1, 2**63, 2**64 - 1, -(2**63)]
INTEGERS = st.integers(-(2**63), 2**64 - 1) | st.integers(-40, 40) | st.sampled_from(EDGES)
STEPS = st.sampled_from([0, 1, 8, 16, 2**31, 2**32])  # two integers that a step parts are often alike


@settings(max_examples=40, deadline=None, database=None, derandomize=True)
@given(INTEGERS, STEPS)
def test_integers_of_one_class_are_compiled_alike(one: int, step: int) -> None:
    other = one + step
    if integer_class(one) == integer_class(other) and other < 2**64:
        assert triton_specialization(one) == triton_specialization(other)


def test_the_edges_of_the_classes() -> None:
    assert len({integer_class(n) for n in EDGES}) == len({triton_specialization(n) for n in EDGES})


@every_spec
@settings(max_examples=15, deadline=None, database=None, derandomize=True)
@given(one=INTEGERS.map(abs), step=STEPS)
def test_shared_words_mean_one_key_and_one_compiled_kernel(spec: KeySpec, one: int, step: int) -> None:
    other = one + step
    if shares_words(spec, one, other):
        assert key(spec, one) == key(spec, other)
        assert triton_specialization(one) == triton_specialization(other)
        assert one == other or "a" not in spec.constexprs


@pytest.mark.parametrize(
    ("spec", "one", "other", "shared"),
    [
        pytest.param(ALL, 5, 6, False, id="every integer is in the key"),
        pytest.param(LISTED, 32, 48, False, id="listed: by value"),
        pytest.param(NOT_LISTED, 32, 48, True, id="not listed: multiples of 16"),
        pytest.param(NOT_LISTED, 32, 33, False, id="not listed: divisible or not"),
        pytest.param(NOT_LISTED, 32, 40, False, id="not listed: divisible by 8 is not enough"),
        pytest.param(NOT_LISTED, 1, 3, False, id="not listed: 1"),
        pytest.param(NOT_LISTED, 3, 5, True, id="not listed: neither"),
        pytest.param(BUCKET, 1040, 2032, True, id="bucket: one bucket, both multiples of 16"),
        pytest.param(BUCKET, 1040, 2031, False, id="bucket: one bucket, one a multiple of 16"),
        pytest.param(BUCKET, 1024, 1040, False, id="bucket: two buckets"),
        pytest.param(CONSTEXPR, 32, 48, False, id="constexpr: by value"),
        pytest.param(KeySpec(("a",), buckets={"a": pow2}, constexprs=frozenset({"a"})), 80, 96, False,
                     id="constexpr in a bucket: compiled in by value"),
    ],
)  # fmt: skip
def test_which_integers_share_words(spec: KeySpec, one: int, other: int, shared: bool) -> None:
    assert shares_words(spec, one, other) is shared


# -- other scalars ---------------------------------------------------------------------------------------------------


@every_spec
def test_one_as_an_int_a_bool_a_float_a_text_and_an_enum_are_five_calls(spec: KeySpec) -> None:
    table = launcher("a", spec=spec)
    bounds = {value: Bound() for value in ("1", Level.ONE)}
    for value, bound in bounds.items():
        table.bind((value,), bound)
    one, true, real, none = Bound(), Bound(), Bound(), Bound()
    for value, bound in ((1, one), (True, true), (1.0, real), (None, none)):
        table.bind((value,), bound)
    assert [table.find((value,)) for value in (1, True, 1.0, None)] == [one, true, real, none]
    assert [table.find((value,)) for value in bounds] == list(bounds.values())
    assert len(table) == 6


@pytest.mark.parametrize(
    ("spec", "one", "other", "shared"),
    [
        pytest.param(ALL, 0.5, 0.25, True, id="a float that is not in the key"),
        pytest.param(NOT_LISTED, 0.5, math.nan, True, id="a float that is not listed"),
        pytest.param(LISTED, 0.5, 0.25, False, id="a listed float"),
        pytest.param(LISTED, math.nan, math.nan, True, id="NaN is itself"),
        pytest.param(CONSTEXPR, 0.0, -0.0, False, id="a constexpr is compiled in with its sign"),
        pytest.param(ALL, True, False, False, id="bool"),
        pytest.param(NOT_LISTED, "a", "b", False, id="text"),
        pytest.param(NOT_LISTED, Level.ONE, Level.TWO, False, id="enum"),
        pytest.param(NOT_LISTED, TorchDtype("int8"), TorchDtype("int4"), False, id="dtype"),
    ],
)
def test_which_scalars_share_words(spec: KeySpec, one: Any, other: Any, shared: bool) -> None:
    assert shares_words(spec, one, other) is shared


@pytest.mark.parametrize(
    "value",
    [[1], {"a": 1}, b"x", 1j, object(), np.int64(1), np.float32(1), (1, object()), named_type("cupy", "ndarray")()],
    ids=["list", "dict", "bytes", "complex", "object", "numpy int", "numpy float", "such a one in a tuple", "cupy"],
)  # fmt: skip
def test_values_of_other_types_are_never_bound(value: Any) -> None:
    table = of_kernel("n", "a")
    assert not table.bind((5, value), Bound())
    assert table.find((5, value)) is None
    assert len(table) == 0


def test_threads_bind_at_once() -> None:
    """Of what the table refuses, too, and while its entries are counted: a call must not end in an error of ours."""
    table, errors, kinds = of_callable("a", "n"), [], []

    def bind() -> None:
        for number in range(300):
            try:
                kinds.append(type("Made", (), {}))
                assert table.bind((kinds[-1](), number), Bound())
                assert not table.bind(((object(),), number), Bound())
                assert len(table) > 0
            except Exception as error:
                errors.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=bind) for _ in range(4)]
        [thread.start() for thread in threads]
        [thread.join(60) for thread in threads]
    finally:
        sys.setswitchinterval(before)
    assert errors == []
    assert len(table) == 1200


def test_a_key_function_that_clears_the_table_is_no_error() -> None:
    table = launcher("a", spec=KeySpec((), {"f": lambda arguments: table.clear() or [arguments["a"]]}))
    assert not table.bind((5,), Bound())


def test_no_code_is_written_for_calls_that_have_no_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is a miss, and would pay for that again."""
    made = []
    monkeypatch.setattr(_launch_py, "Plan", lambda *args: made.append(args))
    for value in (type("Tensor", (TorchTensor,), {})(2), (object(),), np.float32(1)):
        assert not of_kernel("a").bind((value,), Bound())
    assert made == []


# -- tensors ---------------------------------------------------------------------------------------------------------

BASE = TorchTensor(4, 8)
TENSORS = {
    "another tensor of the same kind": (TorchTensor(4, 8, address=8192), True),
    "shape": (TorchTensor(4, 9), False),
    "rank": (TorchTensor(32), False),
    "dtype": (TorchTensor(4, 8, dtype="torch.float16"), False),
    "strides": (TorchTensor(4, 8, strides=(16, 1)), False),
    "alignment": (TorchTensor(4, 8, address=4100), False),
    "device": (TorchTensor(4, 8, device=1), False),
    "none": (None, False),
}


@every_spec
@pytest.mark.parametrize("change", TENSORS)
def test_which_tensors_share_words(spec: KeySpec, change: str) -> None:
    other, shared = TENSORS[change]
    assert shares_words(spec, BASE, other) is shared


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        pytest.param(TorchTensor(8), TorchTensor(9), True, id="vectors of any length"),
        pytest.param(TorchTensor(8), TorchTensor(9, strides=(2,)), False, id="strided"),
        pytest.param(TorchTensor(8), TorchTensor(1, 8), False, id="rank"),
        pytest.param(TorchTensor(8, 2), TorchTensor(8, 1), False, id="a last dimension of 1 is dense twice"),
        pytest.param(TorchTensor(), TorchTensor(1), False, id="scalar and vector"),
        pytest.param(TorchTensor(2, 0), TorchTensor(0, 2), False, id="empty"),
    ],
)
def test_lengths_of_vectors_outside_the_key_are_no_words(one: Any, other: Any, shared: bool) -> None:
    assert shares_words(NOT_LISTED, one, other) is shared
    assert not shares_words(LISTED, one, other)
    if shared:
        assert key(NOT_LISTED, one) == key(NOT_LISTED, other)


def test_a_parameter_is_a_tensor_too() -> None:
    parameter = type("Parameter", (TorchTensor,), {"__module__": "torch.nn.parameter"})
    assert launcher("a").bind((parameter(2),), Bound())


ARRAYS = {
    "equal": (np.ones((4, 8)), True),
    "dtype": (np.zeros((4, 8), np.float32), False),
    "byte order": (np.zeros((4, 8), ">f8"), False),
    "shape": (np.zeros((8, 4)), False),
    "strides": (np.zeros((8, 4)).T, False),
    "broadcast": (np.broadcast_to(np.zeros(8), (4, 8)), False),
}


@pytest.mark.parametrize("change", ARRAYS)
def test_which_arrays_share_words(change: str) -> None:
    other, shared = ARRAYS[change]
    assert shares_words(ALL, np.zeros((4, 8)), other) is shared


def test_a_tensor_that_cannot_say_what_it_is_is_left_to_the_safe_path() -> None:
    def lost(self: Any) -> int:
        raise RuntimeError("Cannot access data pointer of a tensor without storage")

    table = launcher("a")
    table.bind((BASE,), Bound())
    tracer = TorchTensor(4, 8)
    type(tracer).data_ptr, keep = lost, type(tracer).data_ptr
    try:
        assert table.find((tracer,)) is None
        assert not table.bind((tracer,), Bound())
    finally:
        type(tracer).data_ptr = keep


# -- key functions and names -----------------------------------------------------------------------------------------


def words_of(function: Callable[[Any], Any]) -> PyLauncher:
    return launcher("a", "eps", spec=KeySpec((), {"f": function}))


def test_a_key_function_gets_the_arguments_by_name_and_its_answer_is_a_word() -> None:
    table, bound = words_of(lambda arguments: arguments["a"] > arguments["eps"]), Bound()
    table.bind((5, 0.5), bound)
    assert table.find((3, 0.25)) is bound
    assert table.find((3, 3.5)) is None


Answer = collections.namedtuple("Answer", "value")


def test_answers_of_a_key_function_are_told_apart_by_type_as_in_the_key() -> None:
    answers = [1, True, 1.0, (1,), (True,), ((1.0,),), Answer(1), Answer(True)]
    table = words_of(lambda arguments: answers[int(arguments["eps"])])
    for index in range(len(answers)):
        assert table.find((3, float(index))) is None
        table.bind((3, float(index)), Bound())
    assert len(table) == len(answers)


@pytest.mark.parametrize(("one", "other"), [(1, True), (1, 1.0), (False, 0)])
def test_buckets_are_told_apart_as_in_the_key(one: Any, other: Any) -> None:
    spec = KeySpec(("a",), buckets={"a": lambda n: one if n < 10 else other})
    assert not shares_words(spec, 5, 15)
    assert shares_words(spec, 5, 7)
    assert key(spec, 5) != key(spec, 15)


def test_an_answer_that_cannot_be_hashed_is_never_bound() -> None:
    table = words_of(lambda arguments: [arguments["a"]])
    assert not table.bind((5, 0.5), Bound())
    assert table.find((5, 0.5)) is None


@pytest.mark.parametrize(
    "name", ["device", "signature", "integer_class", "result_word", "function_0", "bucket_n", "_", "scope"]
)
def test_a_parameter_may_have_any_name(name: str) -> None:
    spec = KeySpec(("n",), {"f": lambda arguments: arguments[name]}, {"n": pow2})
    table, bound = launcher(name, "n", "m", spec=spec), Bound()
    assert table.bind(("cuda", 5, 3), bound)
    assert table.find(("cuda", 7, 5)) is bound
    assert table.find(("cpu", 7, 5)) is None


def test_a_missing_argument_is_noticed() -> None:
    assert not launcher("a").bind((MISSING,), Bound())


ANSWERS = [
    1, True, 1.0, "1", b"1", 1j, None, (), (1,), (1, (True, 2.5)), Level.ONE, 2**70, float("nan"), np.float32(1), np.float64(1),
    np.bool_(True), np.datetime64(1, "D"), np.datetime64(24, "h"),
]  # fmt: skip
NO_WORDS = [[1], {}, object(), lambda: 1, int, np.zeros(2), (1, [2]), range(3), {1}, frozenset([1])]


def test_plain_answers_of_key_functions_have_words_of_their_own() -> None:
    assert len({result_word(answer) for answer in ANSWERS}) == len(ANSWERS)
    assert [result_word(copy.deepcopy(answer)) for answer in ANSWERS] == [result_word(answer) for answer in ANSWERS]


@pytest.mark.parametrize("answer", NO_WORDS, ids=lambda answer: type(answer).__name__)
def test_other_answers_have_no_words(answer: Any) -> None:
    with pytest.raises(TypeError):
        result_word(answer)
    table = PyLauncher(("n",), KeySpec(functions={"f": lambda arguments: answer}))
    assert not table.bind((1,), Bound())
    assert (table.find((1,)), len(table)) == (None, 0)
