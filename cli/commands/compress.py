"""`autotuned compress`: few configs that serve all tuned calls, and rules for those that nobody tuned."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import autotuned
from autotuned.gpu.device import from_json
from autotuned.key.words import call_words

from .. import terminal

if TYPE_CHECKING:  # they need NumPy, which other commands do without
    from autotuned.offline.release.compress import Compressed
    from autotuned.rules.fit import Fit


def compress(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH...", help="Config files or records, or folders of them.")
    ],
    within: Annotated[str, typer.Option("--within", metavar="5%", help="What a tuned call may lose at most.")] = ...,  # type: ignore[assignment]
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Write config files into this folder.")] = ...,  # type: ignore[assignment]
    max_configs: Annotated[
        int | None, typer.Option("--max-configs", metavar="K", help="At most so many configs of one kernel.")
    ] = None,
    targets: Annotated[
        list[str] | None,
        typer.Option("--target", metavar="TARGET", help="Modules, files, recordings whose cases are measured first."),
    ] = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Choose few configs that serve all calls, and fit rules.

    The configs are the fewest that hold every tuned call of a kernel; rules are for calls that nobody tuned.
    For each kernel, device and toolchain, from all times of its records: those of this user's store for config files,
    or the given records themselves. Each call that is held loses at most what --within says; what cannot be held is
    named, and keeps its config. A config that was not measured for a call never serves it; with --target the cases of
    modules, files or recordings are timed first with the configs that won other calls.

    A rule, a small tree from sizes to configs, is written into the config file where it beats the best single config,
    the best of each power of two, and the nearest neighbour, on calls that were left out while it was fitted.

    Exit codes: 0 done; 3 some calls keep their config, or some files could not be read.

    JSON: `files`, `kernels` (each with `kernel`, `context`, `calls`, `before`, `configs`, `least`, `exact`, `worst` and
    `rules`, with their `leaves`, the share of calls `served`, and `why_not`, if none is written), `left` (each with
    `kernel`, `device`, `call` and `why`) and `faults`.
    """
    result = autotuned.compress(paths, within=within, out=out, max_configs=max_configs, targets=targets)
    terminal.complain_of(result.faults)
    if as_json:
        terminal.print_json(result.to_json())
    else:
        for kernel in result.kernels:
            terminal.say(_words(kernel))
            for fit in kernel.fits:
                terminal.say(f"  {_rule_words(fit)}")
        terminal.say("\n".join(f"wrote {path}" for path in result.files))
    for one in result.left:
        terminal.remark(f"{one.key.kernel} {call_words(one.key.call)} keeps its config: {one.why}")
    if result.left or result.faults:
        raise typer.Exit(3)


def _words(kernel: Compressed) -> str:
    where = f"{kernel.kernel} on {from_json(kernel.context['device']).slug}"
    if not kernel.calls:
        return f"{where}: no call has times here"
    proven = "" if kernel.is_exact else f" (at least {kernel.least} are needed)"
    calls = terminal.counted(kernel.calls, "call")
    return f"{where}: {calls}, {kernel.before} -> {len(kernel.configs)} configs{proven}, worst loss {kernel.worst:.1%}"


def _rule_words(fit: Fit) -> str:
    sizes = ", ".join(fit.table.names) or "one shape"
    if fit.why_not:
        return f"{sizes}: no rule: {fit.why_not}"
    mean, worst = fit.compared["rule"]
    leaves = terminal.counted(len(fit.leaves), "leaf", "leaves")
    return (
        f"{sizes}: a rule of {leaves} serves {fit.served:.0%} of the calls left out, with "
        f"{mean:.1%} of loss in the mean, {worst:.0%} in the worst"
    )
