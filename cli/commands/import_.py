"""`autotuned import`: writes the choices of config files into the user's store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import autotuned

from .. import terminal


def import_(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Config files, or folders of them.")],
    as_json: terminal.AsJson = False,
) -> None:
    """Write the choices of config files into the user's store.

    Choices measured on this machine stay. Compiled kernels are not imported: the store holds no code.

    Exit codes: 0 done; 3 some could not be read and were skipped; 1 none could be read.
    """
    result = autotuned.import_configs(paths)
    terminal.complain_of(result.faults)
    if as_json:
        terminal.print_json(result.to_json())
    else:
        stay = f"; {result.kept} measured here {'stays' if result.kept == 1 else 'stay'}" if result.kept else ""
        imported = terminal.counted(result.written, "choice")
        terminal.say(f"imported {imported}{terminal.were_there(result.same)}{stay}")
        if result.binaries:
            left = terminal.counted(result.binaries, "compiled kernel")
            terminal.say(f"{left} not imported: register_configs(FOLDER, binaries=True) serves them in place")
        if result.rules:
            left = terminal.counted(result.rules, "rule")
            terminal.say(f"{left} not imported: register_configs(FOLDER) serves them in place")
    if result.faults:
        raise typer.Exit(3 if result.written or result.same or result.kept else 1)
