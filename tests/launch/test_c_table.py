"""The C launch table: the same answers as its Python twin, and cheap checks of its source."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotuned.key.key import KeySpec, call_part, pow2
from autotuned.launch.table import LIMIT, PyLauncher
from autotuned.typed_json import canonical

_launch = pytest.importorskip("autotuned._launch")
LAUNCHER = Path(__file__).resolve().parents[2] / "autotuned" / "launch" / "c"
SOURCE = "\n".join(path.read_text() for path in [LAUNCHER / "module.c", *sorted(LAUNCHER.glob("*.h"))])
NAMES = ("a", "b", "c")
SPEC = KeySpec(names=("a", "b"), buckets={"b": pow2}, constexprs=frozenset({"c"}))


@pytest.fixture(autouse=True)
def no_driver():
    """Another test's functions in the driver's place may have ended with that test."""
    _launch.use_driver(0, 0, 0, 0)


def table(names=NAMES, roles=(2, 2, 4), buckets=None, functions=(), device=None):
    """A table as `launch.make` makes it for `SPEC`: a and b in the key, b by its bucket, c compiled in."""
    buckets = {"b": pow2} if buckets is None else buckets
    return _launch.Table(tuple(names), len(names), {}, tuple(roles), buckets, tuple(functions), device)


def entry(config="config"):
    return SimpleNamespace(config=config, before=None, direct=None, run=lambda values, grid: (values, grid))


SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(0, 40), st.sampled_from([2**31 - 1, 2**31, 2**63 - 1, 2**63, 2**64 - 1, -1, -16]),
    st.floats(allow_nan=True), st.sampled_from([0.0, -0.0, 1.0]),
)  # fmt: skip


@given(st.tuples(SCALARS, st.integers(0, 5000), SCALARS), st.tuples(SCALARS, st.integers(0, 5000), SCALARS))
@settings(max_examples=400, deadline=None)
def test_equal_words_imply_equal_keys(one, other):
    table_ = table()
    words = [table_.signature(values) for values in (one, other)]
    parts = [canonical(call_part(SPEC, dict(zip(NAMES, values)), {}, "k")) for values in (one, other)]
    if words[0] == words[1]:
        assert parts[0] == parts[1]


@given(st.tuples(SCALARS, st.integers(0, 5000), SCALARS), st.tuples(SCALARS, st.integers(0, 5000), SCALARS))
@settings(max_examples=400, deadline=None)
def test_both_twins_tell_the_same_calls_apart(one, other):
    c, python = table(), PyLauncher(NAMES, SPEC)
    mark = entry()
    assert c.bind(one, mark) == python.bind(one, mark) is True
    assert c.find(one) is mark
    found = c.find(other) is mark, python.find(other) is mark
    if one != other and not any(isinstance(v, float) for v in (*one, *other)):
        assert found[0] == found[1]


@pytest.mark.parametrize(
    "n", [0, 1, 2, 15, 16, 17, 31, 32, 2**31 - 1, 2**31, 2**63 - 1, 2**63, 2**64 - 1, -1, -16, -(2**31) - 1]
)
def test_an_integer_outside_the_key_counts_by_tritons_classes(n):
    from autotuned.launch.table import integer_class

    table_ = table(("a",), (0,), {})
    for other in (0, 1, 2, 3, 16, 17, 32, 48, 2**31, 2**40, 2**63, -1, -16):
        same = integer_class(n) == integer_class(other)
        assert (table_.signature((n,)) == table_.signature((other,))) is same


@pytest.mark.parametrize(
    "value",
    [2**64, -(2**63) - 1, [1], {}, ([1], 2), object(), 1j, b"x"],
    ids=lambda value: "object" if type(value) is object else repr(value),
)
def test_other_values_have_no_words(value):
    table_ = table(("a",), (2,), {})
    assert table_.signature((value,)) is None
    assert table_.bind((value,), entry()) is False
    assert table_.find((value,)) is None


def test_types_are_told_apart():
    table_ = table(("a",), (2,), {})
    words = [table_.signature((value,)) for value in (1, True, 1.0, None, "1", 0, False, 0.0)]
    assert len(set(words)) == len(words)


def test_text_is_kept_alive_and_counts_by_identity():
    table_, mark = table(("a",), (4,), {}), entry()
    text = "".join(["re", "lu"])
    table_.bind((text,), mark)
    count = sys.getrefcount(text)
    assert table_.find((text,)) is mark
    assert sys.getrefcount(text) == count
    assert table_.find(("".join(["r", "elu"]),)) is None
    table_.clear()
    assert sys.getrefcount(text) == count - 1


def test_the_table_is_bounded_and_counts_what_went():
    table_ = table(("a",), (2,), {})
    for n in range(LIMIT + 1):
        assert table_.bind((n,), entry(n))
    assert len(table_) == LIMIT // 2 + 1
    assert table_.evictions == LIMIT // 2
    assert table_.find((0,)) is None
    assert table_.find((LIMIT,)).config == LIMIT


STEPS = st.lists(st.tuples(st.sampled_from(["bind", "find", "swap", "clear"]), st.integers(0, 3)), max_size=40)


@given(STEPS)
@settings(max_examples=200, deadline=None)
def test_what_is_found_is_what_was_bound_last_whichever_call_came_before(steps):
    table_, bound = table(), {}
    for step, n in steps:
        new = entry()
        if step == "bind":
            assert table_.bind((n, 64, 0), new)
            bound[n] = new
        elif step == "swap" and n in bound:
            assert table_.swap(bound[n], new)
            bound[n] = new
        elif step == "clear":
            table_.clear()
            bound.clear()
        assert table_.find((n, 64, 0)) is bound.get(n)


def test_calls_whose_words_have_one_hash_are_told_apart():
    """Of four integers the words of the first and the third go into one lane of the hash."""
    assert "lane[4] = {UINT64_C(1469598103934665603), 2, 3, 5}" in SOURCE
    assert "lane[l] = (lane[l] ^ w->word[i + l]) * prime" in SOURCE
    step = lambda word: (2 ^ word) * 1099511628211
    one = (5, 1, (1 << 40) + 1, 1)
    third = (one[2] ^ step(5) ^ step(13)) % (1 << 64)
    other = (13, 1, third - (1 << 64) * (third >> 63), 1)
    table_ = table(("a", "b", "c", "d"), (2, 2, 2, 2), {})
    words = [table_.signature(values) for values in (one, other)]
    kinds = [[text[at : at + 8] for at in range(0, len(text), 16)] for text in words]
    assert kinds[0] == kinds[1] and words[0] != words[1]
    table_.bind(one, entry())
    assert table_.find(other) is None


def test_what_was_found_last_may_go_for_room():
    table_ = table()
    for n in range(LIMIT):
        table_.bind((n, 64, 0), entry())
    assert table_.find((0, 64, 0)) is not None
    table_.bind((LIMIT, 64, 0), entry())
    assert table_.find((0, 64, 0)) is None


def test_binding_again_replaces():
    table_ = table(("a",), (2,), {})
    table_.bind((5,), entry("old"))
    table_.bind((5,), entry("new"))
    assert (len(table_), table_.find((5,)).config) == (1, "new")


@pytest.mark.parametrize(("one", "other"), [(1, True), (False, 0)])
def test_a_bucket_that_is_a_bool_is_no_number(one, other):
    table_ = table(("a",), (2,), {"a": lambda n: one if n < 10 else other})
    assert table_.signature((5,)) == table_.signature((7,)) != table_.signature((15,))


def test_a_bucket_that_raises_or_gives_no_integer_is_no_hit():
    def bucket(n):
        if n == 1:
            raise KeyError("one")
        return "large" if n == 2 else n

    table_ = table(("a",), (2,), {"a": bucket})
    assert [table_.bind((n,), entry()) for n in (1, 2, 3)] == [False, False, True]
    assert [table_.find((n,)) is not None for n in (1, 2, 3)] == [False, False, True]


def test_key_functions_are_among_the_words():
    table_ = table(("a",), (0,), {}, [lambda arguments: arguments["a"] % 3])
    assert table_.signature((16,)) == table_.signature((64,))
    assert table_.signature((16,)) != table_.signature((32,))


def test_the_device_is_among_the_words():
    index = [0]
    table_ = table(("a",), (2,), {}, device=lambda: index[0])
    table_.bind((1,), entry("zero"))
    index[0] = 1
    assert table_.find((1,)) is None


def test_bound_objects_die_with_the_table():
    class Mark(SimpleNamespace):
        alive = 0

        def __del__(self):
            Mark.alive -= 1

    table_ = table(("a",), (2,), {})
    for n in range(100):
        Mark.alive += 1
        mark = Mark(config=n, before=None, direct=None, table=table_)  # a cycle through the table
        mark.direct = (mark,)  # and one through what is launched directly
        table_.bind((n,), mark)
    del table_, mark
    gc.collect()
    assert Mark.alive == 0


def test_threads_share_a_table():
    table_, errors = table(("a",), (2,), {}), []

    def work(seed):
        for i in range(3000):
            n = (i * 7 + seed) % 500
            table_.bind((n,), entry(n))
            found = table_.find((n,))
            if found is not None and found.config != n:
                errors.append((n, found.config))
            if i % 400 == 0:
                table_.clear()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param((("a",), 1, {}, (), {}, (), None), "one role each", id="roles"),
        pytest.param((("a",), 2, {}, (0,), {}, (), None), "as many places or fewer", id="places"),
        pytest.param(
            (tuple(f"a{i}" for i in range(129)), 1, {}, (0,) * 129, {}, (), None), "at most 128", id="too many"
        ),
    ],
)
def test_a_table_that_cannot_be_made_says_why(arguments, message):
    with pytest.raises(ValueError, match=message):
        _launch.Table(*arguments)


# Patterns that have bitten C extensions; each would be found in review, but not by every reviewer.
@pytest.mark.parametrize(
    "pattern",
    [
        pytest.param(r"\bPyDict_GetItem\(", id="swallows errors"),
        pytest.param(r"\b(strcpy|strcat|sprintf|gets)\(", id="unbounded writes"),
        pytest.param(r"\b(malloc|calloc|realloc|free)\(", id="not Python's allocator"),
        pytest.param(r"\bPyErr_Print\(|\bprintf\(|\bfprintf\(", id="prints"),
        pytest.param(r"\bPy_DECREF\((\w+)->(\w+)\);\s*\1->\2 = ", id="decref before reset: use Py_CLEAR"),
        pytest.param(r"#include\s*[<\"](cuda|torch|ATen)", id="foreign headers"),
        pytest.param(r"\bPyObject_CallFunction\(", id="formats at run time"),
    ],
)
def test_source_is_free_of(pattern):
    assert re.findall(pattern, SOURCE) == []


def test_source_says_how_it_differs_and_marks_its_hot_path():
    head = SOURCE.split("*/", 1)[0]
    assert [int(n) for n in re.findall(r"^ \*  (\d)\. ", head, re.MULTILINE)] == list(range(1, 6))
    assert SOURCE.count("hot path") >= 10
    assert f"#define LIMIT {LIMIT}" in SOURCE


def test_the_number_of_the_environment_changes_with_any_variable(monkeypatch):
    def number(**variables):
        with monkeypatch.context() as patched:
            for name, value in variables.items():
                patched.setenv(name, value)
            return _launch.environment()

    base = number()
    assert base == number()
    values = ["", "1", "10", "12345678", "123456789", "12345678\t", "x" * 100, "x" * 101]
    numbers = [number(AUTOTUNED_TEST=value) for value in values]
    numbers += [number(AUTOTUNED_TEST_="1"), number(AUTOTUNED_TEST="1", AUTOTUNED_TEST_="1")]
    assert len({base, *numbers}) == 1 + len(numbers)


def test_what_is_missing_where_torch_is_not_imported_is_torch():
    program = "from autotuned.launch import launcher as launch; import sys; assert 'torch' not in sys.modules; print(*launch.in_use())"
    environment = {name: value for name, value in os.environ.items() if name != "AUTOTUNED_LAUNCHER"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "c look-up in C, launches through Triton's launcher: torch has not been imported\n"
