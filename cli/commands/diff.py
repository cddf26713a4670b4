"""`autotuned diff`: shows the differences between two config files, or two folders of them."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import autotuned
from autotuned.gpu.device import from_json
from autotuned.key.words import call_words, toolchain_words

from .. import terminal

if TYPE_CHECKING:
    from autotuned.configfiles.exchange import Change

HEADERS = ("call~", "config~", "", "time>", "vs default>?", "toolchain=")
KINDS = ("added", "removed", "changed", "compiled")


def diff(
    before: Annotated[Path, typer.Argument(metavar="A", help="A config file, or a folder of them.")],
    after: Annotated[Path, typer.Argument(metavar="B", help="Another one.")],
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 1 if choices differ.")] = False,
    as_json: terminal.AsJson = False,
) -> None:
    """Show which choices B adds to, removes from or changes in A.

    Exit codes: 0 whether they differ or not; 1 a file cannot be read. With --exit-code also 1 if a call has different
    configs, or is in only one of the two; differing times alone do not count.
    """
    found = autotuned.diff(before, after)
    terminal.complain_of(found.faults)
    if as_json:
        terminal.print_json(found.to_json())
    else:
        _print(found.changes)
        for rule in found.rules:
            terminal.say(f"rule {rule.kind}: {rule.kernel} on {from_json(rule.device).slug}, {rule.sizes}")
    if found.faults or (exit_code and (found.rules or any(change.is_of_choice for change in found.changes))):
        raise typer.Exit(1)


def _print(changes: list[Change]) -> None:
    for (kernel, slug), group in groupby(sorted(changes, key=_place), key=_place):
        terminal.print_table(HEADERS, [_cells(change) for change in group], heading=f"{kernel}  {slug}")
    counts = {kind: sum(change.kind == kind for change in changes) for kind in KINDS}
    shown = KINDS if counts["compiled"] else KINDS[:-1]
    terminal.say(", ".join(f"{counts[kind]} {kind}" for kind in shown))


def _place(change: Change) -> tuple[str, str]:
    return change.key.kernel, from_json(change.key.context["device"]).slug


def _cells(change: Change) -> list[str]:
    return [
        call_words(change.key.call),
        _both(change, lambda entry: terminal.config_words(entry.config, change.key.is_of_triton)),
        change.kind,
        _both(change, lambda entry: terminal.time_words(entry.median_us)),
        _both(change, lambda entry: terminal.ratio_words(entry.vs_default)),
        toolchain_words(change.key.context),
    ]


def _both(change: Change, words: Any) -> str:
    """One side in words, or "before -> after" if they differ."""
    sides = dict.fromkeys(words(entry) for entry in (change.before, change.after) if entry is not None)
    return " -> ".join(sides)
