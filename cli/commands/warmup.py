"""`autotuned warmup`: compiles what the calls of a recording need, so that a process that starts later finds it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from autotuned.typed_json import Json

from .. import terminal

HEADERS = ("kernel", "call", "config")


def warmup(
    path: Annotated[Path, typer.Argument(metavar="CALLS.jsonl", help="What `autotuned record` wrote.")],
    files: Annotated[
        list[str] | None, typer.Argument(metavar="[FILE.py]...", help="Files that it names, and that may be run.")
    ] = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Compile what the calls of a recording need.

    Kernels of modules are imported by name. A file that the recording names, as of a script, is run only if it is given
    too.

    Each is decided and compiled, without launching or searching; the binaries are in Triton's cache afterwards. Exit
    codes: 0 all are ready; 3 some are not tuned or failed; 1 all.

    JSON: `calls`, each with `kernel`, `triton` (its version; null for a plain callable), `call`, `count`, `config`
    (null if it is not ready) and `reason`.
    """
    from autotuned.offline import cases, tuning  # need torch and triton, if they are there

    with tuning.users_output(as_json):
        rows = _rows(path, files or [], cases.tensors_on(tuning.use_device()))
    if as_json:
        terminal.print_json({"calls": rows})
    else:
        terminal.print_table(HEADERS, map(_cells, rows), stack=(1, 1, 1))
    failed = [row for row in rows if row["config"] is None]
    if failed:
        terminal.complain(f"error: {len(failed)} of {len(rows)} calls are not ready; the first: {failed[0]['reason']}")
        raise typer.Exit(3 if len(failed) < len(rows) else 1)


def _rows(path: Path, files: list[str], device: str) -> list[dict[str, Json]]:
    from autotuned.offline import replay
    from autotuned.resolve import explain

    with explain.reading_once():  # each call that is not tuned says what is nearest to it
        return [_row(found, call, device) for found in replay.load(path, files) for call in found.calls]


def _row(found: Any, recorded: Any, device: str) -> dict[str, Json]:
    from autotuned.key import opaque
    from autotuned.offline import replay
    from autotuned.tunable import configs

    key = recorded.key
    row = {
        "kernel": key.kernel, "triton": key.context.get("triton"), "call": key.call, "count": recorded.count,
        "config": None,
    }  # fmt: skip
    if found.reason:
        return {**row, "reason": found.reason}
    try:
        call, _ = replay.call_of(found, recorded, device)
        config = found.tuner.prepare(call, search=False)
        return {**row, "config": configs.stored_form(config, key.kernel, opaque.spell), "reason": None}
    except Exception as error:  # any error of the user's kernel, pruners and hooks: the others go on
        return {**row, "reason": f"{type(error).__name__}: {error}"}


def _cells(row: dict[str, Json]) -> tuple[str, str, str]:
    """A row of the table under `HEADERS`."""
    config = row["config"]
    ready = terminal.config_words(config, options=row["triton"] is not None) if config is not None else row["reason"]
    return row["kernel"], terminal.call_words(row["call"]), ready
