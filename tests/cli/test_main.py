"""All commands: help, the version, wrong usage, and what only looking imports."""

import subprocess
import sys
from collections.abc import Iterator
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

    monkeypatch.setattr(listing, "kernels", fails)
    assert "Permission denied: '/some/folder'" in _error("list")
