"""`autotuned report`: shows the gain from tuning, or compares two toolchains, as a page or in the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import autotuned
from autotuned import disk
from autotuned._startup import later

from .. import terminal
from ..views.names import Kernel, OnlyKernel, kernel_of

if TYPE_CHECKING:
    from autotuned.offline.report import compare as comparing
    from autotuned.offline.report import reported
    from autotuned.offline.report.compare import Comparison, Pair, PairSummary
    from autotuned.offline.report.report import Report
    from autotuned.offline.report.reported import ReportCase, Summary
    from autotuned.offline.report.usage import Usage
else:
    comparing, reported = map(later, ("offline.report.compare", "offline.report.reported"))

CASES = (
    "call~", "config~", "device~=", "toolchain=", "source=",
    "time>", "vs default>", "spread>?", "failed>?", "quality=",
)  # fmt: skip
KERNELS = (
    "kernel~", "device~=", "toolchain=", "calls>", "vs default>", "least>?", "most>?", "noisy>?", "search>?"
)  # fmt: skip
PAIRED = ("kernel~", "A~=", "B~=", "calls>", "B vs A>", "least>?", "most>?", "other config>?", "keep A's>")
PAIRS = ("call~", "A's config~", "B's config~", "A>?", "B>?", "B vs A>", "keep A's>")
ROWS = 100  # of a table


def report(
    kernel: Kernel = None,
    named: OnlyKernel = None,
    device: terminal.OnlyDevice = None,
    triton: terminal.OnlyTriton = None,
    compare: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="A B", help="Two side by side: device=NAME, triton=VERSION, config files or stores."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Write a page for the browser, which needs no network.")
    ] = None,
    recorded: Annotated[
        Path | None, typer.Option("--calls", metavar="CALLS.jsonl", help="Say how much of a recording is tuned.")
    ] = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Show how much faster calls are with tuning.

    Without tuning a call runs `default=`, or the first config in the list. Means are geometric, and never mix devices
    or toolchains. This package's own kernels are shown only if you name them.

    --compare shows the choices of A and B for the same calls side by side. Each is `device=h200`, `triton=3.6.0`, both
    separated by a comma, a config file, a folder of them, or the cache folder of another store.
    """
    _check(out)
    kernel = kernel_of(kernel, named)
    if compare is not None:
        if recorded is not None:
            raise typer.BadParameter("expected without --calls", param_hint="--compare")
        found = autotuned.compare(*compare, kernel=kernel, device=device, triton=triton)
        _show(found, out, as_json)
    else:
        _show(autotuned.report(kernel, calls=recorded, device=device, triton=triton), out, as_json)


def _check(out: Path | None) -> None:
    is_page = out is None or out.suffix.lower() in (".html", ".htm")
    if out is not None and not is_page and (out.is_file() or not out.exists()):  # a pipe may have any name
        raise typer.BadParameter(f"expected a name that ends in .html, got {str(out)!r}", param_hint="--out")


def _show(found: Report | Comparison, out: Path | None, as_json: bool) -> None:
    if out is not None:
        _write(out, found)
    if as_json:
        terminal.print_json(found.to_json())
    elif out is None:
        _print_compared(found) if isinstance(found, comparing.Comparison) else _print(found)


def _write(out: Path, found: Report | Comparison) -> None:
    from ..views import page

    text = page.compared(found) if isinstance(found, comparing.Comparison) else page.of(found)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        if out.exists() and not out.is_file():  # a pipe or a device, which must not be replaced
            out.write_text(text)
        else:
            disk.write_text(out, text)
    except OSError as error:
        raise terminal.cannot_write(out, error.strerror or error) from error
    terminal.remark(f"wrote {out}")


def _print(found: Report) -> None:
    for name, cases in reported.by_kernel(found.cases).items():
        _table(CASES, map(_cells, cases[:ROWS]), len(cases), name)
    terminal.print_qualities((case.stored.quality, case.stored.device) for case in found.cases)
    _table(KERNELS, map(_summary_cells, found.kernels[:ROWS]), len(found.kernels), "what tuning bought")
    terminal.say("\n".join(_words(one) for one in found.devices))
    if found.suggestions:
        terminal.print_heading("what to tune next")
        for one in found.suggestions[:10]:
            where = _where(one.kernel, one.device, one.toolchain)
            terminal.say(f"{where}: {one.text}")
        _say_left(len(found.suggestions) - 10)
    if found.coverage is not None:
        terminal.say(_coverage_words(found.coverage))


def _table(headers: Sequence[str], rows: Iterable[Sequence[str]], of: int, heading: str) -> None:
    terminal.print_table(headers, rows, heading)
    _say_left(of - ROWS)


def _say_left(count: int) -> None:
    if count > 0:
        terminal.say(f"and {count} more, which --json has")


def _where(*names: str | None) -> str:
    return ", ".join(name for name in names if name and name != "n/a")


def _words(one: Summary) -> str:
    """A device and toolchain in one line."""
    measured = (
        f"; {terminal.counted(one.configs, 'config')} measured ({one.failed} failed) in {one.seconds:.1f} s"
        if one.configs
        else ""  # unknown for config files
    )
    return (
        f"{_where(one.device, one.toolchain)}: {terminal.ratio_words(one.vs_default)} the untuned speed on average, "
        f"{terminal.counted(one.cases, 'call')}{measured}"
    )


def _coverage_words(covered: Usage) -> str:
    tuned = f"{len(covered.tuned)} of {len(covered.recorded)} distinct calls are tuned"
    which = "; list --missing shows which are not, and why" if covered.missing else ""
    return f"recorded: {tuned}, {covered.share:.1%} of {covered.calls} calls{which}"


def _summary_cells(one: Summary) -> list[str]:
    ratios = map(terminal.ratio_words, (one.vs_default, one.least, one.most))
    return [
        one.kernel or "",
        one.device,
        one.toolchain,
        str(one.cases),
        *ratios,
        str(one.noisy),
        f"{one.seconds:.1f} s" if one.configs else "n/a",
    ]


def _cells(case: ReportCase) -> list[str]:
    stored = case.stored
    return [
        stored.call_words,
        stored.config_words,
        stored.device,
        stored.toolchain,
        stored.place,
        terminal.time_words(stored.median_us),
        terminal.ratio_words(case.vs_default),
        terminal.ratio_words(case.spread),
        f"{case.failed} of {len(case.configs)}" if case.configs else "n/a",
        stored.quality or "n/a",
    ]


def _print_compared(found: Comparison) -> None:
    for one in found.kernels:
        pairs = [pair for pair in found.pairs if pair.place == one.place]
        heading = f"{one.kernel}  {', '.join(one.a)} and {', '.join(one.b)}"
        _table(PAIRS, map(_pair_cells, pairs[:ROWS]), len(pairs), heading)
    _table(PAIRED, map(_paired_cells, found.kernels[:ROWS]), len(found.kernels), f"A: {found.a}, B: {found.b}")
    terminal.say(f"{len(found.pairs)} on both sides, {len(found.only_a)} on A only, {len(found.only_b)} on B only")


def _paired_cells(one: PairSummary) -> list[str]:
    ratios = map(terminal.ratio_words, (one.ratio, one.least, one.most))
    return [one.kernel, ", ".join(one.a), ", ".join(one.b), str(one.pairs), *ratios, str(one.changed),
            terminal.ratio_words(one.kept)]  # fmt: skip


def _pair_cells(pair: Pair) -> list[str]:
    a, b = pair.a.stored, pair.b.stored
    return [
        a.call_words,
        a.config_words,
        "the same" if pair.same_config else b.config_words,
        *map(terminal.time_words, (a.median_us, b.median_us)),
        *map(terminal.ratio_words, (pair.ratio, pair.kept)),
    ]
