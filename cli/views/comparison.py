"""`list --unused --missing`: choices against the calls of a recording."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from autotuned.key.words import call_words
from autotuned.offline import stored, usage
from autotuned.offline.stored import Stored
from autotuned.offline.usage import Missing
from autotuned.recording import file
from autotuned.store import listing, records

from .. import terminal

UNUSED_HEADERS = ("kernel", "call", "config", "toolchain", "source", "key")
MISSING_HEADERS = ("kernel", "call", "tuned != used, from the nearest", "calls>", "key")


def print_usage(kernel: str | None, path: Path, unused: bool, missing: bool, as_json: bool) -> None:
    """Print what `list --unused --missing` does."""
    recorded = file.read(path)
    wanted = _wanted(kernel, {call.kernel for call in recorded})
    found = usage.usage(call for call in recorded if wanted is None or call.kernel in wanted)
    never = usage.unused(stored.kernels(own=False) if wanted is None else wanted, found) if unused else None
    wanting = list(usage.missing_of(found)) if missing else None
    if as_json:
        terminal.print_json({
            "cache": str(records.root()),
            "calls": str(path),
            "unused": None if never is None else [choice.to_json() for choice in never],
            "missing": None if wanting is None else [one.to_json() for one in wanting],
        })  # fmt: skip
        return
    if never is not None:
        _print("tuned, not used", "all that is tuned is used", UNUSED_HEADERS, [_unused_cells(one) for one in never])
    if wanting is not None:
        rows = [_missing_cells(one) for one in wanting]
        _print("used, not tuned", "all that is used is tuned", MISSING_HEADERS, rows)


def _wanted(kernel: str | None, recorded: set[str]) -> list[str] | None:
    """The kernels that are meant, of those that are stored, shipped or recorded; None for all."""
    if kernel is None:
        return None
    return listing.named({*stored.kernels(), *recorded}, kernel)


def _print(heading: str, otherwise: str, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    if rows:
        terminal.print_heading(heading)
        terminal.print_table(headers, rows, stack=(1, 1, 1))
    else:
        terminal.say(otherwise)


def _unused_cells(choice: Stored) -> list[str]:
    words = [choice.key.kernel, choice.call_words, choice.config_words, choice.toolchain]
    return [*words, choice.place, choice.digest[:12]]


def _missing_cells(one: Missing) -> list[str]:
    return [one.key.kernel, call_words(one.key.call), one.words, str(one.count), one.key.digest[:12]]
