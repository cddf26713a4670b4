"""`autotuned compress`: finds few configs that serve all tuned calls, and rules for untuned ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import autotuned
from autotuned.gpu.device import from_json
from autotuned.key.words import call_words

from .. import terminal

if TYPE_CHECKING:  # need NumPy
    from autotuned.offline.release.compress import Compressed
    from autotuned.rules.fit import Fit


def compress(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH...", help="Config files or records, or folders of them.")
    ],
    within: Annotated[str, typer.Option("--within", metavar="5%", help="The most that a tuned call may lose.")] = ...,  # type: ignore[assignment]
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Write config files into this folder.")] = ...,  # type: ignore[assignment]
    max_configs: Annotated[
        int | None, typer.Option("--max-configs", metavar="K", help="At most this many configs per kernel.")
    ] = None,
    targets: Annotated[
        list[str] | None,
        typer.Option("--target", metavar="TARGET", help="Modules or files whose cases to measure first."),
    ] = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Choose few configs that serve all calls, and fit rules.

    For each kernel, device and toolchain it finds the fewest configs with which no tuned call loses more than --within,
    and fits rules (small trees from sizes to configs) for untuned calls. The times come from the records of this user's
    store, or from the records you name. A config serves only calls that it was measured for; --target measures missing
    ones first.

    Exit codes: 0 done; 3 some calls keep their config, or some files could not be read.
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
    calls, now = terminal.counted(kernel.calls, "call"), len(kernel.configs)
    before = ", as before" if now == kernel.before else f" instead of {kernel.before}"
    return f"{where}: {calls}, {terminal.counted(now, 'config')}{before}{proven}, worst loss {kernel.worst:.1%}"


def _rule_words(fit: Fit) -> str:
    sizes = ", ".join(fit.table.names) or "one shape"
    if fit.why_not:
        return f"{sizes}: no rule: {fit.why_not}"
    mean, worst = fit.compared["rule"]
    leaves = terminal.counted(len(fit.leaves), "leaf", "leaves")
    return (
        f"{sizes}: a rule of {leaves} serves {fit.served:.0%} of the left-out calls, with "
        f"{mean:.1%} of loss on average, {worst:.0%} at worst"
    )
