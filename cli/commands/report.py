"""`autotuned report`: what tuning bought, as a page for a browser or in the terminal."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer

import autotuned
from autotuned import disk
from autotuned.offline.report import Report, ReportCase
from autotuned.offline.usage import Usage
from autotuned.store import layout
from autotuned.typed_json import Json

from .. import terminal
from ..views.names import complete

HEADERS = ("call~", "config~", "source=", "time>", "vs first>?", "vs default>", "spread>?", "failed>?", "quality")


def report(
    kernel: Annotated[
        str | None,
        typer.Argument(
            metavar="KERNEL", autocompletion=complete, help="Only kernels of this name, or whose name ends in it."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE.html", help="Write a page that needs no network.")] = None,
    recorded: Annotated[
        Path | None, typer.Option("--calls", metavar="CALLS.jsonl", help="Say how much of a recording is tuned.")
    ] = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Show what tuning bought.

    That is each choice against the first config and the default, and the spread of all configs. Those that come with
    this package are shown only by a kernel's name.

    JSON: `cases`, `totals` and `coverage` (null without --calls). Each case has the fields of `list --json`, and
    `vs_first` and `vs_default` (speed-ups), `spread` (slowest over fastest), `failed`, `wrong`, `seconds` (of the
    search), `count` (in the recording) and `configs` (each with `label`, `median_us`, `low_us`, `high_us`, `samples`,
    `status`, `error` and `roles`). `totals` has `kernels`, `cases`, `configs`, `failed` (wrong ones too), `tied`,
    `noisy` (unresolved ones too), `seconds` and, as geometric means, `vs_first` and `vs_default`. `coverage` has
    `distinct`, `tuned`, `calls`, `tuned_calls` and `missing` (as of `list --missing --json`).
    """
    found = autotuned.report(kernel, calls=recorded)
    if out is not None:
        _write(out, found)
    if as_json:
        terminal.print_json(found.to_json())
    elif out is None:
        _print(found)
    if not found.cases and found.coverage is None:
        text = f"expected a choice to report, got none in {layout.root()} and in config files. Tune something first."
        raise terminal.fail(text)


def _write(out: Path, found: Report) -> None:
    from ..views import page

    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        disk.write_text(out, page.of(found))
    except OSError as error:
        raise terminal.cannot_write(out, error.strerror or error) from error
    terminal.remark(f"wrote {out}")


def _print(found: Report) -> None:
    for name, cases in groupby(found.cases, lambda case: case.stored.key.kernel):
        terminal.print_table(HEADERS, map(_cells, cases), heading=name)
    terminal.print_qualities(case.stored.quality for case in found.cases)
    if found.cases:
        terminal.say(_summary(found.totals))
    if found.coverage is not None:
        terminal.say(_coverage_words(found.coverage))


def _summary(numbers: Json) -> str:
    """The totals in one line."""
    return (
        f"{terminal.counted(numbers['cases'], 'case')} of {terminal.counted(numbers['kernels'], 'kernel')}; "
        f"{terminal.counted(numbers['configs'], 'config')} measured "
        f"({numbers['failed']} failed) in {numbers['seconds']:.1f} s; on average "
        f"{terminal.ratio_words(numbers['vs_first'])} the speed of the first config, "
        f"{terminal.ratio_words(numbers['vs_default'])} of the default"
    )


def _coverage_words(covered: Usage) -> str:
    """How much of a recording is tuned, in one line."""
    tuned = f"{len(covered.tuned)} of {len(covered.recorded)} distinct calls are tuned"
    which = "; list --missing says which are not, and why" if covered.missing else ""
    return f"recorded: {tuned}, {covered.share:.1%} of {covered.calls} calls{which}"


def _cells(case: ReportCase) -> list[str]:
    stored = case.stored
    return [
        stored.call_words,
        stored.config_words,
        stored.place,
        terminal.time_words(stored.median_us),
        terminal.ratio_words(case.vs_first),
        terminal.ratio_words(case.vs_default),
        terminal.ratio_words(case.spread),
        f"{case.failed} of {len(case.configs)}" if case.configs else "n/a",
        stored.quality or "n/a",
    ]
