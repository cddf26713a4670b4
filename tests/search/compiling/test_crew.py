"""A crew compiles each binary of a list once on this host, and nothing holds it up for good."""

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import CancelledError
from contextlib import ExitStack
from pathlib import Path

import pytest
from triton import Config
from waits import until

from autotuned.search.compiling import crew
from autotuned.search.compiling.crew import Crew
from autotuned.search.compiling.pool import Pool, Wanted
from autotuned.search.exclusions import SharedMemory
from autotuned.store import locks
from autotuned.store.journal import Journal
from autotuned.triton_compat import cache
from autotuned.triton_compat.compiled import Compilation


@pytest.fixture(autouse=True)
def tritons(tmp_path, monkeypatch):
    """A cache of Triton's."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    return tmp_path / "triton"


@pytest.fixture
def made():
    """Digests in the order in which they were compiled."""
    return []


@pytest.fixture
def binary(made):
    """`binary(number)`: what compiles one, by putting an empty group where Triton has it."""

    def binary(number, before=lambda: None):
        digest = f"{number:064x}"

        def run():
            before()
            made.append(number)
            cache.lock_path(digest).with_name("__grp__kernel.json").write_text("{}")

        return Compilation(digest, run)

    return binary


def nothing():
    pass


def test_each_is_compiled_once_and_no_lock_is_left(binary, made, tritons):
    one = Crew([binary(n) for n in range(9)], 3).start()
    assert one.wait(nothing)
    assert (sorted(made), one.done, one.total) == (list(range(9)), 9, 9)
    until(lambda: not list(tritons.rglob("*.lock")))
    assert Crew([binary(n) for n in range(9)], 3).start().wait(nothing) and len(made) == 9


def test_what_another_process_compiles_is_left_to_it(binary, made):
    """It ends without a binary for the first, and is taken over; the second it has made."""
    first, second = binary(1), binary(2)
    let_go = [locks.claim(cache.lock_path(one.digest)) for one in (first, second)]
    working = Crew([first, second, binary(3)], 2).start()
    until(lambda: made == [3])
    until(lambda: working.done == 1)
    second.run()
    let_go[1]()
    until(lambda: working.done == 2)
    let_go[0]()
    assert working.wait(nothing) and made == [3, 2, 1]


def test_a_holder_that_was_killed_holds_nothing(binary, made):
    one = binary(1)
    text = "import sys, time, pathlib; from autotuned.store import locks; held = locks.claim(pathlib.Path(sys.argv[1]))"
    command = [sys.executable, "-c", f"{text}; print('held', flush=True); time.sleep(600)", cache.lock_path(one.digest)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        assert locks.claim(cache.lock_path(one.digest)) is None
        working = Crew([one], 1).start()
        holder.kill()
    assert working.wait(nothing) and made == [1]


def test_no_more_are_compiled_at_once_than_there_are_slots(binary, made, tmp_path):
    """By all processes of the host: here two crews stand for them."""
    running, most, guard = [], [], threading.Lock()

    def busy():
        with guard:
            running.append(1)
            most.append(len(running))
        time.sleep(0.02)
        with guard:
            running.pop()

    slots = [tmp_path / "slots" / f"{n}.lock" for n in range(2)]
    crews = [Crew([binary(10 * c + n, busy) for n in range(4)], 4, slots).start() for c in range(2)]
    assert all(one.wait(nothing) for one in crews)
    assert len(made) == 8 and max(most) == 2
    assert all(path.exists() for path in slots)


def test_a_search_takes_turns_on_the_slots_until_it_is_over(tmp_path):
    slots, events = [tmp_path / "slots" / "0.lock"], []
    over, turns = threading.Event(), crew.Turns(slots)

    def compile_one(name):
        with turns.turn(over.is_set):
            events.append(name)

    let_go = locks.claim(slots[0], stays=True)
    waiting = threading.Thread(target=compile_one, args=("first",))
    waiting.start()
    assert events == []
    events.append("freed")
    let_go()
    waiting.join(60)
    let_go = locks.claim(slots[0], stays=True)
    over.set()
    compile_one("over")  # without a slot: it will see that it is over
    let_go()
    assert events == ["freed", "first", "over"]
    with crew.Turns([]).turn(lambda: False):
        assert locks.claim(slots[0], stays=True) is not None  # nobody has kept it


def test_one_thread_of_a_pool_looks_for_a_slot_however_many_wait(tmp_path, monkeypatch):
    slots = [tmp_path / "slots" / "0.lock"]
    looking, hold = [], crew._hold
    monkeypatch.setattr(
        crew, "_hold", lambda *given, **how: looking.append(threading.get_ident()) or hold(*given, **how)
    )
    let_go, turns, done = locks.claim(slots[0], stays=True), crew.Turns(slots), []

    def compile_one():
        with turns.turn(lambda: False):
            done.append(1)

    threads = [threading.Thread(target=compile_one) for _ in range(5)]
    for thread in threads:
        thread.start()
    until(lambda: len(looking) > 3)
    assert len(set(looking)) == 1
    let_go()
    for thread in threads:
        thread.join(60)
    assert len(done) == 5 and len(set(looking)) == 5


def test_no_thread_asks_for_what_another_of_its_process_holds(tmp_path, monkeypatch):
    slots, asked, claim = [tmp_path / "slots" / f"{number}.lock" for number in range(4)], [], locks.claim
    monkeypatch.setattr(locks, "claim", lambda path, stays: asked.append(path) or claim(path, stays))
    turns = crew.Turns(slots)
    for again in range(2):
        with ExitStack() as held:
            for _ in slots:
                held.enter_context(turns.turn(lambda: False))
            assert asked == slots * (again + 1)
            with crew.Turns(slots).turn(lambda: True):
                assert len(asked) == 4 * (again + 1)


def test_a_pool_whose_search_was_interrupted_waits_for_no_slot(tmp_path):
    """Else the process would end only once the others let go of one: Python waits for a pool's threads at its end."""
    slots = [tmp_path / "slots" / "0.lock"]
    let_go = locks.claim(slots[0], stays=True)
    pool = Pool(2, "k", Journal(None), SharedMemory(None), lambda: False, slots, None)
    with pytest.raises(KeyboardInterrupt), pool:
        some = [pool.submit(Wanted(number, f"{number}", Config({"N": number})), nothing) for number in range(3)]
        until(some[1].running)
        raise KeyboardInterrupt
    for one in some:
        with pytest.raises(CancelledError):
            one.result(60)
    let_go()


def test_what_fails_counts_as_done(binary, made):
    def fail():
        raise MemoryError

    working = Crew([binary(1, fail), binary(2)], 1).start()
    assert working.wait(nothing) and made == [2]


def test_nothing_more_begins_once_it_is_closed(binary, made):
    begun, release = threading.Event(), threading.Event()

    def held():
        begun.set()
        release.wait()

    working = Crew([binary(1, held), binary(2)], 1).start()
    begun.wait()
    working.close()
    release.set()
    until(lambda: made == [1])
    assert not working.wait(nothing)


def test_who_needs_one_waits_for_it_or_takes_it(binary, made):
    begun, release = threading.Event(), threading.Event()

    def held():
        begun.set()
        release.wait(10)

    first, second = binary(1, held), binary(2)
    working = Crew([first, second], 1).start()
    begun.wait()
    working.wait_for(second.digest)  # not begun: the caller's own
    threading.Timer(0.05, release.set).start()
    working.wait_for(first.digest)
    assert made == [1] and working.wait(nothing)
    working.wait_for("unknown")


def test_a_place_without_locks_does_without(binary, made, monkeypatch):
    monkeypatch.setattr(cache, "lock_path", lambda digest: (_ for _ in ()).throw(PermissionError()))
    working = Crew([Compilation("1" * 64, lambda: made.append(1))], 1).start()
    assert working.wait(nothing) and made == [1]


def test_a_file_system_without_locks_does_without(tmp_path, monkeypatch):
    def refuse(lock, end):
        raise NotImplementedError("no flock")

    monkeypatch.setattr(locks, "_try_until", refuse)
    locks.claim(tmp_path / "a.lock")()
    (tmp_path / "file").touch()
    locks.claim(tmp_path / "file" / "a.lock")()


def test_slots_are_for_ranks_whose_workers_nobody_counts(monkeypatch):
    assert crew.shared_slots() == []
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert len(crew.shared_slots()) == crew.parallelism.on_this_host()
    assert all(isinstance(path, Path) for path in crew.shared_slots())
    monkeypatch.setenv("AUTOTUNED_COMPILE_WORKERS", "2")
    assert crew.shared_slots() == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_lets_go_of_nothing(tmp_path):
    path = tmp_path / "a.lock"
    let_go = locks.claim(path)
    child = os.fork()
    if child == 0:
        try:
            let_go()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert path.exists() and locks.claim(path) is None
    let_go()
    assert not path.exists()


HOLDS = """
import logging, time
from autotuned import Config
from autotuned.search.compiling import pool
from autotuned.search.exclusions import SharedMemory
from autotuned.store.journal import Journal
logging.basicConfig(format="%(message)s")
pool.POLL_S, pool.SAY_AFTER_S = 0.05, 0.1
for kernel, seconds in (("app.short", 0.05), ("app.long", 1.5)):
    with pool.Pool(1, kernel, Journal(None), SharedMemory(None), lambda: False, [], None) as made:
        for number in range(2):
            made.submit(pool.Wanted(number, str(number), Config({})), lambda: time.sleep(seconds))
        while not made.begun:
            time.sleep(0.001)
time.sleep(0.2)
"""


def test_a_compilation_that_holds_up_the_exit_is_named():
    done = subprocess.run([sys.executable, "-c", HOLDS], capture_output=True, text=True, timeout=60)
    words = "`app.long`: the main thread has ended; running compilations hold up the exit: 1.\n"
    assert (done.returncode, done.stderr) == (0, words)
