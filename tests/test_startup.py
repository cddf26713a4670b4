"""Tests of `_startup`."""

from __future__ import annotations

import ast
import copy
import gc
import importlib
import os
import pickle
import re
import subprocess
import sys
import threading
from functools import cached_property
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trees import tree_of

import autotuned
from autotuned import _startup
from autotuned._startup import Frozen, later, loaded
from autotuned.triton_compat import ttir


class Point(Frozen):
    """A class as the package has them."""

    x: int
    y: int = 0
    label: str = ""

    @cached_property
    def size(self) -> int:
        """Kept on the instance, and no field."""
        return abs(self.x) + abs(self.y)


class Other(Frozen):
    """The same fields."""

    x: int
    y: int = 0
    label: str = ""


def test_fields_are_given_by_position_or_name_and_have_defaults():
    assert Point(1).fields() == {"x": 1, "y": 0, "label": ""}
    assert Point(1, label="a", y=2) == Point(1, 2, "a")
    assert repr(Point(1, 2, "a")) == "Point(x=1, y=2, label='a')"


@pytest.mark.parametrize(
    ("args", "kwargs", "problem"),
    [
        pytest.param((), {}, "without ['x']", id="missing"),
        pytest.param((), {"y": 1}, "without ['x']", id="missing, another given"),
        pytest.param((1, 2, "a", 3), {}, "4 of them by position", id="too many"),
        pytest.param((1,), {"x": 1}, "with ['x']", id="twice"),
        pytest.param((1,), {"z": 1}, "with ['z']", id="unknown"),
        pytest.param((), {"z": 1, "y": 2}, "without ['x'], with ['z']", id="unknown in place of another"),
    ],
)
def test_other_fields_are_refused_by_name(args, kwargs, problem):
    with pytest.raises(TypeError) as caught:
        Point(*args, **kwargs)
    assert str(caught.value) == f"Point: expected the fields x, y, label; got {problem}."


def told(make):
    """What a constructor makes, in order, or says."""
    try:
        return list(vars(make()).items())
    except TypeError as error:
        return str(error)


@pytest.mark.skipif(_startup.Constructor is _startup.Fields, reason="built without C")
@given(st.integers(0, 4), st.lists(st.sampled_from(["a", "b", "c", "no field"]), unique=True), st.integers(0, 3))
def test_the_constructor_in_c_does_as_its_twin(positional, by_name, defaults):
    namespace = {"__annotations__": dict.fromkeys("abc"), **{name: f"default {name}" for name in "abc"[3 - defaults :]}}
    made = type("Made", (Frozen,), dict(namespace))
    twin = type("Made", (_startup.Fields,), {**namespace, "_names": made._names, "_defaults": made._defaults})
    twin._refusal = made._refusal
    args, kwargs = list(range(positional)), {name: f"given {name}" for name in by_name}
    assert told(lambda: made(*args, **kwargs)) == told(lambda: twin(*args, **kwargs))


def test_it_does_not_change():
    point = Point(1)
    with pytest.raises(AttributeError, match="use `replace`"):
        point.x = 2
    with pytest.raises(AttributeError):
        del point.x
    assert point.replace(y=5) == Point(1, 5)
    assert point == Point(1)
    with pytest.raises(TypeError):
        point.replace(z=1)


def test_equal_only_within_a_class_and_hashed_by_value():
    assert Point(1) != Other(1)
    assert Point(1) != (1, 0, "")
    assert len({Point(1), Point(1), Point(2)}) == 2


def test_what_was_derived_is_no_field():
    point = Point(-3, 4)
    assert point.size == 7
    assert point == Point(-3, 4)
    assert point.replace(y=0).size == 3
    assert "size" not in point.fields()


def test_it_is_pickled_and_copied():
    assert pickle.loads(pickle.dumps(Point(1, 2, "a"))) == Point(1, 2, "a")
    assert copy.deepcopy(Point(1)) == Point(1)


CODE = """
import sys
from autotuned._startup import later
ttir = later("triton_compat.ttir")
assert "autotuned.triton_compat.ttir" not in sys.modules
ttir.access
assert "autotuned.triton_compat.ttir" in sys.modules
"""


def test_a_module_is_imported_when_something_of_it_is_asked_for():
    subprocess.run([sys.executable, "-c", CODE], check=True, timeout=60)


def test_an_imported_module_takes_the_place_of_the_one_that_waited():
    scope = {"__name__": "somewhere"}
    exec("from autotuned._startup import later\nttir = later('triton_compat.ttir')\nsame = ttir", scope)
    assert scope["ttir"] is not ttir and scope["ttir"].access is ttir.access
    assert scope["ttir"] is scope["same"] is ttir


def test_what_is_asked_for_is_the_modules_own_at_that_moment(monkeypatch):
    module = later("triton_compat.ttir")
    assert module.access is ttir.access
    monkeypatch.setattr(ttir, "access", len)
    assert module.access is len
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        module.nothing


def test_a_module_that_another_thread_is_importing_is_waited_for(tmp_path, monkeypatch):
    (tmp_path / "slow_module.py").write_text("import time\ntime.sleep(0.3)\ndone = True\n")
    monkeypatch.setattr(autotuned, "__path__", [*autotuned.__path__, str(tmp_path)])
    assert loaded("slow_module") is None
    thread = threading.Thread(target=importlib.import_module, args=["autotuned.slow_module"])
    thread.start()
    while "autotuned.slow_module" not in sys.modules:
        pass
    assert loaded("slow_module").done
    thread.join()
    del sys.modules["autotuned.slow_module"]


FORKED = """
import concurrent.futures.thread, importlib.abc, os, signal, sys, threading, time
import autotuned
from autotuned import _startup
from autotuned._startup import later

begun, go_on = threading.Event(), threading.Event()


class Slow(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == sys.argv[1]:
            begun.set()
            go_on.wait(60)


sys.meta_path.insert(0, Slow())
thread = threading.Thread(target=lambda: later("serving.restored").restored)
thread.start()
begun.wait(60)
threading.Timer(0.2, go_on.set).start()
child = os.fork()
if child == 0:
    signal.alarm(20)
    import autotuned.serving.restored
    os._exit(0)
print(os.waitpid(child, 0)[1])
thread.join()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("slow", ["autotuned.serving.restored", "autotuned.binaries.serve"])
def test_a_child_that_is_forked_while_a_thread_imports_a_part_can_import_it_too(slow: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED, slow], capture_output=True, text=True, timeout=90
    )
    assert (done.stdout, done.stderr) == ("0\n", "")


HELD = """
import importlib, os, signal, sys, threading
from autotuned import _startup

locks = [vars(importlib.import_module(module))[name] for module, name in (one.split(":") for one in sys.argv[1:])]
mine = _startup.renewed(threading.RLock())  # the forking thread's own
held, end = threading.Event(), threading.Event()


def hold():
    for lock in locks:
        lock.acquire()
    held.set()
    end.wait(60)


thread = threading.Thread(target=hold)
thread.start()
held.wait(60)
mine.acquire()
child = os.fork()
if child == 0:
    signal.alarm(20)
    for lock in locks:
        lock.acquire()
    mine.release()
    os._exit(0)
print(os.waitpid(child, 0)[1], all(lock.locked() for lock in locks))
end.set()
thread.join()
"""


def process_wide_locks() -> list[str]:
    """`module:name` of each lock that a module holds, by reading all of them."""
    root = Path(autotuned.__file__).parent
    made = re.compile(r"^(\w+)(?:: .+)? = .*threading\.R?Lock\(\)", re.MULTILINE)
    return sorted(
        f"{'.'.join(('autotuned', *path.relative_to(root).with_suffix('').parts))}:{name}"
        for path in root.rglob("*.py")
        for name in made.findall(path.read_text())
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_finds_every_lock_free_that_another_thread_of_its_parent_holds() -> None:
    pytest.importorskip("triton")
    found = process_wide_locks()
    assert "autotuned.events:_lock" in found and len(found) > 5
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", HELD, *found], capture_output=True, text=True, timeout=90
    )
    assert (done.stdout, done.stderr) == ("0 True\n", "")


def test_a_fork_waits_for_no_thread_that_imports_nothing_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    stop, started = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: (started.set(), stop.wait(60)))
    thread.start()
    started.wait(60)
    slept: list[float] = []
    monkeypatch.setattr(_startup.time, "sleep", slept.append)
    _startup._wait_for_imports()
    stop.set()
    thread.join()
    assert slept == []


@pytest.mark.parametrize(
    ("meanwhile", "on", "threshold"),
    [("pass", True, 700), ("gc.disable()", False, 700), ("gc.set_threshold(5)", True, 5)],
)
def test_an_import_pauses_the_collector_and_undoes_nothing_that_others_do_to_it(
    meanwhile, on, threshold, tmp_path, monkeypatch
):
    (tmp_path / "imported_once.py").write_text(f"import gc\nSEEN = gc.get_threshold()[0]\n{meanwhile}\n")
    monkeypatch.syspath_prepend(tmp_path)
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    try:
        assert _startup.imported("imported_once").SEEN == 0
        assert (gc.isenabled(), gc.get_threshold()[0]) == (on, threshold)
    finally:
        del sys.modules["imported_once"]
        gc.set_threshold(*before)
        gc.enable()


def test_a_type_checker_imports_each_name_from_where_a_program_gets_it():
    blocks = [node for node in tree_of(Path(autotuned.__file__)).body if isinstance(node, ast.If)]
    imports = [node for node in ast.walk(blocks[0]) if isinstance(node, ast.ImportFrom)]
    seen = {alias.name: node.module for node in imports if node.module != "autotuned" for alias in node.names}
    assert seen == autotuned._HOMES
