"""Recording: what is written, what is counted, and what it costs."""

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import counted
import forked
import numpy as np
import pytest
from autotuned.cli.main import app
from fakes import FakeConfig as Config
from faults import faults, refuse
from typer.testing import CliRunner

import autotuned
from autotuned import autotune
from autotuned.configfiles import writer
from autotuned.errors import RecordingError
from autotuned.recording import arguments, file, grids, recorder
from autotuned.resolve import active

CONFIGS = [Config({"step": step}) for step in (1, 2)]


def body(x, index=None, scale=1.0, *, step):
    return x


def make(**options):
    options = {"key": ["x"], "do_bench": lambda call, quantiles: (call(), [1.0] * 3)[1], "version": "1"} | options
    return autotune(CONFIGS, name="app.body", **options)(body)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "calls.jsonl"


def counts(path):
    return sorted(call.count for call in file.read(path))


def test_distinct_calls_are_written_once_and_counted(path, monkeypatch):
    monkeypatch.syspath_prepend(
        Path(__file__).parents[2]
    )  # where this module's name is found, however pytest was started
    tuned = make()
    with autotuned.record(path):
        for _ in range(5):
            tuned(np.ones(4), np.arange(3))
        for _ in range(2):
            tuned(np.ones(8), np.arange(3))
        tuned(np.ones(8, np.float32), np.arange(3))
    tuned(np.ones(16))
    found = file.read(path)
    assert [call.count for call in found] == [5, 2, 1]
    assert found[0].kernel == "app.body" and found[0].target == f"{__name__}:body"
    assert found[0].key == tuned.tuner.chooser.key(tuned.tuner.call((np.ones(4), np.arange(3)), {}, None))


def test_what_was_bound_before_is_counted_and_what_comes_after_is_not(path):
    tuned = make()
    tuned(np.ones(4))
    with autotuned.record(path):
        tuned(np.ones(4))
        tuned(np.ones(4))
    hits = tuned.cache_info().hits
    tuned(np.ones(4))
    tuned(np.ones(4))
    assert tuned.cache_info().hits == hits + 1  # bound anew, and then a plain hit
    assert counts(path) == [2]


def is_watched(bound):
    return bound.run.__qualname__.startswith(recorder.Recorder.watched.__qualname__)


def test_nothing_is_between_table_and_launch_unless_recording(path):
    tuned = make()
    tuned(np.ones(4))
    plain = tuned.tuner.launcher.find((np.ones(4), None, 1.0))
    assert not is_watched(plain)
    with autotuned.record(path):
        tuned(np.ones(4))
        assert is_watched(tuned.tuner.launcher.find((np.ones(4), None, 1.0)))
    tuned(np.ones(4))
    assert not is_watched(tuned.tuner.launcher.find((np.ones(4), None, 1.0)))


def test_arguments_are_made_again_with_integers_by_value_and_no_floating_contents(path):
    tuned = make()
    secret = np.full(4, 1234.5)
    with autotuned.record(path):
        tuned(secret, index=np.array([3, 1, 2]))
    assert "1234" not in path.read_text()
    built = arguments.build(file.read(path)[0].arguments, "cpu")
    assert built["index"].tolist() == [3, 1, 2]
    assert built["0"].shape == (4,) and built["0"].dtype == np.float64


def test_what_cannot_be_described_is_said_and_left_out(path, caplog):
    tuned = make(key=["scale"])
    with autotuned.record(path):
        assert tuned(np.ones(4), scale=object()) is not None
        tuned(np.ones(4))
    assert counts(path) == [1]
    assert "a call of `app.body` is left out" in caplog.text


@pytest.mark.parametrize("arrays", [1, 4])
def test_a_repeated_call_costs_a_few_instructions_more(arrays, path):
    """On a busy machine: under 6 us in every run, mostly under 1."""

    def many(a, b=None, c=None, d=None, n=3, m=4, eps=0.5, flag=True, *, step):
        return a

    options = {"key": ["n"], "do_bench": lambda call, quantiles: (call(), [1.0] * 3)[1], "version": "1"}
    tuned, given = autotune(CONFIGS, name="app.many", **options)(many), [np.ones(4) for _ in range(arrays)]

    def cost():
        for _ in range(3):
            tuned(*given)
        return counted.opcodes(lambda: [tuned(*given) for _ in range(100)]) / 100

    plain = cost()
    with autotuned.record(path):
        assert plain <= cost() < plain + 80


def test_a_repeated_call_is_not_looked_at_again(path, monkeypatch):
    tuned = make()
    with autotuned.record(path):
        tuned(np.ones(4))
        tuned(np.ones(4))  # from now on it counts where it is bound
        for name in ("describe", "Call"):
            monkeypatch.setattr(recorder, name, None)
        monkeypatch.setattr(type(tuned.tuner), "rebound", None)
        for _ in range(10):
            tuned(np.ones(4))
    assert counts(path) == [12]


def test_what_has_no_form_is_tried_once_and_a_full_disk_each_time(path, monkeypatch, caplog):
    tuned, asked, write = make(), [], file.Writer.call
    with autotuned.record(path):
        monkeypatch.setattr(
            recorder, "describe", lambda *args, real=recorder.describe: (asked.append(1), real(*args))[1]
        )
        for _ in range(9):
            tuned(np.ones(4)[::-1])
        assert len(asked) == 2  # by the miss, and when it was bound

        def full(self, *args):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(file.Writer, "call", full)
        for _ in range(3):
            tuned(np.ones(5))
        monkeypatch.setattr(file.Writer, "call", write)
        tuned(np.ones(5))
    assert counts(path) == [1]
    assert len([line for line in caplog.messages if "is left out" in line]) == 1


def test_a_file_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordingError, match="cannot be written"), autotuned.record(tmp_path / "file" / "calls.jsonl"):
        pass
    with pytest.raises(RecordingError, match="cannot be read"):
        file.read(tmp_path / "none.jsonl")


@pytest.mark.parametrize("is_read", [False, True])
def test_a_pipe_is_refused_rather_than_waited_for(tmp_path, is_read):
    os.mkfifo(pipe := tmp_path / "calls.jsonl")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK) if is_read else os.open(os.devnull, os.O_RDONLY)
    try:
        with pytest.raises(RecordingError, match="cannot be written"), autotuned.record(pipe):
            pass
    finally:
        os.close(reader)


# -- processes ----------------------------------------------------------------------------------------------------

APP = """
import multiprocessing, os, sys, time
import numpy as np
from autotuned import Config, autotune

@autotune([Config({"step": 1}), Config({"step": 2})], key=["x"], do_bench=lambda call, quantiles: (call(), [1.0] * 3)[1])
def work(x, *, step):
    pass

def go(count):
    for n in range(count):
        work(np.ones(1 + n % 3))

if __name__ == "__main__":
    go(30)
    children = [multiprocessing.get_context("fork").Process(target=go, args=(300,)) for _ in range(3)]
    [child.start() for child in children]
    [child.join() for child in children]
    print("said by the app", flush=True)
    if sys.argv[1:] == ["hang"]:
        time.sleep(60)
    sys.exit(int(sys.argv[1]) if sys.argv[1:] else 0)
"""


def record(tmp_path, *words, code):
    (tmp_path / "app.py").write_text(APP)
    result = CliRunner().invoke(
        app,
        ["record", str(tmp_path / "calls.jsonl"), "--json", "--", sys.executable, str(tmp_path / "app.py"), *words],
    )
    assert result.exit_code == code, result.output
    return result


def test_many_processes_into_one_file_lose_nothing(tmp_path):
    result = record(tmp_path, code=0)
    assert counts(tmp_path / "calls.jsonl") == [310, 310, 310]
    facts = json.loads(result.stderr.splitlines()[-1])
    assert (facts["kernels"], facts["distinct"], facts["calls"], facts["exit_code"]) == (1, 3, 930, 0)


def test_the_exit_code_is_the_commands_and_a_second_run_is_added(tmp_path):
    record(tmp_path, "7", code=7)
    record(tmp_path, "0", code=0)
    assert sum(counts(tmp_path / "calls.jsonl")) == 1860


def test_a_second_run_that_calls_nothing_is_said_though_the_file_has_calls(tmp_path):
    record(tmp_path, "0", code=0)
    before = sum(counts(tmp_path / "calls.jsonl"))
    command = [
        "record",
        str(tmp_path / "calls.jsonl"),
        "--",
        sys.executable,
        "-c",
        "import autotuned.kernels.numpy_matmul",
    ]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 1 and "called no tuned kernel" in result.stderr
    assert sum(counts(tmp_path / "calls.jsonl")) == before


@pytest.mark.parametrize("name", ["serve.py", "calls.json", "python"])
def test_a_file_that_tune_would_not_take_is_refused_before_the_command_runs(tmp_path, name):
    """`record serve.py -- python serve.py` appended the calls to the program, and without a file made one `python`."""
    program = tmp_path / name
    program.write_text("a program")
    result = CliRunner().invoke(app, ["record", str(program), "--", "touch", str(tmp_path / "ran")])
    assert result.exit_code == 2 and ".jsonl" in result.stderr
    assert program.read_text() == "a program" and not (tmp_path / "ran").exists()


def test_a_command_that_cannot_be_run_leaves_no_file(tmp_path):
    result = CliRunner().invoke(app, ["record", str(tmp_path / "c.jsonl"), "--", "no-such-command"])
    assert result.exit_code == 127 and not (tmp_path / "c.jsonl").exists()


def test_a_name_that_no_command_takes_is_refused(tmp_path, monkeypatch, caplog):
    """`tune` took such a file for a module, after hours of recording."""
    path = tmp_path / "calls.txt"
    with pytest.raises(RecordingError, match=r"^expected a file whose name ends in .jsonl"), autotuned.record(path):
        pass
    monkeypatch.setattr(recorder, "_refused", set())
    monkeypatch.setenv("AUTOTUNED_RECORD", str(path))
    recorder.begin_if_asked()
    assert (
        "AUTOTUNED_RECORD: nothing is recorded: expected a file " in caplog.text
        and not active.recorders
        and not path.exists()
    )


def test_that_nothing_can_be_recorded_is_said_once_a_process(tmp_path):
    """Each tuned kernel said it again."""
    (tmp_path / "app.py").write_text("from autotuned.kernels import numpy_matmul, rmsnorm, softmax")
    environment = {**os.environ, "AUTOTUNED_RECORD": str(tmp_path), "TRITON_INTERPRET": "1"}
    done = forked.run([sys.executable, tmp_path / "app.py"], env=environment)
    assert done.returncode == 0 and done.stderr.count("nothing is recorded") == 1


def test_a_killed_process_loses_no_call(tmp_path, path):
    (tmp_path / "app.py").write_text(APP)
    environment = {**os.environ, "AUTOTUNED_RECORD": str(path)}
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "app.py"), "hang"], env=environment, stdout=subprocess.PIPE
    )
    assert process.stdout.readline() == b"said by the app\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert len(file.read(path)) == 3 and sum(counts(path)) >= 903


FORKED = """
import os, sys, threading
import numpy as np
from autotuned import Config, autotune, record
from autotuned.resolve import active

@autotune([Config({"step": 1}), Config({"step": 2})], key=["x"], do_bench=lambda call, quantiles: (call(), [1.0] * 3)[1])
def work(x, *, step):
    pass

with record(sys.argv[1]):
    work(np.ones(4))
    work(np.ones(4))
    active.recorders[-1]._lock.acquire()  # as another thread may hold it
    child = os.fork()
    if child == 0:
        work(np.ones(4))
        active.recorders[-1].flush()
        os._exit(0)
    active.recorders[-1]._lock.release()
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_child_does_not_wait_for_a_lock_that_was_held_when_it_was_forked(tmp_path, path):
    (tmp_path / "forked.py").write_text(FORKED)
    command = [sys.executable, "-W", "ignore", str(tmp_path / "forked.py"), str(path)]
    done = subprocess.run(command, timeout=60, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert counts(path) == [3]


def test_a_command_that_calls_nothing_tuned_fails_and_leaves_no_file(tmp_path):
    result = CliRunner().invoke(app, ["record", str(tmp_path / "c.jsonl"), "--", sys.executable, "-c", "pass"])
    assert result.exit_code == 1 and "called no tuned kernel" in result.stderr
    assert not (tmp_path / "c.jsonl").exists()


def test_a_full_disk_is_said_before_the_command_runs(tmp_path):
    (tmp_path / "new").mkdir()
    command = [sys.executable, "-c", f"open({str(tmp_path / 'ran')!r}, 'w')"]
    with faults("write", errno.ENOSPC, name="*.autotuned-*"):
        result = CliRunner().invoke(app, ["record", str(tmp_path / "new" / "c.jsonl"), "--", *command])
    assert result.exit_code == 1 and "c.jsonl cannot be written: No space left on device" in result.stderr
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["new"]


@pytest.mark.parametrize("code", [0, 5])
def test_a_disk_that_is_full_after_the_command_is_why_nothing_was_recorded(tmp_path, monkeypatch, code):
    """The command that could not write its calls "called no tuned kernel"."""
    (tmp_path / "new").mkdir()
    answers = iter([lambda folder: None, refuse])
    monkeypatch.setattr(writer, "probe", lambda folder: next(answers)(folder))
    command = [sys.executable, "-c", f"raise SystemExit({code})"]
    result = CliRunner().invoke(app, ["record", str(tmp_path / "new" / "c.jsonl"), "--", *command])
    assert result.exit_code == (code or 1) and "no tuned kernel" not in result.stderr
    assert "nothing was recorded: it cannot be written: No space left on device" in result.stderr
    assert not list((tmp_path / "new").iterdir())


# -- grids --------------------------------------------------------------------------------------------------------


def spell(value, where):
    raise AssertionError


def test_a_grid_of_sizes_holds_for_every_config():
    form = grids.describe((3, 2), {}, [], spell)
    assert grids.Rebuilt(form, spell).has({"BLOCK": 99})
    assert grids.Rebuilt(form, spell).for_configs([]) == (3, 2)


def test_a_callable_is_asked_for_every_config():
    settings = [{"BLOCK": 16}, {"BLOCK": 32}, {"BLOCK": 0}]
    form = json.loads(
        json.dumps(grids.describe(lambda meta: (meta["n"] // meta["BLOCK"],), {"n": 64}, settings, spell))
    )
    rebuilt = grids.Rebuilt(form, spell)
    assert [rebuilt.has(one) for one in [*settings, {"BLOCK": 64}]] == [True, True, False, False]
    grid = rebuilt.for_configs(settings[:2])
    assert grid({"n": 64, "BLOCK": 32, "num_warps": 4}) == (2,) and grid({"BLOCK": 16}) == (4,)
    with pytest.raises(LookupError):
        grid({"BLOCK": 64})


def test_a_grid_that_all_configs_share_is_written_once():
    form = grids.describe(lambda meta: (7,), {}, [{"BLOCK": 16}, {"BLOCK": 32}], spell)
    assert form["every"] == [7]
    assert grids.Rebuilt(form, spell).for_configs([{"BLOCK": 16}])({"BLOCK": 16}) == (7,)
    assert grids.describe(None, {}, [], spell) is None
