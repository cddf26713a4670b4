"""Grid callables that the C launcher computes by itself: as Python would, or not at all."""

from __future__ import annotations

import builtins
import functools
import sys
from types import FunctionType, SimpleNamespace

import launched
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from launched import BLOCK

from autotuned import _native
from autotuned.launch import grid_program

_launch = pytest.importorskip("autotuned._launch")
torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

SIZE, TEXT = 5, "no size"


class Kernel(launched.Kernel):
    """A bound kernel that notes the grid of each launch."""

    def asked(self, grid, m=1000, n=77, other=3):
        """The sizes that a grid gives, and whether they were computed."""
        self.table.bind(
            (torch.zeros(1),) * 3, SimpleNamespace(config="c", before=None, again=None, direct=None)
        )  # finds torch
        self.table.bind(
            (m, n, other), SimpleNamespace(config="c", before=None, again=None, direct=self.direct, run=None)
        )
        before, launches = self.table.computed, len(self.grids)
        self[grid](m, n, other)
        assert len(self.grids) <= launches + 1
        return self.grids[-1] if len(self.grids) > launches else None, self.table.computed > before


@pytest.fixture(scope="module")
def kernel():
    _native.read_grids(grid_program.program)
    yield Kernel()
    _launch.use_driver(0, 0, 0, 0)
    _native.read_grids(grid_program.program)  # which forgets the programs of this file


def meta(m=1000, n=77, other=3):
    return {"m": m, "n": n, "other": other, "BLOCK": BLOCK}


def by_python(grid, **values):
    """The sizes as Python has them; None for a launch of nothing."""
    sizes = (*grid(meta(**values)), 1, 1)[:3]
    return None if 0 in sizes else sizes


def up(a, b):
    return -(a // -b)


def of_locals(meta):
    rows = triton.cdiv(meta["m"], meta["BLOCK"])
    columns = up(meta["n"], 16)
    return (rows * columns, columns)


def closure(n, count):
    return lambda meta: (min(count, triton.cdiv(n, meta["BLOCK"])), max(n, 1) % 7 + 1)


COMPUTED = {
    "cdiv": lambda meta: (triton.cdiv(meta["m"], meta["BLOCK"]),),
    "plain": lambda meta: ((meta["m"] + meta["BLOCK"] - 1) // meta["BLOCK"],),
    "two": lambda META: (triton.cdiv(META["m"], 64), triton.cdiv(META["n"], 64)),
    "three": lambda meta: (meta["m"], meta["n"] % 10, 3),
    "list": lambda meta: [meta["m"] // 2],
    "persistent": lambda meta: (min(SIZE, triton.cdiv(meta["m"], 32) * triton.cdiv(meta["n"], 32)), 1),
    "global": lambda meta: (SIZE * meta["n"],),
    "own function": lambda meta: (up(meta["m"], 3),),
    "locals": of_locals,
    "closure": closure(500, 9),
    "empty": lambda meta: (meta["n"] - meta["n"],),
}


@pytest.mark.parametrize("name", COMPUTED)
def test_the_usual_grids_are_computed_and_right(kernel, name):
    grid = COMPUTED[name]
    assert kernel.asked(grid) == (by_python(grid), True)
    assert kernel.asked(grid, m=7, n=2**20) == (by_python(grid, m=7, n=2**20), True)


class Callable:
    def __call__(self, meta):
        return (meta["m"],)

    def method(self, meta):
        return (meta["m"],)


CALLED = {
    "constant": lambda meta: (1,),
    "branch": lambda meta: (meta["m"] if meta["m"] > 1 else 1,),
    "float": lambda meta: (int(meta["m"] / 3),),
    "attribute": lambda meta: (meta["m"].bit_length(),),
    "get": lambda meta: (meta.get("m", 1),),
    "or": lambda meta: (meta["m"] or 1,),
    "shift": lambda meta: (meta["m"] >> 1,),
    "power": lambda meta: (meta["other"] ** 2,),
    "default": lambda meta, k=2: (meta["m"] // k,),
    "many": lambda *metas: (metas[0]["m"],),
    "keyword": lambda meta, *, k=2: (k,),
    "len": lambda meta: (len(meta),),
    "three of min": lambda meta: (min(meta["m"], meta["n"], 2),),
    "cdiv by name": lambda meta: (triton.cdiv(x=meta["m"], y=3),),
    "sum": lambda meta: tuple(meta[name] for name in ("m", "n")),
    "starred": lambda meta: (*[meta["m"]], 2),
    "inner": lambda meta: (lambda m: (m,))(meta["m"]),
    "partial": functools.partial(lambda k, meta: (meta["m"] // k,), 2),
    "object": Callable(),
    "method": Callable().method,
    "unused": lambda meta: (second(meta["m"], 3),),
    "of a global": lambda meta: (with_global(meta["m"]),),
}


def second(unused, x):
    return x


def with_global(x):
    return x + SIZE


@pytest.mark.parametrize("version", [(3, 15), (3, 99), (4, 0)])
def test_in_a_python_that_the_reader_was_not_written_for_the_callable_is_called(kernel, monkeypatch, version):
    monkeypatch.setattr(sys, "version_info", (*version, 0, "final", 0))
    grid = eval('lambda meta: (meta["m"] + 16, meta["n"])')  # of a code that was not read before
    assert grid_program.program(grid) is None
    for m in (1000, 7):
        assert kernel.asked(grid, m=m) == (by_python(grid, m=m), False)


@pytest.mark.parametrize("name", CALLED)
def test_everything_else_is_called(kernel, name):
    assert kernel.asked(CALLED[name]) == (by_python(CALLED[name]), False)


LEAVES = st.sampled_from(['meta["m"]', 'meta["n"]', 'meta["other"]', 'meta["BLOCK"]', "2", "3", "7", "16", "SIZE"])
PAIRS = ["({} + {})", "({} - {})", "({} * {})", "({} // {})", "({} % {})", "min({}, {})", "max({}, {})", "triton.cdiv({}, {})", "up({}, {})"]  # fmt: skip
EXPRESSIONS = st.recursive(
    LEAVES,
    lambda inner: st.builds(str.format, st.sampled_from(PAIRS), inner, inner) | inner.map("(-{})".format),
    max_leaves=6,
)
VALUES = st.integers(-40, 5000) | st.sampled_from(
    [0, 1, -1, 2**31 - 1, 2**31, 2**62, -(2**62), 2**63 - 1, -(2**63), 2**64 - 1]
)


@settings(max_examples=300, deadline=None)
@given(sizes=st.lists(EXPRESSIONS, min_size=1, max_size=3), m=VALUES, n=VALUES, other=VALUES)
def test_what_is_computed_is_what_python_computes(kernel, sizes, m, n, other):
    grid = eval(f"lambda meta: ({', '.join(sizes)},)", globals())
    try:
        expected = by_python(grid, m=m, n=n, other=other)
        bad = not all(0 <= size < 2**31 for size in grid(meta(m, n, other)))
    except ZeroDivisionError:
        with pytest.raises(ZeroDivisionError):
            kernel.asked(grid, m, n, other)
        return
    if bad:
        with pytest.raises((ValueError, OverflowError)):
            kernel.asked(grid, m, n, other)
    else:
        found, computed = kernel.asked(grid, m, n, other)
        assert found == expected
        if "triton" in sizes[0] and len("".join(sizes)) < 60 and max(map(abs, (m, n, other))) < 2**20:
            assert computed


def test_a_global_is_read_at_each_launch(kernel, monkeypatch):
    grid = COMPUTED["global"]
    for size in (5, 6, 2**40 // 77):
        monkeypatch.setitem(globals(), "SIZE", size)
        if size < 100:
            assert kernel.asked(grid) == ((size * 77, 1, 1), True)
    monkeypatch.setitem(globals(), "SIZE", 2.0)
    with pytest.raises(TypeError):
        kernel.asked(grid)
    monkeypatch.delitem(globals(), "SIZE")
    with pytest.raises(NameError):
        kernel.asked(grid)


def test_a_closures_value_is_read_at_each_launch(kernel):
    count = 4

    def change(to):
        nonlocal count
        count = to

    grid = lambda meta: (count * meta["n"],)
    for value in (4, 9):
        change(value)
        assert kernel.asked(grid) == ((value * 77, 1, 1), True)
    change(True)
    assert kernel.asked(grid) == ((77, 1, 1), False)


def test_lambdas_of_one_line_differ_by_their_closures(kernel):
    for n, count in [(500, 9), (500, 2), (128, 9)]:
        grid = closure(n, count)
        assert kernel.asked(grid) == (by_python(grid), True)


def test_replaced_functions_are_called(kernel, monkeypatch):
    grid = COMPUTED["cdiv"]
    assert kernel.asked(grid) == ((8, 1, 1), True)
    with monkeypatch.context() as patch:
        patch.setattr(triton, "cdiv", lambda x, y: 42)
        assert kernel.asked(grid) == ((42, 1, 1), False)
    assert kernel.asked(grid) == ((8, 1, 1), True)
    with monkeypatch.context() as patch:
        patch.setattr(triton.cdiv, "fn", lambda x, y: 43)
        assert kernel.asked(grid) == ((43, 1, 1), False)
    with monkeypatch.context() as patch:
        patch.setitem(globals(), "triton", SimpleNamespace(cdiv=lambda x, y: 44))
        assert kernel.asked(grid) == ((44, 1, 1), False)
    assert kernel.asked(grid) == ((8, 1, 1), True)


def test_a_function_with_new_code_is_read_anew(kernel, monkeypatch):
    grid = COMPUTED["own function"]
    assert kernel.asked(grid) == ((334, 1, 1), True)
    monkeypatch.setattr(up, "__code__", (lambda a, b: a).__code__)
    assert kernel.asked(grid) == ((1000, 1, 1), False)


def test_a_grid_with_new_code_is_read_anew(kernel):
    def grid(meta):
        return (meta["m"],)

    assert kernel.asked(grid) == ((1000, 1, 1), True)
    grid.__code__ = COMPUTED["list"].__code__
    assert kernel.asked(grid) == ((500, 1, 1), True)


def test_hidden_and_replaced_builtins_are_called(kernel, monkeypatch):
    grid = COMPUTED["persistent"]
    assert kernel.asked(grid) == ((5, 1, 1), True)
    with monkeypatch.context() as patch:
        patch.setitem(globals(), "min", lambda *args: 17)
        assert kernel.asked(grid) == ((17, 1, 1), False)
    original = min
    with monkeypatch.context() as patch:
        patch.setattr(builtins, "min", lambda *args: 18 if args[0] == SIZE else original(*args))
        assert kernel.asked(grid) == ((18, 1, 1), False)
    assert kernel.asked(grid) == ((5, 1, 1), True)


def test_one_code_with_other_globals_is_computed_from_those(kernel):
    grid = FunctionType(COMPUTED["global"].__code__, {"SIZE": 8, "__builtins__": builtins})
    assert kernel.asked(grid) == ((8 * 77, 1, 1), True)


@pytest.mark.parametrize("value", [True, 2**80, triton.language.constexpr(1000)], ids=["bool", "large", "constexpr"])
def test_what_is_no_plain_integer_is_left_to_python(kernel, monkeypatch, value):
    monkeypatch.setitem(globals(), "SIZE", value)
    grid = lambda meta: ((SIZE + meta["n"]) // 2**73 + 1,)
    assert kernel.asked(grid) == ((2**80 // 2**73 + 1 if value == 2**80 else 1, 1, 1), False)


def test_errors_are_pythons(kernel):
    with pytest.raises(ZeroDivisionError):
        kernel.asked(lambda meta: (meta["m"] // (meta["n"] - 77),))
    with pytest.raises(KeyError, match="nowhere"):
        kernel.asked(lambda meta: (meta["nowhere"],))
    with pytest.raises(ValueError, match="grid: expected sizes"):
        kernel.asked(lambda meta: (-meta["m"],))
    with pytest.raises(NameError):
        kernel.asked(lambda meta: (unknown * meta["m"],))  # noqa: F821


@pytest.mark.parametrize("set_to", [sys.setprofile, sys.settrace], ids=["profiler", "debugger"])
def test_who_watches_calls_sees_the_grids(kernel, set_to):
    grid, seen = COMPUTED["cdiv"], []
    kernel.asked(grid)
    before = sys.gettrace()
    set_to(lambda frame, event, argument: seen.append(frame.f_code))
    try:
        found = kernel.asked(grid)
    finally:
        sys.setprofile(None)
        sys.settrace(before)
    assert found == ((8, 1, 1), False)
    assert grid.__code__ in seen


@pytest.mark.parametrize(
    "made",
    [
        (1, ()), (1, ((grid_program.ADD, 0, None, None, None),)), (4, ((grid_program.INT, 1, None, None, None),) * 4),
        (1, ((grid_program.INT, 1, None, None, None),) * 2), (0, ()), (1, ((99, 0, None, None, None),)), "text", (1, [1]),
        (1, ((grid_program.META, 0, None, None, None),)), (1, ((grid_program.IS_ITEM, 0, "x", None, None),)), (1, (1,)),
        (1, ((grid_program.IS_CODE, 0, None, None, None),)), (3, ((grid_program.INT, 1, None, None, None),) * 40),
        (1, ((grid_program.NEG, 1, None, None, None), (grid_program.INT, 1, None, None, None))),
    ],
    ids=str,
)  # fmt: skip
def test_a_program_that_is_not_sound_is_not_run(kernel, made):
    grid = eval('lambda meta: (meta["m"] + 1,)')
    _launch.read_grids(lambda _: made)
    try:
        assert kernel.asked(grid) == ((1001, 1, 1), False)
    finally:
        _native.read_grids(grid_program.program)


def test_a_reader_that_fails_is_asked_once(kernel):
    asked = []

    def fail(grid):
        asked.append(grid)
        raise RuntimeError

    grid = eval('lambda meta: (meta["m"] + 2,)')
    _launch.read_grids(fail)
    try:
        assert [kernel.asked(grid) for _ in range(2)] == [((1002, 1, 1), False)] * 2
    finally:
        _native.read_grids(grid_program.program)
    assert asked == [grid]


def test_programs_are_short():
    sums = [" + ".join(["1", *['meta["m"]'] * count]) for count in (20, 40)]
    short, long = (grid_program.program(eval(f"lambda meta: ({text},)")) for text in sums)
    assert short is not None
    assert long is None


def test_many_callables_stay_right(kernel):
    try:
        for i in range(1, 1501):
            grid = eval(f'lambda meta: (meta["m"] + {i},)')
            assert kernel.asked(grid)[0] == (1000 + i, 1, 1)
    finally:  # they filled the table of programs of this process, for whatever comes next
        _native.read_grids(grid_program.program)
