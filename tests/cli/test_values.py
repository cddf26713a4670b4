"""Every value that a key can hold is printed by every command that lists records."""

import datetime
import decimal
import enum
import fractions
import math
import pathlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from commands import run, run_json
from fakes import CONTEXT, FakeConfig, form
from hypothesis import given, settings
from hypothesis import strategies as st

from autotuned.key import opaque, words
from autotuned.key.key import Key
from autotuned.store import records
from autotuned.store.record import Timing, TuningRecord
from autotuned.typed_json import encode

pytestmark = pytest.mark.usefixtures("wide_output")


class Act(enum.Enum):
    RELU = 1


class Level(enum.IntEnum):
    LOW = 1


class Mode(str, enum.Enum):
    FAST = "fast"


class Access(enum.Flag):
    READ = 1
    WRITE = 2


@dataclass(frozen=True)
class Tile:
    rows: int


def scale(x: int) -> int:
    return x * 2


ATOMS: list[Any] = [
    None, True, 3, 2**80, -0.0, math.inf, math.nan, 1.5, "", "enum", "a.b.c", "\ud800", b"\xff", 1 + 2j, (), [], {},
    Act.RELU, Level.LOW, Mode.FAST, Access.READ | Access.WRITE, np.int64(4), np.float32(0.1), np.bool_(True),
    np.datetime64("2020-01-01"), np.datetime64("NaT"), np.timedelta64(3, "s"), np.bytes_(b"x"), np.str_("y"),
    np.dtype("int8").type(3), Tile(4), scale, Tile, len, range(3), slice(1, 2), {1, 2}, frozenset({"a"}),
    decimal.Decimal("1.50"), fractions.Fraction(1, 3), pathlib.PurePosixPath("a/b"), datetime.date(2020, 1, 1),
    datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc), bytearray(b"x"), np.zeros((2, 3)), np.longdouble(1),
]  # fmt: skip
VALUES = st.recursive(
    st.sampled_from(ATOMS),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.sampled_from(["a", 1, (2, "x"), Act.RELU]), inner, max_size=2)
    ),
    max_leaves=5,
)


@settings(max_examples=80, deadline=None, database=None, derandomize=True)
@given(VALUES)
def test_a_value_of_any_kind_has_words(value: Any) -> None:
    assert isinstance(words.value_words(encode(value, "argument 'v'", opaque.spell)), str)


@settings(max_examples=80, deadline=None, database=None, derandomize=True)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from([*words._KINDS, "of a later version"]), inner, max_size=2)
        ),
    )
)
def test_json_that_no_value_has_is_printed_too(data: Any) -> None:
    assert isinstance(words.value_words(data), str)


def keep(index: int, value: Any) -> Key:
    spelled = encode(value, "argument 'v'", opaque.spell)
    call = {"tensors": {}, "values": {"n": index, "v": spelled}, "none": [], "options": {"o": spelled}}
    key, config = Key("app.k", call, {**CONTEXT, "version": spelled}), form(FakeConfig({"BLOCK": 64}))
    assert records.keep(TuningRecord(key, config, 10.0, "ok", (Timing(config, 10.0, 10.0, 10.0, 40),)))
    return key


def test_every_listing_command_shows_every_record() -> None:
    keys = [keep(index, value) for index, value in enumerate([*ATOMS, 10**5000])]
    listed = run("list").stdout
    shown = run("show", "app.k").stdout
    assert [key.digest for key in keys if key.digest[:12] not in listed] == []
    assert [n for n in range(len(keys)) if f"n={n} " not in shown] == []
    assert len(run_json("list")["choices"]) == len(keys)
    assert "n=1 v=True" in run("report").stdout
    explained = run("explain", "app.k").stdout
    assert [key.digest for key in keys if key.digest[:12] not in explained] == []


def test_words_of_values_are_those_of_their_code() -> None:
    values = [Act.RELU, Level.LOW, Access.READ, (1, 2.5), b"x", 1 + 2j, {"a": Act.RELU}, np.datetime64("2020-01-01")]
    said = [words.value_words(encode(value, "v")) for value in values]
    assert said == [
        "Act.RELU", "Level.LOW", "Access.1", "(1, 2.5)", "b'x'", "(1+2j)", "{a: Act.RELU}", "2020-01-01",
    ]  # fmt: skip
