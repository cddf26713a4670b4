"""`autotuned list`: what is stored and shipped, one line a choice."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from autotuned import env
from autotuned.configfiles import lookup
from autotuned.store import layout

from .. import terminal
from ..views.stored import Stored, all_of, complete, kernels, of_kernel

HEADERS = ("call", "config", "device", "toolchain", "source", "time>", "quality", "key")
TABLE_ROWS = 200  # more are written line by line: a table of them all would need them all at once, and minutes


def list_(
    kernel: Annotated[
        str | None, typer.Argument(autocompletion=complete, help="Only kernels of this name, or whose name ends in it.")
    ] = None,
    unused: Annotated[bool, typer.Option("--unused", help="Only what a recording never used.")] = False,
    missing: Annotated[bool, typer.Option("--missing", help="What a recording used and is not tuned.")] = False,
    recorded: Annotated[
        Path | None, typer.Option("--calls", metavar="CALLS.jsonl", help="The recording; default: AUTOTUNED_RECORD.")
    ] = None,
    as_json: terminal.AsJson = False,
) -> None:
    """List what is stored and what config files hold.

    The config files of this package itself are listed only by a kernel's name.

    With --unused and --missing the choices are compared with the calls of a recording: what was tuned, for a device of
    the recording, and answers none of its calls; and what was called and is not tuned, with the parts in which the
    nearest key differs.

    JSON: `cache` (the store's folder) and `choices`, each with `kernel`, `digest`, `call`, `config` (null: a search
    is not finished), `median_us`, `vs_default` (config files only), `quality` (records only), `device`, `triton`,
    `source` ("store" or the file) and `path`. With --unused or --missing: `cache`, `calls` (the recording), `unused`
    (choices) and `missing` (null if not asked for), each with `kernel`, `digest`, `call`, `count`, `reason`, `nearest`
    (a digest) and `changes` (`path`, `stored`, `now`).
    """
    if unused or missing or recorded is not None:
        _compare(kernel, recorded, unused, missing, as_json)
        return
    own = kernel is not None
    names = kernels(own=own)
    if kernel is not None and names:
        names = all_of(names, kernel)
    if as_json:
        _print_json(stored for name in names for stored in of_kernel(name, heads=True, own=own))
    elif names:
        for name in names:
            _print(name, of_kernel(name, heads=True, own=own))
    else:
        terminal.say(f"Nothing is stored in {layout.root()}, and there are no config files in:")
        terminal.say("\n".join(f"  {folder}" for folder in lookup.config_folders()))


def _compare(kernel: str | None, recorded: Path | None, unused: bool, missing: bool, as_json: bool) -> None:
    from ..views import usage  # what explains a miss is not needed for a listing

    path = recorded or env.record_path()
    if path is None:
        raise typer.BadParameter("expected a recording: give --calls CALLS.jsonl", param_hint="--unused, --missing")
    if not unused and not missing:
        raise typer.BadParameter("expected --unused, --missing or both beside it", param_hint="--calls")
    usage.list_usage(kernel, path, unused, missing, as_json)


def _print_json(found: Iterable[Stored]) -> None:
    """One document, written as it is read: there may be more choices than fit into memory."""
    terminal.write(f'{{\n "cache": {json.dumps(str(layout.root()))},\n "choices": [\n')
    lines = (f"  {json.dumps(stored.to_json(), allow_nan=False)}" for stored in found)
    comma = ""
    while some := list(itertools.islice(lines, TABLE_ROWS)):
        terminal.write(comma + ",\n".join(some))
        comma = ",\n"
    terminal.write("\n ]\n}\n" if comma else " ]\n}\n")


def _print(kernel: str, found: Iterator[Stored]) -> None:
    first = list(itertools.islice(found, TABLE_ROWS))
    if not first:
        return
    terminal.print_heading(kernel)
    terminal.print_table(HEADERS, [_cells(stored) for stored in first], stack=(1, 1, 3))
    while some := list(itertools.islice(found, TABLE_ROWS)):
        terminal.say("\n".join("  ".join(_cells(stored)) for stored in some))


def _cells(stored: Stored) -> list[str]:
    return [
        stored.call_words,
        stored.config_words,
        stored.device,
        stored.toolchain,
        stored.place,
        terminal.time_words(stored.median_us),
        stored.quality or "n/a",
        stored.digest[:12],
    ]
