"""`autotuned list`: what is stored and shipped, one line a choice."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer

from autotuned import store

from . import output
from .stored import STORE, Stored, everything, matching, unknown

HEADERS = ("call", "config", "device", "toolchain", "source", "time>", "quality", "key")


def list_(
    kernel: Annotated[str | None, typer.Argument(help="Only kernels of this name, or whose name ends in it.")] = None,
    as_json: output.AsJson = False,
) -> None:
    """List what is stored and what config files hold.

    JSON: `cache` (the store's folder) and `choices`, each with `kernel`, `digest`, `call`, `config` (null: a search
    is not finished), `median_us`, `vs_default` (config files only), `quality` (records only), `device`, `triton`,
    `source` ("store" or the file) and `path`.
    """
    found = everything()
    if kernel is not None and found:
        found = _of(kernel, found)
    if as_json:
        output.print_json({"cache": str(store.root()), "choices": [stored.to_json() for stored in found]})
    elif found:
        for name, group in groupby(found, lambda stored: stored.key.kernel):
            _print(name, list(group))
    else:
        output.say(f"Nothing is stored in {store.root()}, and there are no config files in:")
        output.say("\n".join(f"  {folder}" for folder in store.config_folders()))


def _of(kernel: str, found: Sequence[Stored]) -> list[Stored]:
    names = [stored.key.kernel for stored in found]
    wanted = matching(names, kernel)
    if not wanted:
        raise output.fail(unknown(names, kernel))
    return [stored for stored in found if stored.key.kernel in wanted]


def _print(kernel: str, group: Sequence[Stored]) -> None:
    output.print_heading(kernel)
    output.print_table(HEADERS, [_cells(stored) for stored in group], stack=(1, 1, 3))


def _cells(stored: Stored) -> list[str]:
    return [
        output.call_words(stored.key.call),
        output.config_words(stored.config),
        stored.device,
        stored.toolchain,
        STORE if stored.record is not None else Path(stored.path).name,
        output.time_words(stored.median_us),
        stored.quality or "n/a",
        stored.key.digest[:12],
    ]
