"""`autotuned export`: writes the user's choices into config files, and compiles their kernels."""

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
        typer.Argument(
            metavar="KERNEL...", autocompletion=complete, help="Only these kernels: names or dotted suffixes."
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Write config files into this folder.")] = ...,  # type: ignore[assignment]
    binaries: Annotated[
        bool, typer.Option("--binaries", help="Also compile the kernels of DIR, into files next to its files.")
    ] = False,
    targets: Annotated[
        list[str] | None,
        typer.Option(
            "--target", metavar="TARGET", help="With --binaries: more modules, files or recordings with calls."
        ),
    ] = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Write the choices of the user's store into config files.

    The files are DIR/<device slug>/<kernel>.json; existing files are added to. Unfinished searches, and choices that
    are valid in one process only, are omitted.

    --binaries compiles each entry of DIR for the architecture of its file. It needs no GPU, and the store may be empty.
    Kernels are imported by name, and compiled for their cases; --target names more calls.

    Exit codes: 0 done; 3 some binaries could not be compiled.
    """
    with terminal.users_output(as_json):
        written = autotuned.export(out, kernels, binaries=binaries, targets=targets)
    if as_json:
        terminal.print_json(written.to_json())
    for path in [] if as_json else written.files:
        terminal.say(f"wrote {path}")
    if written.binaries is not None and not as_json:
        terminal.print_built(written.binaries)
    raise typer.Exit(terminal.built_code(written.binaries))
