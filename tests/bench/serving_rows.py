"""The rows that `serving.py` prints: quantity, goal, result, and whether the goal is met."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

import background as swapped
import never

KINDS = ("control", "control again", "tuning", "swaps")
FEW = 5  # keys to wait for
MOST = 0.01  # allowed excess of the 99th percentile over control
SEARCHED_S = 60.0  # allowed time to improve a call that needs a search


def background_rows(found: dict[str, Any] | None) -> Iterator[tuple[str, str, str, bool | None]]:
    """The rows of `--one-gpu`."""
    for kind in swapped.KINDS[1:]:
        if found is None:
            yield _p99_row(kind)
            continue
        more = f" {found['swaps']} swaps, each {found['median_swap_s'] * 1e3:.1f} ms" * (kind == "background")
        yield _p99_row(kind, found["windows"], more, found["swaps"] > 0)


def rows(done: dict[str, Any]) -> Iterator[tuple[str, str, str, bool | None]]:
    """Quantity, goal, result, and whether the goal is met; None if nothing was measured."""
    yield from _p99_rows(done.get("p99"))
    for piece, what, goal in (
        ("known", "a call to its improved launch, known in the fleet", "at most 1 refresh"),
        ("searched", "a recorded call to its improved launch, to be searched", f"within {SEARCHED_S:.0f} s"),
    ):
        if (found := done.get(piece)) is None:
            yield what, goal, "not measured", None
            continue
        most, median = max(found["seconds"]), statistics.median(found["seconds"])
        text, looks = f"median {median:.2f} s, at most {most:.2f} s, {FEW} shapes", found.get("refreshes")
        met = most <= SEARCHED_S if looks is None else max(looks) <= 1
        yield what, goal, text if looks is None else f"{max(looks)} refreshes; {text}", met
    if (found := done.get("losses")) is None:
        yield "losses after a swap", "0 of 60", "not measured", None
        return
    lost = [row["case"] for row in found["rows"] if never.Interval(row["ratio"], row["half_width"]).loses]
    gain = never.geomean([1 / (1 + row["ratio"]) for row in found["rows"]])
    text = f"{len(lost)} of {len(found['rows'])}, {found['swapped']} swapped, {gain:.2f}x as fast {' '.join(lost)}"
    yield "losses after a swap", "0 of 60", text.strip(), not lost


def _p99_rows(found: dict[str, Any] | None) -> Iterator[tuple[str, str, str, bool | None]]:
    for kind in KINDS[1:]:
        if found is None:
            yield _p99_row(kind)
            continue
        more = f" {found['tuned meanwhile']} keys tuned" * (kind == "tuning")
        more += f" {found['swaps']} swaps" * (kind == "swaps")
        did = {"tuning": found["companion was busy to the end"], "swaps": found["swaps"] > 0}.get(kind, True)
        yield _p99_row(kind, found["windows"], more if did else f"{more}: it did nothing", did)


def _p99_row(
    kind: str, windows: dict[str, Any] | None = None, more: str = "", did: bool = True
) -> tuple[str, str, str, bool | None]:
    """The row of one kind of windows compared with idle ones; not met if nothing happened in them."""
    what, goal = f"p99 of a call, {kind}", "" if kind == "control again" else f"at most {MOST:.0%} beyond control"
    if windows is None:
        return what, goal, "not measured", None
    control, one = windows["control"], windows[kind]
    ratio = one["p99_us"] / control["p99_us"] - 1
    text = f"{ratio:+.2%} ({one['p99_us']:.2f} us, {control['p99_us']:.2f} us; {one['calls']} calls; median "
    text += f"{one['p50_us']:.2f} us, " + (f"99.9% {one['p999_us']:.2f} us, " if "p999_us" in one else "")
    text += f"longest {one['max_us']:.0f} us){more}"
    return what, goal, text, (ratio <= MOST and did) if goal else None
