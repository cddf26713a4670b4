"""`autotuned record`: runs a command and records each distinct call of its tuned kernels in a file."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Annotated

import typer

from autotuned import env
from autotuned.errors import RecordingError
from autotuned.recording import file

from .. import terminal


def record(
    path: Annotated[Path, typer.Argument(metavar="CALLS.jsonl", help="The file; an existing one is added to.")],
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="The command to run.")],
    as_json: terminal.AsJson = False,
) -> None:
    """Run a command and record the calls of its tuned kernels.

    Each distinct call goes into the file once, with its count. Processes that the command starts are recorded too.

    Exit code: that of the command; 1 if nothing was recorded.
    """
    if problem := file.misnamed(path):
        raise typer.BadParameter(problem, param_hint="CALLS.jsonl")
    target = path.expanduser().absolute()
    try:
        file.Writer(target).close()  # fail now, not after the command has run for hours
        before = target.stat().st_size
    except OSError as error:
        raise terminal.fail(f"{path} cannot be written: {error.strerror or error}") from error
    try:
        code = _run(command, env.for_recording(target))
    finally:
        has_calls = _was_added_to(target, before)
    if not has_calls:
        terminal.complain(f"error: {path}: nothing was recorded: the command called no tuned kernel.")
        raise typer.Exit(code or 1)
    try:
        found = file.read(target)
    except RecordingError as error:
        raise terminal.fail(str(error)) if code == 0 else typer.Exit(code) from error
    kernels, total = len({call.kernel for call in found}), sum(call.count for call in found)
    facts = {"path": str(path), "kernels": kernels, "distinct": len(found), "calls": total, "exit_code": code}
    distinct, of = terminal.counted(len(found), "distinct call"), terminal.counted(kernels, "kernel")
    words = f"{path}: {distinct} of {of}, {total} in all"
    if as_json:
        terminal.remark_json(facts)
    else:
        terminal.remark(words)
    raise typer.Exit(code)


def _was_added_to(path: Path, before: int) -> bool:
    """Whether a file has grown beyond a size; removes it if it is empty."""
    try:
        with open(path, "rb") as file:
            file.seek(before)
            has_more = any(line.strip() for line in file)
    except OSError:  # the command has removed it
        return False
    if not has_more and not before:
        path.unlink(missing_ok=True)
    return has_more


def _run(command: list[str], environment: dict[str, str]) -> int:
    """Run a command in this terminal, where it handles Ctrl-C; returns its exit code as a shell would."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process = subprocess.Popen(
            command, env=environment, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
        )
        code = process.wait()
    except OSError as error:
        raise terminal.cannot_run(command[0], error) from error
    finally:
        signal.signal(signal.SIGINT, before)
    return code if code >= 0 else 128 - code
