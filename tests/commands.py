"""Commands of the command line, run in this process through the installed entry point."""

import json
from importlib.metadata import entry_points
from typing import Any

from typer.testing import CliRunner

[ENTRY] = entry_points(group="console_scripts", name="autotuned")


def run(*args: Any, code: int = 0, **options: Any) -> Any:
    """The result of a command, which must end with `code`."""
    result = CliRunner().invoke(ENTRY.load(), [str(arg) for arg in args], **options)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result


def run_json(*args: Any, code: int = 0) -> Any:
    """What a command prints with `--json`."""
    return json.loads(run(*args, "--json", code=code).stdout)
