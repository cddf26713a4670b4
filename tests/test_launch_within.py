"""What Python code that the C launcher runs within a call may do to what is being launched."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import pytest
from test_arithmetic import NAMES, Kernel

_launch = pytest.importorskip("autotuned._launch")
HOOK, HOLDS, CACHE = 15, 11, 6  # places in `Bound.direct`


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


def bind(kernel, **fields):
    """A bound object for the arguments 1, 2, 3, with other fields of `direct` by their place."""
    direct = list(kernel.direct)
    for place, value in fields.pop("direct", {}).items():
        direct[place] = value
    bound = SimpleNamespace(config="c", before=None, run=lambda values, grid: "in Python", **fields)
    bound.direct = tuple(direct)
    kernel.table.bind((1, 2, 3), bound)
    return bound


def change(kernel):
    """Have everything asked again."""
    kernel.direct[CACHE][object()] = None


def test_a_launch_keeps_what_it_began_with_when_a_launch_within_it_makes_the_entry_another(kernel):
    holding = [True]
    bound = bind(kernel, direct={HOLDS: lambda: holding[0]})

    def grid(meta):
        holding[0], bound.direct = False, None
        change(kernel)
        assert kernel[(1,)](1, 2, 3) == "in Python"
        holding[0] = True
        return (7,)

    assert kernel[grid](1, 2, 3) is kernel.compiled
    assert kernel.grids == [(7, 1, 1)]
    assert kernel[grid](1, 2, 3) == "in Python"


def test_what_a_launch_relies_on_is_asked_again_after_a_grid_callable(kernel):
    holding = [True]
    bind(kernel, direct={HOLDS: lambda: holding[0]}, fallback=lambda values, grid: (values, grid))

    def grid(meta):
        holding[0] = False
        change(kernel)
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

    bound = bind(kernel, direct={HOOK: Hook(), HOLDS: lambda: False})
    bound.direct = kernel.direct
    change(kernel)
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
    bind(kernel)
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
    bind(kernel)
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
    assert (table.bind((), SimpleNamespace()), table.find(()), table.words(())) == (False, None, None)
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
