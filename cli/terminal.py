"""Prints results of commands: tables, JSON, short forms of times and ratios."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from autotuned import env
from autotuned.typed_json import Json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from autotuned.configfiles.file import Fault
    from autotuned.offline.results import BuildResult

MARKS = ">~?="  # of column headers, see `print_table`
LONG = 40  # width that a column which may be cut keeps, before other columns are dropped
UNLIMITED = 100_000  # columns without a terminal: nothing is cut for `grep`
QUALITIES = {  # meaning of the words in tables; "ok" needs none
    "tied": "several configs are equally fast: the untuned config is used, or the first in the list",
    "noisy": "its times vary, so another config may be as fast; `autotuned tune` measures it again",
    "unresolved": "it takes less time than the clock can resolve, or a budget ended before the last comparison",
}
INTERPRETER = {"cpu-interpreter"}
NOISY_INTERPRETER = "its times vary; those of Triton's interpreter mean nothing for a GPU and are not measured again"
_quiet = False
_is_read = True
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else on stdout.")]
OnlyDevice = Annotated[
    str | None,
    typer.Option("--device", metavar="NAME", help="Only devices with this in their name: h200, interpreter."),
]
OnlyTriton = Annotated[
    str | None, typer.Option("--triton", metavar="VERSION", help="Only this version of Triton: 3.6.0, or 3.6 for all.")
]


def stdout() -> Console:
    """The console for results, as wide as the terminal or COLUMNS; without either, nothing is cut."""
    from rich.console import Console

    class Stdout(Console):
        def on_broken_pipe(self) -> None:  # rich's own exits with 1
            unheard()

    # Without markup and highlighting: labels and paths contain brackets and numbers.
    console = Stdout(markup=False, highlight=False, emoji=False)
    if not console.is_terminal and not env.has_columns():
        console.width = UNLIMITED
    return console


def stderr() -> Console:
    """The console for progress."""
    from rich.console import Console

    return Console(stderr=True, markup=False, highlight=False, emoji=False)


def unheard() -> None:
    """Continue silently when the reader has ended, as in `list | head -1`; the exit code stays meaningful."""
    global _is_read
    _is_read = False
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def is_read() -> bool:
    """Whether the output is still read."""
    return _is_read


def users_output(as_json: bool) -> AbstractContextManager[object]:
    """Redirect output of the user's modules and kernels, to keep it out of the JSON."""
    return contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext()


def spell_what_stdout_cannot() -> None:
    """Print characters missing from stdout's encoding as escapes, as stderr does."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


@contextlib.contextmanager
def hushed(quiet: bool) -> Iterator[None]:
    """With `quiet`, print only JSON and errors inside a `with` block."""
    global _quiet
    before, _quiet = _quiet, quiet
    try:
        yield
    finally:
        _quiet = before


def is_quiet() -> bool:
    """Whether to print only JSON and errors."""
    return _quiet


def counted(count: int, noun: str, several: str = "") -> str:
    """A count with its noun: "1 kernel", "2 kernels"; `several` for irregular plurals."""
    return f"{count} {noun}" if count == 1 else f"{count} {several or noun + 's'}"


def were_there(count: int) -> str:
    """How many things a copy left as they are, for the end of a line."""
    return f"; {count} {'was' if count == 1 else 'were'} there already" if count else ""


def printable(text: str) -> str:
    """A text with control and bidirectional characters escaped; line breaks stay.

    Names, hosts and errors come from files and other programs: an escape sequence could move the cursor, change the
    clipboard or hide a line, and a lone surrogate could crash the program.
    """
    if text.isprintable():
        return text
    shown = (one if one.isprintable() or one in "\n\t" else one.encode("unicode_escape").decode() for one in text)
    return "".join(shown)


class _Printable(logging.Filter):
    """Makes the library's log records printable."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = printable(record.getMessage()), ()
        return True


@contextlib.contextmanager
def printable_log() -> Iterator[None]:
    """Make log records printable inside a `with` block."""
    log, clean = logging.getLogger("autotuned"), _Printable()
    log.addFilter(clean)
    try:
        yield
    finally:
        log.removeFilter(clean)


def say(text: str, whole: bool = False) -> None:
    """Print lines of a result; unless `whole`, a line longer than the terminal is wrapped and indented."""
    if not _quiet:
        width = UNLIMITED if whole else stdout().width
        write("".join(f"{_broken(line, width)}\n" for line in printable(text).split("\n")))


def _broken(line: str, width: int) -> str:
    return line if len(line) <= width else wrapped(line, width, " " * (len(line) - len(line.lstrip()) + 2))


def write(text: str) -> None:
    """Print part of a JSON document."""
    try:
        typer.echo(text, nl=False)
    except BrokenPipeError:
        unheard()


def remark(text: str) -> None:
    """Print one line on stderr, without line breaks."""
    if not _quiet:
        complain(text)


def complain(text: str) -> None:
    """Print one line on stderr, also with --quiet, since it explains the exit code."""
    typer.echo(printable(" ".join(text.split())), err=True)


def json_lines() -> Callable[[Json], None]:
    """A writer of one JSON document per line to the current stdout, even if `sys.stdout` is replaced later."""
    stdout = sys.stdout
    return lambda data: typer.echo(json.dumps(data, allow_nan=False), file=stdout)


def remark_text(text: str) -> None:
    """Print lines on stderr."""
    typer.echo(printable(text), err=True, nl=False)


def remark_json(data: Json) -> None:
    """Print a JSON document on stderr, next to another program's output."""
    typer.echo(json.dumps(data, allow_nan=False), err=True)


def fail(text: str, code: int = 1) -> typer.Exit:
    """Report an error in one line; the caller raises the returned exit."""
    complain(f"error: {text}")
    return typer.Exit(code)


def both_given(options: str) -> typer.BadParameter:
    """The error for two options that contradict each other; the caller raises it."""
    return typer.BadParameter("expected one of the two, got both", param_hint=options)


def ask(question: str) -> None:
    """Ask before deleting; exits unless the answer is yes."""
    if not has_terminal():
        raise typer.BadParameter("there is no terminal to ask on: pass --yes", param_hint="--yes")
    if not typer.confirm(question, err=True):
        raise fail("nothing was deleted.")


def has_terminal() -> bool:
    """Whether a user can answer."""
    return sys.stdin is not None and sys.stdin.isatty()


def cannot_run(command: str, error: OSError | ValueError) -> typer.Exit:
    """Report that a command cannot start, with a shell's exit code for it; the caller raises the returned exit."""
    if isinstance(error, FileNotFoundError):
        return fail(f"{command}: no such command; type what you would type without autotuned.", 127)
    why = getattr(error, "strerror", None) or error
    return fail(f"{command or repr(command)} cannot be run: {why}", 126)


def cannot_write(path: object, reason: object) -> typer.Exit:
    """Report that `--out` cannot be written; the caller raises the returned exit."""
    return fail(f"--out: nothing can be written to {path}: {reason}")


def print_built(result: BuildResult) -> None:
    """Print which kernels were compiled for config files, and which were not."""
    for file in result.files:
        if file.variants:
            size = f"{file.bytes / 1024:.0f} KiB"
            generic = f", {file.generic} of them generic" if file.generic else ""
            say(f"binaries for {file.entries} of {file.of} entries of {file.path}: {file.variants}{generic}, {size}")
        for line in file.missing:
            complain(f"no binary: {file.path}: {line}")


def built_code(result: BuildResult | None) -> int:
    """The exit code for compiled kernels: 3, with an error on stderr, if some are missing."""
    if result is None or not result.missing:
        return 0
    complain(f"error: missing: {counted(len(result.missing), 'binary', 'binaries')}")
    return 3


def complain_of(faults: Iterable[Fault]) -> None:
    """Print each fault of a config file on stderr."""
    for fault in faults:
        complain(str(fault))


def print_json(data: Json) -> None:
    """Print a JSON document."""
    write(json.dumps(data, indent=1, allow_nan=False) + "\n")


def print_table(headers: Sequence[str], rows: Iterable[Sequence[str]], heading: str = "") -> None:
    """Print rows under headers, each on one line.

    Args:
        headers: One per column, with marks after its name: ">" right-aligned, "~" may be cut, "?" is dropped before
            others are cut, "=" moves into the heading if equal in all rows.
        rows: One cell per column each.
        heading: The line above, followed by the cells that all rows share.
    """
    if _quiet:
        return
    cells = [[printable(cell).replace("\n", " ") for cell in row] for row in rows]
    table, console = {header: [row[n] for row in cells] for n, header in enumerate(headers)}, stdout()
    if heading and cells:
        shared = [table.pop(header)[0] for header in headers if "=" in header and len(set(table[header])) == 1]
        words = ", ".join(word for word in shared if word not in ("", "n/a"))
        print_heading("  ".join(filter(None, [heading, words])))
    for line in list(_shortened(table, console.width)):
        print_heading(line)
    for header in [header for header in reversed(table) if "?" in header]:
        if _width(table, LONG) > console.width:
            del table[header]
    _show(_table(table), console)


def _width(table: Mapping[str, Sequence[str]], most: int = UNLIMITED) -> int:
    """Width of a table in columns, with cells that may be cut at most `most` wide."""
    from rich.cells import cell_len

    widths = {header: max(map(cell_len, (header.rstrip(MARKS), *column))) for header, column in table.items()}
    cut = sum(min(width, most) if "~" in header else width for header, width in widths.items())
    return cut + 2 * len(widths) - 2


def _shortened(table: dict[str, list[str]], width: int) -> Iterator[str]:
    """Shorten words such as `num_warps=4` in columns that would be cut; yields a line of the words all rows share.

    If that does not suffice, names that are equal in all rows also move above the table.
    """
    for header in [header for header in reversed(table) if "~" in header]:
        rows = [row for row in (cell.split(" ") for cell in table[header]) if any("=" in word for word in row)]
        if _width(table) <= width or not rows or not all("=" in word for row in rows for word in row):
            continue
        name, shared = header.rstrip(MARKS), [word for word in rows[0] if all(word in row for row in rows)]
        if shared:
            yield f"{name}{' of all' * (len(table[header]) > 1)}: {' '.join(shared)}"
            table[header] = [" ".join(w for w in cell.split(" ") if w not in shared) for cell in table[header]]
            if not any(table[header]):
                del table[header]
                continue
        names = {tuple(word.partition("=")[0] for word in row if word not in shared) for row in rows}
        if len(names) == 1 and _width(table) > width:
            yield f"{name} as {' '.join(names.pop())}"
            table[header] = [re.sub(r"(?<!\S)[^\s=]+=", "", cell) for cell in table[header]]


def _table(table: Mapping[str, Sequence[str]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for header in table:  # rich shrinks only columns that may wrap; their cells do not wrap and are cut
        justify: Literal["left", "right"] = "right" if ">" in header else "left"
        made.add_column(header.rstrip(MARKS), justify=justify, no_wrap="~" not in header)
    for row in zip(*table.values()):
        made.add_row(*(Text(cell, no_wrap=True, overflow="ellipsis") for cell in row))
    return made


def _show(table: Table, console: Console) -> None:
    """Print a table; to a file or pipe without trailing spaces."""
    if console.is_terminal:
        console.print(table)
        return
    with console.capture() as captured:
        console.print(table)
    write("\n".join(line.rstrip(" ") for line in captured.get().split("\n")))


def print_qualities(choices: Iterable[tuple[str | None, str | None]]) -> None:
    """Explain the quality words of a table; `choices` are quality and device slug of each row."""
    met: dict[str | None, set[str | None]] = {}
    for quality, device in choices:
        met.setdefault(quality, set()).add(device)
    for quality, meaning in QUALITIES.items():
        if quality in met:
            say(f"{quality}: {NOISY_INTERPRETER if (quality, met[quality]) == ('noisy', INTERPRETER) else meaning}.")


def wrapped(line: str, width: int, indent: str) -> str:
    """A line wrapped at spaces, with continuation lines indented."""
    return textwrap.fill(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def print_facts(rows: Iterable[tuple[str, str]]) -> None:
    """Print names and values; long values wrap in their column."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*map(printable, row))
    if not _quiet:
        _show(table, stdout())


def print_heading(text: str) -> None:
    """Print the line above a table."""
    if not _quiet:
        stdout().print(" ".join(printable(text).split("\n")), style="bold", soft_wrap=True)


# -- short forms --------------------------------------------------------------------------------------------------


def time_words(us: float | None) -> str:
    """A time in the unit that gives one to three digits before the point."""
    if us is None:
        return "n/a"
    for factor, unit in ((1e6, "s"), (1e3, "ms")):
        if us >= factor:
            return f"{us / factor:.3g} {unit}"
    return f"{us:.3g} us"


def ratio_words(ratio: float | None) -> str:
    """A speed-up with three digits, or without decimals above 100."""
    if ratio is None:
        return "n/a"
    return f"{ratio:.{2 if ratio < 10 else 1 if ratio < 100 else 0}f}x"


def config_words(form: Mapping[str, Json] | None, options: bool) -> str:
    """A config's label, with launch `options` for Triton kernels; "unfinished" if the search has not ended."""
    from autotuned.tunable.configs import label

    return label(form, options)
