"""`autotuned export`: writes the choices of the user's store into config files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import autotuned

from .. import terminal
from ..views.names import complete


def export(
    kernels: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KERNEL]...", autocompletion=complete, help="Only these, by name or the end of it."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Write config files into this folder.")] = ...,  # type: ignore[assignment]
    as_json: terminal.AsJson = False,
) -> None:
    """Write the choices of the user's store into config files.

    They are DIR/<device slug>/<kernel>.json; files that are there already are added to. Searches that are not
    finished, and choices that only one process can read, stay out.

    JSON: `files`, the paths.
    """
    written = autotuned.export(out, kernels)
    if as_json:
        terminal.print_json(written.to_json())
    for path in [] if as_json else written.files:
        terminal.say(f"wrote {path}")
