"""`tune --isolate`: configs that hang, crash, or compute something else end as themselves, and the right one wins."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import fakes
import forked
import pytest

from autotuned.offline.device import isolates
from autotuned.offline.workers import process
from autotuned.offline.workers import worker as workers
from autotuned.search.job import Progress
from autotuned.store import listing

HEAD = f"""
import os, signal, subprocess, sys, time
import numpy as np
sys.path.insert(0, {os.path.dirname(fakes.__file__)!r})
from fakes import FakeConfig as Config  # Triton's own takes a third of a second to import
from autotuned import autotune

def slow(out, milliseconds):
    time.sleep(milliseconds / 1e3)
    out[...] = 1

"""
FAULTS = """
@autotune(configs=[Config({"how": how}) for how in ("crash", "slow", "hang", "raise", "wrong", "fast")], key=["n"],
          check=lambda out, n: {"out": np.ones(4)})
def work(out, n, *, how):
    if how == "crash":
        os.abort()
    if how == "hang":
        time.sleep(1000)
    if how == "raise":
        raise RuntimeError("out of resource: shared memory, Required: 300000, Hardware limit: 232448.")
    # Far apart: other loads of this machine take milliseconds. The wrong one leads, so that it is looked at.
    slow(out, {"slow": 60, "wrong": 0.5}.get(how, 5))
    if how == "wrong":
        out[...] = 2

@work.case
def cases(device):
    for n in (1, 2):
        yield dict(args=(np.zeros(4), n))
"""


def tune(tmp_path: Path, code: str, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command on a file with this code."""
    file = tmp_path / "faulty.py"
    file.write_text(HEAD + textwrap.dedent(code))
    command = [
        sys.executable,
        "-c",
        "from autotuned.cli.main import app; app()",
        "tune",
        str(file),
        "--isolate",
        *options,
    ]
    variables = {**os.environ, "TRITON_INTERPRET": "1", **environment}
    return forked.run(command, cwd=tmp_path, env=variables, timeout=280)


def statuses(record) -> dict[str, tuple[str, str | None]]:
    return {timing.config["kwargs"]["how"]: (timing.status, timing.error) for timing in record.timings}


def test_b62_b63_the_fault_list_ends_with_the_right_winner_names_the_culprits_and_is_tried_once(tmp_path):
    done = tune(tmp_path, FAULTS, "--timeout", "3", "--json")
    assert done.returncode == 0, done.stderr
    cases = first = json.loads(done.stdout)["cases"]
    assert [case["config"]["kwargs"] for case in cases] == [{"how": "fast"}] * 2
    assert [case["status"] for case in cases] == ["done"] * 2
    for _, record in listing.all_records():
        found = statuses(record)
        assert found["crash"] == ("failed", "Crashed: the process ended by SIGABRT while it was launched")
        assert found["hang"] == ("failed", "TimedOut: did not end within 3 s")
        assert found["raise"][0] == "failed"
        assert "shared memory" in (found["raise"][1] or "")
        assert found["wrong"][0] == "wrong"
        assert (found["slow"][0], found["fast"][0]) == ("ok", "ok")
    assert "how=crash" in done.stderr
    assert re.search(r"it is left out \(it took [\d.]+ s\)", done.stderr)
    before = {path: path.read_bytes() for path, _ in listing.all_records()}  # a second run tries none of them again
    done = tune(tmp_path, FAULTS, "--timeout", "30", "--json")
    again = [case["source"] == "measured" for case in json.loads(done.stdout)["cases"]]
    assert again == [case["quality"] == "noisy" for case in first]  # measured beside too much else
    assert any(again) or {path: path.read_bytes() for path, _ in listing.all_records()} == before
    assert "left out" not in done.stderr


def test_b63_what_a_config_started_is_killed_with_it(tmp_path):
    code = """
    @autotune(configs=[Config({"how": how}) for how in ("compile", "fine")], key=["n"])
    def work(out, n, *, how):
        if how == "compile":
            subprocess.run(["sleep", "987.25"])
        slow(out, 1)

    @work.case
    def cases(device):
        yield dict(args=(np.zeros(4), 1))
    """
    done = tune(tmp_path, code, "--timeout", "2")  # which waits for less than the 987 s
    assert done.returncode == 0, done.stderr
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    assert "sleep 987.25" not in listed


def test_b62_what_ended_a_program_is_tried_once_more_by_tune_in_a_process_that_it_can_lose(tmp_path):
    program = HEAD + textwrap.dedent(CRASHING) + "\nif __name__ == '__main__':\n    work(np.zeros(4), 1)\n"
    (tmp_path / "faulty.py").write_text(program)
    command = [sys.executable, str(tmp_path / "faulty.py")]
    runs = [subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path) for _ in range(3)]
    assert [run.returncode for run in runs] == [-signal.SIGABRT, 0, 0]
    assert "how=crash" in runs[1].stderr
    assert "is skipped: an earlier process ended in its first launch" in runs[1].stderr
    assert runs[2].stderr == ""
    ((_, record),) = listing.all_records()
    assert statuses(record)["crash"][0] == "crashed"
    done = tune(tmp_path, CRASHING + "\nif __name__ == '__main__':\n    work(np.zeros(4), 1)\n")
    assert done.returncode == 0, done.stderr
    ((_, record),) = listing.all_records()
    twice = "Crashed: two processes ended while this config was launched for the first time"
    assert statuses(record)["crash"] == ("failed", twice)
    assert statuses(record)["fast"][0] == "ok"
    assert "Crashed: the process ended by SIGABRT while it was launched; it is left out" in done.stderr


CRASHING = """
@autotune(configs=[Config({"how": how}) for how in ("fast", "crash")], key=["n"])
def work(out, n, *, how):
    if how == "crash":
        os.abort()
    slow(out, 1)

@work.case
def cases(device):
    yield dict(args=(np.zeros(4), 1))
"""


def test_an_error_of_the_target_is_one_line_and_exit_code_1(tmp_path):
    done = tune(tmp_path, "raise RuntimeError('broken at import')")
    assert done.returncode == 1
    assert "broken at import" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_process_that_always_ends_by_itself_is_given_up(tmp_path):
    done = tune(tmp_path, "os.abort()")
    assert done.returncode == 1
    assert "the measuring process ended 3 times, and no config is to blame" in done.stderr


def test_what_a_kernel_prints_stays_out_of_the_json(tmp_path):
    code = """
    @autotune(configs=[Config({"how": how}) for how in ("a", "b")], key=["n"])
    def work(out, n, *, how):
        print("hello from", how)
        slow(out, 1)

    @work.case
    def cases(device):
        yield dict(args=(np.zeros(4), 1))
    """
    done = tune(tmp_path, code, "--json")
    assert json.loads(done.stdout)["cases"][0]["status"] == "done"
    assert "hello from" in done.stderr


# -- who is to blame --------------------------------------------------------------------------------------------------


def progress(stage: str, identity: str, **compiling: float) -> Progress:
    return Progress("k", 0, 1, identity, None, None, stage, identity, compiling)


def test_a_config_is_overdue_only_while_it_is_its_turn():
    doing = process.Doing()
    doing.note(progress("launching", "a"), 10.0)
    assert doing.overdue(5.0, 14.0) == {}
    assert doing.overdue(5.0, 15.5) == {"a": "TimedOut: did not end within 5 s"}
    doing.nothing()
    assert doing.overdue(5.0, 100.0) == {}


def test_every_compilation_of_a_pool_has_a_limit_of_its_own():
    doing = process.Doing()
    doing.note(progress("compiling", "a", a=3.0, b=61.0, c=1.0), 100.0)
    assert doing.overdue(60.0, 100.0) == {}  # the process may end it by itself
    doing.note(progress("compiling", "a", a=5.1, b=63.1, c=3.1), 100.0)
    assert doing.overdue(60.0, 100.0) == {"b": "TimedOut: not compiled within 60 s"}
    assert doing.culprit("it ended") == {}  # any of three
    doing.note(progress("compiling", "b"), 100.0)
    assert doing.culprit("it ended") == {"b": "Crashed: it ended while it was compiled"}


@pytest.mark.parametrize(("stage", "word"), [("launching", "launched"), ("sampling", "sampled")])
def test_the_config_that_runs_is_to_blame(stage, word):
    doing = process.Doing()
    doing.note(progress(stage, "a", b=1.0), 0.0)
    assert doing.culprit("the device was lost") == {"a": f"Crashed: the device was lost while it was {word}"}


def test_no_config_is_to_blame_while_none_runs():
    doing = process.Doing()
    doing.note(progress("sampling", "a"), 0.0)
    doing.note(progress("waiting", "a"), 1.0)
    assert doing.overdue(5.0, 100.0) == {} == doing.culprit("it ended")


def test_a_reference_may_take_longer_than_a_config(tmp_path):
    code = """
    def reference(out, n):
        time.sleep(5)
        return {"out": np.ones(4)}

    @autotune(configs=[Config({"how": how}) for how in ("a", "b")], key=["n"], check=reference)
    def work(out, n, *, how):
        slow(out, 1)

    @work.case
    def cases(device):
        yield dict(args=(np.zeros(4), 1))
    """
    done = tune(tmp_path, code, "--timeout", "2", "--json")
    assert done.returncode == 0, done.stderr
    assert "TimedOut" not in done.stderr
    ((_, record),) = listing.all_records()
    assert set(statuses(record).values()) == {("ok", None)}


# -- the process itself -----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def worker_of(target: str):
    made = process.Worker(
        {"targets": [target], "force": False, "gathers": False,
         "timeout_s": 60.0, "wanted": None, "follows": False}, {"TRITON_INTERPRET": "1"},
    )  # fmt: skip
    yield made
    made.kill()


@pytest.fixture
def worker():
    with worker_of("autotuned.kernels.numpy_matmul") as made:
        yield made


def await_end(worker: process.Worker) -> None:
    end = time.monotonic() + 60
    while not worker.is_over:
        assert time.monotonic() < end
        worker.wait(1.0)


@pytest.mark.parametrize("after_s", [0.0, 0.05, 0.2])
def test_ctrl_c_while_it_begins_is_no_traceback(worker, capfd, after_s):
    time.sleep(after_s)
    worker.interrupt()
    await_end(worker)
    assert worker.why() == "the process ended with code 1"
    assert capfd.readouterr().err == ""


def test_ctrl_c_within_an_import_raises_nothing_there(tmp_path, capfd):
    began = tmp_path / "began"
    aborts = tmp_path / "aborts.py"
    aborts.write_text(
        "import os, time\n"
        f"open({str(began)!r}, 'w').close()\n"
        "try:\n    time.sleep(60)\n"
        "except BaseException:\n    os.abort()  # as libtriton does where its enums' callbacks raise\n"
    )
    with worker_of(str(aborts)) as made:
        end = time.monotonic() + 60
        while not began.exists() and time.monotonic() < end:
            time.sleep(0.01)
        made.interrupt()
        await_end(made)
        assert made.why() == "the process ended with code 1"
    assert capfd.readouterr().err == ""


def test_it_ends_when_its_parent_was_killed_within_a_line(worker):
    while not worker.wait(1.0):
        assert not worker.is_over
    worker._process.stdin.write('{"do": "mea')
    worker._process.stdin.close()
    await_end(worker)
    assert worker.why() == "the process ended by SIGKILL"


def test_one_that_says_nothing_any_more_but_goes_on_is_killed(worker, monkeypatch):
    monkeypatch.setattr(process, "END_S", 0.5)
    while not worker.wait(1.0):
        assert not worker.is_over
    worker._closed = True  # as where a kernel closes what it does not know
    assert worker.is_over
    assert worker.why() == "the process ended by SIGKILL"


def test_a_process_of_its_own_is_for_gpus(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert not isolates(None)
    assert isolates(True)
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    monkeypatch.setattr(os.path, "exists", lambda path: path == "/dev/nvidiactl")
    assert isolates(None)
    assert not isolates(False)
    monkeypatch.setenv("AUTOTUNED_DEVICE", "interpreter")
    assert not isolates(None)


class Driver:
    """libcuda as far as a context is made, which may refuse at one function."""

    def __init__(self, refuses=""):
        self.calls, self._refuses = [], refuses

    def __getattr__(self, name):
        return lambda *args: self.calls.append(name) or (100 if name == self._refuses else 0)


@pytest.mark.parametrize(
    "refuses, calls",
    [
        ("", ["cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain"]),
        ("cuInit", ["cuInit"]),
        ("cuDeviceGet", ["cuInit", "cuDeviceGet"]),
    ],
)
def test_a_worker_makes_the_context_that_torch_will_use(monkeypatch, refuses, calls):
    driver = Driver(refuses)
    monkeypatch.setattr(workers.ctypes, "CDLL", lambda name: driver)
    workers._wake_gpu()
    assert driver.calls == calls


def test_a_worker_says_nothing_of_a_driver_that_is_not_there(monkeypatch):
    def missing(name):
        raise OSError(name)

    monkeypatch.setattr(workers.ctypes, "CDLL", missing)
    workers._wake_gpu()
