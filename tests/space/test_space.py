"""Declared spaces: what is a member, how many there are, and which errors say what."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from triton import Config

from autotuned import Space, pow2s
from autotuned.errors import SpaceError
from autotuned.space import parts
from autotuned.space.members import EXACT_LISTS


def tiles(**more):
    parameters = {"A": pow2s(16, 128), "B": [16, 32, 64], "mode": ["x", "y", "z"], "num_warps": [1, 2, 4]}
    return Space(parameters, where=[lambda A, B: A * B <= 4096, lambda num_warps, A: 16 * num_warps <= A], **more)


def listed(space, keep):
    names = list(space.parameters)
    rows = itertools.product(*space.parameters.values())
    return [row for row in rows if keep(**dict(zip(names, row)))]


def test_the_members_are_those_of_the_filtered_product():
    members = tiles().members()
    wanted = listed(tiles(), lambda A, B, mode, num_warps: A * B <= 4096 and 16 * num_warps <= A)
    found = [tuple(values[index] for values, index in zip(members.values, point)) for point in members]
    assert members.exact and members.size == len(wanted)
    assert sorted(found) == sorted(wanted)


@pytest.mark.parametrize("seed", range(20))
def test_random_spaces_have_the_members_of_the_filtered_product(seed):
    source = random.Random(seed)
    names = [f"p{place}" for place in range(source.randint(1, 6))]
    parameters = {name: source.sample(range(100), source.randint(1, 5)) for name in names}
    where = []
    for _ in range(source.randint(0, 3)):
        read, modulus = source.sample(names, source.randint(1, min(3, len(names)))), source.randint(2, 4)
        where.append(eval(f"lambda {', '.join(read)}: ({' + '.join(read)}) % {modulus} != 0"))
    space = Space(parameters, where=where)
    points = [dict(zip(names, row)) for row in itertools.product(*parameters.values())]
    kept = [one for one in points if all(f(**{n: one[n] for n in f.__code__.co_varnames}) for f in where)]
    if not kept:
        with pytest.raises(SpaceError, match="leave"):
            space.members()
        return
    members = space.members()
    assert members.size == len(kept) == len(set(members)) == len(members.some(random.Random(0)))
    for point in members:
        assert members.holds(point) and members.point(members.config(point)) == point
        for other in members.neighbours(point):
            assert members.holds(other) and sum(a != b for a, b in zip(point, other)) == 1
    drawn = {members.draw(source) for _ in range(30 * members.size)}
    assert drawn <= set(members) and len(drawn) > 0.9 * members.size


def test_launch_options_are_options_and_others_parameters():
    members = tiles().members()
    config = members.config(members[0])
    assert config.num_warps == 1 and config.kwargs == {"A": 16, "B": 16, "mode": "x"}
    assert tiles().members(options=False).config(members[0]).kwargs["num_warps"] == 1


@pytest.mark.parametrize(
    "config",
    [
        Config({"A": 128, "B": 64, "mode": "x"}, num_warps=1),
        Config({"A": 16, "B": 16, "mode": "x"}, num_warps=1, num_stages=5),
        Config({"A": 16, "B": 16, "mode": "x", "C": 1}, num_warps=1),
        Config({"A": 16, "B": 16}, num_warps=1),
        Config({"A": True, "B": 16, "mode": "x"}, num_warps=1),
        Config({"A": 16, "B": 16, "mode": "x"}, num_warps=1, pre_hook=print),
    ],
    ids=["constraint", "option", "unknown", "missing", "bool", "hook"],
)
def test_what_is_no_member_has_no_point(config):
    assert tiles().members().point(config) is None


def test_constraints_name_arguments_of_the_call():
    space = Space({"B": pow2s(16, 256)}, where=[lambda B, n: n >= B, lambda B, other=3: other < B])
    assert space.members({"n": 64, "x": 1}).size == 3
    with pytest.raises(SpaceError, match=r"got 'n', which is neither.*Arguments are: m"):
        space.members({"m": 1})


def test_a_constraint_may_take_everything():
    assert Space({"a": [1, 2], "b": [1, 2]}, where=lambda a, **names: a + names["b"] == 3).members().size == 2
    space = Space({"a": [1, 2], "b": [1, 2]}, where=lambda **names: names["a"] + names["b"] == names["n"])
    assert space.members({"n": 2}).size == 1


def test_a_space_of_a_hundred_million_is_not_listed():
    space = Space({f"p{place}": range(10) for place in range(10)}, where=[lambda p0, p1: p0 < p1])
    members = space.members()
    assert members.exact and members.size == 45 * 10**8
    assert members[members.size - 1] == (8, 9, 9, 9, 9, 9, 9, 9, 9, 9)
    assert members.some(random.Random(0), 100).shape == (100, 10)


def test_a_sample_of_a_large_space_has_each_member_once():
    """A member that was drawn twice stayed a candidate of the guided strategy after it was measured."""
    members = Space({"a": range(300), "b": range(300)}).members()
    drawn = [tuple(row) for row in members.some(random.Random(0)).tolist()]
    assert len(set(drawn)) == len(drawn) == EXACT_LISTS and all(map(members.holds, drawn))


def test_what_one_part_cannot_list_is_an_estimate_that_says_so():
    names = [f"p{place}" for place in range(8)]
    space = Space(
        dict.fromkeys(names, range(8)), where=eval(f"lambda {', '.join(names)}: ({' + '.join(names)}) % 4 == 0")
    )
    members = space.members()
    assert not members.exact and members.words.startswith("about ")
    assert 0.8 < members.size / (8**8 / 4) < 1.25
    assert all(sum(point) % 4 == 0 for point in map(members.draw, [random.Random(s) for s in range(20)]))
    with pytest.raises(IndexError):
        members[0]


def test_draws_are_even():
    space = Space({"a": range(3), "b": range(9)}, where=[lambda a, b: b < 3**a])
    members, source = space.members(), random.Random(0)
    counts = np.unique([members.draw(source) for _ in range(13_000)], axis=0, return_counts=True)[1]
    assert len(counts) == 13 and counts.min() > 800 and counts.max() < 1200


def test_draws_of_an_estimated_part_are_nearly_even(monkeypatch):
    monkeypatch.setattr(parts, "LISTED", 1)
    members, source = Space({"a": range(3), "b": range(9)}, where=[lambda a, b: b < 3**a]).members(), random.Random(0)
    counts = np.unique([members.draw(source) for _ in range(2_600)], axis=0, return_counts=True)[1]
    assert len(counts) == 13 and members.size in range(12, 15) and counts.min() > 100 and counts.max() < 400


def test_first_are_members_that_are_tried_first():
    given = [Config({"A": 64, "B": 64, "mode": "y"}, num_warps=2), {"A": 128, "B": 64, "mode": "y", "num_warps": 2}]
    assert tiles(first=given).members().first == ((2, 2, 1, 1),)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Space({}), "expected a dict of values"),
        (lambda: Space([1]), "expected a dict of values"),
        (lambda: Space({"A": []}), "A: expected 1 to"),
        (lambda: Space({"A": 16}), r"A: expected a list or range of values, got 16. Write \[16\]"),
        (lambda: Space({"A": "xy"}), "A: expected a list"),
        (lambda: Space({"A": [1, 2, 1]}), "each value once, got 1 twice"),
        (lambda: Space({1: [1]}), "expected names"),
        (lambda: Space({"A": [1]}, where=[3]), r"where\[0\]: expected a callable"),
        (lambda: Space({"A": [1]}, where=3), "where: expected callables"),
        (lambda: Space({"A": [1]}, where=[lambda B: B]), r"where\[0\] \(lambda of B\): expected a callable that names a parameter"),
        (lambda: Space({"A": [1]}, where=[eval("lambda A, /: A")]), "given by name"),
        (lambda: Space({"A": [1]}, first=[{"B": 1}]), "first: expected a Config or a dict"),
        (lambda: Space({"A": [1]}, first={"A": 1}), "first: expected a list of configs, got dict"),
        (lambda: Space({"A": [1]}, first=Config({"A": 1})), "first: expected a list of configs, got Config"),
        (lambda: Space({"A": [1]}, first=[{"A": 2}]), "first: expected A among its values"),
        (lambda: Space({"A": [1]}, where=[lambda A: A > 3]).members(), r"got none: where\[0\] \(lambda of A\) leaves nothing"),
        (lambda: Space({"A": [0]}, where=[lambda A: 1 / A]).members(), r"where\[0\].*ZeroDivisionError.*for A=0"),
        (lambda: pow2s(0, 4), "pow2s: expected two whole numbers"),
        (lambda: pow2s(9, 15), "power of two in it, got 9 to 15"),
    ],
)  # fmt: skip
def test_errors_say_what_was_expected(make, message):
    with pytest.raises(SpaceError, match=message):
        make()


def test_powers_of_two():
    assert pow2s(16, 256) == [16, 32, 64, 128, 256] and pow2s(3, 9) == [4, 8] and pow2s(1, 1) == [1]


def test_nothing_is_listed_to_find_a_stored_choice():
    """Of 262,144 linked combinations: a member is told by its constraints, and whether there is any by the first."""
    asked = []
    linked = lambda a, b, c, d, e, f: asked.append(1) or (a + b + c + d + e + f) % 3 == 0
    members = Space({name: range(8) for name in "abcdef"}, where=[linked]).members()
    assert members.holds((0, 0, 0, 0, 0, 3)) and not members.holds((0, 0, 0, 0, 0, 1))
    assert next(iter(members)) == (0, 0, 0, 0, 0, 0) and not members.is_at_most(64)
    assert len(asked) < 1_000
    assert members.size == 87_382 and len(asked) >= 262_144


def test_a_large_space_without_members_is_told_by_a_bounded_number_of_questions():
    asked = []
    never = lambda **all_of: bool(asked.append(1))
    with pytest.raises(SpaceError, match="tell. Loosen a constraint, or add values, or name a member in first="):
        Space({f"p{place}": range(10) for place in range(8)}, where=[never]).members()
    assert len(asked) == 400_000


def test_rare_members_are_drawn_in_bounded_time():
    asked = []
    rare = lambda **all_of: asked.append(1) or sum(all_of.values()) * 7919 % 1009 == 5
    members = Space({f"p{place}": range(0, 1000, 100 - place) for place in range(8)}, where=[rare]).members()
    assert not members.exact
    asked.clear()
    source = random.Random(0)
    drawn = {members.draw(source) for _ in range(200)}
    assert all(members.holds(point) for point in drawn) and len(drawn) > 2
    assert len(asked) < 400_000


def test_a_space_is_drawn_from_in_bounded_time():
    """Of 10^8 linked combinations 2% are members."""
    asked = []
    linked = lambda **all_of: asked.append(1) or sum(all_of.values()) < 20
    members = Space({f"p{place}": range(10) for place in range(8)}, where=[linked]).members()
    drawn = members.some(random.Random(0))
    assert len(drawn) > 300 and all(map(members.holds, drawn))
    assert len(asked) < 300_000
