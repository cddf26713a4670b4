"""`autotuned clear`: deletes records of the user's store."""

from __future__ import annotations

from typing import Annotated

import typer

from autotuned.store import layout, listing

from .. import terminal
from ..views.names import Kernel


def clear(
    kernel: Kernel = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: terminal.AsJson = False,
) -> None:
    """Delete stored records, so that kernels are tuned again.

    Config files are never touched.
    """
    names = listing.kernels()
    name = listing.one_named(names, kernel) if kernel is not None and names else kernel
    count = sum(1 for _ in listing.all_heads(name)) if names else 0
    where = f"of {name or 'all kernels'} in {layout.root()}"
    if count and not yes:
        terminal.ask(f"Delete {terminal.counted(count, 'record')} {where}?")
    deleted = listing.clear(name) if count else 0
    if as_json:
        terminal.print_json({"kernel": name, "deleted": deleted, "cache": str(layout.root())})
    else:
        terminal.say(f"deleted {terminal.counted(deleted, 'record')} {where}")
