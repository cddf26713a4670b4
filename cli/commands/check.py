"""`autotuned check`: whether config files are in order, and on request whether they still fit and still win."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from autotuned.configfiles.audit import Audit
from autotuned.configfiles.file import ConfigFile, Fault
from autotuned.errors import TargetError

from .. import terminal

HEADERS = ("call", "config", "shipped>", "default>", "best other>", "loss>", "")


def check(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Config files, or folders of them.")],
    imports: Annotated[bool, typer.Option("--import", help="Import the kernels, and match entries with them.")] = False,
    measure: Annotated[bool, typer.Option("--measure", help="Time the choices for this device again.")] = False,
    targets: Annotated[
        list[str] | None,
        typer.Option("--target", metavar="TARGET", help="Where kernels are, as for `tune`; else by their names."),
    ] = None,
    tolerance: Annotated[float, typer.Option(metavar="SHARE", help="What a choice may lose by: 0.05 is 5%.")] = 0.05,
    as_json: terminal.AsJson = False,
) -> None:
    """Check config files, and on request whether they still win.

    Checked are schema, values, duplicates, and entries that are dead or shadowed.

    Needs neither torch nor a GPU. A choice of an earlier PATH shadows that of a later one. With --import the kernels
    are imported: names and types are matched with their signatures, configs with their lists, and the source they were
    tuned for with the present one. With --measure every case of the kernels that has a choice for this device,
    toolchain and source is timed again beside the config used without tuning and the runner-up; choices that belong to
    no case are counted.

    Exit codes: 0 all is well; 1 a fault, or with --measure a choice that loses by more than the tolerance, or nothing
    to time.

    JSON: `files`, `entries`, `faults` (`path`, `line`, `text`), and with --measure `measured`, each with `kernel`,
    `triton`, `call`, `config`, `shipped_us`, `default_us`, `rival_us`, `rival`, `loss` and `error`, and `untimed`, a
    line for each kernel of which choices were not timed.
    """
    if not tolerance >= 0:
        raise typer.BadParameter(f"expected a share of 0 or more, got {tolerance:g}", param_hint="--tolerance")
    found = Audit(paths)
    rows: list[dict[str, Any]] = []
    untimed: list[str] = []
    if imports or measure:
        rows, untimed = _with_the_program(found, targets or [], measure, as_json)
    lost = [row for row in rows if row["loss"] is None or row["loss"] > tolerance]
    if as_json:
        faults = terminal.faults_json(found.faults)
        counts = {"files": [str(path) for path, _ in found.files], "entries": found.entries, "faults": faults}
        terminal.print_json({**counts, **({"measured": rows, "untimed": untimed} if measure else {})})
    else:
        _print(found, rows, untimed, tolerance, measure)
    if measure and not rows:  # a gate that saw nothing has not been passed
        terminal.complain(
            "error: nothing was timed: no case of the kernels has a choice here; --target names more cases"
        )
        raise typer.Exit(1)
    if found.faults or lost:
        terminal.complain(f"error: {len(found.faults)} faults, {len(lost)} choices lose by more than {tolerance:.0%}")
        raise typer.Exit(1)


def _print(found: Audit, rows: list[dict[str, Any]], untimed: list[str], tolerance: float, measure: bool) -> None:
    for fault in found.faults:
        terminal.say(str(fault))
    for line in untimed:
        terminal.say(f"not timed: {line}")
    if rows:
        terminal.print_table(HEADERS, [_cells(row, tolerance) for row in rows], stack=(1, 1))
    measured = f", {len(rows)} timed again" if measure else ""
    entries = terminal.counted(found.entries, "entry", "entries")
    files, faults = terminal.counted(len(found.files), "file"), terminal.counted(len(found.faults), "fault")
    terminal.say(f"{files}, {entries}, {faults}{measured}")


def _cells(row: dict[str, Any], tolerance: float) -> list[str]:
    times = [terminal.time_words(row[name]) for name in ("shipped_us", "default_us", "rival_us")]
    loss = row["loss"]
    verdict = row["error"] or "did not run" if loss is None else "LOSES" if loss > tolerance else "ok"
    words = [terminal.call_words(row["call"]), terminal.config_words(row["config"], row["triton"] is not None)]
    return [*words, *times, "n/a" if loss is None else f"{loss:+.1%}", verdict]


def _with_the_program(
    found: Audit, targets: list[str], measure: bool, as_json: bool
) -> tuple[list[dict[str, Any]], list[str]]:
    """Match the files with their kernels, which adds to the faults, and time them again if asked for."""
    from autotuned.offline import verify
    from autotuned.offline.device import tensors_on, use_device

    with terminal.users_output(as_json):
        device = tensors_on(use_device())
        kernels = dict(_kernels(found, targets))
        for path, file in found.files:
            if file.kernel in kernels:
                found.faults += [Fault(str(path), text) for text in verify.stale(file, kernels[file.kernel])]
        if not measure:
            return [], []
        files = [file for _, file in found.files]
        timed = [contest for kernel in kernels.values() for contest in verify.contests(files, kernel, device)]
        return [_to_json(contest) for contest in timed], list(verify.left_out(files, timed))


def _kernels(found: Audit, targets: list[str]) -> Iterator[tuple[str, Any]]:
    """The kernels of the files by name; one that cannot be had is a fault of its files."""
    from autotuned.offline import targets as cases
    from autotuned.offline import verify

    known = {one.name: one for target in targets for one in cases.load(target)}
    by_name: dict[str, list[tuple[Path, ConfigFile]]] = {}
    for path, file in found.files:
        by_name.setdefault(file.kernel, []).append((path, file))
    for name, held in by_name.items():
        try:
            yield name, known.get(name) or verify.find_kernel(name)
        except TargetError as error:
            found.faults += [Fault(str(path), str(error)) for path, _ in held]


def _to_json(contest: Any) -> dict[str, Any]:
    loss = contest.loss
    return {
        "kernel": contest.key.kernel,
        "triton": contest.key.context.get("triton"),
        "call": contest.key.call,
        "config": dict(contest.config),
        "shipped_us": contest.shipped_us,
        "default_us": contest.default_us,
        "rival_us": contest.rival_us,
        "rival": contest.rival,
        "loss": None if loss == float("inf") else round(loss, 4),
        "error": contest.error,
    }
