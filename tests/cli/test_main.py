"""All commands: help, the version, wrong usage, and what only looking imports."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import error as _error
from commands import run as _run

from autotuned.store import listing

pytestmark = pytest.mark.usefixtures("wide_output")

COMMANDS = ("tune", "list", "show", "explain", "record", "warmup", "report", "clear", "doctor")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str) -> None:
    assert f"  {command} " in _run("--help").stdout
    text = _run(command, "--help").stdout
    assert "Usage: " in text and "--json" in text


def test_the_version_is_printed() -> None:
    import autotuned

    assert _run("--version").stdout == f"autotuned {autotuned.__version__}\n"


def test_python_m_is_the_same_command() -> None:
    done = subprocess.run([sys.executable, "-m", "autotuned", "tune"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Usage: python -m autotuned tune [OPTIONS] TARGET...\n")


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


def test_a_command_imports_nothing_that_only_others_need() -> None:
    """`autotuned run` precedes each start of a program."""
    others = ("configfiles.lookup", "offline.report", "resolve.explain", "binaries")
    code = (
        "import sys, autotuned.cli.main\n"
        f"print([name for name in sys.modules if name.removeprefix('autotuned.').startswith({others})])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"


def test_help_and_version_have_short_names() -> None:
    assert _run("-V").stdout == _run("--version").stdout
    assert _run("-h").stdout == _run("--help").stdout
    assert _run("list", "-h").stdout == _run("list", "--help").stdout


@pytest.mark.parametrize("level", ["--json", "-q", "--quiet", "-v", "--verbose"])
def test_options_of_all_commands_stand_before_the_command_or_after_it(level: str) -> None:
    before, after = _run(level, "list"), _run("list", level)
    assert (before.stdout, before.stderr) == (after.stdout, after.stderr)
    assert before.stdout.startswith("{") is (level == "--json")


def test_options_before_a_command_and_after_it_are_told_apart_from_none() -> None:
    assert "expected one of the two" in _run("-q", "list", "-v", code=2).stderr
    assert _run("--json", "-q", "list").stdout == _run("list", "--json").stdout


USAGES = {
    "": "autotuned [OPTIONS] COMMAND [ARGS]...",
    "tune": "autotuned tune [OPTIONS] TARGET...",
    "list": "autotuned list [OPTIONS] [KERNEL]",
    "show": "autotuned show [OPTIONS] [KERNEL] [KEY]",
    "export": "autotuned export --out DIR [OPTIONS] [KERNEL...]",
    "merge": "autotuned merge --out OUT [OPTIONS] PATH...",
    "record": "autotuned record [OPTIONS] CALLS.jsonl -- COMMAND...",
    "run": "autotuned run [OPTIONS] -- COMMAND...",
    "warmup": "autotuned warmup [OPTIONS] CALLS.jsonl [FILE.py...]",
}


@pytest.mark.parametrize(("command", "usage"), USAGES.items())
def test_a_usage_line_is_what_is_typed(command: str, usage: str) -> None:
    assert _run(*filter(None, [command]), "-h", prog_name="autotuned").stdout.splitlines()[0] == f"Usage: {usage}"


def _unread(*args: str) -> tuple[int, str]:
    """Exit code and stderr of a command whose stdout nobody reads."""
    source, sink = os.pipe()
    os.close(source)
    code = f"import sys; sys.argv = ['autotuned', *{list(args)!r}]; from autotuned.cli.main import app; app()"
    done = subprocess.run([sys.executable, "-c", code], stdout=sink, stderr=subprocess.PIPE, text=True)
    os.close(sink)
    return done.returncode, done.stderr


@pytest.mark.parametrize("args", [["list"], ["list", "--json"], ["-V"]], ids=" ".join)
def test_a_reader_that_goes_away_is_no_error(args: list[str]) -> None:
    """`autotuned list | head -1` ended with 1."""
    assert _unread(*args) == (0, "")


def test_a_reader_that_goes_away_does_not_hide_a_failure(tmp_path: Path) -> None:
    (tmp_path / "k.json").write_text("{}")
    code, said = _unread("check", str(tmp_path))
    assert code == 1 and said.startswith("error: ")


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
    if args:  # else the whole help
        assert result.stderr.splitlines()[-1].startswith("error: ") and "Error" not in result.stderr


@pytest.mark.parametrize("dash", ["\u2014", "\u2013", "\u2212"], ids=["em dash", "en dash", "minus"])
def test_a_typographic_dash_is_recognised(dash: str) -> None:
    assert "type --out" in _run("tune", "mod", f"{dash}out", "tuned", code=2).stderr
    assert "type --json" in _run("list", f"{dash}json", code=2).stderr


def test_an_expected_failure_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(**options: Any) -> Iterator[Any]:
        raise PermissionError(13, "Permission denied", "/some/folder")

    monkeypatch.setattr(listing, "kernels", fails)
    assert _error("list") == "error: Permission denied: '/some/folder'"
