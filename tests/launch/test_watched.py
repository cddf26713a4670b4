"""What the C launcher is told to watch: a change is seen at the next call, whatever Python can still tell of it."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from launched import HOLDS, Kernel

_launch = pytest.importorskip("autotuned._launch")
HERE = Path(__file__).resolve().parent


def watching(watched):
    """A kernel over a class that `watched` is a base of, or is: it is ours while `run` of the class is the first one."""
    kernel = type("Watching", (Kernel,), {"_still_ours": lambda self: watched.run is first, "_slow_run": slow})()
    first = watched.run
    kernel.bind()
    return kernel


def slow(self, args, kwargs, grid, warmup):
    return "asked"


def make_class():
    return type("Watched", (), {"run": lambda self: "first"})


def test_every_patch_of_a_watched_class_is_seen_however_many_there_were():
    watched = make_class()
    _launch.watch(watched)
    kernel, first = watching(watched), watched.run
    for cycle in range(1200):  # Python 3.13 gives a class 1,000 versions
        watched.run = lambda self: "patched"
        assert kernel[(1,)](1, 2, 3) == "asked", cycle
        watched.run = first
        assert kernel[(1,)](1, 2, 3) is kernel.compiled, cycle
    _launch.use_driver(0, 0, 0, 0)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["patch", "restore", "other attribute", "base", "call", "read"]), max_size=30))
def test_a_hit_is_direct_exactly_while_the_class_is_as_it_was(steps):
    base = make_class()
    watched = type("Below", (base,), {})
    _launch.watch(watched)
    kernel, first = watching(watched), watched.run
    for step in [*steps, "call"]:
        if step == "patch":
            watched.run = lambda self: "patched"
        elif step == "restore":
            watched.run = first
        elif step == "other attribute":
            watched.other = object()
        elif step == "base":
            base.run = first if base.run is not first else lambda self: "patched"
        elif step == "read":
            assert watched.run is not None
        expected = kernel.compiled if watched.run is first else "asked"
        assert step != "call" or kernel[(1,)](1, 2, 3) == expected
    _launch.use_driver(0, 0, 0, 0)


@settings(max_examples=60, deadline=None)
@given(st.booleans(), st.lists(st.sampled_from(["patch", "restore", "below", "leave", "return", "call"]), max_size=30))
def test_a_class_above_another_watched_one_is_watched(below_first, steps):
    base, other = make_class(), make_class()
    below = type("Below", (base,), {})
    for one in (below, base) if below_first else (base, below):
        _launch.watch(one)
    kernel, first = watching(base), base.run
    for step in [*steps, "call"]:
        if step == "patch":
            base.run = lambda self: "patched"
        elif step == "restore":
            base.run = first
        elif step == "below":
            below.other = object()
        elif step != "call":
            below.__bases__ = (other if step == "leave" else base,)
        expected = kernel.compiled if base.run is first else "asked"
        assert step != "call" or kernel[(1,)](1, 2, 3) == expected
    _launch.use_driver(0, 0, 0, 0)


def test_many_classes_are_watched():
    classes = [make_class() for _ in range(40)]
    for one in classes:
        _launch.watch(one)
    for one in classes:
        kernel, first = watching(one), one.run
        assert kernel[(1,)](1, 2, 3) is kernel.compiled
        one.run = lambda self: "patched"
        assert kernel[(1,)](1, 2, 3) == "asked"
        one.run = first
    _launch.use_driver(0, 0, 0, 0)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["set", "restore", "delete", "clear", "other", "call"]), max_size=30))
def test_a_hit_is_direct_exactly_while_a_dictionary_is_as_it_was(steps):
    holds = {"knob": 1}
    kernel = Kernel(watched=[holds])
    kernel.bind(direct={HOLDS: lambda: holds.get("knob") == 1})
    for step in [*steps, "call"]:
        if step == "set":
            holds["knob"] = 2
        elif step == "restore":
            holds["knob"] = 1
        elif step == "delete":
            holds.pop("knob", None)
        elif step == "clear":
            holds.clear()
        elif step == "other":
            holds[object()] = 1
        else:
            expected = kernel.compiled if holds.get("knob") == 1 else "in Python"
            assert kernel[(1,)](1, 2, 3) == expected
    _launch.use_driver(0, 0, 0, 0)


def test_what_can_be_watched_is_a_dictionary_or_a_class():
    for wrong in (1, [], None, object()):
        with pytest.raises(TypeError, match="expected a dict or a class"):
            _launch.watch(wrong)


@pytest.mark.parametrize("how", ["instance", "class", "subclass", "deleted again"])
def test_a_run_that_is_replaced_is_what_a_grid_leads_to(how):
    kind = type("Own", (Kernel,), {"_slow_run": slow})
    _launch.watch(kind)
    kernel, calls = kind(), []
    kernel.bind()

    def run(*args, **kwargs):
        calls.append((args, kwargs))
        return "replaced"

    assert kernel[(1,)](1, 2, other=3) is kernel.compiled
    if how == "subclass":
        kernel = type("Below", (kind,), {"run": lambda self, *args, **kwargs: run(*args, **kwargs)})()
        kernel.bind()
    elif how == "class":
        kind.run = lambda self, *args, **kwargs: run(*args, **kwargs)
    else:
        kernel.run = run
    assert kernel[(1,)](1, 2, other=3) == "replaced"
    assert calls == [((1, 2), {"other": 3, "grid": (1,), "warmup": False})]
    if how == "deleted again":
        del kernel.run
        assert kernel[(1,)](1, 2, other=3) is kernel.compiled
    assert len(calls) == 1
    _launch.use_driver(0, 0, 0, 0)


def test_a_replacement_may_call_what_it_replaces():
    kernel = type("Own", (Kernel,), {"_slow_run": slow})()
    kernel.bind()
    before = kernel.run
    kernel.run = lambda *args, **kwargs: ("around", before(*args, **kwargs))
    assert kernel[(1,)](1, 2, 3) == ("around", "asked")
    _launch.use_driver(0, 0, 0, 0)


@pytest.fixture
def indexed():
    """The index of other classes than Triton's is put back."""
    yield
    tuned = sys.modules.get("autotuned.api.tuned")
    of = (tuned.Autotuner, tuned.Heuristics) if tuned else (type("None", (), {"__getitem__": None}),) * 2
    _launch.index_like(*of)


def test_whoever_replaces_the_index_of_a_tuner_or_a_base_of_it_is_asked(indexed):
    base = type("Interface", (), {"__getitem__": lambda self, grid: "Python"})
    tuner, heuristics = type("Tuner", (base,), {}), type("Heuristics", (base,), {})
    _launch.index_like(tuner, heuristics)
    kernel, first = Kernel(), base.__getitem__
    kernel.bind()
    for owner in [base, tuner] * 600:  # more often than a class gets versions
        assert kernel[(1,)](1, 2, 3) is kernel.compiled
        owner.__getitem__ = lambda self, grid: ("replaced", grid)
        assert kernel[(1,)] == ("replaced", (1,))
        if owner is base:
            base.__getitem__ = first
        else:
            del tuner.__getitem__
    heuristics.__getitem__ = lambda self, grid: "of heuristics alone"
    assert kernel[(1,)](1, 2, 3) is kernel.compiled
    _launch.use_driver(0, 0, 0, 0)


WITHOUT_WATCHERS = """
import ctypes
import sys

sys.path[:0] = sys.argv[1:3]
kind = sys.argv[3]
if kind in ("dicts", "both"):
    take = ctypes.pythonapi.PyDict_AddWatcher
    note_dict = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(lambda *_: 0)
    for _ in range(8):
        try:
            take(note_dict)
        except RuntimeError:
            break
if kind in ("types", "both"):
    take = ctypes.pythonapi.PyType_AddWatcher
    note_type = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(lambda *_: 0)
    for _ in range(8):
        try:
            take(note_type)
        except RuntimeError:
            break
import test_watched as tests

tests.test_every_patch_of_a_watched_class_is_seen_however_many_there_were()
tests.test_a_hit_is_direct_exactly_while_the_class_is_as_it_was()
tests.test_a_hit_is_direct_exactly_while_a_dictionary_is_as_it_was()
tests.test_many_classes_are_watched()
print("seen")
"""


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python has no watchers yet")
@pytest.mark.parametrize("kind", ["dicts", "types", "both"])
def test_where_others_have_taken_all_watchers_changes_are_compared(kind):
    assert hasattr(ctypes.pythonapi, "PyType_AddWatcher")
    command = [sys.executable, "-c", WITHOUT_WATCHERS, str(HERE), str(HERE.parent / "support"), kind]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "seen\n"), done.stderr
