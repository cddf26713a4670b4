"""`autotuned show`: everything that is known of a kernel's keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from autotuned.key.nearest_key import parts
from autotuned.key.words import call_words, value_words
from autotuned.offline.stored import Stored, kernels, of_kernel
from autotuned.store import listing
from autotuned.store.record import Timing, TuningRecord, identity_of
from autotuned.typed_json import Json

from .. import terminal
from ..views.names import complete, no_key


def show(
    kernel: Annotated[
        str, typer.Argument(autocompletion=complete, help="The kernel's name, or the end of it after a dot.")
    ],
    digest: Annotated[str | None, typer.Argument(metavar="[KEY]", help="Only keys that begin so.")] = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Show a kernel's keys and the timings of every config.

    JSON: `kernel` and `keys`, each with the fields of `list --json`, and `key` (`call` and `context`), `conditions`
    (`restore` and `checks`: what it was measured under), `timings` (fastest first, then those that failed; each with
    `config`, `median_us`, `low_us`, `high_us`, `samples`, `status`, `error`, `passed` and `failed`, as the record has
    them) and `provenance`; the last two are null for config files.
    """
    name = listing.one_named(kernels(), kernel)
    found = list(of_kernel(name))
    chosen = [stored for stored in found if stored.key.digest.startswith(digest or "")]
    if not chosen:
        raise no_key(name, digest, (stored.key.digest for stored in found))
    if as_json:
        terminal.print_json({"kernel": name, "keys": [_json(stored) for stored in chosen]})
        return
    for stored in chosen:
        _print(stored)


def _json(stored: Stored) -> dict[str, Json]:
    record = stored.record
    return {
        **stored.to_json(),
        "key": stored.key.to_json(),
        "conditions": stored.conditions.to_json() if stored.conditions is not None else None,
        "timings": [_timing_json(timing) for timing in _sorted(record)] if record else None,
        "provenance": dict(record.provenance) if record else None,
    }


def _timing_json(timing: Timing) -> dict[str, Json]:
    return {**timing.to_json(), "config": dict(timing.config)}


def _sorted(record: TuningRecord) -> list[Timing]:
    """Fastest first; then those without a time, in the order of the list."""
    return sorted(record.timings, key=lambda timing: float("inf") if timing.median_us is None else timing.median_us)


def _print(stored: Stored) -> None:
    terminal.print_heading(f"{stored.key.kernel}  {call_words(stored.key.call)}")
    terminal.print_facts([("key", stored.key.digest), *_words(stored.key.to_json()), *_facts(stored)])
    if stored.record is not None:
        terminal.say("")
        terminal.print_table(
            ("config", "failure", "time>", "20-80%", "samples>"),
            [_timing_cells(timing, stored) for timing in _sorted(stored.record)],
            stack=(1, 1),
        )
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


def _provenance(record: TuningRecord) -> Iterator[tuple[str, str]]:
    provenance = {name: value for name, value in record.provenance.items() if name != "members"}
    for one in record.members:
        sizes = ", ".join(f"{name}={value_words(size)}" for name, size in one["sizes"].items())
        won: dict[str, Json] = next((timing for timing in one["timings"] if timing["config"] == record.winner), {})
        best_us = min(timing["median_us"] for timing in one["timings"] if timing["median_us"])
        words = f"{terminal.time_words(won.get('median_us'))}, its own best {terminal.time_words(best_us)}"
        yield f"member {sizes}", f"{words}, {terminal.ratio_words(one['vs_default'])} vs default"
    if isinstance(default := provenance.pop("default", None), dict):
        yield "untuned", terminal.config_words(default, record.key.is_of_triton)
    yield from _words(provenance, "provenance.")


def _words(data: Json, path: str = "") -> Iterator[tuple[str, str]]:
    """The leaves of a key, or of a provenance, and their values; what is empty is left out."""
    yield from ((place, value_words(value)) for place, value in parts(data, path) if value != {})


def _timing_cells(timing: Timing, stored: Stored) -> list[str]:
    chosen = stored.config is not None and timing.identity == identity_of(stored.config)
    spread = f"{terminal.time_words(timing.low_us)} - {terminal.time_words(timing.high_us)}" if timing.low_us else "n/a"
    return [
        f"{'* ' if chosen else ''}{terminal.config_words(timing.config, stored.key.is_of_triton)}",
        "" if timing.status == "ok" else f"{timing.status}: {timing.error}",
        terminal.time_words(timing.median_us),
        spread,
        str(timing.samples),
    ]
