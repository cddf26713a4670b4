"""`autotuned run`: a command whose Triton kernels remember what was measured, with no change to its code."""

from __future__ import annotations

import importlib.util
import os
from typing import Annotated

import typer

from autotuned import env

from . import output


def run(
    command: Annotated[list[str], typer.Argument(help="The command, after `--`: python app.py, torchrun ...")],
    replace: Annotated[
        bool, typer.Option("--replace", help="Also launch kernels decorated with triton.autotune by our launcher.")
    ] = False,
) -> None:
    """Run a command with `autotuned.install()` in each of its Python processes."""
    spec = importlib.util.find_spec("autotuned")
    if spec is None or spec.origin is None:  # only of a package that was deleted while it runs
        raise output.fail("autotuned is not installed as files; call autotuned.install() in the program.")
    startup = os.path.join(os.path.dirname(spec.origin), "startup")
    environment = env.for_command("replace" if replace else "seed", startup)
    # In place of this process: signals, the terminal and the exit code are the command's own.
    try:
        os.execvpe(command[0], command, environment)
    except FileNotFoundError as error:
        raise output.fail(f"{command[0]}: no such command; write autotuned run -- python app.py.") from error
