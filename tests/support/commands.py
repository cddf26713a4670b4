"""Run commands through the installed entry point, in this process or in another."""

import json
import os
import subprocess
import sys
from typing import Any

import forked
from autotuned.cli.main import app
from typer.testing import CliRunner

_PROGRAM = (
    "import sys; sys.argv[0] = 'autotuned'; from importlib.metadata import entry_points as e; "
    "e(group='console_scripts', name='autotuned')['autotuned'].load()()"
)


def run(*args: Any, code: int = 0, **options: Any) -> Any:
    """The result of a command, which must end with `code`."""
    result = CliRunner().invoke(app, [str(arg) for arg in args], **options)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result


def run_json(*args: Any, code: int = 0) -> Any:
    """The JSON that a command prints with `--json`."""
    return json.loads(run(*args, "--json", code=code).stdout)


def error(*args: str) -> str:
    """The error line of a failing command."""
    result = run(*args, code=1)
    assert result.stdout == ""
    [line] = result.stderr.splitlines()
    assert line.startswith("error: ")
    return str(line)


def start(*args: str, **environment: str) -> subprocess.Popen[str]:
    """Start a command in its own process, without a terminal."""
    return subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def in_process(*args: str, code: int = 0, **environment: str) -> tuple[str, str]:
    """Run a command in its own process, which must end with `code`; returns stdout and stderr."""
    process = start(*args, **environment)
    out, err = process.communicate(timeout=120)
    assert process.returncode == code, out + err
    return out, err


def in_fork(*args: str, code: int = 0, **environment: str) -> tuple[str, str]:
    """The same in a process that starts with torch and Triton imported."""
    done = forked.run([sys.executable, "-c", _PROGRAM, *args], {**os.environ, **environment})
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout, done.stderr
