"""`autotuned export`: writes the choices of the user's store into config files, and compiles what ships beside them."""

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
        typer.Argument(metavar="KERNEL...", autocompletion=complete, help="Only these, by name or the end of it."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Write config files into this folder.")] = ...,  # type: ignore[assignment]
    binaries: Annotated[bool, typer.Option("--binaries", help="Compile what the files of DIR need, too.")] = False,
    targets: Annotated[
        list[str] | None,
        typer.Option("--target", metavar="TARGET", help="With --binaries: modules, files, recordings with calls."),
    ] = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Write the choices of the user's store into config files.

    They are DIR/<device slug>/<kernel>.json; files that are there already are added to. Searches that are not
    finished, and choices that only one process can read, stay out.

    With --binaries each entry of DIR is compiled for the architecture that its file names; no GPU is needed, and the
    store may be empty. Kernels are imported by their names, and their cases say for which calls; --target names others.

    Exit codes: 0 done; 3 with --binaries, some could not be compiled.

    JSON: `files`, the paths, and with --binaries `binaries.files`, as `tune` has them.
    """
    with terminal.users_output(as_json):
        written = autotuned.export(out, kernels, binaries=binaries, targets=targets)
    if as_json:
        terminal.print_json(written.to_json())
    for path in [] if as_json else written.files:
        terminal.say(f"wrote {path}")
    if written.binaries is not None:
        if not as_json:
            terminal.print_built(written.binaries)
        if written.binaries.missing:
            terminal.complain(f"error: {len(written.binaries.missing)} binaries are missing")
            raise typer.Exit(3)
