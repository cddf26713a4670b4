"""Tests of `locks.gpu_locked`: searches take turns on a GPU, and none waits for ever."""

import subprocess
import sys
import threading
import time

import numpy as np

from autotuned import Config, autotune
from autotuned.search import timers
from autotuned.store import locks

HOLD = """
import sys, time
from autotuned.store import locks
with locks.gpu_locked("gpu-1") as held:
    print(held, flush=True)
    time.sleep(1000)
"""


def test_another_process_waits_until_the_holder_is_gone():
    holder = subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "True\n"
        with locks.gpu_locked("gpu-1", patience_s=0.2) as held:
            assert not held
        with locks.gpu_locked("gpu-2", patience_s=0.2) as other:
            assert other
        killed = []
        threading.Timer(0.3, lambda: (killed.append(holder), holder.kill())).start()
        with locks.gpu_locked("gpu-1") as held:
            assert held
            assert killed
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()


def test_no_config_is_said_to_be_at_work_while_a_search_waits_for_its_turn(monkeypatch):
    """Whoever watches takes a config that is at work for too long for one that hangs."""
    stages, wait = [], locks.gpu_locked
    monkeypatch.setattr(timers.HostTimer, "device", "gpu-4")
    monkeypatch.setattr(locks, "gpu_locked", lambda *limits: stages.append("turn") or wait(*limits))

    @autotune([Config({"step": step}) for step in range(2)], key=["n"])
    def work(out, n, *, step):
        out[...] = n

    call = work.tuner.call((np.zeros(4), 1), {}, None)
    work.tuner.tune(call, observer=lambda progress: stages.append(progress.stage))
    assert "sampling" in stages
    assert stages[stages.index("turn") - 1] == "waiting"


def test_what_has_no_device_waits_for_nobody():
    with locks.gpu_locked(None) as held:
        assert held


def test_two_threads_that_search_never_measure_at_the_same_time(monkeypatch):
    monkeypatch.setattr(timers.HostTimer, "device", "gpu-3")
    at_once, most = [0], [0]
    guard = threading.Lock()

    class Timer(timers.HostTimer):
        def warm_up(self):
            with guard:
                at_once[0] += 1
                most[0] = max(most[0], at_once[0])
            time.sleep(0.05)
            with guard:
                at_once[0] -= 1

    monkeypatch.setattr("autotuned.search.timers.HostTimer", Timer)

    @autotune(configs=[Config({"step": step}) for step in (1, 2)], key=["n"])
    def work(out, n, *, step):
        out[...] = step

    threads = [threading.Thread(target=work, args=(np.zeros(2), n)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]
    assert work.cache_info().searches == 4


def test_a_polled_lock_is_nested_in_a_thread_and_had_by_one_thread_at_a_time(tmp_path):
    path, found = tmp_path / "k.lock", []

    def ask(patience_s):
        with locks.polled(path, patience_s) as lock:
            found.append(lock)

    def from_another_thread(patience_s):
        thread = threading.Thread(target=ask, args=(patience_s,))
        thread.start()
        return thread

    with locks.locked(tmp_path / "other.lock"), locks.polled(path, 30.0) as lock:
        assert lock is locks.Lock.HELD
        ask(30.0)
        from_another_thread(0.0).join()
        waiting = from_another_thread(30.0)
    waiting.join()
    assert found == [locks.Lock.NESTED, locks.Lock.BUSY, locks.Lock.HELD]
