"""Equal words mean one compiled kernel, held against Triton's own specialization of random tuples and numbers."""

import collections
import enum
import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.jit import native_specialize_impl
from triton.tools.tensor_descriptor import TensorDescriptor

from autotuned.errors import EncodingError
from autotuned.key.key import Key, KeySpec, call_part, pow2
from autotuned.launch.table import PyLauncher

thoroughly = settings(max_examples=400, deadline=None, database=None, derandomize=True)
BACKEND = make_backend(GPUTarget("cuda", 90, 32))


class Act(enum.Enum):
    RELU = 1


class Level(enum.IntEnum):
    ONE = 1
    SIXTEEN = 16


Pair = collections.namedtuple("Pair", "a b")
View = collections.namedtuple("View", "shape strides dtype")
SPECS = {
    "no list": KeySpec(),
    "listed": KeySpec(("a",)),
    "not listed": KeySpec(()),
    "constexpr": KeySpec((), constexprs=frozenset({"a"})),
    "bucket": KeySpec(("a",), buckets={"a": lambda v: pow2(v) if type(v) is int and v >= 0 else v}),
}
EDGES = [1, 0, 2, -1, 16, -16, *(sign * (1 << power) + by for power in (31, 32, 63, 64) for sign in (1, -1)
                                 for by in (-1, 0, 1))]  # fmt: skip
MEMORY = {dtype: torch.zeros(64, dtype=dtype) for dtype in (torch.float16, torch.float32, torch.int8, torch.bool)}


def view(dtype, offset, length, step):
    return MEMORY[dtype][offset:][: length * step : step]


TENSORS = st.builds(
    view, st.sampled_from(list(MEMORY)), st.sampled_from([0, 1, 16]), st.integers(0, 3), st.sampled_from([1, 2])
)
DESCRIPTORS = st.builds(
    lambda dtype, rows, block: TensorDescriptor(MEMORY[dtype], [rows], [1], [block]),
    st.sampled_from([torch.float16, torch.float32]), st.sampled_from([32, 64]), st.sampled_from([16, 32]),
)  # fmt: skip
SCALARS = st.sampled_from(
    [None, True, False, 1.0, 0.0, -0.0, math.nan, "", "x", Act.RELU, *Level, torch.float32, torch.Size([1, 2])]
)
LEAVES = st.one_of(TENSORS, DESCRIPTORS, st.sampled_from(EDGES), SCALARS)
VALUES = st.recursive(
    LEAVES,
    lambda items: st.one_of(
        st.lists(items, max_size=3).map(tuple),
        st.builds(Pair, items, items),
        st.builds(View, items, items, items),
    ),
    max_leaves=5,
)


def changed(value, draw):
    """The same but for one leaf."""
    if not isinstance(value, tuple) or not value or type(value) is torch.Size:
        return draw(LEAVES)
    place = draw(st.integers(0, len(value) - 1))
    items = [changed(item, draw) if place == index else item for index, item in enumerate(value)]
    return type(value)(*items) if hasattr(value, "_fields") else tuple(items)


@st.composite
def two_calls(draw):
    """Values that are often alike."""
    one = draw(VALUES)
    return one, changed(one, draw)


def specialized(value):
    """What Triton's look-up makes of a value, types included: to Python True is 1."""
    try:
        return typed(native_specialize_impl(BACKEND, value, False, True, True))
    except (OverflowError, TypeError):
        return None  # Triton refuses it


def typed(found):
    return (type(found), *map(typed, found)) if isinstance(found, tuple) else (type(found), repr(found))


def digest(spec, value):
    try:
        return Key("app.k", call_part(spec, {"a": value}, {}, "app.k"), {}).digest
    except EncodingError:
        return None  # the call is an error before it gets to a table


def has_descriptor(value):
    return any(map(has_descriptor, value)) if isinstance(value, tuple) else isinstance(value, TensorDescriptor)


CASES = {(name, of): spec for name, spec in SPECS.items() for of in ("kernel", "callable")}


def is_shared(case, one, other):
    """Whether what is bound for one value is found for the other, which it may be where the keys are equal."""
    spec, is_of_kernel = CASES[case], case[1] == "kernel"
    table = PyLauncher(("a",), spec, None, places=not is_of_kernel)
    if not table.bind((one,), "bound") or table.find((other,)) is None:
        return False
    assert digest(spec, one) == digest(spec, other), case
    # What has descriptors is launched through Triton; a constexpr is compared by its value.
    if is_of_kernel and not has_descriptor(one) and "a" not in spec.constexprs:
        assert specialized(one) == specialized(other), case
    return True


def test_equal_words_mean_equal_keys_and_one_compiled_kernel():
    """The same calls for all cases: to make them up takes most of the time."""
    shared = dict.fromkeys(CASES, 0)

    @thoroughly
    @given(two_calls())
    def check(calls):
        for case in CASES:
            shared[case] += is_shared(case, *calls)

    check()
    assert min(shared.values()) > 20, shared  # else nothing was tested
