"""Tests of `alike`: the same answers as comparing all parts of all keys, and quick among thousands."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from autotuned.key.key import Key
from autotuned.key.nearest_key import Alike, SizeGroup
from autotuned.resolve import explain
from autotuned.typed_json import canonical

CONTEXT = {"device": {"name": "one", "sm_count": 8}, "source": "a", "environment": {}}


def key(shape=(64, 64), dtype="torch.float32", none=(), context=None, **values):
    """A key of a kernel with one tensor."""
    tensor = {"dtype": dtype, "strides": "*1", "shape": list(shape)}
    call = {"tensors": {"x": tensor}, "values": values, "none": list(none)}
    return Key("k", call, {**CONTEXT, **(context or {})})


def nearest_of_all(wanted, keys):
    """What `Alike` is to find, part by part."""

    def squares(change):
        sides = [side if isinstance(side, list) else [side] for side in (change.ours, change.theirs)]
        if len(sides[0]) != len(sides[1]) or any(type(size) is not int for side in sides for size in side):
            return 8.0**2
        return sum((math.log2(max(mine, 1)) - math.log2(max(other, 1))) ** 2 for mine, other in zip(*sides))

    def distance(other):
        apart = math.sqrt(sum(map(squares, explain.changes(wanted, other))))
        return canonical(other.call) != canonical(wanted.call), round(apart, 6)

    return min((other for other in keys if other != wanted), key=distance, default=None)


def axes():
    """Keys that differ in all kinds of parts."""
    shapes = [(64, 64), (64, 128), (1000, 64), (64,), (), (0, 3)]
    values = [{}, {"n": 4}, {"n": 9}, {"n": True}, {"n": {"float": "0x1p+1"}}, {"n": ["a size"]}, {"n": "x", "m": 3}]
    contexts = [{}, {"source": "b"}, {"source": "b", "device": {"name": "two", "sm_count": 16}}]
    dtypes, nones = ["torch.float32", "torch.int8"], [(), ("bias",)]
    for shape, dtype, none, context, value in itertools.product(shapes, dtypes, nones, contexts, values):
        yield key(shape, dtype, none, context, **value)


@pytest.mark.parametrize("seed", range(4))
def test_the_answer_is_that_of_comparing_every_part(seed):
    shuffled = random.Random(seed)
    keys = list(axes())
    for wanted in shuffled.sample(keys, 12):
        stored = shuffled.sample(keys, 60)
        assert Alike(stored).nearest(wanted) is nearest_of_all(wanted, stored)


@pytest.mark.parametrize("seed", range(4))
def test_nor_is_the_answer_another_where_not_all_sizes_are_looked_at(seed):
    shuffled = random.Random(seed)
    some = [1, 2, 3, 64, 100, 128, 1000, 4096]
    keys = [key((m, n), m=m, n=n if n < 999 else m) for m in some for n in some]
    for wanted in [*shuffled.sample(keys, 8), key((77, 64), m=77, n=64), key((5000, 5000), m=5000, n=1)]:
        stored = shuffled.sample(keys, 50)
        assert Alike(stored).nearest(wanted) is nearest_of_all(wanted, stored)


def test_of_none_and_of_itself_alone_there_is_none():
    assert Alike([]).nearest(key()) is None
    assert Alike([key()]).nearest(key()) is None


def test_of_thousands_of_keys_a_handful_is_compared(monkeypatch):
    """Comparing 20,000 recorded calls part by part with the few hundred that were tuned took more than eight minutes."""
    spelled, looked_at, outwards = [], [], SizeGroup.outwards
    monkeypatch.setattr("autotuned.key.nearest_key.differences", lambda ours, theirs: spelled.append(ours) or ())
    monkeypatch.setattr(
        SizeGroup, "outwards", lambda self, octaves: (looked_at.append(one) or one for one in outwards(self, octaves))
    )
    stored = Alike([key((n, 64), n=n) for n in range(10, 10_000, 3)])
    found = [stored.nearest(key((n, 64), n=n)) for n in range(1010, 4010, 30)]
    assert [one.call["values"]["n"] for one in found] == [n + (0, -1, 1)[(n - 10) % 3] for n in range(1010, 4010, 30)]
    assert len(spelled) <= 1
    assert len(looked_at) < 5 * len(found)


def test_a_file_may_hold_by_itself_what_stands_for_a_size():
    odd = key((64,), n=0.5)
    assert Alike([key((64,), n=8), odd]).nearest(key((64,), n=1)).call["values"] == {"n": 8}
    assert Alike([odd, key((64,), n=8)]).nearest(key((64,), n=1)).call["values"] == {"n": 8}
