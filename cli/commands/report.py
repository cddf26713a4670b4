"""`autotuned report`: what tuning bought, as a page for a browser or in the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from autotuned import disk
from autotuned.recording import file
from autotuned.recording.file import RecordedCall
from autotuned.store import layout
from autotuned.typed_json import Json

from .. import terminal
from ..views.speedups import Case, Coverage, cases, coverage, mean
from ..views.stored import all_of, complete, kernels

HEADERS = ("call", "config", "source", "time>", "vs first>", "vs default>", "spread>", "failed>", "quality")


def report(
    kernel: Annotated[
        str | None, typer.Argument(autocompletion=complete, help="Only kernels of this name, or whose name ends in it.")
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
    made = file.read(recorded) if recorded is not None else None
    counts = None if made is None else _counts(made)
    found = [case for name in _names(kernel) for case in cases(name, counts, own=kernel is not None)]
    covered = None if made is None else coverage(made)
    if out is not None:
        _write(out, found, covered)
    if as_json:
        terminal.print_json(_json(found, covered))
    elif out is None:
        _print(found, covered)


def _counts(made: Sequence[RecordedCall]) -> Counter[str]:
    """How often each key was called: several recorded calls, of other alignment or grids, may have one."""
    counts: Counter[str] = Counter()
    for call in made:
        counts[call.key.digest] += call.count
    return counts


def _names(kernel: str | None) -> list[str]:
    names = kernels(own=kernel is not None)
    return names if kernel is None else all_of(names, kernel)


def _write(out: Path, found: Sequence[Case], covered: Coverage | None) -> None:
    from ..views import page

    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        disk.write_text(out, page.of(found, covered, totals(found)))
    except OSError as error:
        raise terminal.cannot_write(out, error.strerror or error) from error
    terminal.remark(f"wrote {out}")


def totals(found: Sequence[Case]) -> dict[str, Json]:
    """All cases in a few numbers."""
    qualities = Counter(case.stored.quality for case in found)
    return {
        "kernels": len({case.stored.key.kernel for case in found}),
        "cases": len(found),
        "configs": sum(len(case.configs) for case in found),
        "failed": sum(len(case.failures()) + len(case.failures("wrong")) for case in found),
        "tied": qualities["tied"],
        "noisy": qualities["noisy"] + qualities["unresolved"],
        "seconds": round(sum(case.seconds or 0.0 for case in found), 3),
        "vs_first": mean(case.vs_first for case in found),
        "vs_default": mean(case.vs_default for case in found),
    }


def _json(found: Sequence[Case], covered: Coverage | None) -> dict[str, Json]:
    return {
        "cases": [case.to_json() for case in found],
        "totals": totals(found),
        "coverage": None if covered is None else covered.to_json(),
    }


def _print(found: Sequence[Case], covered: Coverage | None) -> None:
    if not found:
        terminal.say(f"Nothing is tuned in {layout.root()}, nor in config files.")
    for name in dict.fromkeys(case.stored.key.kernel for case in found):
        terminal.print_heading(name)
        rows = [_cells(case) for case in found if case.stored.key.kernel == name]
        terminal.print_table(HEADERS, rows, stack=(1, 1, 1))
    if found:
        terminal.say(summary(totals(found)))
    if covered is not None:
        terminal.say(coverage_words(covered))


def summary(numbers: Json) -> str:
    """The totals in one line."""
    return (
        f"{terminal.counted(numbers['cases'], 'case')} of {terminal.counted(numbers['kernels'], 'kernel')}; "
        f"{terminal.counted(numbers['configs'], 'config')} measured "
        f"({numbers['failed']} failed) in {numbers['seconds']:.1f} s; on average "
        f"{terminal.ratio_words(numbers['vs_first'])} the speed of the first config, "
        f"{terminal.ratio_words(numbers['vs_default'])} of the default"
    )


def coverage_words(covered: Coverage) -> str:
    """How much of a recording is tuned, in one line."""
    share = covered.tuned_calls / covered.calls if covered.calls else 0.0
    tuned = f"{covered.tuned} of {covered.distinct} distinct calls are tuned"
    which = "; list --missing says which are not, and why" if covered.missing else ""
    return f"recorded: {tuned}, {share:.1%} of {covered.calls} calls{which}"


def _cells(case: Case) -> list[str]:
    stored = case.stored
    failed = len(case.failures()) + len(case.failures("wrong"))
    return [
        case.call,
        stored.config_words,
        stored.place,
        terminal.time_words(stored.median_us),
        terminal.ratio_words(case.vs_first),
        terminal.ratio_words(case.vs_default),
        terminal.ratio_words(case.spread),
        f"{failed} of {len(case.configs)}" if case.configs else "n/a",
        stored.quality or "n/a",
    ]
