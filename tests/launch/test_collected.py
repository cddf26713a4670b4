"""What the C launcher holds dies with what it belongs to, through whatever circle it leads back there."""

from __future__ import annotations

import ctypes
import gc
import weakref
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from launched import HOLDS, HOOK, NAMES, Kernel

_launch = pytest.importorskip("autotuned._launch")


@pytest.fixture(autouse=True)
def no_driver():
    yield
    _launch.use_driver(0, 0, 0, 0)


class Holder:
    """Anything that is called and leads back to something."""

    def __init__(self, to=None):
        self.to = to

    def __call__(self, *_):
        return 1


def make(**places):
    made = Kernel(**places)
    made.bind()
    del made.alive  # ctypes' functions are in a circle with it that no collector sees
    _launch.use_driver(0, 0, 0, 0)
    return made


def chain(fn, **values):
    made = _launch.HeuristicsBase.__new__(type("Chain", (_launch.HeuristicsBase,), {}))
    made.fn, made.values, made.arg_names = fn, values, list(NAMES)
    return made


def in_attribute(kernel):
    kernel.mine = kernel


def indexed_in_attribute(kernel):
    kernel.mine = kernel[(1,)]


def indexed_in_containers(kernel):
    kernel.mine = [{"launch": (kernel[(1,)], kernel[(2,)])}]


def indexed_by_itself(kernel):
    kernel.mine = kernel[lambda meta: kernel]


def indexed_twice(kernel):
    kernel.mine = kernel[kernel[(1,)]]


def in_its_configs(kernel):
    kernel.configs.append(kernel[(1,)])


def in_its_best_config(kernel):
    kernel.best_config = Holder(kernel)


def in_its_hook(kernel):
    kernel.bind(direct={HOOK: Holder(kernel)}, before=Holder(kernel))


def in_what_is_bound(kernel):
    kernel.bind(direct={HOLDS: Holder(kernel)}, run=Holder(kernel), config=kernel)


def in_a_dtype(kernel):
    table = _launch.Table(("a",), 1, {}, (2,), {}, (), None)
    dtype = type("dtype", (), {})()
    dtype.to = kernel
    table.bind((dtype,), SimpleNamespace(config="c", before=None, direct=None))
    kernel._attach(table)


def in_its_heuristics(kernel):
    kernel.mine = chain(kernel, other=Holder(kernel))


def in_circular_heuristics(kernel):
    first = chain(kernel)
    kernel.mine = chain(first)
    first.fn = kernel.mine


CIRCLES = {circle.__name__.replace("_", " "): circle for circle in (
    in_attribute, indexed_in_attribute, indexed_in_containers, indexed_by_itself, indexed_twice, in_its_configs,
    in_its_best_config, in_its_hook, in_what_is_bound, in_a_dtype, in_its_heuristics, in_circular_heuristics,
)}  # fmt: skip


@pytest.mark.parametrize("circle", CIRCLES)
def test_a_kernel_in_a_circle_is_collected(circle):
    kernel = make()
    CIRCLES[circle](kernel)
    gone = weakref.ref(kernel)
    del kernel
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("place", ["bucket", "key function", "default", "device"])
def test_a_kernel_that_its_own_table_leads_to_is_collected(place):
    holder = Holder()
    fields = {
        "bucket": (NAMES, 3, {}, (2, 0, 0), {"m": holder}, (), None),
        "key function": (NAMES, 3, {}, (0, 0, 0), {}, (holder,), None),
        "default": (NAMES, 3, {"m": holder}, (0, 0, 0), {}, (), None),
        "device": (NAMES, 3, {}, (0, 0, 0), {}, (), holder),
    }[place]
    kernel = make()
    kernel.table = _launch.Table(*fields)
    kernel._attach(kernel.table)
    holder.to = kernel
    gone = weakref.ref(kernel)
    del kernel, holder, fields
    gc.collect()
    assert gone() is None


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(sorted(CIRCLES)), min_size=1, max_size=4), st.booleans())
def test_a_kernel_in_several_circles_is_collected_and_others_go_on(circles, calls):
    kernel, other = make(), Kernel()
    other.bind()
    for circle in circles:
        CIRCLES[circle](kernel)
    gone = weakref.ref(kernel)
    del kernel
    kept = other[(3,)]
    if calls:
        assert other[(1,)](1, 2, 3) is other.compiled
    gc.collect()
    assert gone() is None
    assert kept(1, 2, 3) is other[(2,)](1, 2, 3) is other.compiled
    assert other.grids[-2:] == [(3, 1, 1), (2, 1, 1)]


def test_what_a_grid_holds_dies_with_the_call():
    kernel, grid = Kernel(), Holder()
    kernel.bind()
    kernel._slow_run = None
    gone = weakref.ref(grid)
    held = kernel[lambda meta, grid=grid: (grid(),)]
    del grid
    assert held(1, 2, 3) is kernel.compiled
    assert gone() is not None
    del held
    assert gone() is None


def test_launches_that_are_kept_are_each_their_own():
    kernel = Kernel()
    kernel.bind()
    kept = [kernel[(size,)] for size in range(1, 200)]  # more than are kept to be used again
    for launch in kept:
        launch(1, 2, 3)
    assert kernel.grids == [(size, 1, 1) for size in range(1, 200)]
    del kept, launch
    again = [kernel[(size,)] for size in range(1, 100)]
    kernel.grids.clear()
    for launch in again:
        launch(1, 2, 3)
    assert kernel.grids == [(size, 1, 1) for size in range(1, 100)]


def test_a_launch_that_its_garbage_calls_while_it_is_collected_is_right():
    kernel, launched = Kernel(), []
    kernel.bind()

    class Last:
        def __del__(self):
            launched.append(kernel[(7,)](1, 2, 3))
            launched.append(kernel[(8,)])  # kept: none of what is being collected may be given out for it

    for _ in range(80):
        circle = [kernel[(1,)]]
        circle += [circle, Last(), kernel[circle]]
    del circle
    gc.collect()
    assert len(launched) == 160
    gc.collect()
    kernel.grids.clear()
    for launch in launched[1::2]:
        assert launch(1, 2, 3) is kernel.compiled
    assert kernel.grids == [(8, 1, 1)] * 80


def clear(table):
    """What the collector calls for garbage: the class's own slot."""
    # Behind the head of an object of variable size, and `tp_name` to `tp_traverse`.
    address = ctypes.c_void_p.from_address(id(type(table)) + 24 + 8 * 21).value
    assert ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object)(address)(table) == 0


@pytest.mark.parametrize("place", ["functions", "device"])
def test_a_kernel_that_is_called_while_its_table_is_cleared_takes_the_python_path(place):
    """As a destructor calls it that the collector runs between the two."""
    called = []

    class Slow(Kernel):
        def _slow_run(self, args, kwargs, grid, warmup):
            called.append(args)

    kernel = Slow()
    kernel.bind()
    functions = (Holder(),) if place == "functions" else ()
    table = _launch.Table(NAMES, 3, {}, (0, 0, 0), {}, functions, Holder() if place == "device" else None)
    kernel._attach(table)
    clear(table)
    kernel[(1,)](1, 2, 3)
    assert called == [(1, 2, 3)]
    assert (table.find((1, 2, 3)), table.signature((1, 2, 3)), len(table)) == (None, None, 0)
    assert table.bind((1, 2, 3), SimpleNamespace(config="c", before=None, direct=None)) is False


def test_a_kernel_with_a_table_that_was_never_initialised_takes_the_python_path():
    kernel = type("Slow", (Kernel,), {"_slow_run": lambda self, args, *others: args})()
    kernel._attach(_launch.Table.__new__(_launch.Table))
    assert kernel[(1,)]() == ()
    assert kernel[(1,)](1, 2, 3) == (1, 2, 3)
