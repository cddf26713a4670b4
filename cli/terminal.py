"""What commands print and how: tables, JSON, and times and ratios in few words."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import logging
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Annotated

import typer

from autotuned.configfiles.file import Fault
from autotuned.typed_json import Json

if TYPE_CHECKING:
    from rich.console import Console, Group, RenderableType
    from rich.padding import Padding
    from rich.table import Table

    from autotuned.offline.results import BuildResult

NARROW = 110  # columns; below this the long cells of a row are stacked instead of standing side by side
LEAST = 20  # columns for the stacked cells; with less, the other cells stand below them
_quiet = False
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else on stdout.")]
OnlyDevice = Annotated[
    str | None,
    typer.Option("--device", metavar="NAME", help="Only devices with this in their name: h200, interpreter."),
]
OnlyTriton = Annotated[
    str | None, typer.Option("--triton", metavar="VERSION", help="Only this version of Triton: 3.6.0, or 3.6 for all.")
]


def stdout() -> Console:
    """The console for results; without a terminal plain text of 80 columns, or of COLUMNS."""
    from rich.console import Console

    # Labels and paths hold brackets and numbers, which are neither markup nor to be coloured.
    return Console(markup=False, highlight=False, emoji=False)


def stderr() -> Console:
    """The console for progress."""
    from rich.console import Console

    return Console(stderr=True, markup=False, highlight=False, emoji=False)


def users_output(as_json: bool) -> AbstractContextManager[object]:
    """Where what the user's modules and kernels print goes: not into the middle of the JSON."""
    return contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext()


def spell_what_stdout_cannot() -> None:
    """Let letters that the encoding of stdout does not have be printed by their numbers, as stderr does by itself."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


@contextlib.contextmanager
def hushed(quiet: bool) -> Iterator[None]:
    """With `quiet`, print nothing but JSON and what went wrong, inside a `with` block."""
    global _quiet
    before, _quiet = _quiet, quiet
    try:
        yield
    finally:
        _quiet = before


def is_quiet() -> bool:
    """Whether nothing but JSON and what went wrong is to be printed."""
    return _quiet


def counted(count: int, noun: str, several: str = "") -> str:
    """So many of something: "1 kernel", "2 kernels"; `several` where that is more than an s."""
    return f"{count} {noun}" if count == 1 else f"{count} {several or noun + 's'}"


def printable(text: str) -> str:
    """A text with whatever a terminal would obey, or show in another order, spelled out; line breaks stay.

    Names, hosts and errors come from files and other programs: an escape sequence in one could move the cursor, change
    the clipboard, or hide a line, and so could a lone surrogate end the program.
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter in "\n\t" else _spelled(letter) for letter in text)


def _spelled(letter: str) -> str:
    return letter.encode("unicode_escape").decode()


class _Printable(logging.Filter):
    """Makes what the library logs printable, whatever shows it."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = printable(record.getMessage()), ()
        return True


@contextlib.contextmanager
def printable_log() -> Iterator[None]:
    """Log printable text only, inside a `with` block."""
    log, clean = logging.getLogger("autotuned"), _Printable()
    log.addFilter(clean)
    try:
        yield
    finally:
        log.removeFilter(clean)


def say(text: str, end: str = "\n") -> None:
    """Print a line of a result."""
    if not _quiet:
        write(printable(text) + end)


def write(text: str) -> None:
    """Print a part of a JSON document."""
    typer.echo(text, nl=False)


def remark(text: str) -> None:
    """Print one line on stderr, whatever line breaks the text has."""
    if not _quiet:
        complain(text)


def complain(text: str) -> None:
    """Print one line on stderr, also with --quiet: it says why the exit code is not 0."""
    typer.echo(printable(" ".join(text.split())), err=True)


def json_lines() -> Callable[[Json], None]:
    """What prints a JSON document in a line of what stdout is now, wherever that leads later."""
    stdout = sys.stdout
    return lambda data: typer.echo(json.dumps(data, allow_nan=False), file=stdout)


def remark_text(text: str) -> None:
    """Print a text of several lines on stderr."""
    typer.echo(printable(text), err=True, nl=False)


def remark_json(data: Json) -> None:
    """Print a JSON document on stderr, beside another program's output."""
    typer.echo(json.dumps(data, allow_nan=False), err=True)


def fail(text: str, code: int = 1) -> typer.Exit:
    """Say in one line why a command failed; the caller raises what this returns."""
    complain(f"error: {text}")
    return typer.Exit(code)


def cannot_write(path: object, reason: object) -> typer.Exit:
    """Say that nothing can be written where `--out` says; the caller raises what this returns."""
    return fail(f"--out: nothing can be written to {path}: {reason}")


def print_built(result: BuildResult) -> None:
    """Say what was compiled beside config files, and complain of what was not."""
    for file in result.files:
        if file.variants:
            size = f"{file.bytes / 1024:.0f} KiB"
            generic = f", {file.generic} of them generic" if file.generic else ""
            say(f"binaries for {file.entries} of {file.of} entries of {file.path}: {file.variants}{generic}, {size}")
        for line in file.missing:
            complain(f"no binary: {file.path}: {line}")


def complain_of(faults: Iterable[Fault]) -> None:
    """Name each fault of a config file on stderr, in a line."""
    for fault in faults:
        complain(str(fault))


def print_json(data: Json) -> None:
    """Print a JSON document."""
    typer.echo(json.dumps(data, indent=1, allow_nan=False))


def print_table(headers: Sequence[str], rows: Iterable[Sequence[str]], stack: Sequence[int] = ()) -> None:
    """Print rows under headers.

    Args:
        headers: One a column; one that ends in ">" is set flush right, without the ">".
        rows: As many cells each.
        stack: On a narrow console the first cells of a row go into one column, each line of it deeper than the one
            before: so many cells into its first line, and so on. What does not fit beside it goes below.
    """
    if _quiet:
        return
    console, first = stdout(), sum(stack)
    rows = [[printable(cell) for cell in row] for row in rows]
    if not stack or console.width >= NARROW:
        console.print(_table(headers, rows))
    elif console.measure(_table(headers[first:], [row[first:] for row in rows])).maximum <= console.width - LEAST:
        head = ", ".join(filter(None, headers[:first]))
        console.print(_table([head, *headers[first:]], [[_stacked(row, stack), *row[first:]] for row in rows]))
    else:
        for row in rows:
            console.print(_stacked(row, stack), _below(headers[first:], row[first:]))


def _table(headers: Sequence[str], rows: Iterable[Sequence[RenderableType]]) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for header in headers:
        table.add_column(header.rstrip(">"), justify="right" if header.endswith(">") else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _stacked(cells: Sequence[str], stack: Sequence[int]) -> Group:
    """The first cells of a row as lines, each deeper than the one before; what is broken keeps its line's depth."""
    from rich.console import Group
    from rich.padding import Padding

    left = iter(cells)
    lines = filter(None, (", ".join(filter(None, itertools.islice(left, count))) for count in stack))
    return Group(*(Padding(line, (0, 0, 0, 2 * depth)) for depth, line in enumerate(lines)))


def _below(headers: Sequence[str], cells: Sequence[str]) -> Padding:
    """The other cells of a row where there is no room for a table: each after its header, and never broken from it."""
    from rich.columns import Columns
    from rich.padding import Padding

    said = [f"{header.rstrip('>')} {cell}".strip() for header, cell in zip(headers, cells) if cell]
    return Padding(Columns(said, padding=(0, 2)), (0, 0, 0, 2))


def wrapped(line: str, width: int, indent: str) -> str:
    """A line broken at spaces, what follows indented."""
    return textwrap.fill(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def print_facts(rows: Iterable[tuple[str, str]]) -> None:
    """Print names and values; long values go on below themselves."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*map(printable, row))
    if not _quiet:
        stdout().print(table)


def print_heading(text: str) -> None:
    """Print the line above a table."""
    if not _quiet:
        stdout().print(" ".join(printable(text).split("\n")), style="bold", soft_wrap=True)


# -- in few words -------------------------------------------------------------------------------------------------


def time_words(us: float | None) -> str:
    """A time in the unit in which it has one to three digits before the point."""
    if us is None:
        return "n/a"
    for factor, unit in ((1e6, "s"), (1e3, "ms")):
        if us >= factor:
            return f"{us / factor:.3g} {unit}"
    return f"{us:.3g} us"


def ratio_words(ratio: float | None) -> str:
    """A speed-up, with three digits; of one above 100 all before the point."""
    if ratio is None:
        return "n/a"
    return f"{ratio:.{2 if ratio < 10 else 1 if ratio < 100 else 0}f}x"


def config_words(form: Mapping[str, Json] | None, options: bool) -> str:
    """A config's label; "unfinished" where a search has not chosen yet.

    Args:
        options: Whether those of a launch mean something: they do to Triton's kernels only.
    """
    from autotuned.tunable.configs import label

    return label(form, options)
