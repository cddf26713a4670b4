"""Completes names of kernels in shells, and reports unknown names and digests."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from autotuned import env
from autotuned.store import listing

from .. import terminal


def complete(incomplete: str) -> list[str]:
    """Names of kernels in the store, for shell completion."""
    names = sorted(filter(str.isprintable, listing.kernels(quietly=True)))  # shells print them unescaped
    whole = [name for name in names if name.startswith(incomplete)]
    ends = {name.rpartition(".")[2] for name in names}
    return whole or sorted(end for end in ends if end.startswith(incomplete))


Kernel = Annotated[
    str | None,
    typer.Argument(metavar="KERNEL", autocompletion=complete, help="Only this kernel: its name, or a dotted suffix."),
]
OnlyKernel = Annotated[
    str | None, typer.Option("--kernel", metavar="NAME", autocompletion=complete, help="The same as KERNEL.")
]


def kernel_of(argument: str | None, option: str | None) -> str | None:
    """The kernel named by the argument or by `--kernel`."""
    if argument is not None and option is not None:
        raise typer.BadParameter(f"expected without KERNEL, got {argument!r}", param_hint="--kernel")
    return option if argument is None else argument


def recording_of(given: Path | None) -> Path:
    """The recording of `--calls`, or AUTOTUNED_RECORD."""
    path = given or env.record_path()
    if path is None:
        raise typer.BadParameter("expected a recording: give --calls CALLS.jsonl", param_hint="--calls")
    return path


def no_key(kernel: str, wanted: str | None, digests: Iterable[str]) -> typer.Exit:
    """Report that no key of a kernel begins as wanted; the caller raises the returned exit."""
    known = ", ".join(dict.fromkeys(digest[:12] for digest in digests)) or "none"
    return terminal.fail(f"`{kernel}`: no key begins with {wanted!r}. Its keys are {known}.")
