"""`autotuned tune`: measures every case of the targets, keeps the choices and writes config files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from autotuned import env
from autotuned.configfiles import writer
from autotuned.errors import DeviceChoiceError

from .. import terminal

EXECUTORS = ("local", "ray")


def tune(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="TARGET", help="pkg.module, pkg.module:kernel, file.py, file.py:kernel, or a recorded calls.jsonl."
        ),
    ],
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Write config files into this folder.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Measure again what is stored.")] = False,
    budget: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Measure for so long, all cases together; run again to go on."),
    ] = None,
    isolate: Annotated[
        bool | None,
        typer.Option("--isolate/--in-process", help="Measure in a process that can be killed; on a GPU by default."),
    ] = None,
    devices: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="GPUs to tune on, a process each: all, or indices or UUIDs with commas."),
    ] = None,
    executor: Annotated[
        str, typer.Option(metavar="NAME", help="Where to tune: local, or ray for a cluster.")
    ] = "local",
    ray_address: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="With --executor ray: the cluster; RAY_ADDRESS by default.")
    ] = None,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="With --isolate: what one config may take to compile, or to run.")
    ] = 60.0,
    as_json: terminal.AsJson = False,
) -> None:
    """Measure every case of the targets and keep the choices.

    Choices go into the store, with --out also into config files; files that are there already are added to. Cases
    are registered by `@kernel.case`. The device is the GPU if there is one, else Triton's interpreter;
    AUTOTUNED_DEVICE says otherwise.

    With --devices every GPU named has a process of its own, and cases are handed out one by one; GPUs of several kinds
    each tune all cases, and their choices go into files of their own. A GPU is named by its index among those that are
    visible (CUDA_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES), or by its UUID (GPU-..., MIG-...) or the beginning of it.
    With --executor ray the same is done on all GPUs of a Ray cluster.

    With --isolate a config that hangs, or takes the process or the device along, costs that process: it is named,
    left out, and the rest goes on in a new one. Its record says so; --force tries it again.
    Of a recording, kernels of modules are imported by name; a file that it names, as of a script, is run only if it is
    given as a target too. Its calls are tuned as they were made, those first that were made most often; of a --budget
    each gets its share by count.

    Exit codes: 0 done; 1 failed; 2 wrong usage; 3 some cases failed or were skipped; 130 interrupted (what was
    measured is kept: run the same command again to go on).

    JSON: `device` ("cuda" or "interpreter"), `devices` (with --devices or --executor: each with `name`, `product`,
    `uuid`, `host`, `model`, `cases`, `restarts` and `given_up`, the reason or null), `cases`, `skipped` (kernels
    without cases: `kernel` and `reason`), `files` (written by --out), `interrupted` and `seconds`. Each case has
    `kernel`, `status` ("done", "failed", "skipped", or "empty" for a call that launches nothing), `reason` (unless
    done), and, null where they are not known: `digest`, `device` (slug), `triton` (its version), `call`, `config`,
    `median_us`, `vs_first` and `vs_default` (speed-up against the first config and against `default=`), `quality`,
    `source` ("measured", "stored" or the config file), `configs` and `measured_configs` (how many there are and how
    many have been measured).
    """
    for option, seconds in (("--budget", budget), ("--timeout", timeout)):
        if seconds is not None and not seconds > 0:
            raise typer.BadParameter(f"expected seconds above 0, got {seconds:g}", param_hint=option)
    _check(isolate, devices, executor, ray_address)
    _check_environment()
    if out is not None and (reason := writer.unwritable(out)):
        raise terminal.cannot_write(out, reason)
    from autotuned.offline import (  # need the measuring half of the library, which the other commands do without
        results,
        tuning,
    )

    wishes = results.Wishes(
        out=out, force=force, budget_s=budget, isolate=isolate, timeout_s=timeout, devices=devices, executor=executor,
        ray_address=ray_address,
    )  # fmt: skip
    try:
        raise typer.Exit(tuning.run(targets, wishes, as_json))
    except DeviceChoiceError as error:
        raise typer.BadParameter(str(error), param_hint="--devices") from error


def _check_environment() -> None:
    """Refuse what every process that measures would trip over, one after the other."""
    try:
        env.command_line_device()
        env.compile_workers()
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _check(isolate: bool | None, devices: str | None, executor: str, ray_address: str | None) -> None:
    """Refuse options that do not go together."""
    if executor not in EXECUTORS:
        raise typer.BadParameter(f"expected {' or '.join(EXECUTORS)}, got {executor!r}", param_hint="--executor")
    if ray_address is not None and executor != "ray":
        raise typer.BadParameter("expected with --executor ray only", param_hint="--ray-address")
    if executor == "ray" and devices not in (None, "all"):
        text = f"expected all, or nothing, with --executor ray, which finds the GPUs itself; got {devices!r}"
        raise typer.BadParameter(text, param_hint="--devices")
    several = "--devices" if devices is not None else "--executor ray" if executor == "ray" else ""
    if several and isolate is False:
        raise typer.BadParameter(f"expected without {several}, which needs processes", param_hint="--in-process")
    if several and os.name != "posix":
        raise typer.BadParameter(f"expected Linux, got {os.name!r}", param_hint=several)
