"""`autotuned check`: checks config files, and on request whether they still fit and are still the fastest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import autotuned
from autotuned.key.words import call_words

from .. import terminal

if TYPE_CHECKING:
    from autotuned.offline.release.check import CheckResult
    from autotuned.offline.verify import Contest

HEADERS = ("call~", "config~", "shipped>", "default>", "best other>?", "loss>", "~")


def check(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Config files, or folders of them.")],
    imports: Annotated[
        bool, typer.Option("--import", help="Import the kernels, and compare entries with them.")
    ] = False,
    measure: Annotated[bool, typer.Option("--measure", help="Time the choices for this device again.")] = False,
    targets: Annotated[
        list[str] | None,
        typer.Option("--target", metavar="TARGET", help="Where the kernels are, as for `tune`; else found by name."),
    ] = None,
    tolerance: Annotated[
        float, typer.Option(metavar="SHARE", help="With --measure: the loss that passes; 0.05 is 5%.")
    ] = 0.05,
    fix: Annotated[
        bool, typer.Option("--fix", help="With --measure: drop choices that lose to the untuned config.")
    ] = False,
    as_json: terminal.AsJson = False,
) -> None:
    """Check config files, and optionally time their choices.

    Without options it checks schema, values, duplicates, dead entries, and entries that an earlier PATH shadows. This
    needs neither torch nor a GPU.

    --import compares names and types with the kernels' signatures, configs with their lists, and the source with the
    one that was tuned. --measure times every case that has a choice for this device again, against the untuned config
    and the runner-up; --fix removes choices that lose to the untuned config from their files.

    Exit codes: 0 all is well; 1 a fault, a choice that loses, or nothing to time.
    """
    with terminal.users_output(as_json):
        found = autotuned.check(paths, imports=imports, measure=measure, targets=targets, tolerance=tolerance, fix=fix)
    if as_json:
        terminal.print_json(found.to_json())
    else:
        _print(found)
    if found.measured == []:
        terminal.complain(
            "error: nothing was timed: no case of the kernels has a choice here; --target names more cases"
        )
    elif not found.passed:
        terminal.complain(f"error: {_failed(found)}")
    if not found.passed:
        raise typer.Exit(1)


def _failed(found: CheckResult) -> str:
    beaten = sum(one.beaten for one in found.lost)
    words = [terminal.counted(len(found.faults), "fault")]
    if beaten:
        words.append(f"{_losing(beaten)} to the untuned config (--fix drops them)")
    if found.measured is not None:
        words.append(f"{_losing(len(found.lost) - beaten)} by more than {found.tolerance:.0%}")
    return ", ".join(words)


def _losing(count: int) -> str:
    return f"{terminal.counted(count, 'choice')} {'loses' if count == 1 else 'lose'}"


def _print(found: CheckResult) -> None:
    for fault in found.faults:
        terminal.say(str(fault))
    for line in found.dropped:
        terminal.say(f"dropped: {line}")
    for line in found.untimed:
        terminal.say(f"not timed: {line}")
    if found.measured:
        lost = found.lost
        terminal.print_table(HEADERS, [_cells(one, one in lost) for one in found.measured])
    measured = "" if found.measured is None else f", {len(found.measured)} timed again"
    entries = terminal.counted(found.entries, "entry", "entries")
    files, faults = terminal.counted(len(found.files), "file"), terminal.counted(len(found.faults), "fault")
    terminal.say(f"{files}, {entries}, {faults}{measured}")


def _cells(one: Contest, lost: bool) -> list[str]:
    ran = one.loss != float("inf")
    verdict = "LOSES TO UNTUNED" if one.beaten else "LOSES" if lost else "ok"
    return [
        call_words(one.key.call) + ("" if one.near is None else " (rule)" if one.is_of_rule else " (nearest shape)"),
        terminal.config_words(one.config, one.key.is_of_triton),
        *map(terminal.time_words, (one.shipped_us, one.default_us, one.rival_us)),
        f"{one.loss:+.1%}" if ran else "n/a",
        verdict if ran else one.error or "did not run",
    ]
