"""`autotuned prune`: removes entries that no recorded call uses from config files."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import autotuned
from autotuned.key.words import call_words, toolchain_words

from .. import terminal
from ..views.names import recording_of

if TYPE_CHECKING:
    from autotuned.offline.release.prune import Pruned, PruneResult

HEADERS = ("call~", "config~", "toolchain=", "time>?", "binaries>?")


def prune(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Config files, or folders of them.")],
    unused: Annotated[bool, typer.Option("--unused", help="Remove entries that no call of a recording needs.")] = False,
    recorded: Annotated[
        Path | None, typer.Option("--calls", metavar="CALLS.jsonl", help="The recording; default: AUTOTUNED_RECORD.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what would be removed, and change nothing.")] = False,
    as_json: terminal.AsJson = False,
) -> None:
    """Remove config file entries that a recording never calls.

    It lists the entries and asks before it removes them, with their compiled kernels. Files that become empty are
    removed too. Entries for devices, versions of Triton, environments and sources that the recording lacks stay, and so
    do entries that differ only in sizes from a call without an entry: `nearest=` may serve it. `list --unused` lists
    the same.

    Exit codes: 0 done; 3 a file could not be read or changed, and stays; 1 none could, or you answered no.
    """
    if not unused:
        raise typer.BadParameter(
            "expected --unused: remove entries that no call of a recording uses", param_hint="--unused"
        )
    calls = recording_of(recorded)
    found = autotuned.prune(paths, calls=calls, dry_run=True)
    if not as_json:
        _print(found)
    if found.entries and not dry_run:
        if not yes:
            terminal.ask(f"Remove {_words(found)} from {terminal.counted(len(found.files), 'file')}?")
        found = autotuned.prune(paths, calls=calls)
    terminal.complain_of(found.faults)
    if as_json:
        terminal.print_json(found.to_json())
    else:
        would = "would be removed" if dry_run else "removed"
        done = f"{_words(found)} {would}" if found.entries else "nothing to remove"
        terminal.say(f"{done}, {found.kept} kept")
    if found.faults:
        raise typer.Exit(3 if found.kept or found.entries else 1)


def _print(found: PruneResult) -> None:
    for path, entries in groupby(found.entries, lambda one: one.path):
        terminal.print_table(HEADERS, map(_cells, entries), path)


def _cells(one: Pruned) -> list[str]:
    return [
        call_words(one.key.call),
        terminal.config_words(one.entry.config, one.key.is_of_triton),
        toolchain_words(one.key.context),
        terminal.time_words(one.entry.median_us),
        str(one.binaries),
    ]


def _words(found: PruneResult) -> str:
    binaries = f" and {terminal.counted(found.binaries, 'compiled kernel')}" if found.binaries else ""
    return terminal.counted(len(found.entries), "entry", "entries") + binaries
