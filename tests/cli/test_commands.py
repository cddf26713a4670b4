"""What every command has: `--json`, `--quiet`, `--verbose`, exit codes, completion, and no need of a terminal."""

import json
import logging
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer.main
from autotuned.cli.main import app
from autotuned.cli.views.names import complete
from commands import in_fork, run, run_json
from fakes import FakeConfig, form, make_key
from pages import read
from typer.testing import CliRunner

import autotuned
from autotuned.store import records
from autotuned.store.record import Timing, TuningRecord

WORK = """
from autotuned import autotune
from fakes import FakeConfig as Config

@autotune([Config({"step": 1}), Config({"step": 2})], do_bench=lambda call, quantiles: [call() or 1.0] * 3)
def work(n, *, step):
    return None

@work.case
def cases(device):
    yield {"args": (7,)}
"""
SERVE = "import work\nwork.work(7)\nprint('own output')\n"
PYTHON = sys.executable
EXAMPLES = {
    "tune": ["work"],
    "list": [],
    "show": ["work"],
    "explain": ["work"],
    "export": ["--out", "exported"],
    "import": ["tuned"],
    "merge": ["tuned", "--out", "merged"],
    "diff": ["tuned", "tuned"],
    "check": ["tuned"],
    "run": ["--", PYTHON, "serve.py"],
    "clear": ["work", "--yes"],
    "compress": ["tuned", "--within", "50%", "--out", "few"],
    "push": ["tuned", "file://HERE/shared"],
    "pull": ["file://HERE/shared", "--out", "pulled"],
    "prune": ["tuned", "--unused", "--calls", "calls.jsonl", "--yes"],
    "gc": [],
    "record": ["more.jsonl", "--", PYTHON, "serve.py"],
    "warmup": ["calls.jsonl"],
    "report": [],
    "doctor": [],
}
STARTS = {"run", "record"}  # another program, whose output is its own; JSON of these commands goes to stderr
COMMANDS = typer.main.get_command(app).commands


@pytest.fixture
def folder(write, tmp_path, monkeypatch):
    """An application in the current folder: tuned, with config files and a recording."""
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{Path(__file__).parents[1] / 'support'}")
    monkeypatch.setenv("AUTOTUNED_DEVICE", "interpreter")
    sys.path.insert(0, str(tmp_path))
    write("work.py", WORK)
    write("serve.py", SERVE)
    (tmp_path / "shared").mkdir()
    run("tune", "work", "--out", "tuned")
    import work

    with autotuned.record(tmp_path / "calls.jsonl"):
        work.work(7)
    return tmp_path


def start(command, *options):
    """A command in a process of its own, without a terminal: what it said."""
    return in_fork(command, *options, *example(command))


def forms(command, *options):
    """What a command says on stdout and stderr."""
    if command in STARTS:
        return start(command, *options)
    said = run(command, *options, *example(command))
    return said.stdout, said.stderr


def example(command):
    """The arguments of a command, with the present folder in place of HERE."""
    return [one.replace("HERE", os.getcwd()) for one in EXAMPLES[command]]


def test_every_command_is_among_the_examples():
    assert EXAMPLES.keys() == COMMANDS.keys()


# What is below these is a key, a config or somebody's record of how it was measured, and no field of the command.
OPAQUE = {"call", "config", "key", "provenance", "device", "before", "after", "taken", "left", "stored", "now"}


def fields(data, opaque=frozenset(OPAQUE)):
    """The names of a document's fields."""
    if isinstance(data, list):
        return {name for part in data for name in fields(part, opaque)}
    if not isinstance(data, dict):
        return set()
    return data.keys() | {name for field in data.keys() - opaque for name in fields(data[field], opaque)}


def documented(command):
    """The row of a command in docs/schema.md, those below it that are a part of it, and what they refer to."""
    rows = re.findall(r"^\| (.*?) \| (.*) \|$", read("docs/schema.md").split("## JSON of commands")[1], re.MULTILINE)
    found, is_of_it = [], False
    for name, text in rows:
        is_part = name.startswith("\u2013 ")
        is_of_it = is_of_it if is_part else re.search(rf"`{command}\b", name) is not None
        if is_of_it or name in ("\u2013 `binaries.files`", "`list`"):
            found.append(text)
    return " ".join(found)


@pytest.mark.parametrize("command", EXAMPLES)
def test_help_is_what_a_person_types(command):
    shown = CliRunner().invoke(app, [command, "-h"], terminal_width=80, env={"COLUMNS": "80"}).stdout
    before_options = shown.split("Options:")[0].splitlines()
    assert "JSON:" not in shown and len(before_options) <= 32 and max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize("command", EXAMPLES)
def test_every_command_has_all_forms_and_a_word_for_each_field_of_its_json(command, folder):
    own = "own output\n" if command in STARTS else ""
    shown, _ = forms(command)
    assert shown.strip()
    out, err = forms(command, "--json")
    document = json.loads(err.splitlines()[-1] if command == "record" else err if command == "run" else out)
    assert isinstance(document, dict) and document
    written = {"configs", "context", "rule"} if command == "compress" else set()  # as config files hold them
    found = fields(document, OPAQUE | written)
    assert {name for name in found if not re.search(rf"\b{name}\b", documented(command))} == set()
    assert command not in STARTS or out == own
    assert forms(command, "--quiet") == (own, "")
    out, err = forms(command, "--quiet", "--json")
    assert isinstance(json.loads(err if command in STARTS else out), dict)
    assert command in STARTS or err == ""
    out, _ = forms(command, "--verbose")
    assert out.startswith(own) and out.strip()
    assert "expected one of the two" in " ".join(run(command, "-q", "-v", *example(command), code=2).stderr.split())


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["tune", "nothing_here"], 1),
        (["show", "nothing"], 1),
        (["explain", "nothing"], 1),
        (["export", "nothing", "--out", "x"], 1),
        (["import", "nothing"], 1),
        (["merge", "nothing", "--out", "x"], 1),
        (["diff", "nothing", "tuned"], 1),
        (["check", "nothing"], 1),
        (["run", "--", "no-such-command"], 127),
        (["run", "--", "/"], 126),
        (["clear", "nothing"], 1),
        (["gc", "--max-size", "much"], 2),
        (["record", "x.jsonl", "--", "no-such-command"], 127),
        (["warmup", "nothing.jsonl"], 1),
        (["report", "nothing"], 1),
        (["list", "nothing"], 1),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_what_fails_says_why_also_quietly(args, code, folder):
    said = run(*args[:1], "--quiet", *args[1:], code=code)
    assert said.stdout == "" and said.stderr.strip()
    if code == 1:
        assert said.stderr.splitlines()[-1].startswith("error: ")


def test_verbose_shows_decisions_and_the_trace_of_an_error(folder):
    run("clear", "--yes")
    assert "measured 2 configs" in start("tune", "--verbose")[1]
    assert "Traceback" not in run("warmup", "nothing.jsonl", code=1).stderr
    said = run("warmup", "-v", "nothing.jsonl", code=1).stderr
    assert "Traceback" in said and said.splitlines()[-1].startswith("error: ")


def test_the_level_of_the_log_is_as_before_afterwards(folder, monkeypatch):
    log = logging.getLogger("autotuned")
    monkeypatch.setenv("AUTOTUNED_LOG", "debug")
    for option in ("--quiet", "--verbose"):
        run("list", option)
        assert (log.level, log.propagate, log.handlers) == (logging.NOTSET, True, [])
        assert os.environ["AUTOTUNED_LOG"] == "debug"


# -- completion ---------------------------------------------------------------------------------------------------


def asked_by_a_shell(*words):
    return {
        "_AUTOTUNED_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(("autotuned", *words)),
        "COMP_CWORD": str(len(words)),
    }  # fmt: skip


def completed(*words):
    """What a shell is offered for the last of these words."""
    return CliRunner().invoke(app, [], prog_name="autotuned", env=asked_by_a_shell(*words)).stdout.split()


@pytest.mark.parametrize("command", ["list", "show", "explain", "export", "clear", "report"])
def test_kernels_are_completed_from_the_store(command, folder):
    assert completed(command, "wor") == ["work.work"]


def test_no_library_of_tensors_is_imported_for_completion(folder):
    code = (
        "import atexit, sys; from autotuned.cli.main import app; sys.argv[0] = 'autotuned'\n"
        "atexit.register(lambda: print('imported', sorted({'torch', 'triton', 'numpy'} & set(sys.modules))))\n"
        "app(prog_name='autotuned')"
    )
    environment = {**os.environ, **asked_by_a_shell("list", "wor")}
    done = subprocess.run([PYTHON, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout.split("\n") == ["work.work", "imported []", ""], done.stderr


def test_a_kernel_that_is_not_there_is_completed_by_nothing(folder):
    assert completed("list", "nothing") == []


def test_commands_and_options_are_completed(folder):
    assert completed("war") == ["warmup"]
    assert "--quiet" in completed("gc", "--q")


def test_a_script_for_a_shell_is_offered():
    assert "--install-completion" in run("--help").stdout and "--show-completion" in run("--help").stdout


class Shell:
    """bash as on a terminal, with our command on its path and what the command itself says for completion."""

    def __init__(self, folder):
        script = folder / "autotuned"
        script.write_text(f"#!{PYTHON}\nfrom autotuned.cli.main import app\napp()\n")
        script.chmod(0o755)
        self._fd, terminal = pty.openpty()
        environment = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "PS1": "$ ", "TERM": "dumb"}
        self._process = subprocess.Popen(
            ["bash", "--noprofile", "--norc", "-i"], stdin=terminal, stdout=terminal, stderr=terminal,
            env=environment, start_new_session=True,
        )  # fmt: skip
        os.close(terminal)
        self.type('eval "$(autotuned --show-completion)"; echo rea""dy\n', "ready")

    def type(self, keys, awaited):
        """Press keys and wait for a text."""
        os.write(self._fd, keys.encode())
        shown, end = "", time.monotonic() + 60
        while awaited not in shown:
            assert time.monotonic() < end, shown
            if select.select([self._fd], [], [], 1)[0]:
                shown += os.read(self._fd, 4096).decode(errors="replace")

    def close(self):
        self._process.kill()
        self._process.wait(30)
        os.close(self._fd)


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_a_real_shell_completes_commands_kernels_and_options(folder):
    shell = Shell(folder)
    try:
        shell.type("autotuned war\t", "autotuned warmup ")
        shell.type("\x15autotuned show wor\t", "autotuned show work.work")
        shell.type("\x15autotuned gc --max-s\t", "autotuned gc --max-size ")
    finally:
        shell.close()


def test_a_kernel_is_completed_by_its_end_where_no_name_begins_so(folder):
    best = form(FakeConfig({"BLOCK": 32}))
    records.keep(TuningRecord(make_key(kernel="app.sub.matmul"), best, 1.0, "ok", (Timing(best, 1.0, 1.0, 1.0, 3),)))
    assert complete("") == ["app.sub.matmul", "work.work"]
    assert complete("app") == ["app.sub.matmul"]
    assert complete("mat") == ["matmul"]


def test_json_of_a_listing_is_the_same_quietly(folder):
    assert run_json("list") == json.loads(run("list", "--quiet", "--json").stdout)
