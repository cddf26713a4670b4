"""The launch table in Python, on what is neither a tensor nor a scalar: tuples, descriptors, objects of the user's."""

import gc
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from fakes import FakeDescriptor, TorchTensor
from hypothesis import given
from hypothesis import strategies as st
from local_classes import named_tuple
from tables import ALL, CONSTEXPR, LISTED, NOT_LISTED, Bound, of_callable, of_kernel, shares_words

from autotuned.launch import table as _launch_py


class Layer:
    """An object of the user's, as a method gets one."""


@pytest.mark.parametrize(
    "value", [Layer(), Layer, len, [1], {"a": np.zeros(2)}, b"x", object()],
    ids=["self", "class", "function", "list", "dict", "bytes", "object"],
)  # fmt: skip
def test_objects_that_no_key_tells_of_share_words_in_a_plain_callable(value: Any) -> None:
    table, bound = of_callable("a", "n", spec=NOT_LISTED), Bound()
    assert table.bind((value, 5), bound)
    assert table.find((value, 6)) is bound
    assert table.find((type("Other", (), {})(), 5)) is None


@pytest.mark.parametrize("value", [1j, np.int64(1), np.float32(1), TorchTensor(2), FakeDescriptor(TorchTensor(2, 2))])
def test_what_a_key_may_tell_of_has_words_of_its_own_or_none(value: Any) -> None:
    table = of_callable("a", "n", spec=NOT_LISTED)
    if isinstance(value, TorchTensor):
        table.bind((value, 5), Bound())
        assert table.find((TorchTensor(2, dtype="torch.float16"), 5)) is None
    else:
        assert not table.bind((value, 5), Bound())


class OnGpu(TorchTensor):
    """A tensor of torch's, of a GPU."""

    is_cuda = True


OnGpu.__module__, OnGpu.__name__ = "torch", "Tensor"


@pytest.mark.parametrize(
    "holder", [lambda x: (x, 3), lambda x: (None, (x,)), lambda x: [x], lambda x: {"x": x}, lambda x: [[x, 3]]]
)
def test_a_plain_callables_containers_share_words_on_one_device_only(holder: Callable[[Any], Any]) -> None:
    table, bound = of_callable("a", spec=NOT_LISTED), Bound()
    assert table.bind((holder(OnGpu(4, 8)),), bound)
    assert table.find((holder(OnGpu(4, 8)),)) is bound
    assert table.find((holder(OnGpu(4, 8, device=1)),)) is None


def test_an_object_that_is_in_the_key_is_never_bound() -> None:
    assert not of_callable("a", spec=LISTED).bind((Layer(),), Bound())
    assert not of_callable("a", spec=CONSTEXPR).bind((Layer(),), Bound())


def test_an_object_that_has_become_an_array_is_left_to_the_safe_path() -> None:
    table, layer = of_callable("a"), Layer()
    assert table.bind((layer,), Bound())
    vars(layer).update(dtype="float32", shape=(4,), strides=(4,))
    assert table.find((layer,)) is None
    assert not table.bind((layer,), Bound())


def test_classes_without_end_are_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_launch_py, "LIMIT", 8)
    table, kinds = of_callable("a"), [type(f"Made{number}", (), {}) for number in range(20)]
    for kind in kinds:
        assert table.bind((kind(),), Bound())
    assert len(table) == 8
    assert len(table._plans) == 8
    del kind, kinds[:]
    gc.collect()
    assert table.bind((1,), Bound())
    assert len(table) == len(table._plans) == 1


@given(st.lists(st.tuples(st.sampled_from(["bind", "drop", "collect"]), st.booleans(), st.integers(0, 9)), max_size=40))
def test_nothing_is_found_for_a_class_in_the_place_of_one_that_died(steps: list[tuple[str, bool, int]]) -> None:
    table = of_callable("a", "n")
    living: list[tuple[Any, Bound]] = []
    for step, is_within, which in steps:
        if step == "bind":
            value = named_tuple(None)
            value = (value, 1) if is_within else value
            assert table.find((value, 5)) is None
            living.append((value, Bound()))
            assert table.bind((value, 5), living[-1][1])
            del value
        elif step == "drop" and living:
            del living[which % len(living)]
        else:
            gc.collect()
        assert all(table.find((value, 5)) is bound for value, bound in living)


def test_a_subclass_is_another_type() -> None:
    class Text(str): ...

    class Tensor(TorchTensor): ...  # may be a tracer without memory

    assert not of_kernel("a").bind((Text("x"),), Bound())
    assert not of_kernel("a").bind((Tensor(2),), Bound())


PAIR = (TorchTensor(4, 8), 3)
TUPLES = {
    "the same": ((TorchTensor(4, 8, address=8192), 3), True, True),
    "another size": ((TorchTensor(4, 9), 3), False, False),
    "another dtype": ((TorchTensor(4, 8, dtype="torch.float16"), 3), False, False),
    "not aligned": ((TorchTensor(4, 8, address=4100), 3), False, False),
    "another number": ((TorchTensor(4, 8), 5), False, True),
    "a number that is compiled otherwise": ((TorchTensor(4, 8), 16), False, False),
    "True for 1": ((TorchTensor(4, 8), True), False, False),
    "a float": ((TorchTensor(4, 8), 3.0), False, False),
    "None": ((TorchTensor(4, 8), None), False, False),
    "nested": (((TorchTensor(4, 8), 3),), False, False),
    "longer": ((TorchTensor(4, 8), 3, 3), False, False),
}


@pytest.mark.parametrize("case", TUPLES)
def test_which_tuples_share_words(case: str) -> None:
    other, shared_in_key, shared = TUPLES[case]
    assert shares_words(LISTED, PAIR, other) is shared_in_key
    assert shares_words(ALL, PAIR, other) is shared_in_key
    assert shares_words(NOT_LISTED, PAIR, other) is shared
    assert shares_words(CONSTEXPR, PAIR, other) is shared_in_key


@pytest.mark.parametrize("floats", [(0.0, -0.0), (math.nan, math.inf)])
def test_floats_in_tuples_are_told_apart_where_they_are_in_the_key(floats: tuple[float, float]) -> None:
    one, other = [(number,) for number in floats]
    assert not shares_words(LISTED, one, other)
    assert shares_words(LISTED, one, one)
    assert shares_words(NOT_LISTED, one, other)


def test_descriptors_share_words_whatever_their_block_is() -> None:
    def descriptor(rows: int, block: int, dtype: str = "torch.float32") -> FakeDescriptor:
        return FakeDescriptor(TorchTensor(rows, 8, dtype=dtype), (block, 8))

    shares = partial(shares_words, is_of_kernel=True)
    for spec in (LISTED, NOT_LISTED):
        assert shares(spec, descriptor(4, 1), descriptor(4, 2))
        assert shares(spec, (descriptor(4, 1),), (descriptor(4, 2),))
        assert not shares(spec, descriptor(4, 1), descriptor(5, 1))
        assert not shares(spec, descriptor(4, 1), descriptor(4, 1, "torch.float16"))
