"""`autotuned list`: lists stored and shipped choices, one per line."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import autotuned
from autotuned._startup import later
from autotuned.key.words import call_words
from autotuned.recording import file
from autotuned.store import layout, listing

from .. import terminal
from ..views.names import Kernel, OnlyKernel, kernel_of, recording_of

if TYPE_CHECKING:
    from autotuned.configfiles import lookup
    from autotuned.offline.report import stored, usage
    from autotuned.offline.report.stored import Stored
    from autotuned.offline.report.usage import Missing
else:
    lookup, stored, usage = map(later, ("configfiles.lookup", "offline.report.stored", "offline.report.usage"))

HEADERS = ("call~", "config~", "device~=", "toolchain=", "source=", "time>", "quality=", "differs in~=", "key?")
UNUSED_HEADERS = ("kernel~=", "call~", "config~", "toolchain=", "source=", "key?")
MISSING_HEADERS = ("kernel~=", "call~", "tuned != used, from the nearest~", "calls>", "key?")
TABLE_ROWS = 200  # the rest is written line by line, since one large table would take much memory and minutes


def list_(
    kernel: Kernel = None,
    unused: Annotated[bool, typer.Option("--unused", help="Choices that no call of a recording needs.")] = False,
    missing: Annotated[bool, typer.Option("--missing", help="Calls of a recording that are not tuned.")] = False,
    recorded: Annotated[
        Path | None, typer.Option("--calls", metavar="CALLS.jsonl", help="The recording; default: AUTOTUNED_RECORD.")
    ] = None,
    digest: Annotated[bool, typer.Option("--digest", help="Print a checksum of all choices instead.")] = False,
    named: OnlyKernel = None,
    device: terminal.OnlyDevice = None,
    triton: terminal.OnlyTriton = None,
    as_json: terminal.AsJson = False,
) -> None:
    """List the choices in the store and in config files.

    The config files of this package are listed only if you name a kernel. --unused lists choices for the
    recording's devices, versions of Triton, environments and sources that none of its calls needs (`prune` removes
    them from config files), --missing its calls that are not tuned.

    --digest prints 64 hex digits. They are equal on two machines, ranks or runs exactly if the choices are equal; to
    see the differences, `export` on both and `diff`.
    """
    kernel = kernel_of(kernel, named)
    if (digest or unused or missing or recorded is not None) and (device or triton):
        raise typer.BadParameter("expected for a plain listing only", param_hint="--device, --triton")
    if digest:
        _print_digest(kernel, unused or missing or recorded is not None, as_json)
        return
    if unused or missing or recorded is not None:
        _compare(kernel, recorded, unused, missing, as_json)
        return
    found = stored.choices(stored.Filter(kernel, device, triton), heads=True)
    first = next(found, None)  # raises before anything is printed
    found = found if first is None else itertools.chain([first], found)
    if as_json:
        _print_json(found)
    elif first is not None:
        met = set()
        for name, some in itertools.groupby(found, lambda one: one.key.kernel):
            met |= _print(name, some)
        terminal.print_qualities(met)
    elif layout.is_copy():
        terminal.say(f"Nothing is stored in {layout.named()}.")
    else:
        terminal.say(f"Nothing is stored in {layout.named()}, and there are no config files in:")
        terminal.say("\n".join(f"  {folder}" for folder in lookup.config_folders()))


def _print_digest(kernel: str | None, is_comparing: bool, as_json: bool) -> None:
    if is_comparing:
        raise typer.BadParameter("expected without --unused, --missing and --calls", param_hint="--digest")
    found = autotuned.choices_digest(kernel)
    if as_json:
        terminal.print_json({"digest": found})
    else:
        terminal.say(found)


def _compare(kernel: str | None, recorded: Path | None, unused: bool, missing: bool, as_json: bool) -> None:
    path = recording_of(recorded)
    if not unused and not missing:
        raise typer.BadParameter("expected --unused, --missing or both as well", param_hint="--calls")
    made = file.read(path)
    wanted = None if kernel is None else listing.named({*stored.kernels(), *(call.kernel for call in made)}, kernel)
    found = usage.Usage(call for call in made if wanted is None or call.kernel in wanted)
    never = found.unused(stored.kernels(own=False) if wanted is None else wanted) if unused else None
    wanting = found.missing if missing else None
    if as_json:
        terminal.print_json({
            "cache": layout.named(),
            "calls": str(path),
            "unused": None if never is None else [one.to_json() for one in never],
            "missing": None if wanting is None else [one.to_json() for one in wanting],
        })  # fmt: skip
        return
    if never is not None:
        rows = [_unused_cells(one) for one in never]
        _print_rows("tuned, not used", "everything tuned is used", UNUSED_HEADERS, rows)
    if wanting is not None:
        rows = [_missing_cells(one) for one in wanting]
        _print_rows("used, not tuned", "everything used is tuned", MISSING_HEADERS, rows)


def _print_rows(heading: str, otherwise: str, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    if rows:
        terminal.print_table(headers, rows, heading)
    else:
        terminal.say(otherwise)


def _unused_cells(one: Stored) -> list[str]:
    words = [one.key.kernel, one.call_words, one.config_words, one.toolchain]
    return [*words, one.place, one.digest[:12]]


def _missing_cells(one: Missing) -> list[str]:
    return [one.key.kernel, call_words(one.key.call), one.words, str(one.count), one.key.digest[:12]]


def _print_json(found: Iterable[Stored]) -> None:
    """Print one document, streamed, since the choices may not fit into memory."""
    terminal.write(f'{{\n "cache": {json.dumps(layout.named())},\n "choices": [\n')
    lines = (f"  {json.dumps(one.to_json(), allow_nan=False)}" for one in found)
    comma = ""
    while terminal.is_read() and (some := list(itertools.islice(lines, TABLE_ROWS))):
        terminal.write(comma + ",\n".join(some))
        comma = ",\n"
    terminal.write("\n ]\n}\n" if comma else " ]\n}\n")


def _print(kernel: str, found: Iterator[Stored]) -> set[tuple[str | None, str | None]]:
    """Print a kernel's choices; returns the quality and device of those in the table."""
    first = list(itertools.islice(found, TABLE_ROWS))
    terminal.print_table(HEADERS, list(_rows(first)), kernel)
    while terminal.is_read() and (some := list(itertools.islice(found, TABLE_ROWS))):
        terminal.say("\n".join("  ".join(filter(None, row)) for row in _rows(some)), whole=True)
    return {(one.quality, one.device) for one in first}


def _rows(found: Sequence[Stored]) -> Iterator[list[str]]:
    differing = stored.apart(found)
    return (_cells(one, differing.get(id(one), "")) for one in found)


def _cells(one: Stored, differing: str) -> list[str]:
    return [
        one.call_words,
        one.config_words,
        one.device,
        one.toolchain,
        one.place,
        terminal.time_words(one.median_us),
        one.quality or "n/a",
        differing,
        one.digest[:12],
    ]
