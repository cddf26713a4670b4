"""Several processes and threads at one cold key: one searches, all get its choice, and nothing hangs."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import forked
import numpy as np
import pytest
from fakes import FakeConfig as Config
from paths import quick
from waits import until

from autotuned import autotune
from autotuned.store import listing

SUPPORT = Path(__file__).parents[1] / "support"
DEADLINE_S = 120  # of a whole test; nothing here takes a tenth of it on an idle machine


def command(folder, text, *arguments, **environment):
    """A script that can import the stand-ins of these tests, and the environment to start it in."""
    script = folder / "script.py"
    if not script.exists():
        script.write_text(text)
    given = {"PYTHONPATH": os.pathsep.join([str(SUPPORT), os.environ.get("PYTHONPATH", "")]), **environment}
    kept = {name: value for name, value in (os.environ | given).items() if value is not None}
    return [sys.executable, str(script), *map(str, arguments)], kept


def start(*asked, **environment):
    """Starts one in a process that has imported nothing."""
    words, kept = command(*asked, **environment)
    return subprocess.Popen(words, env=kept, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process):
    """The last line that a process printed, as JSON; it is stopped where it hangs."""
    try:
        out, err = process.communicate(timeout=DEADLINE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        raise AssertionError(f"a process hung: {process.communicate()[1]}") from None
    assert process.returncode == 0, err
    return json.loads(out.strip().splitlines()[-1])


# -- eight processes -------------------------------------------------------------------------------------------------

COLD = """
import json, os, sys, time
from pathlib import Path
from fakes import FakeConfig as Config
from autotuned import autotune

folder, number = Path(sys.argv[1]), sys.argv[2]
with open(folder / "log", "a") as log:
    os.set_inheritable(log.fileno(), False)

def note(step):
    with open(folder / "log", "a") as log:
        log.write(f"{number} {step}\\n")

class Times:
    last = 0

TIMES = Times()

def bench(call, quantiles):
    call()
    note(TIMES.last)
    time.sleep(0.02)  # long enough for the others to arrive at the lock
    return [{1: 3.0, 2: 1.0, 3: 2.0}[TIMES.last]] * 3

@autotune([Config({"step": step}) for step in (1, 2, 3)], do_bench=bench)
def run(x, *, step):
    TIMES.last = step
    return step

(folder / f"ready-{number}").touch()
while not (folder / "go").exists():
    time.sleep(0.001)
chosen = run(5)
print(json.dumps({"chosen": chosen, "searches": run.cache_info().searches, "again": run(5)}))
"""


def test_eight_processes_search_once(tmp_path):
    processes = [forked.start(*command(tmp_path, COLD, tmp_path, number)) for number in range(8)]
    until(lambda: len(list(tmp_path.glob("ready-*"))) == 8)
    (tmp_path / "go").touch()
    answers = [json.loads(process.finish().splitlines()[-1]) for process in processes]
    assert [process.returncode for process in processes] == [0] * 8
    assert [answer["chosen"] for answer in answers] == [2] * 8
    assert [answer["again"] for answer in answers] == [2] * 8
    assert sum(answer["searches"] for answer in answers) == 1
    measured = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    assert len({number for number, _ in measured}) == 1
    assert sorted(step for _, step in measured) == ["1", "2", "3"]
    ((_, record),) = listing.all_records()
    assert record.winner["kwargs"] == {"step": 2}


# -- threads ---------------------------------------------------------------------------------------------------------


class Last(threading.local):
    step = 0


LAST = Last()


def run(x, n, *, step):
    LAST.step = step
    return step


@pytest.fixture
def bench():
    """A slow benchmark, during which other threads run; it counts its calls."""
    lock = threading.Lock()

    def bench(call, quantiles):
        call()
        with lock:
            bench.calls.append(LAST.step)
        time.sleep(0.01)
        return [{1: 3.0, 2: 1.0, 3: 2.0}[LAST.step]] * 3

    bench.calls = []
    return bench


def together(count, work):
    """Runs `work(number)` on so many threads at once; returns the results, raises the first error."""
    barrier = threading.Barrier(count)
    results, errors = {}, []

    def body(number):
        try:
            barrier.wait(20)
            results[number] = work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=body, args=(number,), daemon=True) for number in range(count)]
    [thread.start() for thread in threads]
    [thread.join(DEADLINE_S) for thread in threads]
    assert not any(thread.is_alive() for thread in threads)
    if errors:
        raise errors[0]
    return [results[number] for number in range(count)]


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "in-memory"])
@pytest.mark.parametrize("count", [2, 16])
def test_threads_at_one_cold_key_search_once(count, stored, bench):
    function = autotune([Config({"step": step}) for step in (1, 2, 3)], do_bench=bench, cache_results=stored)(run)
    assert together(count, lambda number: function(np.ones(4), 4)) == [2] * count
    assert sorted(bench.calls) == [1, 2, 3]
    info = function.cache_info()
    assert (info.searches, info.size) == (1, 1)
    assert info.hits + info.misses == count
    assert len(list(listing.all_records())) == stored


def test_threads_at_different_keys_search_each_once(bench):
    function = autotune([Config({"step": step}) for step in (1, 2, 3)], do_bench=bench)(run)
    assert together(6, lambda number: function(np.ones(4), number % 3)) == [2] * 6
    assert function.cache_info().searches == 3
    assert sorted(bench.calls) == [1, 1, 1, 2, 2, 2, 3, 3, 3]


def test_a_failing_search_does_not_wedge_the_other_threads():
    def fail(call, quantiles):
        time.sleep(0.01)
        raise OSError("no clock")

    function = autotune([Config({"step": 1}), Config({"step": 2})], do_bench=fail)(run)
    failures = []

    def work(number):
        with pytest.raises(OSError, match="no clock"):
            function(np.ones(4), 4)
        failures.append(number)

    together(4, work)
    assert sorted(failures) == [0, 1, 2, 3]


# -- nesting ---------------------------------------------------------------------------------------------------------


def test_a_tuned_call_inside_a_tuned_function():
    @autotune([Config({"inner_step": 1}), Config({"inner_step": 2})])
    def inner(x, *, inner_step):
        return x + inner_step * 0

    @autotune([Config({"step": 1}), Config({"step": 2})])
    def outer(x, *, step):
        return inner(x) + 1

    for _ in range(2):
        assert outer(1) == 2
    assert outer.cache_info().searches == 1
    assert inner.cache_info().searches == 1
    assert len(list(listing.all_records())) == 2


class Depth(threading.local):
    """How deep in calls of each other two functions are on this thread."""

    calls = 0


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "in-memory"])
def test_two_functions_that_call_each_other_on_two_threads(stored):
    """Each holds its own lock and wants the other's: a thread that holds one never waits for another."""
    inside, depth = threading.Barrier(2), Depth()

    def call(function):
        nonlocal inside
        depth.calls += 1
        try:
            if depth.calls > 1:
                return 0
            inside.wait(20)  # in the first trial: both threads are in their search now
            inside = NO_BARRIER
            return function() + 1
        finally:
            depth.calls -= 1

    decorate = autotune([Config({"step": 1}), Config({"step": 2})], cache_results=stored, do_bench=quick)

    @decorate
    def ping(*, step):
        return call(lambda: pong())

    @decorate
    def pong(*, step):
        return call(lambda: ping())

    assert together(2, lambda number: (ping, pong)[number]()) == [1, 1]


class NoBarrier:
    def wait(self, timeout):
        pass


NO_BARRIER = NoBarrier()


@pytest.mark.parametrize("key", [["depth"], []], ids=["other-key", "same-key"])
def test_a_function_that_calls_itself_while_it_is_tuned(key):
    @autotune([Config({"step": 1}), Config({"step": 2})], key=key, do_bench=quick)
    def count(depth, *, step):
        return 1 + count(depth - 1) if depth else 0

    assert together(1, lambda number: count(2)) == [2]  # on a thread, so that a hang is a failure


# -- fork ------------------------------------------------------------------------------------------------------------

FORK = """
import json, os, select, sys, threading, time
from fakes import FakeConfig as Config
from autotuned import autotune

inside, go_on = threading.Event(), threading.Event()
hear, tell = os.pipe()

class State:
    parent, last = os.getpid(), 0

STATE = State()

def bench(call, quantiles):
    call()
    if os.getpid() == STATE.parent:
        inside.set()
        assert go_on.wait(30)
    return [{1: 2.0, 2: 1.0}[STATE.last]] * 3

@autotune([Config({"step": 1}), Config({"step": 2})], do_bench=bench, cache_results=sys.argv[1] == "stored")
def run(n, *, step):
    STATE.last = step
    return step

searching = threading.Thread(target=run, args=(5,))
searching.start()
assert inside.wait(30)
child = os.fork()
if child == 0:
    other = run(6)  # another key: nothing to wait for
    os.write(tell, b"x")
    same = run(5)  # the key that a thread of the parent was searching when the child was made
    os.write(1, json.dumps([other, same]).encode() + b"\\n")
    os._exit(0)
if sys.argv[1] == "stored":
    assert select.select([hear], [], [], 30)[0], "the child waited for another key"
    time.sleep(0.3)  # the child waits for the parent's lock on the file now
    go_on.set()
deadline = time.monotonic() + 60
while not (ended := os.waitpid(child, os.WNOHANG))[0]:
    if time.monotonic() > deadline:
        os.kill(child, 9)
        go_on.set()
        sys.exit("the child hung")
    time.sleep(0.01)
go_on.set()
searching.join(30)
assert ended[1] == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.parametrize("stored", ["stored", "in-memory"])
def test_a_child_forked_during_a_search_does_not_hang(tmp_path, stored):
    """Nor does it wait for the search of another key, which goes on until the child is through."""
    assert finish(start(tmp_path, FORK, stored, PYTHONWARNINGS="ignore")) == [2, 2]


KEPT = (
    FORK.partition("searching = ")[0]
    + """
import gc, subprocess
from pathlib import Path

arrived = Path(sys.argv[2])
if arrived.exists():  # the third process
    STATE.parent = None  # its benchmark waits for nobody
    (arrived / "here").touch()
    chosen = run(5)
    print(json.dumps([chosen, run.cache_info().searches]))
    sys.exit()
arrived.mkdir()
searching = threading.Thread(target=run, args=(5,))
searching.start()
assert inside.wait(30)
child = os.fork()
if child == 0:
    searching = None
    gc.collect()
    sys.exit()  # with all finalizers, as a worker that ends by itself
assert os.waitpid(child, 0)[1] == 0
third = subprocess.Popen([sys.executable, *sys.argv], stdout=subprocess.PIPE, text=True)
deadline = time.monotonic() + 60
while not (arrived / "here").exists() and time.monotonic() < deadline:
    time.sleep(0.01)
time.sleep(0.3)  # by now it searches, or waits for the lock
go_on.set()
print(third.communicate(timeout=60)[0])
searching.join(30)
"""
)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_that_ends_leaves_the_parents_lock_alone(tmp_path):
    process = start(tmp_path, KEPT, "stored", tmp_path / "arrived", PYTHONWARNINGS="ignore")
    assert finish(process) == [2, 0]


# -- what importing and decorating cost ------------------------------------------------------------------------------

IMPORT = """
import json, sys
import autotuned
from autotuned import errors, mode, pow2, register_configs
print(json.dumps([name for name in ("torch", "triton", "filelock", "numpy") if name in sys.modules]))
"""

HOST_ONLY = """
import json, sys
from fakes import FakeConfig as Config
from autotuned import autotune

@autotune([Config({"step": 1}), Config({"step": 2})])
def run(n, *, step):
    return n

assert [run(5), run(5)] == [5, 5]
print(json.dumps([name for name in ("torch", "triton") if name in sys.modules]))
"""

DECORATE = """
import json, sys
import torch, triton, triton.language as tl
from autotuned import Config, autotune

@autotune([Config({"BLOCK": 16}), Config({"BLOCK": 32})], restore_value=["x_ptr"])
@triton.heuristics({"EVEN": lambda arguments: True})
@triton.jit
def kernel(x_ptr, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    pass

print(json.dumps([torch.cuda.is_initialized(), triton.runtime.driver._active is not None, "filelock" in sys.modules]))
"""


def test_importing_costs_neither_torch_nor_triton(tmp_path):
    assert finish(start(tmp_path, IMPORT)) == []


def test_a_plain_callable_needs_neither_torch_nor_triton(tmp_path):
    assert finish(start(tmp_path, HOST_ONLY)) == []


def test_decorating_touches_no_gpu(tmp_path):
    (tmp_path / "script.py").write_text(DECORATE)
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    found = forked.run([sys.executable, tmp_path / "script.py"], environment, check=True).stdout
    assert json.loads(found) == [False, False, False]
