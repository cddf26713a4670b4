"""`autotuned warmup`: compiles the kernels for a recording's calls, for later processes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotuned.key.words import call_words

from .. import terminal

if TYPE_CHECKING:
    from autotuned.offline.warmup import PreparedCall

HEADERS = ("kernel~", "call~", "config~")


def warmup(
    path: Annotated[Path, typer.Argument(metavar="CALLS.jsonl", help="A recording by `autotuned record`.")],
    files: Annotated[
        list[str] | None, typer.Argument(metavar="FILE.py...", help="Scripts named in the recording that may run.")
    ] = None,
    binaries: Annotated[
        Path | None,
        typer.Option("--binaries", metavar="DIR", help="Also compile them into files next to the config files in DIR."),
    ] = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Compile the kernels for the calls of a recording.

    Each call gets its config and is compiled into Triton's cache, without a search or a launch. Kernels in modules are
    imported by name; a script that the recording names runs only if you also name it.

    Exit codes: 0 all are ready; 3 some are not tuned or failed; 1 none are ready.
    """
    from autotuned.offline.warmup import warmup  # imports torch and triton

    with terminal.users_output(as_json):
        result = warmup(path, files, binaries=binaries)
    if as_json:
        terminal.print_json(result.to_json())
    else:
        terminal.print_table(HEADERS, map(_cells, result.calls))
        if result.binaries is not None:
            terminal.print_built(result.binaries)
    failed, calls = result.failed, result.calls
    if failed:
        terminal.complain(f"error: {len(failed)} of {len(calls)} calls are not ready; the first: {failed[0].reason}")
        raise typer.Exit(3 if len(failed) < len(calls) else 1)


def _cells(call: PreparedCall) -> tuple[str, str, str]:
    config = call.config
    ready = terminal.config_words(config, options=call.triton is not None) if config is not None else call.reason
    return call.kernel, call_words(call.call), ready or ""
