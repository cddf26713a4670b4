"""What commands print and how: tables, JSON, and calls, configs and times in few words."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import logging
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Annotated

import typer

from autotuned.configfiles.file import Fault
from autotuned.key.key import Difference
from autotuned.typed_json import Json

if TYPE_CHECKING:
    from rich.console import Console, Group, RenderableType
    from rich.padding import Padding
    from rich.table import Table

DIGEST = 64  # letters of a digest of source or toolchain, of which the first tell enough
NARROW = 110  # columns; below this the long cells of a row are stacked instead of standing side by side
LEAST = 20  # columns for the stacked cells; with less, the other cells stand below them
_quiet = False
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else on stdout.")]


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


def remark_text(text: str) -> None:
    """Print a text of several lines on stderr."""
    typer.echo(printable(text), err=True, nl=False)


def remark_json(data: Json) -> None:
    """Print a JSON document on stderr, beside another program's output."""
    typer.echo(json.dumps(data, allow_nan=False), err=True)


def fail(text: str) -> typer.Exit:
    """Say in one line why a command failed; the caller raises what this returns."""
    complain(f"error: {text}")
    return typer.Exit(1)


def cannot_write(path: object, reason: object) -> typer.Exit:
    """Say that nothing can be written where `--out` says; the caller raises what this returns."""
    return fail(f"--out: nothing can be written to {path}: {reason}")


def say_faults(faults: Iterable[Fault]) -> list[dict[str, Json]]:
    """Name each fault of a config file on stderr, in a line; returns them as JSON."""
    found = list(faults)
    for fault in found:
        complain(str(fault))
    return faults_json(found)


def faults_json(faults: Iterable[Fault]) -> list[dict[str, Json]]:
    """Faults of config files as JSON."""
    return [{"path": fault.path, "line": fault.line, "text": fault.text} for fault in faults]


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


def toolchain_words(context: Mapping[str, Json]) -> str:
    """The version of Triton in a context, or of what a plain callable names: "triton 3.6.0"."""
    others = context.get("distributions")
    versions = {"triton": context.get("triton"), **(others if isinstance(others, dict) else {})}
    return " ".join(f"{name} {value_words(version)}" for name, version in versions.items() if version) or "n/a"


def call_words(call: Mapping[str, Json]) -> str:
    """The call part of a key in few words: `N_COLS=4096 x,y fp16[64,4096] bias=None`."""
    words = [f"{name}={value_words(value)}" for name, value in call.get("values", {}).items()]
    words += _tensor_words(call.get("tensors", {}))
    words += [f"{name}=None" for name in call.get("none", ())]
    words += [f"{name}={value_words(value)}" for name, value in call.get("options", {}).items()]
    return " ".join(words) or "any call"


def _tensor_words(tensors: Mapping[str, Mapping[str, Json]]) -> list[str]:
    """Tensors that look alike in one word; where all do and no shape is in the key, without their names."""
    alike: dict[str, list[str]] = {}
    for name, tensor in tensors.items():
        alike.setdefault(_layout_words(tensor), []).append(name)
    if len(alike) == 1 and not any("shape" in tensor for tensor in tensors.values()):
        return list(alike)
    return [f"{','.join(names)} {layout}" for layout, names in alike.items()]


def _layout_words(tensor: Mapping[str, Json]) -> str:
    shape = f"[{','.join(map(str, tensor['shape']))}]" if "shape" in tensor else ""
    strides = tensor["strides"]
    plain = not strides or (strides.endswith("1") and not strides[:-1].strip("*"))
    return dtype_words(tensor["dtype"]) + shape + ("" if plain else f" strides {strides}")


def in_order(text: str) -> list[tuple[bool, int, str]]:
    """What texts are sorted by, so that numbers in them come by their size: M=64 before M=256."""
    parts = re.split(r"(\d+)", text)
    return [(part.isdecimal(), int(part[:99]) if part.isdecimal() else 0, part) for part in parts]


def dtype_words(dtype: str) -> str:
    """A dtype as kernels' authors write it: fp16, bf16, i32, u8."""
    name = dtype.rpartition(".")[2]
    for long, short in (("bfloat", "bf"), ("float", "fp"), ("uint", "u"), ("int", "i")):
        if name.startswith(long):
            return short + name.removeprefix(long)
    return name


def value_words(value: Json) -> str:
    """A value of a key, from its typed JSON; of a kind that is not known here, as the JSON says it."""
    if isinstance(value, list):
        return f"[{', '.join(map(value_words, value))}]"
    if not isinstance(value, dict) or not value:
        return str(value)
    kind, inner = next(iter(value.items()))
    write = _KINDS.get(kind)
    try:
        return write(inner) if write is not None and len(value) == 1 else _plain(value)
    except (TypeError, ValueError, LookupError, AttributeError):  # a file of somebody else's, or a later version's
        return _plain(value)


def _plain(value: Json) -> str:
    if isinstance(value, dict) and len(value) == 1:
        [(kind, inner)] = value.items()
        return f"{kind} {inner if isinstance(inner, str) else value_words(inner)}"
    return json.dumps(value, sort_keys=True)


def _digest_words(digest: str) -> str:
    return digest[:8] if len(digest) == DIGEST else digest


def _dict_words(pairs: Json) -> str:
    return "{" + ", ".join(f"{value_words(key)}: {value_words(item)}" for key, item in pairs) + "}"


_KINDS: dict[str, Callable[[Json], str]] = {
    "float": lambda inner: repr(float.fromhex(inner)),
    "complex": lambda inner: repr(complex(*(float.fromhex(part["float"]) for part in inner))),
    "tuple": lambda inner: f"({', '.join(map(value_words, inner))})",
    "dict": _dict_words,
    "bytes": lambda inner: repr(bytes.fromhex(inner)),
    "text": lambda inner: repr(bytes.fromhex(inner).decode("utf-8", "surrogatepass")),
    "dtype": lambda inner: dtype_words(inner),
    "device": str,
    "enum": lambda inner: ".".join(inner[0].split(".")[-2:]),  # its name, then its value
    "function": lambda inner: f"function {_digest_words(inner)}",
    "value": lambda inner: f"{inner[0]} {_digest_words(inner[1])}",
    "class": lambda inner: f"class {inner[0]}",
    "array": lambda inner: _layout_words(inner),
    "numpy": lambda inner: value_words(inner[1]),
    "int": str,
    "python object": lambda inner: f"object {inner}",
}


def change_words(change: Difference) -> str:
    """In what two keys differ, stored against used: `g.dtype bf16 != fp32`."""
    path = change.path.partition(".")[2]  # "call" and "context" have no parts of one name
    for part in ("tensors.", "values.", "options."):
        path = path.removeprefix(part)
    return f"{path} {_side_words(path, change.theirs)} != {_side_words(path, change.ours)}"


def _side_words(path: str, value: Json) -> str:
    if value is None:
        return "none"
    if isinstance(value, dict) and "dtype" in value and "strides" in value:
        return _layout_words(value)
    if path.endswith(".dtype"):
        return dtype_words(value)
    words = value_words(value)
    return words[:12] if len(words) == DIGEST else words


def config_words(form: Mapping[str, Json] | None, options: bool) -> str:
    """A config's label; "unfinished" where a search has not chosen yet.

    Args:
        options: Whether those of a launch mean something: they do to Triton's kernels only.
    """
    from autotuned.tunable.configs import label

    return "unfinished" if form is None else label(form, options)
