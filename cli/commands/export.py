"""`autotuned export`: writes the choices of the user's store into config files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autotuned.configfiles import exchange, writer
from autotuned.store import layout, listing

from .. import terminal
from ..views.stored import all_of, complete


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
    known = listing.kernels()
    wanted = sorted(known)
    if kernels:
        wanted = [name for kernel in kernels for name in all_of(known, kernel)]
    if not wanted:
        raise terminal.fail(f"nothing is stored in {layout.root()}: tune something first.")
    if reason := writer.unwritable(out):
        raise terminal.cannot_write(out, reason)
    written = [str(path) for path in exchange.export(out, wanted)]
    if as_json:
        terminal.print_json({"files": written})
    for path in [] if as_json else written:
        terminal.say(f"wrote {path}")
