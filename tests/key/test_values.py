"""Values in keys: by what they compute and hold, and a clear word where that cannot be told."""

import datetime
import functools
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from stepped import CONFIGS, make
from stored import records

from autotuned import typed_json
from autotuned.errors import AutotunedError, EncodingError
from autotuned.typed_json import DEPTH, encode

Load = Callable[..., ModuleType]


def searches_of(values: list[Any], **options: Any) -> int:
    function = make(lambda x, n, step: None, key=["n"], **options)(CONFIGS)
    for value in values:
        function(np.ones(4), value)
    return int(function.cache_info().searches)


class Scale:
    def __init__(self, by: Any) -> None:
        self.by, self.calls = by, 0

    def __call__(self, x: Any) -> Any:
        self.calls += 1
        return x * self.by


@dataclass(frozen=True)
class Tile:
    rows: int
    act: Any = None


def first(x: int) -> int:
    return x + 1


EQUAL = {
    "callable": lambda n: Scale(2),
    "callable that counts its calls": lambda n: [scale := Scale(2), scale(n)][0],
    "frozen dataclass": lambda n: Tile(4),
    "dataclass with a function": lambda n: Tile(4, lambda x: x + 1),
    "partial of an object": lambda n: functools.partial(Scale(2), 3),
    "method": lambda n: Scale(2).__call__,
    "function": lambda n: lambda x: x + 1,
    "date": lambda n: np.datetime64("2020-01-01"),
    "no date": lambda n: np.datetime64("NaT"),
    "duration": lambda n: np.timedelta64(3, "s"),
    "not a number": lambda n: float("nan"),
    "not a number of NumPy": lambda n: np.float32("nan"),
    "long double": lambda n: np.longdouble(1),
    "set": lambda n: {1, 2},
    "list of arrays": lambda n: [np.full(3, n)],
    "dataclass with an array": lambda n: Tile(4, np.full(3, n)),
    "date of Python": lambda n: datetime.date(2020, 1, 1),
    "integer of many digits": lambda n: 10**5000,
}


@pytest.mark.parametrize("kind", EQUAL)
def test_equal_values_share_a_choice(kind: str) -> None:
    assert searches_of([EQUAL[kind](n) for n in range(20)]) == 1
    assert len(records()) == 1


DIFFERENT = [
    Scale(2), Scale(3), Scale(2.0), Tile(4), Tile(5), Tile(4, first), Tile(4, len), first, len, max, Tile, Scale,
    functools.partial(Scale(2), 3), functools.partial(Scale(3), 3), Scale(2).__call__, Scale(3).__call__,
    np.datetime64("2020-01-01"), np.datetime64("2020-01-01", "s"), np.datetime64("NaT"), np.timedelta64("NaT"),
    np.timedelta64(3, "s"), np.timedelta64(3, "ms"), 10**5000, 10**5000 + 1, [np.zeros(3)], [np.zeros(4)],
]  # fmt: skip


def test_different_values_have_choices_of_their_own() -> None:
    assert searches_of(DIFFERENT) == len(DIFFERENT) == len(records())


def test_a_renamed_function_of_equal_body_is_the_same_value(load: Load) -> None:
    text = "def {name}(x, by=2):\n    return x * by\n"
    one, other = (getattr(load("acts", acts=text.format(name=name)), name) for name in ("relu", "renamed"))
    changed = load("acts", acts=text.format(name="relu").replace("x *", "x **")).relu
    assert searches_of([one, other, one]) == 1
    assert searches_of([one, changed]) == 1  # the other is stored


def test_an_object_that_changes_is_another_value() -> None:
    scale = Scale(2)
    function = make(lambda x, n, step: None, key=["n"])(CONFIGS)
    for by in (2, 3, 2, 3):
        scale.by = by
        function(np.ones(4), scale)
    assert function.cache_info().searches == 2


# -- what cannot be told -----------------------------------------------------------------------------------------------


def holding_itself(kind: Callable[[list[Any]], Any]) -> Any:
    value: list[Any] = []
    value.append(kind(value))
    return value


def nested(depth: int, wrap: Callable[[Any], Any]) -> Any:
    return functools.reduce(lambda inner, _: wrap(inner), range(depth), 1)


def doubled(depth: int) -> Any:
    return functools.reduce(lambda inner, _: [inner, inner], range(depth), 1)


ENDLESS = {
    "list in itself": holding_itself(lambda value: value),
    "list in a dict in itself": holding_itself(lambda value: {"a": value}),
    "list in a tuple in itself": holding_itself(lambda value: (value,)),
    "3,000 lists": nested(3000, lambda value: [value]),
    "3,000 tuples": nested(3000, lambda value: (value,)),
    "3,000 tuples in a list": [nested(3000, lambda value: (value,))],
    "3,000 dicts": nested(3000, lambda value: {"a": value}),
    "65 lists": nested(DEPTH + 1, lambda value: [value]),
    "2 ** 40 items": doubled(40),
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_values_without_end_are_refused_by_name(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typed_json, "ITEMS", 20_000)  # to count to a million takes seconds
    with pytest.raises(EncodingError, match=r"^argument 'n' of '[\w.<>]+': expected values nested at most 64 deep, "
                       r"got a (list|dict|tuple) (that holds itself|nested more than 64 deep|of more than 20,000 items)\. "
                       r"Leave it out of key, or name a callable"):  # fmt: skip
        searches_of([ENDLESS[kind]])
    assert encode([1, [2]], "argument 'n'") == [1, [2]]  # nothing of it is left behind


def test_what_holds_itself_without_being_a_container_is_a_value_too() -> None:
    one, other = Scale(2), Scale(2)
    one.by, other.by = one, other
    assert searches_of([one, other]) == 1


def test_a_deep_value_is_no_value_of_others() -> None:
    assert searches_of([nested(DEPTH - 2, lambda value: [value])] * 2) == 1


def test_a_tree_of_objects_is_kept_in_memory_where_it_is_too_deep(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "autotuned")
    deep = nested(3000, Scale)
    assert searches_of([deep, deep]) == 1 and records() == []
    [line] = [record.getMessage() for record in caplog.records]
    assert "is kept in memory only: 'n', of type" in line


# -- what code uses ----------------------------------------------------------------------------------------------------

HANDLE = "import threading\nHANDLE = {value}\ndef work(x, n, step):\n    return HANDLE, n\n"


def test_a_value_that_code_uses_and_nobody_can_spell_keeps_its_choice_in_memory(
    load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "autotuned")
    for _ in range(2):
        function = make(load("handles", handles=HANDLE.format(value="threading.local()")).work, key=["n"])(CONFIGS)
        for n in (1, 2, 1):
            function(np.ones(4), n)
        assert function.cache_info().searches == 2
        [line] = [record.getMessage() for record in caplog.records]
        assert line.startswith("`handles.work`: the choice for key ")
        assert line.endswith(
            "is kept in memory only: '0.HANDLE', a value of type _thread._local that its code uses, has no JSON form. "
            "Put its relevant part into version=."
        )
        caplog.clear()
    assert records() == []


def test_with_a_version_the_user_has_said_what_matters(load: Load, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "autotuned")
    for searches in (1, 0):
        work = load("handles", handles=HANDLE.format(value="threading.local()")).work
        function = make(work, key=["n"], version=1)(CONFIGS)
        function(np.ones(4), 1)
        assert function.cache_info().searches == searches
    assert caplog.records == []


def test_locks_and_loggers_are_no_values(load: Load) -> None:
    text = "import threading, logging\nLOCK = threading.Lock()\nlog = logging.getLogger('a')\n"
    text += "def work(x, n, step):\n    with LOCK:\n        log.debug('%s', n)\n"
    for searches in (1, 0):
        function = make(load("locked", locked=text).work, key=["n"])(CONFIGS)
        function(np.ones(4), 1)
        assert function.cache_info().searches == searches


def test_every_refusal_is_an_error_of_this_package() -> None:
    assert issubclass(EncodingError, AutotunedError) and threading.active_count() >= 1
