"""`autotuned run`: runs a command and caches the choices of its Triton kernels, without changes to its code."""

from __future__ import annotations

import importlib.util
import math
import os
import sys
from typing import Annotated

import typer

from autotuned import env

from .. import terminal


def run(
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND...", help="The command: python app.py, torchrun ...")
    ],
    replace: Annotated[
        bool, typer.Option("--replace", help="Also launch kernels under triton.autotune with our launcher.")
    ] = False,
    race: Annotated[
        bool, typer.Option("--race", help="Measure with our search in place of Triton's benchmark.")
    ] = False,
    budget: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", help="With --race: measure a kernel's configs for at most this long; inf: wait for all."
        ),
    ] = None,
    binaries: Annotated[
        str | None,
        typer.Option("--binaries", metavar="DIR", help="Keep compiled Triton kernels here, for the next start."),
    ] = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Run a command and cache the choices of its Triton kernels.

    It calls `autotuned.install()` in each of the command's Python processes. Output, signals and the exit code are the
    command's own.

    --binaries also keeps every Triton kernel that the command compiles in DIR, so that the next start compiles nothing,
    even in another container. DIR then holds code that runs on your GPU.
    """
    spec = importlib.util.find_spec("autotuned")
    if spec is None or spec.origin is None:  # the package was deleted while it runs
        raise terminal.fail("autotuned is not installed as files; call autotuned.install() in the program.")
    startup = os.path.join(os.path.dirname(spec.origin), "dropin", "startup")
    if binaries == "":
        raise typer.BadParameter("expected a folder, got an empty string", param_hint="--binaries")
    if budget is not None and not (race and budget > 0):
        raise typer.BadParameter(f"expected seconds above 0, and --race, got {budget:g}", param_hint="--budget")
    kind = "-".join([name for name, asked in (("replace", replace), ("race", race)) if asked]) or "seed"
    environment = env.for_command(kind, startup, os.path.expanduser(binaries or ""), budget)
    if as_json:
        limit = "inf" if budget == math.inf else budget
        terminal.remark_json({"command": command, "install": kind, "binaries": binaries, "budget_s": limit})
    # Replace this process, so that signals, terminal and exit code are the command's own.
    sys.stdout.flush()
    try:
        os.execvpe(command[0], command, environment)
    except (OSError, ValueError) as error:  # a ValueError if the command is empty
        raise terminal.cannot_run(command[0], error) from error
