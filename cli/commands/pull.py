"""`autotuned pull` and `autotuned push`: copy config files from and to a shared store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import autotuned

from .. import terminal

if TYPE_CHECKING:
    from autotuned.offline.release.shared import Moved

Url = Annotated[str, typer.Argument(metavar="URL", help="The shared store; - for that of AUTOTUNED_STORE.")]


def pull(
    url: Url,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Write the files into this folder.")] = ...,  # type: ignore[assignment]
    as_json: terminal.AsJson = False,
) -> None:
    """Copy the config files of a shared store into a folder.

    Rules and binaries are copied too. An existing config file is merged with the store's, as by `merge`; other existing
    files stay. No program uses the folder until it registers it or AUTOTUNED_CONFIG_PATH names it.

    Exit codes: 0 done; 3 files were skipped, for example not verified by AUTOTUNED_STORE_KEY; 1 the store cannot be
    read, or does not exist.
    """
    _print(autotuned.pull(url, out), as_json, "wrote", "the store holds no config files")


def push(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Config files, as `tune --out` writes them, or calls.jsonl.")
    ],
    url: Url,
    as_json: terminal.AsJson = False,
) -> None:
    """Copy the config files of a folder into a shared store.

    Rules and binaries are copied too. A config file in the store is merged with the folder's, as by `merge`; other
    files are replaced. With AUTOTUNED_STORE_KEY set, all are signed. A recording replaces its earlier version, and
    `tune --follow URL` tunes its calls.

    Exit codes: 0 done; 3 files were skipped; 1 the store cannot be read or written.
    """
    _print(autotuned.push(folder, url), as_json, "sent", "the folder holds no config files")


def _print(moved: Moved, as_json: bool, did: str, none: str) -> None:
    terminal.complain_of(moved.faults)
    if as_json:
        terminal.print_json(moved.to_json())
    elif not (moved.files or moved.same or moved.faults):
        terminal.say(none)
    else:
        for name in moved.files:
            terminal.say(f"{did} {name}")
        terminal.say(f"{did} {terminal.counted(len(moved.files), 'file')}{terminal.were_there(moved.same)}")
    if moved.faults:
        raise typer.Exit(3)
