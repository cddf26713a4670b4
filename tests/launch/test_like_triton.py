"""Both tables, over arguments of every kind: what is bound for one call is found for another only where Triton shares.

Tensors, from torch and from the pool of outputs, numbers, texts, tuples of them, tensor descriptors, and the current
device. Triton's own specialization is what a binary is compiled for.
"""

from __future__ import annotations

import collections
import gc
import re
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotuned import experimental
from autotuned.key.key import KeySpec
from autotuned.launch.table import PyLauncher

_launch = pytest.importorskip("autotuned._launch")
torch = pytest.importorskip("torch")
native = pytest.importorskip("triton._C.libtriton").native_specialize_impl
backend = pytest.importorskip("triton.backends.nvidia.compiler").CUDABackend
TensorDescriptor = pytest.importorskip("triton.tools.tensor_descriptor").TensorDescriptor

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int8, torch.float8_e5m2]
Pair = collections.namedtuple("Pair", "first second")
Other = collections.namedtuple("Other", "first second")


def tensor(dtype, offset, from_pool):
    like = torch.zeros(64, dtype=dtype)
    return (experimental.empty_like(like) if from_pool else torch.empty_like(like))[offset:]


def descriptor(dtype, block, padding, offset):
    base = torch.zeros(256, dtype=dtype)[offset * 16 :]
    return TensorDescriptor(base, [128], [1], [block], padding if dtype.is_floating_point else "zero")


EDGES = [sign * 2**bits + step for sign in (1, -1) for bits in (0, 4, 31, 32, 63) for step in (-1, 0, 1)]
TENSORS = st.builds(tensor, st.sampled_from(DTYPES), st.integers(0, 9), st.booleans())
NUMBERS = st.sampled_from(EDGES) | st.integers(-40, 40) | st.booleans() | st.sampled_from([0.0, 1.0, float("nan")])
ITEMS = TENSORS | NUMBERS | st.none()
DESCRIPTORS = st.builds(
    descriptor, st.sampled_from(DTYPES[:3]), st.sampled_from([16, 32]), st.sampled_from(["zero", "nan"]), st.booleans()
)
TUPLES = st.recursive(
    ITEMS, lambda item: st.tuples(item) | st.tuples(item, item) | st.builds(Pair, item, item) | st.builds(Other, item, item),
    max_leaves=5,
)  # fmt: skip
CALLS = st.tuples(st.tuples(TUPLES | DESCRIPTORS, ITEMS), st.sampled_from([0, 1]))


def tritons(values):
    """What Triton compiles these arguments as, names and classes of tuples with it; None where it refuses one."""
    try:
        return [(native(backend, value, False, True, True), kinds(value)) for value in values]
    except (OverflowError, TypeError, ValueError):
        return None


def kinds(value):
    return (type(value), *map(kinds, value)) if isinstance(value, tuple) else None


class Twins:
    """A table of each twin, of two parameters, on a device that can be changed."""

    def __init__(self):
        self.current = 0
        device = lambda: self.current
        self.tables = [
            _launch.Table(("x", "y"), 2, {}, (0, 0), {}, (), device),
            PyLauncher(("x", "y"), KeySpec(names=()), lambda: device, places=False),
        ]


def entry():
    return type("Entry", (), {"config": "config", "before": None, "direct": None})()


@settings(max_examples=150, deadline=None)
@given(st.lists(CALLS, min_size=2, max_size=8))
def test_a_call_is_found_only_where_triton_would_launch_the_same_binary(calls):
    twins, (bound, place) = Twins(), calls[0]
    for table, compiled in zip(twins.tables, (tritons, without_blocks)):
        twins.current = place
        assert table.bind(bound, entry()) or compiled(bound) is None
        found = table.find(bound) is not None
        assert found or compiled(bound) is None
        for values, twins.current in calls if found else ():
            if table.find(values) is not None:
                assert (compiled(values), twins.current) == (compiled(bound), place)


def without_blocks(values):
    """The same without blocks of descriptors, which Triton's launch looks up for the twin in Python."""
    found = tritons(values)
    return found and [re.sub(r"(tensordesc<\w+)\[\d+\]", r"\1", repr(one)) for one in found]


@pytest.mark.parametrize("which", ["c", "python"])
def test_ten_thousand_look_ups_keep_nothing(which):
    """By counts of references, and of objects that the collector knows."""
    x, y = tensor(torch.float32, 0, True), tensor(torch.int32, 1, False)
    block = descriptor(torch.float32, 16, "zero", 0)
    calls = [((x, Pair(y, 3)), 5), (block, x), (y, 1 << 40), ((x, (None, 2.0)), True), (x, None)]
    table = Twins().tables[which == "python"]
    kept = [table.bind(values, entry()) for values in calls]
    assert kept == [True] * 5

    def look(count):
        for _ in range(count):
            for values in calls:
                assert table.find(values) is not None
            table.find((object(), x))
            _launch.tensor_words(b"\1\0", x, y)
            _launch.tensor_words(b"\1\1", x, 5)

    def counts():
        gc.collect()
        return (
            [sys.getrefcount(one) for one in (x, y, block, block.base, Pair)],
            len(gc.get_objects()),
            sys.getallocatedblocks(),
        )

    look(100)
    before = counts()
    look(10_000)
    after = counts()
    assert after[0] == before[0]
    assert (
        after[1] - before[1] < 100 and after[2] - before[2] < 100
    )  # objects and blocks of memory: one a call is 10,000
