"""Tests of `readers`: which arguments pruners and callables have read, and that tables tell just these apart."""

import collections
import copy
import functools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import BUCKET, LISTED, NOT_LISTED

from autotuned.key.key import KeySpec
from autotuned.launch import launcher
from autotuned.launch.table import PyLauncher
from autotuned.tunable.readers import Watched, read_by

NAMES = ("m", "n", "x")
EACH = {
    "index": (lambda named: named["m"], {"m"}),
    "get": (lambda named: named.get("n"), {"n"}),
    "get of nothing": (lambda named: named.get("q", 5), {"q"}),
    "contains": (lambda named: "m" in named, set()),
    "length": (lambda named: len(named), set()),
    "unpacked": (lambda named: {**named}, set(NAMES)),
    "dict": (lambda named: dict(named), set(NAMES)),
    "keywords": (lambda named: (lambda **given: given)(**named), set(NAMES)),
    "items": (lambda named: [value for _, value in named.items()], set(NAMES)),
    "values": (lambda named: sum(named.values()), set(NAMES)),
    "iterated": (lambda named: [named[name] for name in named], set(NAMES)),
    "copy": (lambda named: named.copy(), set(NAMES)),
    "copy.copy": (copy.copy, set(NAMES)),
    "deepcopy": (copy.deepcopy, set(NAMES)),
    "union": (lambda named: named | {"q": 1}, set(NAMES)),
    "union from the right": (lambda named: {"q": 1} | named, set(NAMES)),
    "updated": (lambda named: {}.update(named), set(NAMES)),
    "equal": (lambda named: named == {"m": 1}, set(NAMES)),
    "different": (lambda named: named != {"m": 1}, set(NAMES)),
    "text": (str, set(NAMES)),
    "json": (json.dumps, set(NAMES)),
    "popped": (lambda named: named.pop("m"), set(NAMES)),
    "chained": (lambda named: collections.ChainMap({}, named)["m"], {"m"}),
    "formatted": (lambda named: "%(m)d" % named, {"m"}),  # noqa: UP031
    "format_map": (lambda named: "{m}".format_map(named), {"m"}),
    "reversed": (lambda named: list(reversed(named)), set(NAMES)),
}


@pytest.mark.parametrize("name", EACH)
def test_a_look_at_named_arguments_is_noted(name):
    look, expected = EACH[name]
    seen: set[str] = set()
    named = Watched({"m": 1, "n": 2, "x": 3}, seen)
    assert isinstance(named, dict)
    look(named)
    assert seen >= expected
    assert seen <= {*NAMES, "q"}
    if len(expected) < len(NAMES):
        assert seen == expected


class Callable:
    def __call__(self, m, n, x):
        return m

    def method(self, m, **rest):
        return m

    @staticmethod
    def plain(m, *, n, x=0):
        return n + x


def nested(m, n, x):
    def inner():
        return n

    return inner()


def of_locals(m, n, x):
    return locals()["m"]


def swapped(m, n, x):
    m, n = n, m
    return m


FUNCTIONS = {
    "lambda": (lambda m, n, x: m, {"m"}),
    "two": (lambda m, n, x: m + n, {"m", "n"}),
    "rest unused": (lambda m, **_: m, {"m"}),
    "rest used": (lambda m, **rest: rest["n"], set(NAMES)),
    "only rest": (lambda **rest: rest["n"], set(NAMES)),
    "nothing": (lambda m, n, x: 64, set()),
    "keyword only": (lambda *, m, n, x: x, {"x"}),
    "by position too": (lambda configs, named, *more, n=1, **rest: n, {"n"}),
    "comprehension": (lambda m, n, x: [one for one in range(9) if one > m], {"m"}),
    "nested": (nested, {"n"}),
    "locals": (of_locals, set(NAMES)),
    "assigned": (swapped, {"m", "n"}),
    "method": (Callable().method, {"m"}),
    "static method": (Callable.plain, {"n", "x"}),
    "object": (Callable(), {"m"}),
    "partial": (functools.partial(lambda m, n, x: m, 1), set(NAMES)),
    "builtin": (max, set(NAMES)),
    "class": (dict, set(NAMES)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_a_function_reads_of_its_keywords(name):
    function, expected = FUNCTIONS[name]
    assert read_by(function, NAMES) == expected


# -- the tables --------------------------------------------------------------------------------------------------------


class Bound:
    """What a table holds, with what the one in C reads of it."""

    config, before, direct = "config", None, None


def tables(spec):
    """The table in C where there is one, and its twin."""
    yield PyLauncher(("a", "b"), spec, lambda: lambda: 0, places=False)
    made = launcher.make(("a", "b"), spec, None, launcher.CallForm(2, {}))
    if made.name == "c":
        yield made


scalars = st.integers(-(2**40), 2**40) | st.floats() | st.booleans() | st.none() | st.text(max_size=3)


@given(one=scalars, other=scalars, spec=st.sampled_from([LISTED, NOT_LISTED, BUCKET, KeySpec()]))
def test_values_that_were_read_share_words_only_if_they_are_the_same(one, other, spec):
    same = type(one) is type(other) and (one.hex() == other.hex() if isinstance(one, float) else one == other)
    for table in tables(spec.exactly({"a"})):
        if table.bind((one, 1), Bound()):
            assert (table.find((one, 1)) is not None) or isinstance(one, str)
            assert table.find((other, 1)) is None or same


def test_a_bucket_of_what_was_not_read_stays():
    for table in tables(BUCKET.exactly({"b"})):
        assert table.bind((5, 1), Bound())
        assert table.find((6, 1)) is not None
        assert table.find((6, 2)) is None


def test_tensors_that_were_read_share_words_only_if_shape_and_strides_are_equal():
    torch = pytest.importorskip("torch")
    x = torch.zeros(4096)
    layouts = [x[:64], x[:128], x[:128:2], x[:64].view(8, 8), x[:64].view(8, 8).T, x[:128].view(8, 16)[:, :8],
               x[:256].view(8, 32)[:, :8], x[:64].view(1, 64), x[:64].view(64, 1), x[0:1].view(1, 1), x[:0]]  # fmt: skip
    for spec in (LISTED, NOT_LISTED, KeySpec()):
        for one in layouts:
            for table in tables(spec.exactly({"a"})):
                assert table.bind((one, 1), Bound())
                for other in layouts:
                    same = one.shape == other.shape and one.stride() == other.stride()
                    assert (table.find((other, 1)) is not None) == same, (one.stride(), other.stride())
