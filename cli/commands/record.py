"""`autotuned record`: runs a command and records each distinct call of its tuned kernels in a file."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotuned import env
from autotuned._startup import later
from autotuned.errors import RecordingError
from autotuned.recording import file

from .. import terminal

if TYPE_CHECKING:
    from autotuned.configfiles import writer
else:
    writer = later("configfiles.writer")


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
        _try_writing(target)  # fail now, not after the command has run for hours
        before = target.stat().st_size
    except OSError as error:
        raise terminal.fail(f"{path} cannot be written: {error.strerror or error}") from error
    try:
        code = _run(command, env.for_recording(target))
    finally:
        has_calls = _was_added_to(target, before)
    if not has_calls:
        terminal.complain(f"error: {path}: nothing was recorded: {_why_nothing(target)}.")
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


def _try_writing(path: Path) -> None:
    """Create a file if it is missing, and write to it or, while it is empty, to its folder; OSError if that fails."""
    is_new = not path.exists()
    if is_new:
        path.parent.mkdir(parents=True, exist_ok=True)
        writer.probe(path.parent)
    file.Writer(path).close()  # to a file with lines it writes a blank one


def _why_nothing(path: Path) -> str:
    """Why the command has added no call to a file."""
    try:
        _try_writing(path)
        _was_added_to(path, 0)  # removes it if it is empty
    except OSError as error:
        return f"it cannot be written: {error.strerror or error}; the lines above say which calls are lost"
    return "the command called no tuned kernel"


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
