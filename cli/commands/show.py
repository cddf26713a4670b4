"""`autotuned show`: shows everything known about a kernel's keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from autotuned._startup import later
from autotuned.key.nearest_key import parts
from autotuned.key.words import value_words
from autotuned.store import listing
from autotuned.store.record import Timing, TuningRecord, identity_of
from autotuned.typed_json import Json

from .. import terminal
from ..views.names import OnlyKernel, complete, kernel_of, no_key

if TYPE_CHECKING:
    from autotuned.offline.report import stored
    from autotuned.offline.report.stored import Stored
else:
    stored = later("offline.report.stored")

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
    name = listing.one_named(stored.kernels(), wanted)
    found = list(stored.choices(stored.Filter(name, device, triton)))
    chosen = [one for one in found if one.digest.startswith(digest or "")]
    if not chosen:
        raise no_key(name, digest, (one.digest for one in found))
    if as_json:
        terminal.print_json({"kernel": name, "keys": [_json(one) for one in chosen]})
        return
    hidden: list[Stored] = []
    if not (full or digest or device or triton):
        chosen, hidden = _own_last(name, chosen)
    differing = stored.apart(chosen)
    for one in chosen:
        if full:
            _print_all(one)
        else:
            _print(one, differing.get(id(one), ""))
    if hidden:
        places = ", ".join(dict.fromkeys(one.device for one in hidden))
        count = terminal.counted(len(hidden), "choice")
        terminal.say(f"This package ships {count} for {places}: `autotuned list {name}`, or --device.\n")
    terminal.print_qualities((one.quality, one.device) for one in chosen)
    if not full:
        terminal.say("--full shows every config and every part of the key.")


def _own_last(name: str, found: list[Stored]) -> tuple[list[Stored], list[Stored]]:
    """The choices of a kernel that are not from this package's files, and those that are; if all are, these first."""
    users = {path for path, _, _ in stored.shipped(name, own=False)}
    kept = [one for one in found if one.record is not None or one.path in users]
    return (kept, [one for one in found if one not in kept]) if kept else (found, [])


def _json(one: Stored) -> dict[str, Json]:
    record = one.record
    timings = [{**timing.to_json(), "config": dict(timing.config)} for timing in _sorted(record)] if record else None
    return {
        **one.to_json(),
        "key": one.key.to_json(),
        "conditions": one.conditions.to_json() if one.conditions is not None else None,
        "timings": timings,
        "provenance": dict(record.provenance) if record else None,
    }


def _sorted(record: TuningRecord) -> list[Timing]:
    """Timings, fastest first, then those without a time in list order."""
    return sorted(record.timings, key=lambda timing: float("inf") if timing.median_us is None else timing.median_us)


def _print(one: Stored, differing: str) -> None:
    record = one.record
    gain = "" if one.vs_default is None else f", {terminal.ratio_words(one.vs_default)} the untuned speed"
    terminal.print_heading(f"{one.key.kernel}  {one.call_words}")
    terminal.print_facts([
        ("chosen", one.config_words),
        ("time", terminal.time_words(one.median_us) + gain + (f", {one.quality}" if one.quality else "")),
        ("for", ", ".join(word for word in (one.device, one.toolchain) if word != "n/a")),
        ("key", one.digest[:12]),
        *([("differs in", differing)] if differing else []),
        *(_members(record) if record is not None else ()),
        ("file", one.path),
    ])  # fmt: skip
    if record is not None and record.timings:
        first, *others = sorted(_sorted(record), key=lambda timing: not _is_chosen(timing, one))
        _print_timings(one, [first, *others[: FASTEST - 1]])
        if len(others) >= FASTEST:
            failed = sum(not timing.usable for timing in others)
            terminal.say(f"and {len(others) - FASTEST + 1} more" + f", {failed} failed" * bool(failed))
    terminal.say("")


def _print_timings(one: Stored, timings: Sequence[Timing]) -> None:
    headers: tuple[str, ...] = ("", "config~", "failure~", "time>", "20-80%", "samples>?")
    rows = [_timing_cells(timing, one) for timing in timings]
    if all(timing.status == "ok" for timing in timings):
        headers, rows = headers[:2] + headers[3:], [row[:2] + row[3:] for row in rows]
    terminal.print_table(headers, rows)


def _print_all(one: Stored) -> None:
    terminal.print_heading(f"{one.key.kernel}  {one.call_words}")
    terminal.print_facts([("key", one.digest), *_words(one.key.to_json()), *_facts(one)])
    if one.record is not None:
        terminal.say("")
        _print_timings(one, _sorted(one.record))
    terminal.say("")


def _facts(one: Stored) -> Iterator[tuple[str, str]]:
    yield "chosen", one.config_words
    yield "time", terminal.time_words(one.median_us)
    yield "vs default", terminal.ratio_words(one.vs_default)
    yield "quality", one.quality or "n/a"
    if one.conditions is not None:
        yield "measured", one.conditions.words
    if one.record is not None:
        yield from _provenance(one.record)
    yield "file", one.path


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


def _is_chosen(timing: Timing, one: Stored) -> bool:
    return one.config is not None and timing.identity == identity_of(one.config)


def _timing_cells(timing: Timing, one: Stored) -> list[str]:
    spread = f"{terminal.time_words(timing.low_us)} - {terminal.time_words(timing.high_us)}" if timing.low_us else "n/a"
    return [
        "*" if _is_chosen(timing, one) else "",
        terminal.config_words(timing.config, one.key.is_of_triton),
        "" if timing.status == "ok" else f"{timing.status}: {timing.error}",
        terminal.time_words(timing.median_us),
        spread,
        str(timing.samples),
    ]
