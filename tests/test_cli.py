import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from commands import run as _run
from commands import run_json as _json

from autotuned import device, errors, store, tuner

Write = Callable[[str, str], Path]
BEST = "ms=1"
COMMANDS = ("tune", "list", "show", "explain", "record", "warmup", "report", "clear", "doctor")

# A plain callable whose times are given: tuned in a moment, and the second config is four times as fast as the first.
WORK = """
import time
from pathlib import Path

from autotuned import Config, autotune

CONFIGS = [Config({"ms": ms}) for ms in (4, 1, 6)]
ran = []

def bench(call, quantiles):
    call()
    return [float(ran[-1])] * 3

@autotune(configs=CONFIGS, key=["n"], do_bench=bench)
def work(n, ms):
    ran.append(ms)

@work.case
def cases(device):
    print("printed by the user's code")
    for n in map(int, Path(__file__).with_suffix(".txt").read_text().split()):
        yield {"args": (n,)}
"""


@pytest.fixture(autouse=True)
def wide_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for long lines, so that none is broken."""
    monkeypatch.setenv("COLUMNS", "200")


def _error(*args: str) -> str:
    """The one line of a command that fails."""
    result = _run(*args, code=1)
    assert result.stdout == ""
    [line] = result.stderr.splitlines()
    assert line.startswith("error: ")
    return str(line)


def _start(*args: str, **environment: str) -> subprocess.Popen[str]:
    """A command in a process of its own; without a terminal."""
    code = f"import sys; sys.argv = ['autotuned', *{list(args)!r}]; from importlib.metadata import entry_points as e"
    code += "; e(group='console_scripts', name='autotuned')['autotuned'].load()()"
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def _in_process(*args: str, code: int = 0, **environment: str) -> tuple[str, str]:
    process = _start(*args, **environment)
    out, err = process.communicate(timeout=120)
    assert process.returncode == code, out + err
    return out, err


# -- all commands ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str) -> None:
    assert f"  {command} " in _run("--help").stdout
    text = _run(command, "--help").stdout
    assert "Usage: " in text and "--json" in text and "JSON: " in text


def test_the_version_is_printed() -> None:
    import autotuned

    assert _run("--version").stdout == f"autotuned {autotuned.__version__}\n"


@pytest.mark.parametrize("args", [["list"], ["--help"], ["tune", "--help"], ["clear", "--yes"]], ids=" ".join)
def test_looking_imports_neither_torch_nor_triton(args: list[str]) -> None:
    code = (
        f"import sys; sys.argv = ['autotuned', *{args!r}]\n"
        "from importlib.metadata import entry_points\n"
        "try:\n    entry_points(group='console_scripts', name='autotuned')['autotuned'].load()()\n"
        "except SystemExit as end:\n    assert not end.code\n"
        "print(sorted({'torch', 'triton', 'filelock', 'numpy'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1] == "[]" and run.stderr == ""


USAGE = {
    "no command": [],
    "unknown command": ["lst"],
    "no target": ["tune"],
    "unknown option": ["tune", "x", "--nope"],
    "budget of nothing": ["tune", "x", "--budget", "0"],
    "budget of words": ["tune", "x", "--budget", "soon"],
    "no kernel": ["show"],
    "too many": ["list", "a", "b"],
}


@pytest.mark.parametrize("args", USAGE.values(), ids=USAGE)
def test_wrong_usage_ends_with_2(args: list[str]) -> None:
    result = _run(*args, code=2)
    assert "Usage: " in result.output and "Traceback" not in result.output


@pytest.mark.parametrize("dash", ["\u2014", "\u2013", "\u2212"], ids=["em dash", "en dash", "minus"])
def test_a_typographic_dash_is_recognised(dash: str) -> None:
    assert "type --out" in _run("tune", "mod", f"{dash}out", "tuned", code=2).stderr
    assert "type --json" in _run("list", f"{dash}json", code=2).stderr


def test_an_expected_failure_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(**options: Any) -> Iterator[Any]:
        raise PermissionError(13, "Permission denied", "/some/folder")

    monkeypatch.setattr(store, "kernels", fails)
    assert "Permission denied: '/some/folder'" in _error("list")


# -- tune -----------------------------------------------------------------------------------------------------------

ROW = {
    "kernel", "status", "reason", "digest", "device", "triton", "call", "config", "median_us", "vs_first", "vs_default",
    "quality", "source", "configs", "measured_configs",
}  # fmt: skip


def _work(write: Write, sizes: str = "1 2", name: str = "mod_work", text: str = WORK) -> str:
    write(f"{name}.txt", sizes)
    write(f"{name}.py", text)
    for loaded in (name, "autotuned_target_" + name):
        sys.modules.pop(loaded, None)
    return name


def test_tune_measures_every_case_and_says_what_it_chose(write: Write) -> None:
    data = _json("tune", _work(write))
    assert data.keys() == {"device", "devices", "cases", "skipped", "files", "interrupted", "seconds"}
    assert data["device"] in ("interpreter", "cuda") and not data["skipped"] and data["interrupted"] is False
    for row, n in zip(data["cases"], (1, 2), strict=True):
        assert row.keys() == ROW
        assert (row["kernel"], row["status"], row["source"]) == ("mod_work.work", "done", "measured")
        assert row["config"]["kwargs"] == {"ms": 1} and row["median_us"] == 1000
        assert (row["vs_first"], row["vs_default"]) == (4, None)
        assert (row["configs"], row["measured_configs"]) == (3, 3)
        assert row["call"]["values"] == {"n": n} and row["device"] == device.cpu().slug
        assert len(row["digest"]) == 64 and row["quality"] == "ok" and row["reason"] is None


def test_the_table_holds_the_same_in_words(write: Write) -> None:
    result = _run("tune", _work(write))
    lines = result.stdout.splitlines()[1:]
    assert lines[0] == "mod_work.work"
    assert re.split("  +", lines[1].strip()) == [
        "call",
        "config",
        "source",
        "time",
        "vs first",
        "vs default",
        "quality",
    ]
    assert re.split("  +", lines[2].strip()) == ["n=1", BEST, "measured", "1 ms", "4.00x", "n/a", "ok"]
    assert f"mod_work.work  n=1: {BEST}, 1 ms, measured" in result.stderr


def test_what_is_stored_is_not_measured_again_unless_forced(write: Write) -> None:
    def sources(*options: str) -> list[str]:
        return [row["source"] for row in _json("tune", _work(write), *options)["cases"]]

    assert sources() == ["measured"] * 2
    assert sources() == ["stored"] * 2
    assert sources("--force") == ["measured"] * 2


def test_a_case_listed_twice_is_measured_once(write: Write) -> None:
    rows = _json("tune", _work(write, "7 7"), "--force")["cases"]
    assert [row["source"] for row in rows] == ["measured", "stored"]


def test_targets_that_overlap_are_tuned_once(write: Write) -> None:
    module = _work(write)
    assert len(_json("tune", module, f"{module}:work", f"{module}.py")["cases"]) == 2


def test_a_default_is_compared_with(write: Write) -> None:
    text = WORK.replace('key=["n"]', 'key=["n"], default=Config({"ms": 6})')
    [row] = _json("tune", _work(write, "1", text=text), "--out", "tuned")["cases"]
    assert (row["vs_first"], row["vs_default"]) == (4, 6)
    assert '"vs_default": 6.0' in next(Path("tuned").glob("*/*.json")).read_text()


# -- config files ---------------------------------------------------------------------------------------------------


def test_out_writes_a_file_a_kernel_and_two_runs_merge(write: Write) -> None:
    [path] = _json("tune", _work(write, "1 2"), "--out", "some/tuned")["files"]
    assert Path(path) == Path("some/tuned") / device.cpu().slug / "mod_work.work.json"
    assert _json("tune", _work(write, "2 3"), "--out", "some/tuned")["files"] == [path]
    entries = json.loads(Path(path).read_text())["groups"][0]["entries"]
    assert [entry["call"]["values"]["n"] for entry in entries] == [1, 2, 3]
    assert {entry["vs_default"] for entry in entries} == {4}
    assert list(Path("some/tuned").rglob("*.lock")) == []
    assert f"wrote {path}" in _run("tune", "mod_work", "--out", "some/tuned").stdout


def test_two_processes_add_to_one_file(write: Write) -> None:
    _work(write)
    text = WORK.replace('Path(__file__).with_suffix(".txt").read_text()', "os.environ['SIZES']")
    write("mod_work.py", "import os\n" + text)
    sizes = [" ".join(map(str, range(start, start + 20))) for start in (0, 20)]
    processes = [_start("tune", "mod_work", "--out", "tuned", SIZES=numbers) for numbers in sizes]
    for process in processes:
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
    [path] = Path("tuned").glob("*/*.json")
    entries = json.loads(path.read_text())["groups"][0]["entries"]
    assert sorted(entry["call"]["values"]["n"] for entry in entries) == list(range(40))


def test_files_that_serve_are_copied_into_another_folder(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    _run("tune", _work(write), "--out", "one")
    _run("clear", "--yes")
    monkeypatch.setenv("AUTOTUNED_CONFIG_PATH", "one")
    data = _json("tune", _work(write), "--out", "two")
    file = Path("one") / device.cpu().slug / "mod_work.work.json"
    assert [(row["source"], row["median_us"], row["vs_default"]) for row in data["cases"]] == [(str(file), 1000, 4)] * 2
    assert Path(*data["files"]).read_text() == file.read_text()
    assert "mod_work.work.json" in _run("tune", "mod_work").stdout


def test_a_file_that_was_not_there_before_serves_at_once(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNED_CONFIG_PATH", "tuned")
    [path] = _json("tune", _work(write, "1"), "--out", "tuned")["files"]
    _run("clear", "--yes")
    assert [row["source"] for row in _json("tune", _work(write, "1"))["cases"]] == [path]


SERVED = """
import sys
from mod_served import work

work(1)
work(2)
info = work.cache_info()
print(info.searches, work.best_config.kwargs["ms"], "triton" in sys.modules)
"""


def test_files_serve_another_process_that_has_no_store(write: Write, tmp_path: Path) -> None:
    _run("tune", _work(write, name="mod_served"), "--out", "tuned")
    environment = {"AUTOTUNED_CONFIG_PATH": "tuned", "AUTOTUNED_CACHE_DIR": str(tmp_path / "empty")}
    run = subprocess.run(
        [sys.executable, write("serve.py", SERVED)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.split()[:2] == ["0", "1"] and run.stderr == ""


OLD = '{"schema": 1, "kernel": "mod_work.work", "device": {}, "groups": []}'
NEWER = OLD.replace("1", "2")
BROKEN = {
    "no JSON": ("{", "Expecting property name"),
    "newer": (NEWER, "expected schema 1, got 2; upgrade"),
    "without a device": (OLD, "expected the fields kind, name"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "message"), BROKEN.values(), ids=BROKEN)
def test_a_config_file_that_cannot_be_added_to_is_left_as_it_is(write: Write, text: str, message: str) -> None:
    module = _work(write)
    path = write(f"tuned/{device.cpu().slug}/mod_work.work.json", text)
    line = _error("tune", module, "--out", "tuned")
    assert str(path.relative_to(Path.cwd())) in line and message in line and "It is left as it is" in line
    assert path.read_text() == text
    assert "Nothing is stored" in _run("list").stdout  # it was found out before anything was measured


def test_a_folder_that_cannot_be_written_is_found_out_first(write: Write) -> None:
    write("file", "")
    line = _error("tune", "no_such_module", "--out", "file/tuned")
    assert "--out" in line and "file is not a folder" in line


def test_a_config_file_that_cannot_be_written_ends_the_run_with_its_table(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any) -> Any:
        raise OSError(28, "No space left on device", "tuned/x.json")

    monkeypatch.setattr(store, "ship", full)
    result = _run("tune", _work(write), "--out", "tuned", code=1)
    assert "No space left" in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.output


# -- what goes wrong ------------------------------------------------------------------------------------------------

MIXED = """
@autotune(configs=CONFIGS, key=["n"])
def fails(n, ms):
    raise ValueError(f"odd {ms}" if n else "always")

@fails.case
def fails_cases(device):
    yield {"args": (1,)}
    yield {"argz": ()}
    raise KeyError("no data")

@autotune(configs=CONFIGS)
def without(n, ms): ...
"""


def test_a_failing_case_does_not_stop_the_others(write: Write) -> None:
    module = _work(write, name="mod_mixed", text=WORK + MIXED)
    data = _json("tune", module, code=3)
    assert [row["status"] for row in data["cases"]] == ["done", "done", "failed", "failed", "failed"]
    reasons = [row["reason"] for row in data["cases"][2:]]
    assert "all 3 failed" in reasons[0] and "odd 4" in reasons[0]
    assert "got the fields argz" in reasons[1] and "fails_cases: KeyError: 'no data'" in reasons[2]
    assert data["skipped"] == [{"kernel": "mod_mixed.without", "reason": "no cases"}]
    result = _run("tune", module, code=3)
    assert "skipped mod_mixed.without: it has no cases" in result.stdout and "@kernel.case" in result.stdout
    assert result.stderr.splitlines()[-1].startswith("error: 3 of 5 cases failed; the first: `mod_mixed.fails`: ")


def test_if_every_case_fails_the_command_fails(write: Write) -> None:
    module = _work(write, name="mod_all", text=WORK + MIXED)
    assert len(_json("tune", f"{module}:fails", code=1)["cases"]) == 3


def test_a_default_that_would_be_used_untuned_is_a_failure(write: Write) -> None:
    text = WORK + MIXED.replace('configs=CONFIGS, key=["n"]', 'configs=CONFIGS, key=["n"], default=CONFIGS[0]')
    [row, *_] = _json("tune", f"{_work(write, text=text)}:fails", "--out", "tuned", code=1)["cases"]
    assert row["status"] == "failed" and "default=" in row["reason"]
    assert not Path("tuned").exists()


def test_a_lost_device_ends_the_run_at_once(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*args: Any) -> Any:
        raise errors.DeviceLostError("the device is gone", kernel="k", config="c")

    monkeypatch.setattr(tuner.Tuner, "tune", lost)
    result = _run("tune", _work(write), "--json", code=1)
    [row] = json.loads(result.stdout)["cases"]
    assert row["reason"] == "the device is gone" and result.stderr.splitlines()[-1] == "error: the device is gone"


def test_nothing_to_measure_is_a_failure(write: Write) -> None:
    write(
        "mod_none.py", "from autotuned import Config, autotune\n@autotune(configs=[Config({'s': 1})])\ndef f(n, s): ..."
    )
    assert "no cases for mod_none.f. Register some: @kernel.case" in _error("tune", "mod_none")
    result = _run("tune", _work(write, ""), code=1)
    assert "the generators of cases yield none" in result.stderr


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("no_such_module", "no module named 'no_such_module'"),
        ("no_such_file.py", "there is no file"),
        ("mod_syntax.py", "syntax error at"),
        ("mod_raises", "RuntimeError: why"),
        ("mod_work:wrok", "Did you mean 'work'?"),
        ("autotuned.errors", "nothing in it is tuned"),
    ],
)
def test_a_bad_target_is_one_line(write: Write, target: str, message: str) -> None:
    write("mod_syntax.py", "def f(:")
    write("mod_raises.py", "raise RuntimeError('why')")
    assert message in _error("tune", _work(write), target)
    assert "Nothing is stored" in _run("list").stdout


def test_the_budget_skips_what_is_left(write: Write) -> None:
    text = WORK.replace("    ran.append(ms)", "    time.sleep(0.2)\n    ran.append(ms)")
    result = _run("tune", _work(write, "1 2 3", text=text), "--budget", "0.3", "--json", code=3)
    rows = json.loads(result.stdout)["cases"]
    assert rows[0]["status"] == "done" and 0 < rows[0]["measured_configs"] < 3
    assert [(row["status"], row["reason"]) for row in rows[1:]] == [("skipped", "the budget is used up")] * 2
    assert "3 cases are not finished. Run the same command again" in result.stderr
    assert [row["measured_configs"] for row in _json("tune", _work(write, "1 2 3", text=text))["cases"]] == [3, 3, 3]


# -- devices --------------------------------------------------------------------------------------------------------

KERNEL = """
import torch, triton, triton.language as tl
from autotuned import Config, autotune

@autotune(configs=[Config({"BLOCK": 16}), Config({"BLOCK": 32})], key=["n"])
@triton.jit
def add(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n) + 1, mask=i < n)

@add.case
def cases(device):
    x = torch.zeros(32, device=device)
    yield {"args": (x, torch.zeros_like(x), 32), "grid": lambda meta: (triton.cdiv(32, meta["BLOCK"]),)}
"""
WHO = """
if __name__ == "__main__":
    [case] = cases("cpu")
    call = add.tuner.call(case["args"], {}, case["grid"])
    print(add.tuner.target.name, add.tuner.chooser.key(call).digest)
"""


def test_a_kernel_is_tuned_in_the_interpreter_and_has_one_name_on_every_way(write: Write) -> None:
    write("pkg_ways/__init__.py", "")
    path = write("pkg_ways/kernels.py", KERNEL + WHO)
    environment = {"AUTOTUNED_DEVICE": "interpreter", "TRITON_INTERPRET": ""}
    seen = []
    for target in (str(path), "pkg_ways.kernels"):
        out, err = _in_process("tune", target, "--json", **environment)
        data = json.loads(out)
        [row] = data["cases"]
        assert data["device"] == "interpreter" and row["device"] == "cpu-interpreter" and "Traceback" not in err
        seen.append((row["kernel"], row["digest"], row["source"]))
    assert [source for *_, source in seen] == ["measured", "stored"]
    script = subprocess.run(
        [sys.executable, path],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert {tuple(script.stdout.split()), *((name, digest) for name, digest, _ in seen)} == {
        ("pkg_ways.kernels.add", seen[0][1])
    }


def test_torch_does_not_import_triton() -> None:
    # `tune` looks for a GPU with torch and can still choose the interpreter afterwards.
    code = "import sys, torch; torch.cuda.is_available(); sys.exit('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_gpu_that_is_asked_for_must_be_there(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNED_DEVICE", "cuda")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert "expected a GPU to tune on, and TRITON_INTERPRET is set" in _error("tune", _work(write))
    monkeypatch.setenv("AUTOTUNED_DEVICE", "gpu")
    assert "AUTOTUNED_DEVICE: expected one of cuda, interpreter" in _run("tune", "mod_work", code=2).stderr


@pytest.mark.parametrize(
    ("asked", "interpret", "gpu", "chosen"),
    [("", "", True, "cuda"), ("", "1", True, "interpreter"), ("", "", False, "interpreter"), ("cuda", "", True, "cuda"),
     ("interpreter", "", True, "interpreter")],
)  # fmt: skip
def test_the_device_is_decided_before_triton_is_imported(
    monkeypatch: pytest.MonkeyPatch, asked: str, interpret: str, gpu: bool, chosen: str
) -> None:
    from autotuned.cli import session

    monkeypatch.setenv("AUTOTUNED_DEVICE", asked)
    monkeypatch.setenv("TRITON_INTERPRET", interpret)
    monkeypatch.setattr(session, "_has_gpu", lambda: gpu)
    monkeypatch.delitem(sys.modules, "triton", raising=False)
    assert session.use_device() == chosen
    assert (os.environ["TRITON_INTERPRET"] == "1") == (chosen == "interpreter")


def test_a_triton_that_is_there_already_is_too_late(monkeypatch: pytest.MonkeyPatch, write: Write) -> None:
    monkeypatch.setenv("AUTOTUNED_DEVICE", "interpreter")
    monkeypatch.setenv("TRITON_INTERPRET", "")
    monkeypatch.setitem(sys.modules, "triton", sys)
    assert "Triton was imported before" in _error("tune", "mod")


# -- progress and Ctrl-C --------------------------------------------------------------------------------------------

SLOW = """
import time
from autotuned import Config, autotune

@autotune(configs=[Config({"i": i}) for i in range(40)], key=["n"])
def work(n, i):
    if n:
        print("tuning", flush=True)
    time.sleep(0.05 * n)

@work.case
def cases(device):
    yield {"args": (0,)}
    yield {"args": (1,)}
"""


def test_ctrl_c_keeps_what_was_measured(write: Write) -> None:
    write("mod_slow.py", SLOW)
    process = _start("tune", "mod_slow", "--out", "tuned")
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(50)] == ["tuning\n"] * 50  # all were launched, racing has begun
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in err
    assert err.splitlines()[-1] == "interrupted; what was measured is kept. Run the same command again to go on."
    assert "mod_slow.work" in out and "n=0" in out and "n=1 " not in out and "wrote tuned/" in out
    assert len(json.loads(next(Path("tuned").glob("*/*.json")).read_text())["groups"][0]["entries"]) == 1
    unfinished = [choice for choice in _json("list")["choices"] if choice["config"] is None]
    [key] = _json("show", "work", unfinished[0]["digest"])["keys"]
    assert len(key["timings"]) >= 3 and all(timing["median_us"] > 50_000 for timing in key["timings"])


def test_a_long_search_says_every_few_seconds_how_far_it_is(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    from autotuned.cli import progress

    monkeypatch.setattr(progress, "HEARTBEAT_S", 0.0)
    lines = _run("tune", _work(write, "1"), "--json").stderr.splitlines()
    assert "mod_work.work  n=1: 0 of 3 configs tried; none ran yet" in lines
    assert any(f"3 of 3 configs tried; best so far {BEST}, 1 ms" in line for line in lines)


def _on_a_terminal(*args: str, **environment: str) -> str:
    """What a command writes to a terminal of 80 columns."""
    code = f"import sys; sys.argv = ['autotuned', *{list(args)!r}]\nfrom autotuned.cli.main import app\napp()"
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24", **environment},
    )
    os.close(theirs)
    text, end = b"", time.monotonic() + 60
    while time.monotonic() < end:
        if select.select([ours], [], [], 0.1)[0]:
            try:
                text += os.read(ours, 65536)
            except OSError:  # Linux says so that the other end is closed
                break
    os.close(ours)
    assert process.wait(timeout=60) == 0, text
    return text.decode()


def test_a_terminal_shows_lines_that_move(write: Write) -> None:
    sleepy = WORK.replace("    ran.append(ms)", "    time.sleep(0.12)\n    ran.append(ms)")
    text = _on_a_terminal("tune", _work(write, "1", text=sleepy))
    assert "of 3 configs tried; testing ms=" in text and "\x1b[" in text
    assert f"mod_work.work  n=1: {BEST}, 1 ms, measured" in text


def test_no_color_is_respected(write: Write) -> None:
    _run("tune", _work(write))
    assert "\x1b[1m" in _on_a_terminal("list")  # bold
    colours = [f"\x1b[{number}m" for number in (*range(30, 38), *range(90, 98))]
    plain = _on_a_terminal("list", NO_COLOR="1")
    assert not any(colour in plain for colour in colours)


# -- list and show --------------------------------------------------------------------------------------------------


def test_an_empty_store_says_where_it_looked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "config_folders", lambda: iter([Path("somewhere")]))
    for args in (["list"], ["list", "any"]):
        text = _run(*args).stdout
        assert f"Nothing is stored in {store.root()}" in text and "somewhere" in text
    assert _json("list") == {"cache": str(store.root()), "choices": []}


def test_list_shows_records_and_files(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    _run("tune", _work(write, "1"), "--out", "tuned")
    monkeypatch.setenv("AUTOTUNED_CONFIG_PATH", "tuned")
    file, record = [choice for choice in _json("list")["choices"] if choice["kernel"] == "mod_work.work"]
    assert file.keys() == record.keys() == {
        "kernel", "digest", "call", "config", "median_us", "vs_default", "quality", "device", "triton", "source",
        "path",
    }  # fmt: skip
    if record["source"] != "store":
        file, record = record, file
    assert record["path"].startswith(str(store.root())) and record["quality"] == "ok"
    assert file["source"] == file["path"] == f"tuned/{device.cpu().slug}/mod_work.work.json"
    assert file["vs_default"] == 4 and file["digest"] == record["digest"]
    assert file["config"] == record["config"] and file["device"] == device.cpu().slug
    lines = _run("list", "work").stdout.splitlines()
    assert lines[0] == "mod_work.work" and lines[1].split()[:2] == ["call", "config"]
    assert [line.split()[0] for line in lines[2:]] == ["n=1"] * 2 and record["digest"][:12] in lines[2]


def test_calls_are_listed_by_the_size_of_their_numbers() -> None:
    _keep(12)
    said = [line.split()[0] for line in _run("list").stdout.splitlines() if line.startswith("n=")]
    assert said == [f"n={n}" for n in range(12)]
    listed = json.loads(_run("list", "--json").stdout)["choices"]
    assert [choice["call"]["values"]["n"] for choice in listed] == list(range(12))


@pytest.mark.parametrize("args", [["tune", "mod_work"], ["list"], ["show", "work"], ["report"]], ids=lambda a: a[0])
def test_options_of_a_launch_are_not_shown_for_a_plain_callable(write: Write, args: list[str]) -> None:
    _work(write)
    if args[0] != "tune":
        _run("tune", "mod_work")
    said = _run(*args)
    assert "ms=1" in said.stdout and "num_warps" not in said.stdout + said.stderr


def test_a_record_that_somebody_edited_is_left_out(write: Write) -> None:
    _run("tune", _work(write))
    [first, _] = [Path(choice["path"]) for choice in _json("list")["choices"]]
    record = json.loads(first.read_text())
    record["key"]["context"] = {}
    first.write_text(json.dumps(record))
    result = _run("list", "--json")
    assert len(json.loads(result.stdout)["choices"]) == 1
    assert f"left out: {first} is not as it was written (KeyError: 'device')." in result.stderr


def test_list_of_an_unknown_kernel_names_the_nearest(write: Write) -> None:
    _run("tune", _work(write, "1"))
    assert "no kernel 'wrok'. Did you mean 'mod_work.work'?" in _error("list", "wrok")


def test_show_holds_every_part_of_a_key_and_every_timing(write: Write) -> None:
    text = WORK.replace(
        "    ran.append(ms)", "    if ms == 6:\n        raise ValueError('too much')\n    ran.append(ms)"
    )
    _run("tune", _work(write, "1 2", text=text))
    data = _json("show", "mod_work.work")
    assert data["kernel"] == "mod_work.work" and len(data["keys"]) == 2
    for key in data["keys"]:
        assert key["key"].keys() == {"call", "context"} and key["provenance"]["timer"].startswith("do_bench bench ")
        assert [timing["config"]["kwargs"]["ms"] for timing in key["timings"]] == [1, 4, 6]
        assert key["timings"][2]["status"] == "failed" and key["timings"][2]["error"] == "ValueError: too much"
    lines = _run("show", "work", data["keys"][0]["digest"][:8]).stdout
    for word in ("call.values.n", "context.device.arch", "context.source", "provenance.date", "* ms=1", "too much"):
        assert word in lines
    assert data["keys"][0]["digest"] in lines and data["keys"][1]["digest"] not in lines


def test_show_of_something_unknown_says_what_there_is(write: Write) -> None:
    assert "nothing is stored in" in _error("show", "work")
    _run("tune", _work(write, "1"))
    assert "Did you mean 'mod_work.work'?" in _error("show", "mod_work.wok")
    assert "no key begins with 'xyz'. Its keys are " in _error("show", "work", "xyz")
    _run("tune", _work(write, "1", name="mod_more"))
    assert "several names: mod_more.work, mod_work.work" in _error("show", "work")


def test_config_files_can_be_shown(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    _run("tune", _work(write, "1"), "--out", "tuned")
    _run("clear", "--yes")
    monkeypatch.setenv("AUTOTUNED_CONFIG_PATH", "tuned")
    [key] = _json("show", "work")["keys"]
    assert key["timings"] is None and key["provenance"] is None and key["source"].endswith("mod_work.work.json")
    assert "vs default" in _run("show", "work").stdout


# -- explain --------------------------------------------------------------------------------------------------------


def test_explain_says_of_each_stored_key_whether_it_serves_here_and_now(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    _run("tune", _work(write, "1 2"))
    data = _json("explain", "work")
    assert data["kernel"] == "mod_work.work"
    assert [(key["reason"], key["answer"]) for key in data["keys"]] == [("hit", "store")] * 2
    text = _run("explain", "mod_work.work", data["keys"][0]["digest"][:10]).stdout
    assert "hit; answered by store" in text and BEST in text and "not compared: " in text
    monkeypatch.setattr(device, "cpu", lambda: device.Device("cpu", "another", "x86_64", 4))
    [missed, _] = _json("explain", "work")["keys"]
    assert missed["reason"] == "other device" and missed["nearest"] == data["keys"][0]["digest"]
    assert {change["path"].rpartition(".")[0] for change in missed["changes"]} == {"context.device"}
    assert "nearest stored key" in _run("explain", "work").stdout


def test_explain_of_a_target_asks_as_its_cases_would(write: Write) -> None:
    target = _work(write, "1 2") + ":work"
    assert [key["reason"] for key in _json("explain", target)["keys"]] == ["absent"] * 2
    _run("tune", target)
    assert [key["reason"] for key in _json("explain", target)["keys"]] == ["hit"] * 2
    _work(write, text=WORK.replace("ran.append(ms)", "ran.append(ms * 1)"))
    found = _json("explain", target)["keys"]
    assert [(key["reason"], [change["path"] for change in key["changes"]]) for key in found] == [
        ("other source", ["context.source"])
    ] * 2


def test_explain_leaves_a_damaged_record_where_it_is(write: Write) -> None:
    _run("tune", _work(write, "1 2"))
    path = next(path for path, _ in store.all_records())
    path.write_text("{")
    assert sorted(key["reason"] for key in _json("explain", "work")["keys"]) == ["damaged", "hit"]
    assert path.read_text() == "{"


def test_explain_of_nothing(write: Write) -> None:
    assert "nothing is stored in" in _error("explain", "work")
    _run("tune", _work(write, "1"))
    assert "no key begins with 'xyz'" in _error("explain", "work", "xyz")


@pytest.mark.parametrize("args", [["tune", "mod_wide"], ["list"], ["show", "kernel"], ["doctor"]], ids=lambda a: a[0])
def test_80_columns_are_enough(write: Write, monkeypatch: pytest.MonkeyPatch, args: list[str]) -> None:
    write(
        "mod_wide.py",
        """
import numpy as np
from autotuned import Config, autotune

@autotune(configs=[Config({"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64, "GROUP_M": 8}), Config({"BLOCK_M": 1})])
def kernel(activations, weights, out, BLOCK_M=1, BLOCK_N=1, BLOCK_K=1, GROUP_M=1): ...

@kernel.case
def cases(device):
    a, b = np.zeros((100, 200), np.float32), np.zeros((200, 300), np.float16)
    yield {"args": (a, b.T, a)}
""",
    )
    monkeypatch.setenv("COLUMNS", "80")
    _run("tune", "mod_wide")
    lines = _run(*args).stdout.splitlines()
    assert lines and all(len(line) <= 80 for line in lines if "mod_wide.py" not in line)
    text = "\n".join(lines)
    if args[0] in ("tune", "list"):
        assert "activations,out fp32[100,200] weights" in text and "BLOCK_M=1" in text and " us" in text


# -- clear ----------------------------------------------------------------------------------------------------------


def test_clear_deletes_what_it_is_told_to(write: Write) -> None:
    _run("tune", _work(write, "1 2"))
    _run("tune", _work(write, "1", name="mod_more"))
    assert "give --yes" in _run("clear", code=2).stderr
    assert len(_json("list")["choices"]) == 3
    assert _json("clear", "mod_work.work", "--yes") == {
        "kernel": "mod_work.work", "deleted": 2, "cache": str(store.root()),
    }  # fmt: skip
    assert [choice["kernel"] for choice in _json("list")["choices"]] == ["mod_more.work"]
    assert "Did you mean 'mod_more.work'?" in _error("clear", "mod_mor.work", "--yes")
    assert "deleted 1 records of all kernels" in _run("clear", "--yes").stdout
    assert _json("clear") == {"kernel": None, "deleted": 0, "cache": str(store.root())}


def test_clear_asks_on_a_terminal(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    from autotuned.cli import clear

    _run("tune", _work(write, "1"))
    monkeypatch.setattr(clear, "_has_terminal", lambda: True)
    assert "nothing was deleted" in _run("clear", code=1, input="n\n").stderr
    assert "deleted 1 records" in _run("clear", input="y\n").stdout


# -- doctor ---------------------------------------------------------------------------------------------------------

REPORT = {
    "versions", "devices", "no_gpu", "launcher", "launcher_reason", "mode", "cache", "config_folders", "options",
    "problems",
}  # fmt: skip


def test_doctor_reports_what_is_used() -> None:
    data = _json("doctor")
    assert data.keys() == REPORT and data["problems"] == []
    assert data["versions"].keys() == {"autotuned", "python", "torch", "triton", "ptxas"} and all(
        data["versions"].values()
    )
    assert bool(data["devices"]) != bool(data["no_gpu"])
    assert data["cache"] == {"path": str(store.root()), "unwritable": None, "records": 0, "bytes": 0}
    assert all(option.keys() == {"name", "value", "default", "help"} for option in data["options"])
    text = _run("doctor").stdout
    for option in data["options"]:
        assert option["name"] in text and option["help"].split()[0] in text


def test_doctor_shows_every_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    gpu = SimpleNamespace(name="NVIDIA H100 80GB HBM3 MIG 1g.10gb", major=9, minor=0, multi_processor_count=16)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: gpu)
    data = _json("doctor")
    assert data["no_gpu"] is None and len(data["devices"]) == 2
    assert data["devices"][0] == {
        "kind": "cuda", "name": "NVIDIA H100 80GB HBM3", "arch": "sm_90", "sm_count": 16, "mig": "1g.10gb",
        "slug": "nvidia-h100-80gb-hbm3-sm_90-16-1g.10gb",
    }  # fmt: skip
    assert "sm_90, 16 SMs" in _run("doctor").stdout


def test_doctor_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNED_CACHE_DIR", str(tmp_path / "a" / "b"))
    from autotuned import toolchain

    monkeypatch.setattr(toolchain, "fingerprint", lambda arch, folder: {"ptxas": "1"})  # this one is remembered there
    assert _json("doctor")["cache"]["unwritable"] is None
    assert list(tmp_path.iterdir()) == []


def test_doctor_says_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("AUTOTUNED_CACHE_DIR", str(tmp_path / "file"))
    monkeypatch.setenv("AUTOTUNED_CONFIG_PATH", str(tmp_path / "missing"))
    for name in ("AUTOTUNED_MODE", "AUTOTUNED_LAUNCHER", "AUTOTUNED_DEVICE"):
        monkeypatch.setenv(name, "bogus")
    data = _json("doctor")
    problems = "\n".join(data["problems"])
    for word in (
        "is not a folder",
        "AUTOTUNED_MODE: expected",
        "AUTOTUNED_LAUNCHER: expected",
        "AUTOTUNED_DEVICE: exp",
    ):
        assert word in problems
    assert data["mode"] is None and data["launcher"] is None
    assert data["config_folders"][0] == {"path": str(tmp_path / "missing"), "files": None}
    assert "problem: " in _run("doctor").stdout


def test_doctor_works_where_everything_is_missing() -> None:
    code = (
        "import os, pwd, sys\n"
        "sys.modules['torch'] = sys.modules['triton'] = None\n"
        "os.environ.pop('HOME'); pwd.getpwuid = lambda uid: (_ for _ in ()).throw(KeyError(uid))\n"
        "os.environ.pop('AUTOTUNED_CACHE_DIR'); os.environ['AUTOTUNED_CONFIG_PATH'] = '~nobody_here/x'\n"
        "sys.argv = ['autotuned', 'doctor', '--json']\n"
        "from autotuned.cli.main import app\napp()"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    data = json.loads(run.stdout)
    assert data.keys() == REPORT and data["versions"]["torch"] is data["versions"]["triton"] is None
    problems = "\n".join(data["problems"])
    assert "torch: ModuleNotFoundError" in problems and "triton: ModuleNotFoundError" in problems
    assert "config folders: RuntimeError" in problems and data["cache"]["path"]


# -- gc, and long listings ----------------------------------------------------------------------------------------


def _keep(count: int, kernel: str = "app.k") -> list[Any]:
    from fakes import FakeConfig, form, make_key

    from autotuned.recordfile import Record, Timing

    config = form(FakeConfig({"BLOCK": 64}))
    kept = []
    for n in range(count):
        key = make_key(n, kernel=kernel)
        assert store.keep(Record(key, config, 10.0, "ok", (Timing(config, 10.0, 10.0, 10.0, 40),)))
        kept.append(store.record_path(key))
    return kept


def _age(path: Path, days: float) -> None:
    then = time.time() - days * 86400
    os.utime(path, (then, then))


def test_gc_removes_by_age_and_by_size_and_says_what_is_left():
    paths = _keep(6)
    for n, path in enumerate(paths):
        _age(path, n)
    size = paths[0].stat().st_size
    said = json.loads(_run("gc", "--max-age", "4d", "--json").stdout)
    assert (said["deleted"], said["records"], said["leftovers"]) == (2, 4, 0)
    assert "deleted 0 records" in _run("gc").stdout
    said = json.loads(_run("gc", "--max-size", f"{2 * size + 10}", "--json").stdout)
    assert (said["deleted"], said["records"]) == (2, 2)
    assert {path for path in paths if path.exists()} == set(paths[:2])
    assert json.loads(_run("gc", "--max-size", "0", "--json").stdout)["records"] == 0


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("1.5k", 1500), ("2KiB", 2048), ("3 M", 3_000_000), ("1gib", 1 << 30), ("2GB", 2 * 10**9)],
)
def test_sizes_of_gc(text, size):
    from autotuned.cli import gc

    assert gc._size(text) == size


@pytest.mark.parametrize(
    ("text", "seconds"), [("1", 86400), ("90s", 90), ("2h", 7200), ("1.5d", 129600), ("1w", 604800)]
)
def test_ages_of_gc(text, seconds):
    from autotuned.cli import gc

    assert gc._age(text) == seconds


@pytest.mark.parametrize(
    "arguments", [("--max-size", "big"), ("--max-age", "-3d"), ("--max-size", "-1"), ("--max-age", "")]
)
def test_a_limit_that_is_none_is_wrong_usage(arguments):
    paths = _keep(1)
    assert "expected a" in _run("gc", *arguments, code=2).output
    assert paths[0].exists()


def test_a_long_listing_is_whole_and_read_from_heads_only(monkeypatch):
    monkeypatch.setattr("autotuned.listing.BLOCK", 10)
    monkeypatch.setattr("autotuned.store.BLOCK", 10)
    monkeypatch.setattr("autotuned.cli.list.TABLE_ROWS", 5)
    paths = _keep(37) + _keep(3, "app.other")
    monkeypatch.setattr(store, "all_records", lambda kernel=None: pytest.fail("whole records were read"))
    said = json.loads(_run("list", "--json").stdout)
    assert {each["path"] for each in said["choices"]} == {str(path) for path in paths}
    lines = _run("list").stdout.splitlines()
    assert sum(path.stem[:12] in line for line in lines for path in paths) == 40
    assert json.loads(_run("list", "other", "--json").stdout)["choices"][0]["kernel"] == "app.other"
