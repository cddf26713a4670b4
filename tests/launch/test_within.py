"""What Python code that the C launcher runs within a call may do to what is being launched."""

from __future__ import annotations

import gc
import re
import sys
from types import SimpleNamespace

import pytest
from launched import HOLDS, HOOK, NAMES, Kernel

from autotuned.launch import grid_program

_launch = pytest.importorskip("autotuned._launch")


class Index:
    """An integer as NumPy has them."""

    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value


@pytest.fixture
def kernel():
    yield Kernel()
    _launch.use_driver(0, 0, 0, 0)


def test_a_launch_keeps_what_it_began_with_when_a_launch_within_it_makes_the_entry_another(kernel):
    holding = [True]
    bound = kernel.bind(direct={HOLDS: lambda: holding[0]})

    def grid(meta):
        holding[0], bound.direct = False, None
        kernel.change()
        assert kernel[(1,)](1, 2, 3) == "in Python"
        holding[0] = True
        return (7,)

    assert kernel[grid](1, 2, 3) is kernel.compiled
    assert kernel.grids == [(7, 1, 1)]
    assert kernel[grid](1, 2, 3) == "in Python"


def test_what_a_launch_relies_on_is_asked_again_after_a_grid_callable(kernel):
    holding = [True]
    kernel.bind(direct={HOLDS: lambda: holding[0]}, fallback=lambda values, grid: (values, grid))

    def grid(meta):
        holding[0] = False
        kernel.change()
        return [Index(7)]

    assert kernel[grid](1, 2, 3) == ((1, 2, 3), (7, 1, 1))
    assert kernel.grids == []


def test_what_is_dropped_when_an_entry_becomes_another_may_call_the_kernel(kernel):
    launched = []

    class Hook:
        def __call__(self, meta):
            pass

        def __del__(self):
            launched.append(kernel[(3,)](1, 2, 3))

    bound = kernel.bind(direct={HOOK: Hook(), HOLDS: lambda: False})
    bound.direct = kernel.direct
    kernel.change()
    assert kernel[(1,)](1, 2, 3) == "in Python"
    assert launched == [kernel.compiled]
    assert kernel.grids == [(3, 1, 1)]


def test_a_table_may_be_taken_away_while_the_class_is_asked_whether_it_is_still_ours(kernel):
    class Detached(Kernel):
        def _still_ours(self):
            self.table = self._attach(None)
            gc.collect()
            return True

        def _slow_run(self, args, kwargs, grid, warmup):
            return args, grid

    assert Detached()[(4,)](1, 2, 3) == ((1, 2, 3), (4,))


def test_a_table_may_be_taken_away_while_words_are_made(kernel):
    def bucket(m):
        kernel.table = kernel._attach(None)
        return m

    table = _launch.Table(NAMES, 3, {}, (2, 0, 0), {"m": bucket}, (), None)
    kernel.table = table
    kernel.bind()
    kernel._attach(table)
    del table
    assert kernel[(5,)](1, 2, 3) is kernel.compiled
    assert kernel.table is None
    assert kernel.grids == [(5, 1, 1)]


def test_the_kernel_below_heuristics_may_be_replaced_while_it_is_asked_about(kernel):
    class Computed(_launch.HeuristicsBase):
        def _still_ours(self):
            self.fn = object()
            return True

        def _slow_run(self, args, kwargs, grid, warmup):
            return args, grid

    Computed._native()
    computed = Computed()
    computed.fn, computed.values, computed.arg_names = kernel, {}, list(NAMES)
    computed._attach(True)
    assert computed[(6,)](1, 2, 3) == ((1, 2, 3), (6,))


@pytest.mark.parametrize("size", [-1, 2**31, 2**32 + 1])
@pytest.mark.parametrize("kind", [int, Index], ids=["int", "with __index__"])
def test_a_size_out_of_range_is_refused_whatever_it_is(kernel, size, kind):
    kernel.bind()
    with pytest.raises(ValueError, match=f"expected sizes from 0 to 2147483647, got {size}"):
        kernel[(kind(size),)](1, 2, 3)
    assert kernel.grids == []


def test_a_kernel_without_configs_takes_the_python_path():
    class Bare(_launch.Base):
        def _still_ours(self):
            return True

        def _slow_run(self, args, kwargs, grid, warmup):
            return "slow"

    bare = Bare()
    bare._attach(_launch.Table((), 0, {}, (), {}, (), None))
    assert bare.run(grid=(1,)) == "slow"


def test_a_table_that_was_never_initialised_holds_nothing():
    table = _launch.Table.__new__(_launch.Table)
    assert (table.bind((), SimpleNamespace()), table.find(()), table.signature(())) == (False, None, None)
    table.clear()
    with pytest.raises(TypeError):
        table.__init__(("a",), 1, {}, ("no role",), {}, (), None)
    assert table.find((1,)) is None


def test_what_heuristics_is_told_wrongly_is_an_error():
    class Unclear:
        def __bool__(self):
            raise ArithmeticError("neither")

    with pytest.raises(ArithmeticError, match="neither"):
        _launch.HeuristicsBase()._attach(Unclear())
    with pytest.raises(TypeError, match="made in Python"):
        _launch.HeuristicsBase._native()


class Spoiling:
    """A size that changes the grid it stands in when it is made a number."""

    def __init__(self, change):
        self.change = change

    def __index__(self):
        self.change()
        gc.collect()
        return 5


class Sizes(tuple):
    """A tuple that answers for itself, as Triton's own launch would read it."""

    def __getitem__(self, place):
        return 10 * super().__getitem__(place)

    def __iter__(self):
        raise AssertionError("expected len() and []")


def grids_that_change():
    for name, change in {
        "emptied": list.clear,
        "shortened": list.pop,
        "grown": lambda grid: grid.extend(range(1000)),
    }.items():
        grid = []
        grid += [Spoiling(lambda grid=grid, change=change: change(grid)), int("7" * 5), int("8" * 5)]
        yield name, grid, (5, 77777, 88888)
    nested = [[Index(1)]]
    nested[0] += [Index(2)]
    yield "a callable's list", lambda meta: nested[0], (1, 2, 1)
    by_place = {0: Index(3), 1: 4}
    by_place[0] = Spoiling(by_place.clear)
    yield "a dict", by_place, (5, 4, 1)
    yield "a tuple that answers for itself", Sizes((1, 2)), (10, 20, 1)
    yield "a range", range(3, 6), (3, 4, 5)
    yield "text of no sizes", "12", TypeError
    yield "a set", {1}, TypeError
    yield "a generator", (size for size in (1, 2)), TypeError
    yield "an endless list", [1, 2, 3, 4, 5], (1, 2, 3)


@pytest.mark.parametrize(
    ("grid", "sizes"), [pytest.param(grid, sizes, id=name) for name, grid, sizes in grids_that_change()]
)
def test_a_grid_is_read_as_triton_reads_it_whatever_it_does_meanwhile(kernel, grid, sizes):
    kernel.bind()
    if sizes is TypeError:
        with pytest.raises(TypeError):
            kernel[grid](1, 2, 3)
    else:
        kernel[grid](1, 2, 3)
    assert kernel.grids == ([] if sizes is TypeError else [sizes])


# -- launches within launches ----------------------------------------------------------------------------------------


class Chain(_launch.HeuristicsBase):
    """Heuristics over whatever `fn` is."""

    def __init__(self, fn, values=()):
        self.fn, self.values, self.arg_names = fn, dict(values), list(NAMES)
        self._attach(True)

    def _still_ours(self):
        return True

    def _slow_run(self, args, kwargs, grid, warmup):
        raise AssertionError("expected C")


Chain._native()


@pytest.mark.parametrize("length", [1, 2, 7])
def test_heuristics_in_a_circle_end_in_pythons_error(kernel, length):
    first = Chain(None)
    last = first
    for _ in range(length - 1):
        last = Chain(last)
    first.fn = last
    for _ in range(3):
        with pytest.raises(RecursionError, match="wrapped around themselves"):
            last[(1,)](1, 2, 3)
    kernel.bind()
    assert Chain(Chain(kernel))[(1,)](1, 2, 3) is kernel.compiled  # nothing is left of it


def launching_itself(way, kernel):
    """A launch that has no end, by one kind of code that a launch runs."""
    launch = lambda *_: kernel[(1,)](1, 2, 3)
    if way == "hook":
        kernel.bind(direct={HOOK: launch}, before=launch)
    elif way == "bound":
        kernel.bind(direct={HOLDS: lambda: False}, run=launch)
        kernel.change()
    else:
        kernel.bind()
    if way == "grid":
        launch = lambda *_: kernel[launch](1, 2, 3)
    elif way == "heuristic":
        chain = Chain(kernel, {"other": lambda args: chain[(1,)](1, 2)})
        launch = lambda: chain[(1,)](1, 2)
    return launch


@pytest.mark.parametrize("way", ["grid", "hook", "bound", "heuristic"])
def test_a_launch_that_launches_itself_ends_in_pythons_error(kernel, way):
    launch, limit = launching_itself(way, kernel), sys.getrecursionlimit()
    sys.setrecursionlimit(100_000)  # Python's own limit says nothing of the C stack
    try:
        with pytest.raises(RecursionError, match="launches within each other"):
            launch()
    finally:
        sys.setrecursionlimit(limit)


# -- what is no error of this way ------------------------------------------------------------------------------------


class Stop(BaseException):
    """An end that is no `Exception`, as a framework may have its own."""


ENDS = [KeyboardInterrupt, SystemExit, GeneratorExit, Stop]


class Asked:
    """Code that a launch runs: it gives its answer until it is to end the program."""

    def __init__(self, answer, end):
        self.answer, self.end, self.is_over = answer, end, False

    def __call__(self, *_):
        if self.is_over:
            raise self.end("now")
        return self.answer

    __index__ = __call__


class Watched(Kernel):
    """A kernel whose class asks a function whether it is still ours."""

    still = True

    def _still_ours(self):
        return self.still and self.still()


def hit(at, asked):
    """A kernel that runs `asked` at one place of a hit, and a call of it."""
    at_words = {"bucket": {"buckets": {"m": asked}, "roles": (2, 0, 0)}, "key function": {"functions": [asked]}}
    kernel = Watched(**at_words.get(at, {}))
    kernel.still = asked if at == "still ours" else lambda: True
    direct = {"hook": {HOOK: asked}, "holds": {HOLDS: asked}, "bound": {HOLDS: lambda: False}}.get(at)
    fields = {"hook": {"before": asked}, "bound": {"run": asked}}.get(at, {})
    kernel.bind(direct=direct, **fields)
    grid = {"grid": asked, "size": (asked,)}.get(at, (1,))
    if at != "heuristic":
        return kernel, lambda: kernel[grid](1, 2, 3)
    chain = Chain(kernel, {"other": asked})
    return kernel, lambda: chain[grid](1, 2)


PLACES = {"bucket": 1, "key function": 1, "heuristic": 3, "grid": (1,), "hook": None, "size": 5, "holds": True,
          "bound": "in Python", "still ours": True}  # fmt: skip


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("at", PLACES)
def test_what_ends_a_program_passes_through_a_hit(at, end):
    asked = Asked(PLACES[at], end)
    kernel, launch = hit(at, asked)
    assert launch() is not None
    kernel.change()
    asked.is_over = True
    with pytest.raises(end):
        launch()
    asked.is_over = False
    assert launch() is not None
    _launch.use_driver(0, 0, 0, 0)


@pytest.mark.parametrize("end", ENDS)
def test_what_ends_a_program_passes_through_the_reading_of_a_grid(kernel, end):
    kernel.bind()
    asked = Asked(None, end)
    _launch.read_grids(asked)
    asked.is_over = True
    grid = lambda meta: (1, *())
    with pytest.raises(end):
        kernel[grid](1, 2, 3)
    asked.is_over = False
    assert kernel[grid](1, 2, 3) is kernel.compiled
    _launch.read_grids(grid_program.program)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("ask", ["find", "bind", "signature"])
def test_what_ends_a_program_passes_through_a_look_up(ask, end):
    asked = Asked(1, end)
    table = Kernel(buckets={"m": asked}, roles=(2, 0, 0)).table
    asked.is_over = True
    with pytest.raises(end):
        getattr(table, ask)((1, 2, 3), *[SimpleNamespace(config="c", before=None, direct=None)] * (ask == "bind"))
    _launch.use_driver(0, 0, 0, 0)


@pytest.mark.parametrize("end", [ValueError, MemoryError, RecursionError])
def test_an_error_in_a_bucket_leaves_the_call_to_python_which_raises_it(end):
    class Slow(Kernel):
        def _slow_run(self, args, kwargs, grid, warmup):
            return "in Python"

    asked = Asked(1, end)
    asked.is_over = True
    made = Slow(buckets={"m": asked}, roles=(2, 0, 0))
    assert made[(1,)](1, 2, 3) == "in Python"
    _launch.use_driver(0, 0, 0, 0)


@pytest.mark.parametrize("size", [1.5, "4", None, (2,)], ids=repr)
@pytest.mark.parametrize("is_callable", [False, True])
def test_a_size_that_is_no_integer_is_named(size, is_callable):
    kernel = Kernel()
    kernel.bind()
    expected = re.escape(f"grid: expected sizes that are integers, got {size!r} of type {type(size).__name__}")
    with pytest.raises(TypeError, match=expected):
        kernel[(lambda meta: (2, size)) if is_callable else (2, size)](1, 2, 3)
    assert kernel.grids == []
