"""Compile workers: processes without a GPU that `tune` can kill; what they compile is a hit here, or that is noticed."""

import json
import logging
import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import fake_cuda
import pytest
import torch
import triton
from pids import is_running
from pretended import limit_only
from triton import knobs
from waits import until

from autotuned.offline import targets
from autotuned.offline.workers import compile_pool, compile_server
from autotuned.offline.workers.compile_pool import CompileWorkers
from autotuned.search.compiling import pool
from autotuned.store import listing, records

MODULE = """
import triton, triton.language as tl
from autotuned import Config, autotune

@triton.constexpr_function
def think(how):
    if how == "endless":  # in text, since Triton looks into every function that is named here
        exec("import time\\nwhile True: time.sleep(1)")
    if how == "abort":
        exec("import os\\nif os.environ.get('CUDA_VISIBLE_DEVICES') == '': os.abort()")
    if how == "child":
        exec("import subprocess\\nsubprocess.run(['sleep', '986.5'])")
    return 0

HOWS = {hows}

@autotune([Config(dict(HOW=how, BLOCK=block)) for how, block in HOWS], key=["n"])
@triton.jit
def work(x_ptr, y_ptr, n, HOW: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    skip: tl.constexpr = think(HOW)
    tl.static_assert(HOW != "refused", "this one is refused")
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n) + 1 + skip, mask=i < n)

@work.case
def case(device):
    raise RuntimeError("whoever compiles makes no data")
    yield
"""
FINE = [("fine", block) for block in (16, 32, 64, 128)]


def grid(meta):
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)


@pytest.fixture(autouse=True)
def cold(tmp_path, monkeypatch):
    """An empty cache of Triton's, and two at once."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.setenv("AUTOTUNED_COMPILE_WORKERS", "2")
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in [name for name in sys.modules if name.startswith("compiled_by")]:
        del sys.modules[name]


@pytest.fixture
def heard(monkeypatch):
    """Whether each binary was found in Triton's cache by this process."""
    hits = []
    monkeypatch.setattr(knobs.compilation, "listener", lambda **event: hits.append(event["cache_hit"]))
    return hits


@pytest.fixture
def workers(tmp_path):
    """A function that starts compile workers for a module with these configs, waits for them, and loads it here too."""
    started = []

    def start(hows, limit_s=60.0):
        file = tmp_path / f"compiled_by_{len(started)}_{tmp_path.name}.py"
        file.write_text(MODULE.replace("{hows}", repr(hows)))
        found = CompileWorkers([str(file)], limit_s)
        started.append(found)
        pool.compilers.append(found)
        [work] = targets.load(str(file))
        until(lambda: found._knows(work.name) or found._over)
        assert not found._over
        return found, work.tuned

    yield start
    for one in started:
        pool.compilers.remove(one)
        one.close()


def call(tuned):
    tuned[grid](torch.zeros(1000), torch.zeros(1000), 1000)
    [record] = [record for _, record in listing.all_records()]
    return {(t.config["kwargs"]["HOW"], t.config["kwargs"]["BLOCK"]): (t.status, t.error) for t in record.timings}


def test_what_a_worker_compiles_is_a_hit_here(workers, heard, tmp_path, monkeypatch):
    """And one that is killed from outside says nothing of its config."""
    compilers, tuned = workers(FINE)
    assert set(call(tuned).values()) == {("ok", None)}
    assert compilers.compiled == len(FINE)
    assert heard
    assert all(heard)
    assert len(list(records.scratch_folder().rglob("*.cubin"))) == len(FINE)
    assert len(list((tmp_path / "triton").rglob("*.cubin"))) == 1  # the winner's
    worker = compilers._take()
    monkeypatch.setattr(compilers, "_take", lambda: worker)
    monkeypatch.setattr(worker, "ask", lambda *rest: os.kill(worker.pid, 9))
    with pytest.raises(MemoryError, match="was killed, probably for lack of memory"):
        compilers.compile(tuned.tuner.tunable.name, (), None, lambda: None)


def test_b63_what_ends_a_compilation_takes_its_config_along_and_nothing_else(workers, monkeypatch, caplog):
    """One that never ends costs its limit and its process alone.

    So does a compiler that crashes, an error as a thread would raise it, and a worker that is killed from outside. The
    last is not stored as one that fails.
    """
    limit_only(monkeypatch, "endless", "child")
    ending = [("endless", 16), ("child", 32), ("abort", 16), ("refused", 16), ("unlucky", 16)]
    compilers, tuned = workers([*ending, *FINE[2:]], limit_s=8.0)
    ask = compile_pool._Worker.ask

    def killed(worker, request, *rest):
        return os.kill(worker.pid, 9) if "unlucky" in repr(request) else ask(worker, request, *rest)

    monkeypatch.setattr(compile_pool._Worker, "ask", killed)
    found = call(tuned)
    for endless in ending[:2]:
        assert found.pop(endless) == ("failed", "TimedOut: not compiled within 8 s")
    assert found.pop(("abort", 16)) == ("failed", "Crashed: the compiler ended by SIGABRT")
    status, error = found.pop(("refused", 16))
    assert found == dict.fromkeys(FINE[2:], ("ok", None))
    assert status == "failed"
    assert error.startswith("CompileTimeAssertionFailure: ")
    assert "this one is refused" in error
    assert compilers.compiled == 2
    assert "are no longer used" not in caplog.text
    for name in ("HOW=endless", "HOW=child"):
        [line] = [line for line in caplog.messages if name in line]
        assert "TimedOut: not compiled within 8 s; it is left out (it took " in line
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    assert "sleep 986.5" not in listed


def test_binaries_that_do_not_arrive_are_noticed_and_threads_compile(workers, heard, monkeypatch, caplog):
    """The environment changed after the workers were started: theirs are binaries of another key."""
    compilers, tuned = workers(FINE)
    monkeypatch.setenv("DISABLE_LLVM_OPT", "1")
    assert set(call(tuned).values()) == {("ok", None)}
    assert not any(heard[: len(FINE)])
    assert 1 <= compilers.compiled <= 2
    [line] = [line for line in caplog.messages if "are no longer used" in line]
    assert "their binaries are not found in Triton's cache. Threads compile instead" in line


def test_before_they_are_ready_and_after_they_have_ended_threads_compile(workers, heard, caplog):
    compilers, tuned = workers(FINE)
    os.kill(compilers._server.pid, 9)
    compilers._server.wait()
    assert set(call(tuned).values()) == {("ok", None)}
    assert compilers.compiled == 0
    assert len([line for line in caplog.messages if "their server has ended" in line]) == 1


def test_a_module_that_wants_a_gpu_is_compiled_by_threads(tmp_path, caplog):
    file = tmp_path / "compiled_by_nobody.py"
    file.write_text("raise RuntimeError('no GPU here')\n")
    caplog.set_level(logging.INFO, "autotuned")
    found = CompileWorkers([str(file)], 60.0)
    until(lambda: (found._knows("anything"), found._over)[1])
    assert "no GPU here" in caplog.text
    assert found.compile("anything", (), None, lambda: None) is None
    found.close()


def test_all_of_them_end_with_the_process_that_measures(tmp_path):
    (tmp_path / "compiled_by_few.py").write_text(MODULE.replace("{hows}", repr(FINE)))
    code = """
    import os, sys, time
    sys.path.append(sys.argv[1])
    from autotuned.offline.workers.compile_pool import CompileWorkers
    found = CompileWorkers(["compiled_by_few"], 60.0)
    while not found._knows("compiled_by_few.work"):
        assert not found._over, found._over
        time.sleep(0.02)
    print(found._server.pid, found._take().pid, found._take().pid, flush=True)
    os.kill(os.getpid(), 9)
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 3, done.stderr
    until(lambda: not any(is_running(pid) for pid in pids))


PRETENDING = """
import sys
if "autotuned.offline.workers.worker" in " ".join(sys.orig_argv):
    import os, fake_cuda, pretended, pytest, triton
    exists = os.path.exists
    os.path.exists = lambda path: path == "/dev/nvidiactl" or exists(path)
    triton.runtime.driver._active = fake_cuda.Driver()
    fake_cuda.install_with_host_clock(pytest.MonkeyPatch())
    pretended.limit_only(pytest.MonkeyPatch(), "endless")
"""
# Threads compile until workers are ready, which nobody here makes wait for a GPU to begin.
MEASURED_WHEN_READY = """
    import os, time, torch
    from autotuned.search.compiling import pool
    print("case of", os.getpid())
    while not pool.compilers[-1]._knows("compiled_by_tune.work"):
        time.sleep(0.02)
    yield dict(args=(torch.zeros(99), torch.zeros(99), 99), grid=(4,))
"""


def test_b63_tune_goes_on_in_the_same_process_when_a_compilation_never_ends(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(PRETENDING)
    text = MODULE.replace("{hows}", repr([("endless", 16), ("abort", 32), *FINE]))
    text = text.partition("    raise RuntimeError")[0] + MEASURED_WHEN_READY
    (tmp_path / "compiled_by_tune.py").write_text(text)
    path = os.pathsep.join([str(tmp_path), str(Path(fake_cuda.__file__).parent)])
    command = [sys.executable, "-c", "from autotuned.cli.main import app; app()", "tune", "compiled_by_tune.py"]
    done = subprocess.run(
        [*command, "--isolate", "--timeout", "8", "--json"], cwd=tmp_path, capture_output=True, text=True, timeout=240,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    [case] = json.loads(done.stdout)["cases"]
    assert (case["status"], case["config"]["kwargs"]["HOW"]) == ("done", "fine")
    [record] = [record for _, record in listing.all_records()]
    errors = {timing.config["kwargs"]["HOW"]: timing.error for timing in record.timings}
    assert errors["endless"] == "TimedOut: not compiled within 8 s"
    assert errors["abort"] == "Crashed: the compiler ended by SIGABRT"
    assert "HOW=endless" in done.stderr
    assert "it is left out (it took " in done.stderr
    measured_in = {line for line in done.stderr.splitlines() if line.startswith("case of")}
    assert len(measured_in) == 1, done.stderr


def test_a_server_whose_parent_is_killed_with_an_answer_unread_just_ends():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        ours.send(b"an answer")
        theirs.close()
        assert compile_server._asked(ours) == (b"", [])
