"""What binaries are told apart by is at least as fine as what Triton's own cache is keyed by."""

import collections
import enum
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotuned.errors import EncodingError
from autotuned.key import exact
from autotuned.key.exact import Exact
from autotuned.key.source import Fingerprint
from autotuned.typed_json import canonical

PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.binary(max_size=3)
PLAIN |= st.sampled_from([0, 1, -1, 0.0, -0.0, 1.0, True, False, "1", "", 0j, -0j, np.float32(1), np.float64(-0.0)])
VALUES = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple))


def text(value):
    return canonical(exact.spell(value, "it"))


@given(VALUES, VALUES)
def test_values_that_triton_tells_apart_are(one, other):
    if str(one) != str(other):
        assert text(one) != text(other)
    assert text(one) == text(one)


class Counter:
    def __init__(self):
        self.value = 0

    def set(self, value):
        self.value = value
        return self


def derived(base, value, hidden):
    made = type("Derived", (base,), {})(value)
    made._hidden = hidden
    return made


def color(of):
    class Color(enum.IntEnum):
        RED = 1

        @property
        def weight(self):
            return of

    return Color.RED


def pair(fields):
    return collections.namedtuple("Pair", fields)(1, 2)


APART = {
    "what a method set": (lambda: Counter().set(2), lambda: Counter().set(3)),
    "zero": (lambda: 0.0, lambda: -0.0),
    "zero within": (lambda: (1, [0.0]), lambda: (1, [-0.0])),
    "zero of a class": (lambda: derived(float, 0.0, 1), lambda: derived(float, -0.0, 1)),
    "fields": (lambda: pair("a b"), lambda: pair("b a")),
    "a named tuple": (lambda: pair("a b"), lambda: (1, 2)),
    "a private attribute": (lambda: derived(int, 1, 2), lambda: derived(int, 1, 3)),
    "a class over a number": (lambda: derived(int, 1, 2), lambda: 1),
    "a class over a text": (lambda: derived(str, "a", 2), lambda: "a"),
    "a property of an enumeration": (lambda: color(2), lambda: color(3)),
    "the order of a dict": (lambda: {1: 2, 3: 4}, lambda: {3: 4, 1: 2}),
    "a cell": (lambda: holding(2), lambda: holding(3)),
}


def holding(value):
    return lambda: value


@pytest.mark.parametrize("name", APART)
def test_odd_values_are_told_apart_and_their_likes_are_not(name):
    one, other = APART[name]
    assert text(one()) == text(one()) != text(other())


def test_a_nan_is_a_nan():
    assert text(math.nan) == text(-math.nan)


@pytest.mark.parametrize("value", [object(), {"a": object()}], ids=["object", "within"])
def test_what_means_nothing_elsewhere_is_refused(value):
    with pytest.raises(EncodingError, match="means the same in every process"):
        exact.spell(value, "it")


def test_a_fingerprint_has_more_only_where_it_leaves_something_out():
    state, zero = Counter().set(2), -0.0

    def plain(x):
        return x + 1

    def of_state(x):
        return x + state.value

    def of_zero(x):
        return x + zero

    assert Exact(Fingerprint(plain)).more() == ""
    before = Exact(Fingerprint(of_state)).value(), Fingerprint(of_state).value()
    assert Exact(Fingerprint(of_zero)).more() != ""
    state.set(3)
    assert Exact(Fingerprint(of_state)).value() != before[0]
