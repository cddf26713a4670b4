"""`autotuned tune`: measures all cases of the targets, stores the choices and writes config files."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import autotuned
from autotuned.key.words import call_words
from autotuned.offline.results import INTERRUPTED, CaseResult, TuneResult
from autotuned.store import layout

from .. import following, terminal
from ..progress import Display, case_words, time_words

if TYPE_CHECKING:
    from autotuned.offline.plan import Plan, PlannedCase

EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells report it
HEADERS = ("call~", "config~", "source=?", "time>", "vs default>", "quality")
PLAN_HEADERS = ("call~", "device=~", "configs>", "to do~", "about>")


def tune(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="TARGET...",
            help="pkg.module, pkg.module:kernel, file.py, file.py:kernel, or a recorded calls.jsonl.",
        ),
    ],
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Write config files into this folder.")] = None,
    binaries: Annotated[
        bool, typer.Option("--binaries", help="With --out: also compile the winners, into files next to them.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Measure stored cases again.")] = False,
    budget: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Stop after this long; the same command continues."),
    ] = None,
    isolate: Annotated[
        bool, typer.Option("--isolate", help="Survive configs that hang or crash; the default on a GPU.")
    ] = False,
    in_process: Annotated[
        bool, typer.Option("--in-process", help="Measure in this process; the default without a GPU.")
    ] = False,
    devices: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="GPUs to tune on: all, or indices or UUIDs separated by commas."),
    ] = None,
    executor: Annotated[
        str, typer.Option(metavar="NAME", help="Where to tune: local, or ray for a cluster.")
    ] = "local",
    ray_address: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="With --executor ray: the cluster; default: RAY_ADDRESS.")
    ] = None,
    follow: Annotated[
        bool,
        typer.Option("--follow", help="Keep tuning calls as calls.jsonl or a store (URL) records them, until Ctrl-C."),
    ] = False,
    cover: Annotated[
        list[str] | None,
        typer.Option(metavar="SIZE=LOW:HIGH", help="Tune few shapes that cover a range: M=1:8192; repeatable."),
    ] = None,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="With --isolate: limit for compiling a config, and for running it.")
    ] = 60.0,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Measure nothing: list what would be measured, and estimate the time."),
    ] = False,
    as_json: terminal.AsJson = False,
) -> None:
    """Measure all cases of the targets and store the choices.

    Choices go into the store, and with --out also into config files; existing files are added to. Stored cases are not
    measured again, unless they are noisy. After Ctrl-C the same command continues where it stopped.

    Cases come from `@kernel.case` in a module or file. A recording's cases are its calls, the most frequent first; a
    script that it names runs only if you also name it.

    The device is the GPU if there is one, otherwise Triton's interpreter; AUTOTUNED_DEVICE overrides this. --devices
    takes indices among the visible GPUs, or UUIDs (GPU-..., MIG-...) or prefixes of them. Each GPU has its own process.

    Exit codes: 0 done; 1 failed, or nothing could be stored; 2 wrong usage; 3 some cases failed, are not finished, or
    could not be stored, or some binaries could not be compiled; 130 interrupted.
    """
    from autotuned.offline import ranges

    asked = ranges.parsed(cover) if cover else None
    if isolate and in_process:
        raise terminal.both_given("--isolate, --in-process")
    if binaries and out is None:
        raise typer.BadParameter("expected --out DIR with it, got none", param_hint="--binaries")
    apart = True if isolate else False if in_process else None
    if dry_run:
        raise typer.Exit(_plan(targets, force, asked, as_json))
    from autotuned.offline.device import isolates
    from autotuned.offline.tuning import tune  # imports the measuring part of the library

    if follow:
        others = {
            "--out": out, "--binaries": binaries, "--force": force, "--budget": budget, "--cover": cover,
            "--executor": executor != "local", "--ray-address": ray_address,
        }  # fmt: skip
        raise typer.Exit(following.follow(targets, others, devices, apart, timeout, as_json, EXIT_INTERRUPTED))
    try:
        workers = bool(devices) or executor != "local" or isolates(apart)
        with terminal.users_output(as_json), Display(workers) as display:
            result = tune(
                targets, out=out, devices=devices, budget_s=budget, force=force, binaries=binaries, progress=display,
                isolate=apart, timeout_s=timeout, executor=executor, ray_address=ray_address,
                cover=asked,
            )  # fmt: skip
    except BaseException as error:  # show the results so far, also after a lost device or a full disk
        if (found := getattr(error, "result", None)) is not None:
            _print(found, as_json)
            _complain_of_lost(found)
        raise
    _print(result, as_json)
    raise typer.Exit(_exit_code(result))


def _plan(targets: list[str], force: bool, cover: Mapping[str, tuple[int, int]] | None, as_json: bool) -> int:
    """Print the plan; returns the exit code."""
    with terminal.users_output(as_json):
        found = autotuned.plan(targets, force=force, cover=cover)
    failed = [case for case in found.cases if case.status == "failed"]
    if as_json:
        terminal.print_json(found.to_json())
    else:
        for kernel, cases in groupby(found.cases, lambda case: case.kernel):
            terminal.print_table(PLAN_HEADERS, [_plan_cells(case) for case in cases], kernel)
        for name in found.without_cases:
            terminal.say(f"skipped {name}: it has no cases. {_hint()}")
        terminal.say(_plan_words(found))
    if failed:
        terminal.complain(f"error: {len(failed)} of {len(found.cases)} cases failed; the first: {failed[0].reason}")
    return 0 if not failed else 3 if len(failed) < len(found.cases) else 1


def _plan_cells(case: PlannedCase) -> list[str]:
    return [
        call_words(case.call) if case.call is not None else "(case)",
        case.device or "n/a",
        str(case.configs or "n/a"),
        f"failed: {case.reason}" if case.status == "failed" else case.status,
        "n/a" if case.seconds is None else time_words(case.seconds),
    ]


def _plan_words(found: Plan) -> str:
    stored = sum(case.status == "stored" for case in found.cases)
    words = f"{terminal.counted(len(found.cases), 'case')}, {stored} stored, {len(found.to_measure)} to measure"
    if not found.to_measure:
        return f"{words}."
    words += f" ({terminal.counted(found.configs, 'config')})"
    if len(found.unknown) == len(found.to_measure):
        return f"{words}; there is no earlier search to estimate the time."
    more = f", without {len(found.unknown)} of kernels without a search" * bool(found.unknown)
    return f"{words}: about {time_words(found.seconds)} by earlier searches{more}."


def _print(result: TuneResult, as_json: bool) -> None:
    if as_json:
        terminal.print_json(result.to_json())
        return
    several = len({case.device for case in result.cases if case.device}) > 1
    for (kernel, device), group in groupby(result.cases, lambda case: (case.kernel, case.device if several else None)):
        cases = list(group)
        begun = [_cells(case) for case in cases if case.status != "skipped" or case.reason == INTERRUPTED]
        heading = f"{kernel}  on {device}" if device else kernel
        if begun:
            terminal.print_table(HEADERS, begun, heading)
        else:
            terminal.print_heading(heading)
        if len(cases) > len(begun):
            terminal.say(f"not begun: {len(cases) - len(begun)} of {len(cases)} cases")
    for case in result.cases:
        if case.remark:  # its first sentence; the rest is the same for all noisy cases
            terminal.say(f"{case.kernel}  {case_words(case)}: {case.remark.partition('. ')[0]}.")
    terminal.print_qualities((case.quality, case.device) for case in result.cases)
    for name in result.without_cases:
        terminal.say(f"skipped {name}: it has no cases. {_hint()}")
    for path in result.files:
        terminal.say(f"wrote {path}")
    for one in result.cover or ():
        tuned = f"{one.group}: tuned {terminal.counted(one.shapes, 'shape')}, and no more, since {one.why}."
        does = "follow a rule" if one.by == "rule" else "run the winner of the nearest shape"
        lost = "" if one.mean is None else f"{one.mean:.1%} on average and {one.worst:.0%} in the worst case"
        terminal.say(f"{tuned} Calls between them {does} and lose about {lost}." if lost else tuned)
    if result.binaries is not None:
        terminal.print_built(result.binaries)


def _hint() -> str:
    from autotuned.offline.cases import HINT

    return HINT


def _cells(case: CaseResult) -> list[str]:
    source = case.source or ""
    return [
        case_words(case),
        terminal.config_words(case.config, case.triton is not None)
        if case.status == "done"
        else f"{case.status}: {case.reason}",
        source if source in ("measured", "stored") else Path(source).name,
        terminal.time_words(case.median_us),
        terminal.ratio_words(case.vs_default),
        case.quality or "n/a",
    ]


def _exit_code(result: TuneResult) -> int:
    """The exit code documented in the command's help, explained on stderr unless it is 0."""
    _complain_of_lost(result)
    if result.interrupted:
        kept = "" if result.lost else "; results so far are kept. Run the same command again to continue"
        terminal.remark(f"interrupted{kept}.")
        return EXIT_INTERRUPTED
    if not result.cases:
        raise terminal.fail(f"there is nothing to measure: the generators of cases yield none. {_hint()}")
    failed, open_ = result.failed, result.unfinished
    cut = not all(one.finished for one in result.cover or ())
    if failed:
        terminal.complain(f"error: {len(failed)} of {len(result.cases)} cases failed; the first: {failed[0].reason}")
    if open_:
        budget = f"the budget of {result.budget_s:g} s is used up"
        terminal.complain(f"{budget}; {len(open_)} cases are not finished. Run the same command again to continue.")
    elif cut:
        terminal.complain("the ranges of --cover are not finished. Run the same command again to continue.")
    built, lost = terminal.built_code(result.binaries), result.lost
    if not failed and not open_ and not cut and not lost:
        return built
    is_done = any(case.status == "done" and case not in lost for case in result.cases)
    return 3 if is_done or not (failed or lost) else 1


def _complain_of_lost(result: TuneResult) -> None:
    """Say which choices are in no file, if there are any."""
    if lost := result.lost:
        measured = sum(case.source == "measured" for case in result.cases)
        kept = "nothing was" if len(lost) == measured else f"{measured - len(lost)} of {measured} measured choices were"
        terminal.complain(
            f"error: {kept} kept: the cache folder {layout.root()} cannot be written. Set AUTOTUNED_CACHE_DIR to a "
            "folder that can be, or give --out."
        )
