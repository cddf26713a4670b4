"""Plots as inline SVG: bars of ratios, and a strip with one dot a config."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..terminal import printable, ratio_words

LETTER, BAR, ROW = 6.4, 420, 22  # pixels: room for a letter of a label, the longest bar, and from one bar to the next
STRIP_WIDTH, STRIP_HEIGHT, MARGIN = 240, 34, 10
TICKS, TICK_ROOM = 4, 40  # at most so many words on a strip, and pixels from one to the next
TICK_WORD = 32  # pixels that the longest word on a strip takes
LINEAR = 10  # a ratio from which bars are logarithmic: beside one of 1000 no other would be seen
LETTERS = 66  # of a label; more would run into the bar


def escape(text: str) -> str:
    """A text as HTML shows it: no marks of HTML, and nothing that a terminal would not show."""
    return html.escape(printable(text))


@dataclass(frozen=True)
class Dot:
    """A config in a strip: its time, what is said of it when it is pointed at, and what it is besides."""

    us: float
    words: str
    roles: tuple[str, ...] = ()


def bars(values: Sequence[tuple[str, float]]) -> str:
    """Horizontal bars from a ratio of 1, one a label; below 1 they point left, from `LINEAR` they are logarithmic."""
    high = max(1.05, *(value for _, value in values))
    low = min(1.0, *(value for _, value in values))
    room = 16 + LETTER * min(LETTERS, max(len(label) for label, _ in values))
    length = math.log if high >= LINEAR else lambda value: value - 1.0
    scale = BAR / (length(high) - length(low))
    one = room - length(low) * scale
    rows = "".join(
        _bar_row(n, label, value, room, one, length(value) * scale) for n, (label, value) in enumerate(values)
    )
    width, height = room + BAR + 70, ROW * len(values) + 8
    return (
        f'<svg class="bars" viewBox="0 0 {width:.0f} {height}" style="max-width: {width:.0f}px" role="img" '
        f'aria-label="speed-up of each case">\n{rows}'
        f'<line class="axis" x1="{one:.1f}" x2="{one:.1f}" y1="0" y2="{height}"/>\n</svg>\n'
    )


def _bar_row(number: int, label: str, value: float, room: float, one: float, reach: float) -> str:
    top = number * ROW + 4
    x, width = min(one, one + reach), abs(reach)
    text = label if len(label) <= LETTERS else label[: LETTERS - 1] + "\u2026"
    kind = "slower" if value < 1 else "faster"
    shape = f'x="{x:.1f}" y="{top}" width="{max(width, 1):.1f}" height="15" rx="2"'
    return (
        f"<g><title>{escape(label)}: {ratio_words(value)}</title>"
        f'<text x="{room - 8:.1f}" y="{top + 12}" text-anchor="end">{escape(text)}</text>'
        f'<rect class="{kind}" {shape}/>'
        f'<text x="{max(x + width, one) + 6:.1f}" y="{top + 12}">{ratio_words(value)}</text></g>\n'
    )


def bar(ratio: float | None) -> str:
    """A small bar of a time against the fastest, logarithmic from 1 to 10."""
    if ratio is None:
        return ""
    length = max(100 * min(math.log10(max(ratio, 1.0)), 1.0), 1.0)
    return (
        f'<svg class="bar" viewBox="0 0 150 14" role="img"><rect class="slower" x="0" y="2" width="{length:.1f}" '
        f'height="10" rx="2"/><text x="{length + 6:.1f}" y="11">{ratio_words(ratio)}</text></svg>'
    )


def strip(dots: Sequence[Dot], failed: str = "") -> str:
    """One dot a config on a logarithmic scale of time, the fastest at the left."""
    note = f'<span class="failed">{escape(failed)}</span>' if failed else ""
    if not dots:
        return note or '<span class="faint">not measured here</span>'
    fastest = min(dot.us for dot in dots)
    reach = max(max(dot.us for dot in dots) / fastest, 1.25)
    marks = "".join(_tick(factor, reach) for factor in _factors(reach))
    # Those with a role last, so that they lie on top.
    points = "".join(_point(dot, fastest, reach) for dot in sorted(dots, key=lambda dot: bool(dot.roles)))
    return (
        f'<svg class="strip" viewBox="0 0 {STRIP_WIDTH} {STRIP_HEIGHT}" role="img" '
        f'aria-label="times of {len(dots)} configs">\n{marks}{points}</svg>{note}'
    )


def _factors(reach: float) -> list[float]:
    """Round factors to mark on the scale, as far as there is room for their words."""
    steps = [1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0, 1000.0]
    inside = [step for step in steps if _x(step, reach) + TICK_WORD / 2 <= STRIP_WIDTH]
    marked: list[float] = []
    for step in (inside[0], *reversed(inside[1:])):
        if len(marked) < TICKS and all(abs(_x(step, reach) - _x(other, reach)) >= TICK_ROOM for other in marked):
            marked.append(step)
    return sorted(marked)


def _x(factor: float, reach: float) -> float:
    return MARGIN + (STRIP_WIDTH - 2 * MARGIN) * math.log(factor) / math.log(reach)


def _tick(factor: float, reach: float) -> str:
    x = _x(factor, reach)
    return (
        f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="2" y2="20"/>'
        f'<text class="tick" x="{x:.1f}" y="31" text-anchor="middle">{factor:g}x</text>\n'
    )


def _point(dot: Dot, fastest_us: float, reach: float) -> str:
    x = _x(dot.us / fastest_us, reach)
    kind = next((role for role in ("chosen", "default", "first") if role in dot.roles), "other")
    radius = 4.5 if dot.roles else 3.5
    return f'<circle class="{kind}" cx="{x:.1f}" cy="11" r="{radius}"><title>{escape(dot.words)}</title></circle>\n'
