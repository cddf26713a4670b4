"""`autotuned gc`: bounds the user's store by removing the least recently used records."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from autotuned.store import gc as evict
from autotuned.store import layout

from .. import terminal

_SIZES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}
_AGES = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}


def gc(
    max_size: Annotated[
        str | None, typer.Option("--max-size", metavar="SIZE", help="Keep at most this size, such as 500M or 2GiB.")
    ] = None,
    max_age: Annotated[
        str | None,
        typer.Option("--max-age", metavar="AGE", help="Remove records unused for this long: 30d, 12h or 2w."),
    ] = None,
    binaries: Annotated[
        Path | None,
        typer.Option("--binaries", metavar="DIR", help="Clean this folder of compiled kernels instead."),
    ] = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Remove the least recently used records.

    It also removes leftovers of killed processes. The default limits are 1 GiB, and a year without use. Records of a
    running search stay, and so do config files.

    --binaries cleans a folder of `autotuned run --binaries DIR` instead. If DIR holds config files, it removes the
    compiled kernels that no entry names.
    """
    given = max_size is not None or max_age is not None
    max_bytes = _size(max_size) if max_size is not None else None if given else evict.DEFAULT_MAX_BYTES
    max_age_s = _age(max_age) if max_age is not None else None if given else evict.DEFAULT_MAX_AGE_S
    if binaries is not None:
        _check(binaries)
    if binaries is None:
        freed = evict.run(layout.root(), max_bytes, max_age_s)
    elif any(binaries.glob("*/*.json")):
        freed = _unnamed(binaries, given)
    else:
        freed = evict.run_kept(binaries, max_bytes, max_age_s)
    place = layout.named() if binaries is None else str(binaries)
    if as_json:
        terminal.print_json(
            {
                "deleted": freed.records,
                "leftovers": freed.leftovers,
                "freed_bytes": freed.bytes,
                "records": freed.kept_records,
                "bytes": freed.kept_bytes,
                "cache": place,
            }
        )
    else:
        what = "record" if binaries is None else "kernel"
        terminal.say(
            f"deleted {terminal.counted(freed.records, what)} and {terminal.counted(freed.leftovers, 'leftover')} "
            f"({_words(freed.bytes)}); left in {place}: "
            f"{terminal.counted(freed.kept_records, what)} ({_words(freed.kept_bytes)})"
        )


def _check(binaries: Path) -> None:
    if layout.is_copy():
        raise typer.BadParameter("expected without --store", param_hint="--binaries")
    if not binaries.is_dir():
        raise typer.BadParameter(f"expected an existing folder, found none at {binaries}", param_hint="--binaries")


def _unnamed(folder: Path, given: bool) -> evict.Freed:
    from autotuned.binaries import gc as unnamed

    if given:
        problem = "expected no limit: in a folder of config files, only binaries that no entry names are removed"
        raise typer.BadParameter(problem, param_hint="--max-size, --max-age")
    return unnamed.run(folder)


def _size(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]i?)?b?", text.strip().lower())
    if match is None:
        raise typer.BadParameter(f"expected a size such as 500M or 2GiB, got {text!r}", param_hint="--max-size")
    return int(float(match[1]) * _SIZES[match[2] or ""])


def _age(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhdw])", text.strip().lower())
    if match is None:
        raise typer.BadParameter(
            f"expected an age with its unit, such as 30d, 12h or 2w, got {text!r}", param_hint="--max-age"
        )
    return float(match[1]) * _AGES[match[2]]


def _words(size: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size} bytes"
