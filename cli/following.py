"""`tune --follow`: shows a companion's status on the terminal, one line per minute."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import typer

from autotuned.typed_json import Json

from . import terminal
from .progress import case_words

if TYPE_CHECKING:
    from autotuned.offline.follow import FollowStatus


def follow(
    targets: list[str], others: Mapping[str, object], devices: str | None, isolate: bool | None, timeout: float,
    as_json: bool, interrupted: int,
) -> int:  # fmt: skip
    """Follow a recording; returns the exit code."""
    from autotuned.offline import follow as following

    recordings = [target for target in targets if target.endswith(".jsonl") or following.is_store(target)]
    if len(recordings) != 1:
        got = f"got {len(recordings)}: name the file of AUTOTUNED_RECORD, or a store"
        raise typer.BadParameter(
            f"expected one recording (.jsonl, or the URL of a shared store) among the targets, {got}",
            param_hint="--follow",
        )
    if given := [name for name, value in others.items() if value]:
        why = "choices go into the store, and autotuned export writes them into files"
        raise typer.BadParameter(f"expected without {given[0]}, got both: {why}", param_hint="--follow")
    files = [target for target in targets if target not in recordings]
    tell = _teller(terminal.json_lines() if as_json else None)
    with terminal.users_output(as_json):
        result = following.follow(
            recordings[0], files, devices=devices, isolate=isolate, timeout_s=timeout, progress=tell
        )
    return interrupted if result.interrupted else 0


def _teller(write: Callable[[Json], None] | None) -> Callable[[FollowStatus], None]:
    """A function that prints one line per status; new problems go to stderr."""
    told = 0

    def tell(status: FollowStatus) -> None:
        nonlocal told
        for problem in status.problems[told:]:
            terminal.remark(problem)
        told = len(status.problems)
        if write is not None:
            write(status.to_json())
        else:
            terminal.say(_status_words(status))

    return tell


def _status_words(status: FollowStatus) -> str:
    words = f"{status.chosen} of {status.calls} keys tuned, {status.share:.0%} of the recorded time"
    words += f"; {status.waiting} waiting" if status.waiting else ""
    case = status.latest
    if case is None or case.status != "done":
        return words
    gain = f" {case.vs_default:.2f}x" if case.vs_default else ""
    return f"{words}; latest: {case.kernel}  {case_words(case)}{gain}"
