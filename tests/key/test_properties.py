"""Pairs of calls: equal keys exactly when equal digests, and equal launcher words only for equal keys, on each twin."""

import enum
import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fakes import CONTEXT, FakeDescriptor, FakeTensor, TorchTensor
from hypothesis import given, settings
from hypothesis import strategies as st

from autotuned.key.key import Key, KeySpec, call_part, pow2
from autotuned.launch.table import PyLauncher
from autotuned.typed_json import canonical

quietly = settings(max_examples=80, deadline=None, database=None, derandomize=True)


class Act(enum.Enum):
    RELU = 1


class Level(enum.IntEnum):
    ONE = 1


class Subclass(TorchTensor):
    """A tensor of another type, as tracers and wrappers make them."""


NAMES = ("a", "b", "c")
SPECS = {
    "no list": KeySpec(),
    "listed": KeySpec(("a", "c")),
    "none listed": KeySpec(()),
    "constexpr": KeySpec(("b",), constexprs=frozenset({"a"})),
    "bucket": KeySpec(("a", "b"), buckets={"a": lambda v: pow2(v) if type(v) is int and v >= 0 else v}),
    "function": KeySpec((), {"f": lambda arguments: type(arguments["a"]) is int and arguments["a"] % 3}),
}
SIZES = st.sampled_from([0, 1, 2, 3, 16])
STRIDES = st.sampled_from([0, 1, 2, 16, 48])
DTYPES = st.sampled_from(["torch.float16", "torch.float32", "torch.int32"])
SHAPES = st.lists(st.tuples(SIZES, STRIDES), max_size=3)


def tensor_of(kind: type) -> Any:
    def make(dims: Any, dtype: str, address: int, device: int) -> Any:
        shape, strides = tuple(size for size, _ in dims), tuple(step for _, step in dims)
        return kind(*shape, strides=strides, dtype=dtype, address=address, device=device)

    return st.builds(make, SHAPES, DTYPES, st.sampled_from([4096, 4100]), st.sampled_from([0, 1]))


TENSORS = tensor_of(TorchTensor)
SCALARS = st.one_of(
    st.sampled_from(
        [None, True, False, 0, 1, 15, 16, 2**31, -1, 2**70, 1.0, 0.0, -0.0, math.nan, math.inf, "1", "", "é"]
    ),
    st.sampled_from([Act.RELU, Level.ONE, (1, 2), (1.0, (None,)), b"x", np.int32(1), np.float32(1)]),
    st.integers(-40, 40),
)
VALUES = st.one_of(TENSORS, SCALARS)
ODD = st.one_of(VALUES, tensor_of(Subclass), tensor_of(FakeTensor), TENSORS.map(FakeDescriptor))
# Few values, so that two draws are often equal in words.
CALLS = st.tuples(VALUES, VALUES, VALUES)
ODD_CALLS = st.tuples(ODD, VALUES, ODD)


@dataclass
class Twin:
    """Makes an empty launch table, `make(names, spec)`, and turns values into such as it takes.

    In Python it is that of a plain callable, which has no signature for descriptors; in C of a kernel, with the one in
    Python behind it.
    """

    make: Any
    values: Any
    unknown: Any = Subclass  # types that have no signature


def real(values: Any) -> Any:
    """C knows torch's tensors by what they are and not by their name."""
    import torch

    dtypes = {"torch.float16": torch.float16, "torch.float32": torch.float32, "torch.int32": torch.int32}
    return tuple(
        torch.empty_strided(value.shape, value.stride(), dtype=dtypes[value.dtype])
        if type(value) is TorchTensor
        else value
        for value in values
    )


class CurrentDevice:
    """The only device there is."""

    def __call__(self) -> int:
        return 0

    def getter(self) -> Any:
        return self


def make_bound() -> Any:
    return SimpleNamespace(config=None, before=None, direct=None, run=None)


@pytest.fixture(params=["python", "c"])
def launcher(request: pytest.FixtureRequest) -> Any:
    """One twin; both are held to the same tests."""
    if request.param == "python":
        return Twin(lambda names, spec: PyLauncher(names, spec, lambda: lambda: 0), tuple, (Subclass, FakeDescriptor))
    pytest.importorskip("autotuned._launch", reason="the C launcher is not built")
    from autotuned.launch import launcher as launch

    if not getattr(launch, "uses_c", bool)():
        pytest.skip("the C launcher is not in use")
    from autotuned import _launch

    _launch.use_driver(0, 0, 0, 0)  # stand-ins of earlier tests are gone

    def make(names: Any, spec: KeySpec) -> Any:
        return launch.make(names, spec, CurrentDevice(), launch.CallForm(len(names), {}))

    return Twin(make, real)


def key_of(spec: KeySpec, values: Any) -> Key:
    return Key("app.k", call_part(spec, dict(zip(NAMES, values)), {}, "app.k"), CONTEXT)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_equal_words_mean_equal_keys(launcher: Any, spec: KeySpec) -> None:
    hits = 0

    @quietly
    @given(CALLS, CALLS, st.sampled_from([(), (0,), (0, 1), (1, 2), (0, 1, 2)]))
    def check(one: Any, other: Any, same: Any) -> None:
        nonlocal hits
        other = launcher.values(one[i] if i in same else value for i, value in enumerate(other))
        one = launcher.values(one)
        table, bound = launcher.make(NAMES, spec), make_bound()
        if table.bind(one, bound) and table.find(other) is bound:
            hits += 1
            assert key_of(spec, one) == key_of(spec, other)
            assert key_of(spec, one).digest == key_of(spec, other).digest

    check()
    assert hits > 5  # else nothing was tested


def test_a_subclass_goes_the_safe_path_with_the_key_of_a_tensor(launcher: Any) -> None:
    @quietly
    @given(ODD_CALLS, ODD_CALLS)
    def check(one: Any, other: Any) -> None:
        table, spec, bound = launcher.make(NAMES, KeySpec()), KeySpec(), make_bound()
        one, other = launcher.values(one), launcher.values(other)
        odd = [value for value in one if isinstance(value, launcher.unknown) or type(value) is FakeTensor]
        if odd:
            assert not table.bind(one, bound)
            assert table.find(one) is None
        elif table.bind(one, bound) and table.find(other) is bound:
            assert key_of(spec, one) == key_of(spec, other)

    check()
    plain, odd = TorchTensor(4, 8), Subclass(4, 8)
    assert key_of(KeySpec(), (plain, 1, 2)) == key_of(KeySpec(), (odd, 1, 2))


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_keys_are_equal_exactly_when_their_digests_are(spec: KeySpec) -> None:
    equal = 0

    @quietly
    @given(ODD_CALLS, ODD_CALLS, st.sampled_from([(), (0, 1), (1, 2), (0, 2), (0, 1, 2)]))
    def check(one: Any, other: Any, same: Any) -> None:
        nonlocal equal
        other = tuple(one[i] if i in same else value for i, value in enumerate(other))
        first, second = key_of(spec, one), key_of(spec, other)
        is_equal = canonical(first.to_json()) == canonical(second.to_json())
        assert (first.digest == second.digest) is (first == second) is is_equal
        equal += is_equal

    check()
    assert equal > 5
