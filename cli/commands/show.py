"""`autotuned show`: shows everything known about a kernel's keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from autotuned.key.nearest_key import parts
from autotuned.key.words import value_words
from autotuned.offline.report.stored import Filter, Stored, apart, choices, kernels, shipped
from autotuned.store import listing
from autotuned.store.record import Timing, TuningRecord, identity_of
from autotuned.typed_json import Json

from .. import terminal
from ..views.names import OnlyKernel, complete, kernel_of, no_key

FASTEST = 5  # configs of the short form


def show(
    kernel: Annotated[
        str | None,
        typer.Argument(metavar="KERNEL", autocompletion=complete, help="The kernel's name, or a dotted suffix."),
    ] = None,
    digest: Annotated[str | None, typer.Argument(metavar="KEY", help="Only keys that begin with this.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Show every config, and every part of the key.")] = False,
    named: OnlyKernel = None,
    device: terminal.OnlyDevice = None,
    triton: terminal.OnlyTriton = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Show a kernel's choices and its fastest configs.

    --full adds every part of the key, the timings of every config, and the conditions they were measured under.
    """
    wanted = kernel_of(kernel, named)
    if wanted is None:
        raise typer.BadParameter("expected the name of a kernel, as `autotuned list` prints it", param_hint="KERNEL")
    name = listing.one_named(kernels(), wanted)
    found = list(choices(Filter(name, device, triton)))
    chosen = [stored for stored in found if stored.digest.startswith(digest or "")]
    if not chosen:
        raise no_key(name, digest, (stored.digest for stored in found))
    if as_json:
        terminal.print_json({"kernel": name, "keys": [_json(stored) for stored in chosen]})
        return
    hidden: list[Stored] = []
    if not (full or digest or device or triton):
        chosen, hidden = _own_last(name, chosen)
    differing = apart(chosen)
    for stored in chosen:
        if full:
            _print_all(stored)
        else:
            _print(stored, differing.get(id(stored), ""))
    if hidden:
        places = ", ".join(dict.fromkeys(stored.device for stored in hidden))
        count = terminal.counted(len(hidden), "choice")
        terminal.say(f"This package ships {count} for {places}: `autotuned list {name}`, or --device.\n")
    terminal.print_qualities((stored.quality, stored.device) for stored in chosen)
    if not full:
        terminal.say("--full shows every config and every part of the key.")


def _own_last(name: str, found: list[Stored]) -> tuple[list[Stored], list[Stored]]:
    """The choices of a kernel that are not from this package's files, and those that are; if all are, these first."""
    users = {path for path, _, _ in shipped(name, own=False)}
    kept = [stored for stored in found if stored.record is not None or stored.path in users]
    return (kept, [stored for stored in found if stored not in kept]) if kept else (found, [])


def _json(stored: Stored) -> dict[str, Json]:
    record = stored.record
    return {
        **stored.to_json(),
        "key": stored.key.to_json(),
        "conditions": stored.conditions.to_json() if stored.conditions is not None else None,
        "timings": [{**one.to_json(), "config": dict(one.config)} for one in _sorted(record)] if record else None,
        "provenance": dict(record.provenance) if record else None,
    }


def _sorted(record: TuningRecord) -> list[Timing]:
    """Timings, fastest first, then those without a time in list order."""
    return sorted(record.timings, key=lambda timing: float("inf") if timing.median_us is None else timing.median_us)


def _print(stored: Stored, differing: str) -> None:
    record = stored.record
    gain = "" if stored.vs_default is None else f", {terminal.ratio_words(stored.vs_default)} the untuned speed"
    terminal.print_heading(f"{stored.key.kernel}  {stored.call_words}")
    terminal.print_facts([
        ("chosen", stored.config_words),
        ("time", terminal.time_words(stored.median_us) + gain + (f", {record.quality}" if record else "")),
        ("for", ", ".join(word for word in (stored.device, stored.toolchain) if word != "n/a")),
        ("key", stored.digest[:12]),
        *([("differs in", differing)] if differing else []),
        *(_members(record) if record is not None else ()),
        ("file", stored.path),
    ])  # fmt: skip
    if record is not None and record.timings:
        first, *others = sorted(_sorted(record), key=lambda timing: not _is_chosen(timing, stored))
        _print_timings(stored, [first, *others[: FASTEST - 1]])
        if len(others) >= FASTEST:
            failed = sum(not timing.usable for timing in others)
            terminal.say(f"and {len(others) - FASTEST + 1} more" + f", {failed} failed" * bool(failed))
    terminal.say("")


def _print_timings(stored: Stored, timings: Sequence[Timing]) -> None:
    headers: tuple[str, ...] = ("", "config~", "failure~", "time>", "20-80%", "samples>?")
    rows = [_timing_cells(timing, stored) for timing in timings]
    if all(timing.status == "ok" for timing in timings):
        headers, rows = headers[:2] + headers[3:], [row[:2] + row[3:] for row in rows]
    terminal.print_table(headers, rows)


def _print_all(stored: Stored) -> None:
    terminal.print_heading(f"{stored.key.kernel}  {stored.call_words}")
    terminal.print_facts([("key", stored.digest), *_words(stored.key.to_json()), *_facts(stored)])
    if stored.record is not None:
        terminal.say("")
        _print_timings(stored, _sorted(stored.record))
    terminal.say("")


def _facts(stored: Stored) -> Iterator[tuple[str, str]]:
    yield "chosen", stored.config_words
    yield "time", terminal.time_words(stored.median_us)
    yield "vs default", terminal.ratio_words(stored.vs_default)
    if stored.record is not None:
        yield "quality", stored.record.quality
    if stored.conditions is not None:
        yield "measured", stored.conditions.words
    if stored.record is not None:
        yield from _provenance(stored.record)
    yield "file", stored.path


def _members(record: TuningRecord) -> Iterator[tuple[str, str]]:
    """The calls of a bucket that a choice was tuned on."""
    for one in record.members:
        sizes = ", ".join(f"{name}={value_words(size)}" for name, size in one["sizes"].items())
        won: dict[str, Json] = next((timing for timing in one["timings"] if timing["config"] == record.winner), {})
        best_us = min(timing["median_us"] for timing in one["timings"] if timing["median_us"])
        words = f"{terminal.time_words(won.get('median_us'))}, its own best {terminal.time_words(best_us)}"
        yield f"member {sizes}", f"{words}, {terminal.ratio_words(one['vs_default'])} the untuned speed"


def _provenance(record: TuningRecord) -> Iterator[tuple[str, str]]:
    yield from _members(record)
    provenance = {name: value for name, value in record.provenance.items() if name != "members"}
    if isinstance(default := provenance.pop("default", None), dict):
        yield "untuned", terminal.config_words(default, record.key.is_of_triton)
    yield from _words(provenance, "provenance.")


def _words(data: Json, path: str = "") -> Iterator[tuple[str, str]]:
    """The non-empty leaves of a key or provenance, with their values."""
    yield from ((place, value_words(value)) for place, value in parts(data, path) if value != {})


def _is_chosen(timing: Timing, stored: Stored) -> bool:
    return stored.config is not None and timing.identity == identity_of(stored.config)


def _timing_cells(timing: Timing, stored: Stored) -> list[str]:
    spread = f"{terminal.time_words(timing.low_us)} - {terminal.time_words(timing.high_us)}" if timing.low_us else "n/a"
    return [
        "*" if _is_chosen(timing, stored) else "",
        terminal.config_words(timing.config, stored.key.is_of_triton),
        "" if timing.status == "ok" else f"{timing.status}: {timing.error}",
        terminal.time_words(timing.median_us),
        spread,
        str(timing.samples),
    ]
