"""Real processes, real signals: one searches, the others wait, and whoever is killed loses the trial in flight."""

import contextlib
import json
import os
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import forked
import pytest
from fakes import FakeConfig
from faults import everything_in
from flights import make, only_record
from waits import until

import autotuned
from autotuned import autotune
from autotuned.store import layout, listing, locks

CONFIGS = 40

# Says "ready", waits for a line, calls a tuned function of 40 configs that take a while each to measure, and says each
# config as it is measured, then what was chosen. Options: seconds a config, seconds until a waiter gives up, default.
WORKER = f"""
import json, os, signal, sys, time
sys.path.insert(0, {str(Path(__file__).parents[1] / "support")!r})
from fakes import FakeConfig
from autotuned import autotune
from autotuned.store import locks

bench_s, limit_s, mode = float(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
locks.LOCK_TIMEOUT_S, locks.MESSAGE_AFTER_S = limit_s, 0.1
def say(*words):
    print(*words, flush=True)
def interrupt(number, frame):
    os.write(1, b"interrupted\\n")  # it may have come while `print` is at work, which cannot be begun again then
    raise KeyboardInterrupt
signal.signal(signal.SIGINT, interrupt)
def bench(call, quantiles):
    call()
    say("measuring", last[0])
    time.sleep(bench_s)
    say("measured", last[0])
    return [1.0 + (last[0] - 7) ** 2] * 3
last = [0]
def body(x, *, step):
    last[0] = step
configs = [FakeConfig({{"step": step}}) for step in range({CONFIGS})]
options = {{"default": configs[3]}} if mode == "default" else {{}}
tuned = autotune(configs, do_bench=bench, name="app.body", version="1", **options)(body)
tuned(1) if mode == "warm" else None
say("ready")
sys.stdin.readline()
tuned(1)
say("chose", last[0], tuned.cache_info().searches)
"""


class Worker:
    """A process that calls the function when told to."""

    def __init__(self, bench_s: float, limit_s: float, mode: str) -> None:
        self._stderr = tempfile.NamedTemporaryFile("w")  # noqa: SIM115 - until this object is gone
        command = [sys.executable, "-c", WORKER, str(bench_s), str(limit_s), mode]
        self.process = forked.start(command, stderr=self._stderr.fileno())
        self.measured: list[int] = []
        self.said: list[list[str]] = []
        while (words := self.next()) != ["ready"]:
            assert words, self.finish()

    @property
    def stderr(self) -> str:
        return Path(self._stderr.name).read_text()

    def go(self) -> "Worker":
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self

    def next(self) -> list[str]:
        words = self.process.stdout.readline().split()
        self.said.append(words)
        if words[:1] == ["measured"]:
            self.measured.append(int(words[1]))
        return words

    def wait_for(self, count: int) -> "Worker":
        while len(self.measured) < count:
            assert self.next(), self.finish()
        return self

    def chosen(self) -> tuple[int, int]:
        """Config and searches."""
        while (words := self.next())[:1] != ["chose"]:
            assert words, self.finish()
        self.finish()
        return int(words[1]), int(words[2])

    def finish(self) -> str:
        while self.next():
            pass
        self.process.wait()
        return self.stderr

    def waits(self) -> None:
        """Until it says that it waits for another process."""
        until(lambda: "waiting for" in self.stderr)


@contextlib.contextmanager
def workers(count: int, bench_s: float = 0.005, limit_s: float = 60, mode: str = "") -> Iterator[list[Worker]]:
    made = [Worker(bench_s, limit_s, mode) for _ in range(count)]
    try:
        yield made
    finally:
        for worker in made:
            worker.process.kill()
            worker.process.finish()


def on_disk() -> set[int]:
    """Configs whose timing is in a record or a logbook."""
    found = {timing.config["kwargs"]["step"] for _, each in listing.all_records() for timing in each.timings}
    for path in layout.root().rglob(".*.logbook"):
        lines = [json.loads(line) for line in path.read_text().split("\n")[:-1] if line]
        found |= {line["config"]["kwargs"]["step"] for line in lines if "config" in line}
    return found


def saved(worker: Worker) -> set[int]:
    """The configs that a killed worker measured and that are on disk: all but, at most, the one in flight."""
    there = on_disk()
    assert set(worker.measured[:-1]) <= there
    return set(worker.measured) & there


def test_b37_of_many_processes_on_a_cold_key_one_searches_and_all_get_the_winner() -> None:
    with workers(5, bench_s=0.002) as group:
        for worker in group:
            worker.go()
        chosen = [worker.chosen() for worker in group]
        assert {config for config, _ in chosen} == {7}
        assert sum(searches for _, searches in chosen) == 1
        assert sorted(step for worker in group for step in worker.measured) == list(range(CONFIGS))
    path, found = only_record()
    assert found.winner["kwargs"] == {"step": 7}
    assert [name for name in everything_in(path.parent) if name.startswith(".")] == []


def test_b50_b42_a_killed_search_is_taken_over_at_once_and_loses_the_trial_in_flight() -> None:
    with workers(2, bench_s=0.02) as (first, second):
        first.go().wait_for(10)
        first.process.send_signal(signal.SIGSTOP)
        second.go().waits()
        first.process.send_signal(signal.SIGKILL)
        first.finish()
        done = saved(first)
        assert second.chosen()[0] == 7
        # One more may have been written than was said when the signal came.
        assert len(second.measured) in (CONFIGS - len(done), CONFIGS - len(done) - 1)
        assert not set(second.measured) & done
        assert "waiting for process" in second.stderr
        assert f"process {first.process.pid} on " in second.stderr
        assert second.stderr.count("waiting for") == 1
        assert "was not free" not in second.stderr  # it had the lock, and did not wait until its time was over
    assert on_disk() == set(range(CONFIGS))
    assert only_record()[1].winner["kwargs"] == {"step": 7}


def test_b50_ctrl_c_ends_within_one_trial_and_the_next_search_measures_what_is_missing() -> None:
    with workers(2, bench_s=0.02) as (first, second):
        first.go().wait_for(12)
        first.process.send_signal(signal.SIGINT)
        assert "KeyboardInterrupt" in first.finish()
        after = first.said[first.said.index(["interrupted"]) + 1 :]
        assert sum(words != [] for words in after) <= 1  # the line that was being written
        done = saved(first)
        assert len(done) >= 11
        second.go()
        assert second.chosen()[0] == 7
        assert len(second.measured) <= CONFIGS - 11
        assert not set(second.measured) & done


@pytest.mark.parametrize("mode", ["", "default"])
def test_b38_after_the_limit_a_waiter_goes_on_and_nothing_is_saved_twice(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNED_MODE", "search")
    limited = workers(1, bench_s=0.001, limit_s=0.3, mode=mode)
    with workers(1, bench_s=0.1) as [holder], limited as [waiter]:  # both have started when the search begins
        holder.go().wait_for(1)
        config, searches = waiter.go().chosen()
        assert (config, searches) == ((3, 0) if mode else (7, 1))
        assert "continuing without it" in waiter.stderr
        assert list(listing.all_records()) == []  # the holder is not done
        steps = on_disk()
        assert steps <= set(holder.measured) | {step for step in range(CONFIGS) if step in steps}
        assert len(steps) < CONFIGS  # the waiter's are not among them
        assert holder.chosen()[0] == 7
    assert only_record()[1].winner["kwargs"] == {"step": 7}


def test_a_call_in_a_thread_of_a_warm_process_is_not_disturbed_by_a_lock_that_is_held() -> None:
    with workers(1, bench_s=0.001, mode="warm") as [worker]:
        path, _ = only_record()
        with locks.locked(path.parent / "locks" / f"{path.stem}.lock"):
            config, searches = worker.go().chosen()
        assert (config, searches) == (7, 1)
        assert worker.stderr == ""  # nothing was waited for


# -- threads -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 7, 16])
def test_b68_threads_on_a_cold_key_search_once_and_all_get_the_winner(count: int) -> None:
    tuned, measured = make()
    barrier = threading.Barrier(count)
    results: list[int] = []

    def call() -> None:
        barrier.wait()
        results.append(tuned(1))

    run_threads([threading.Thread(target=call) for _ in range(count)])
    assert results == [2] * count
    assert sorted(measured) == [0, 1, 2, 3]
    assert tuned.cache_info().searches == 1


def run_threads(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_b68_threads_on_other_keys_search_each_once() -> None:
    tuned, measured = make(bench_s=0.002)
    results: dict[int, int] = {}
    run_threads([threading.Thread(target=lambda n=n: results.update({n: tuned(n % 4)})) for n in range(12)])
    assert set(results.values()) == {2}
    assert tuned.cache_info().searches == 4
    assert len(measured) == 16


def test_b68_a_thread_that_fails_does_not_wedge_the_others() -> None:
    calls: list[int] = []

    def bench(call: Any, quantiles: Any) -> list[float]:
        calls.append(1)
        if len(calls) == 1:
            time.sleep(0.02)
            raise KeyboardInterrupt
        return [1.0] * 3

    tuned = autotune([FakeConfig({"step": 1}), FakeConfig({"step": 2})], do_bench=bench, name="app.f")(
        lambda x, step: x
    )
    outcomes: list[str] = []

    def call() -> None:
        try:
            outcomes.append(str(tuned(1)))
        except KeyboardInterrupt:
            outcomes.append("interrupted")

    run_threads([threading.Thread(target=call) for _ in range(5)])
    assert sorted(outcomes) == ["1"] * 4 + ["interrupted"]


def test_b68_a_hook_that_calls_the_function_under_search_gets_a_config_and_no_second_search() -> None:
    inner: list[int] = []
    steps: list[int] = []

    def hook(arguments: Any) -> None:
        if len(inner) < 20:
            inner.append(1)
            tuned(1)

    def body(x: Any, *, step: int) -> None:
        steps.append(step)

    configs = [FakeConfig({"step": step}, pre_hook=hook) for step in (1, 2)]
    tuned = autotune(configs, do_bench=lambda call, quantiles: [call() or 1.0] * 3, name="app.g")(body)
    tuned(1)
    assert tuned.cache_info().searches == 1
    tuned(1)
    assert set(steps) == {1, 2}


# -- fork --------------------------------------------------------------------------------------------------------------


def test_b44_a_child_forked_while_a_thread_searches_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNED_MODE", "search")
    tuned, measured = make(bench_s=0.15)
    thread = threading.Thread(target=tuned, args=(1,))
    thread.start()
    while not measured:
        time.sleep(0.001)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        code = 1
        try:
            locks.LOCK_TIMEOUT_S = 5  # waits for its parent, as for any other process
            code = 0 if tuned(1) == 2 and tuned(7) == 2 else 1
        finally:
            os._exit(code)
    code, end = 99, time.monotonic() + 60
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            break
        time.sleep(0.01)
    if code == 99:
        os.kill(child, signal.SIGKILL)
    thread.join(30)
    assert code == 0


def test_an_interrupted_search_anew_leaves_the_complete_record_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(call: Any, quantiles: Any) -> list[float]:
        call()
        if stops and len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(1)
        return [5.0] * 3

    calls: list[int] = []
    stops: list[bool] = []
    last = [FakeConfig({"step": step}) for step in range(4)]
    body = make()[0].fn
    autotune(last, do_bench=interrupt, name="app.body", version="1")(body)(1)
    path, before = only_record()
    calls.clear()
    stops.append(True)
    again = autotune(last, do_bench=interrupt, name="app.body", version="1")(body)
    with pytest.raises(KeyboardInterrupt), autotuned.mode("search"):
        again(1)
    if layout.record_path(before.key) == path:
        assert only_record()[1].winner == before.winner
        assert only_record()[1].median_us == before.median_us
    assert layout.logbook_path(path).exists() is False
