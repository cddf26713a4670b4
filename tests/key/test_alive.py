"""What stands in a key is not kept alive by it, and what took its place in memory is never taken for it."""

from __future__ import annotations

import dataclasses
import enum
import functools
import gc
import weakref
from collections import UserDict, deque
from collections.abc import Callable
from typing import Any

import local_classes
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from triton import Config

from autotuned import autotune
from autotuned.key import key as module_of_key
from autotuned.key import opaque
from autotuned.key.key import by_class

COUNT = 300


class Plain:
    """An object that is known by itself."""

    def __init__(self, held: Any = None) -> None:
        self.held = held
        self.token = object()  # which has no spelling

    def method(self, x: int) -> int:
        return x

    def __call__(self, x: int) -> int:
        return x


class Equal(Plain):
    """One that is equal to every other, and has no hash."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


class Hostile(Plain):
    """One whose comparison and hash are errors."""

    def __eq__(self, other: object) -> bool:
        raise ArithmeticError

    def __hash__(self) -> int:
        raise ArithmeticError


class Slotted:
    __slots__ = ("held", "token")

    def __init__(self, held: Any = None) -> None:
        self.held, self.token = held, object()


class SlottedWeak:
    __slots__ = ("__weakref__", "held", "token")

    def __init__(self, held: Any = None) -> None:
        self.held, self.token = held, object()


class Level(enum.Enum):
    LOW, HIGH = 1, 2

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


@dataclasses.dataclass(eq=False)
class Data:
    held: Any


def in_itself(held: Any) -> Any:
    made = Plain(held)
    made.me = made  # type: ignore[attr-defined]
    return made


def closure(held: Any) -> Callable[[int], int]:
    return lambda x: x if held else 0


def closure_of_itself(held: Any) -> Callable[[int], int]:
    def act(x: int) -> int:
        return act(x - 1) if held and x else 0

    return act


def with_default(held: Any) -> Callable[..., int]:
    def act(x: int, held: Any = held) -> int:
        return x

    return act


MADE: dict[str, Callable[[Any], Any]] = {
    "object": Plain, "equal to all": Equal, "hostile": Hostile, "slots": Slotted, "slots and weak": SlottedWeak,
    "dataclass": Data, "in itself": in_itself, "user dict": lambda held: UserDict(a=held), "deque": lambda held: deque([held]),
    "closure": closure, "recursive closure": closure_of_itself, "default": with_default,
    "method": lambda held: Plain(held).method, "partial": lambda held: functools.partial(closure(held), 1),
    "in a tuple": lambda held: (1, Plain(held)), "in a list": lambda held: [Plain(held)],
    "iterator": lambda held: iter([held]),
}  # fmt: skip


class Held:
    """Stands for memory of a GPU."""


def tuned(*key: Any) -> Any:
    def function(x: int, act: Any, *, block: int) -> int:
        return x

    bench = lambda call, quantiles: (call(), [1.0, 1.0, 1.0])[1]
    configs = [Config({"block": 1}), Config({"block": 2})]
    return autotune(configs, key=list(key) or ["act"], do_bench=bench, restore_value=[])(function)


KEYS = {
    "named": "act",
    "answer": lambda arguments: arguments["act"],
    "in an answer": lambda arguments: (1, arguments["act"]),
}


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("kind", MADE)
def test_what_is_in_a_key_dies_with_its_last_user(kind: str, key: str) -> None:
    function, alive = tuned(KEYS[key]), []
    for _ in range(3):
        held = Held()
        alive.append(weakref.ref(held))
        act = MADE[kind](held)
        for _ in range(3):
            function(1, act)
        del held, act
    opaque.spell(Slotted(), "x")  # what has no weak references goes with the next such object
    gc.collect()
    assert sum(one() is not None for one in alive) == 0


@pytest.mark.parametrize(
    "key", [["x"], ["act"], ["act", lambda arguments: arguments["act"]]], ids=["not in it", "named", "answer"]
)
@pytest.mark.parametrize("kind", local_classes.MADE)
def test_what_the_class_of_an_argument_holds_dies_with_it(kind: str, key: list[Any]) -> None:
    """Also what a method of a local class closes over, as a tensor: no table or cache of classes keeps it."""
    function, alive = tuned(*key), []
    for _ in range(3):
        held = Held()
        alive.append(weakref.ref(held))
        act = local_classes.MADE[kind](held)
        for _ in range(3):
            function(1, act)
        del held, act
    gc.collect()
    assert sum(one() is not None for one in alive) == 0


def test_facts_are_remembered_of_a_bounded_number_of_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_of_key, "CLASSES", 5)
    asked: list[type] = []
    name = by_class(lambda kind: (asked.append(kind), kind.__name__)[1])
    kinds = [type(f"Kind{index}", (), {}) for index in range(7)]
    assert [name(kind) for kind in kinds * 2] == [kind.__name__ for kind in kinds] * 2
    asked.clear()
    assert [name(kinds[-1]), name(kinds[-1]), asked] == ["Kind6", "Kind6", []]


def test_the_tables_are_as_long_as_there_are_objects() -> None:
    before = len(opaque._living)
    kept = [Plain() for _ in range(COUNT)]
    for one in kept:
        opaque.spell(one, "x")
    assert len(opaque._living) == before + COUNT
    del one, kept[10:]
    gc.collect()
    assert len(opaque._living) == before + 10


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["new", "again", "drop"]), st.sampled_from(sorted(MADE)), st.integers(0, 99)))
)
def test_no_two_objects_ever_have_one_number_and_each_keeps_its_own(steps: list[tuple[str, str, int]]) -> None:
    kinds = [kind for kind in MADE if "closure" not in kind and kind not in ("method", "partial", "default")]
    living: list[tuple[Any, Any]] = []
    seen: list[Any] = []
    for step, kind, which in steps:
        if step == "new":
            made = MADE[kind if kind in kinds else "object"](None)
            number = opaque.this_very(made)
            assert number not in seen
            seen.append(number)
            living.append((made, number))
            del made
        elif living and step == "drop":
            del living[which % len(living)]
        elif living:
            made, number = living[which % len(living)]
            assert opaque.this_very(made) == number
            del made


@pytest.mark.parametrize("key", KEYS)
def test_equal_objects_and_one_that_changes_are_not_answered_for_each_other(key: str) -> None:
    """Which is what the key says; a launch table that asked the objects would answer before there is a key."""
    function, changing = tuned(KEYS[key]), Data(1)
    for act in (Equal(), Equal(), Level.LOW, Level.HIGH, changing):
        for _ in range(2):
            function(1, act)
    assert function.cache_info().searches == 5
    changing.held = 2
    function(1, changing)
    assert function.cache_info().searches == 6


@pytest.mark.parametrize("key", KEYS)
def test_each_object_is_searched_for_once_while_it_lives(key: str) -> None:
    function = tuned(KEYS[key])
    acts = [Plain() for _ in range(5)] + [Slotted() for _ in range(5)]
    for act in acts * 3:
        function(1, act)
    assert function.cache_info().searches == 10
