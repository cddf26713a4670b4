"""`autotuned merge`: merges config files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import autotuned
from autotuned.key.words import call_words

from .. import terminal

if TYPE_CHECKING:
    from autotuned.configfiles.exchange import Conflict


def merge(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Config files, or folders of them.")],
    out: Annotated[Path, typer.Option("--out", metavar="OUT", help="A folder, or a file that ends in .json.")] = ...,  # type: ignore[assignment]
    as_json: terminal.AsJson = False,
) -> None:
    """Merge config files into new ones.

    The inputs are never changed. If several have different configs for one call, stderr names the conflict, and the
    better measured one wins: with times before without; then the larger gain over the default; then the faster; then
    the first. A file with git's conflict markers is read line by line.

    Exit codes: 0 done; 3 some inputs could not be read and were skipped; 1 none could be read.
    """
    merged = autotuned.merge(paths, out)
    terminal.complain_of(merged.faults)
    if not merged.files:
        raise terminal.fail("none of the inputs can be read.")
    for conflict in merged.conflicts:
        terminal.remark(f"conflict: {_words(conflict)}")
    if as_json:
        terminal.print_json(merged.to_json())
    else:
        terminal.say("\n".join(f"wrote {path}" for path in merged.files))
    if merged.faults:
        raise typer.Exit(3)


def _words(conflict: Conflict) -> str:
    key, taken, left = conflict.key, conflict.taken, conflict.left
    return (
        f"{key.kernel} {call_words(key.call)}: took {terminal.config_words(taken.config, key.is_of_triton)} "
        f"({terminal.time_words(taken.median_us)}, {terminal.ratio_words(taken.vs_default)}), left "
        f"{terminal.config_words(left.config, key.is_of_triton)} ({terminal.time_words(left.median_us)}, "
        f"{terminal.ratio_words(left.vs_default)}): {conflict.why}"
    )
