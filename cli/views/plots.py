"""Plots as inline SVG: times of configs, ranges of ratios, ratios over sizes, costs of values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from markupsafe import Markup, escape

from ..terminal import printable, ratio_words

STRIP_WIDTH, STRIP_HEIGHT, MARGIN = 240, 34, 10  # pixels, as are all lengths here
TICKS, TICK_ROOM, TICK_WORD = 4, 40, 32  # most labels on a scale, their distance, and the width of the longest
MOST_DOTS = 100  # per strip, and `MOST_POINTS` per plot: more would overlap and bloat the page
MOST_POINTS = 400
RANGE_WIDTH = 110
PLOT_WIDTH, PLOT_HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 360, 210, 44, 40, 10, 12
MOST_VALUES, COLUMN, COLUMN_HEIGHT = 8, 44, 44
STEPS = [1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0, 1000.0]
MARKS = {  # a shape for each colour, for readers who cannot tell colours apart
    0: "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0z", 1: "M-3.5,-3.5h7v7h-7z", 2: "M0,-4.5L4.5,3.5H-4.5z",
    3: "M0,-5L5,0L0,5L-5,0z", 4: "M-4.5,-3.5H4.5L0,4.5z", 5: "M-4.5,-1.5h3v-3h3v3h3v3h-3v3h-3v-3h-3z",
}  # fmt: skip

T = TypeVar("T")


def text(words: object) -> Markup:
    """A text escaped for HTML, without unprintable characters."""
    return words if isinstance(words, Markup) else escape(printable(str(words)))


def tag(name: str, *inside: object, **attributes: object) -> Markup:
    """An element of HTML or SVG. In attribute names "_" becomes "-", and a trailing one is dropped."""
    names = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items()}
    given = "".join(f' {key}="{text(f"{v:.1f}" if isinstance(v, float) else v)}"' for key, v in names.items())
    return Markup(f"<{name}{given}>{''.join(map(text, inside))}</{name}>")  # each part is escaped


def image(words: str, width: float, height: float, *inside: object, kind: str) -> Markup:
    """An SVG image with a text for screen readers."""
    box = f"0 0 {width:.0f} {height:.0f}"
    return tag("svg", *inside, class_=kind, viewBox=box, width=int(width), height=int(height), role="img",
               aria_label=words)  # fmt: skip


@dataclass(frozen=True)
class Dot:
    """A config in a strip: its time, tooltip and roles."""

    us: float
    words: str
    roles: tuple[str, ...] = ()


def strip(dots: Sequence[Dot], failed: str = "") -> Markup:
    """One dot per config on a logarithmic time scale, fastest on the left; thinned out evenly if there are many."""
    note = tag("span", failed, class_="failed") if failed else Markup("")
    if not dots:
        return note or tag("span", "not measured here", class_="faint")
    fastest = min(dot.us for dot in dots)
    reach = max(max(dot.us for dot in dots) / fastest, 1.25)
    plain = sorted((dot for dot in dots if not dot.roles), key=lambda dot: dot.us)
    path = "".join(f"M{_x(dot.us / fastest, reach):.0f} 11h0" for dot in evenly(plain, MOST_DOTS))
    marks = (_tick(factor, reach) for factor in _factors(reach))
    points = (_point(dot, fastest, reach) for dot in dots if dot.roles)  # last, on top
    words = f"times of {len(dots)} configs, from the fastest to {ratio_words(reach)} as long"
    return image(words, STRIP_WIDTH, STRIP_HEIGHT, *marks, tag("path", d=path), *points, kind="strip") + note


def evenly(some: Sequence[T], most: int) -> list[T]:
    """At most `most` of them, evenly, including the first and the last."""
    if len(some) <= most:
        return list(some)
    return [some[round(number * (len(some) - 1) / (most - 1))] for number in range(most)]


def _factors(reach: float) -> list[float]:
    """Round factors to mark on the scale, as far as their labels fit."""
    inside = [step for step in STEPS if _x(step, reach) + TICK_WORD / 2 <= STRIP_WIDTH]
    marked: list[float] = []
    for step in (inside[0], *reversed(inside[1:])):
        if len(marked) < TICKS and all(abs(_x(step, reach) - _x(other, reach)) >= TICK_ROOM for other in marked):
            marked.append(step)
    return sorted(marked)


def _x(factor: float, reach: float) -> float:
    return MARGIN + (STRIP_WIDTH - 2 * MARGIN) * math.log(factor) / math.log(reach)


def _tick(factor: float, reach: float) -> Markup:
    x = _x(factor, reach)
    line = tag("line", class_="axis", x1=x, x2=x, y1=2, y2=20)
    return line + tag("text", f"{factor:g}x", class_="tick", x=x, y=31, text_anchor="middle")


def _point(dot: Dot, fastest_us: float, reach: float) -> Markup:
    kind = "chosen" if "chosen" in dot.roles else "default"
    return tag("circle", tag("title", dot.words), class_=kind, cx=_x(dot.us / fastest_us, reach), cy=11, r=4.5)


def scale(low: float, high: float, start: float, end: float) -> tuple[float, float]:
    """Coefficients `a` and `b` of the pixel `a + b * log(value)`."""
    step = (end - start) / (math.log(high) - math.log(low))
    return start - step * math.log(low), step


def span(least: float, middle: float, most: float, low: float, high: float) -> Markup:
    """A range of ratios with its mean, on a logarithmic scale with a line at 1."""
    start, step = scale(min(low, 1.0), max(high, 1.25), 6, RANGE_WIDTH - 6)
    left, dot, right, one = (start + step * math.log(ratio) for ratio in (least, middle, most, 1.0))
    return image(
        f"from {ratio_words(least)} to {ratio_words(most)}, {ratio_words(middle)} on average", RANGE_WIDTH, 18,
        tag("line", class_="axis", x1=one, x2=one, y1=0, y2=18),
        tag("line", class_="range", x1=left, x2=right, y1=9, y2=9),
        tag("circle", class_="loss" if middle < 0.99 else "chosen", cx=dot, cy=9, r=5), kind="span",
    )  # fmt: skip


@dataclass(frozen=True)
class Point:
    """A case in a plot over sizes: size, ratio, tooltip, series, and CSS classes for filters."""

    size: float
    ratio: float
    words: str
    series: int
    classes: str = ""


def mark(series: int, x: float = 7, y: float = 7) -> Markup:
    """The mark of a series, in its colour."""
    return tag("path", d=MARKS[series % len(MARKS)], transform=f"translate({x:.1f},{y:.1f})")


def over_sizes(points: Sequence[Point], label: str, title: str) -> Markup:
    """Ratios over sizes on logarithmic scales, with a line at 1; thinned out evenly by size if there are many."""
    shown = evenly(sorted(points, key=lambda point: point.size), MOST_POINTS)
    sizes = [point.size for point in points]
    low, high = min(1.0, *(p.ratio for p in points)) / 1.03, max(1.1, *(p.ratio for p in points)) * 1.03
    across = scale(min(sizes) / 1.2, max(sizes) * 1.2, LEFT, PLOT_WIDTH - RIGHT)
    up = scale(low, high, PLOT_HEIGHT - BOTTOM, TOP)
    bottom = PLOT_HEIGHT - BOTTOM
    marks = []
    for value, x in _apart(_sizes(min(sizes), max(sizes)), across, 52):
        marks.append(tag("text", size_words(value), class_="tick", x=x, y=bottom + 15, text_anchor="middle"))
    for value, y in _apart([1.0, *_ratios(low, high)], up, 22):
        kind = "one" if value == 1 else "axis"
        marks.append(tag("line", class_=kind, x1=LEFT, x2=PLOT_WIDTH - RIGHT, y1=y, y2=y))
        marks.append(tag("text", f"{value:g}x", class_="tick", x=LEFT - 6, y=y + 4, text_anchor="end"))
    for point in shown:
        x, y = (at + step * math.log(v) for (at, step), v in ((across, point.size), (up, point.ratio)))
        marks.append(tag("g", tag("title", point.words), mark(point.series, x, y),
                         class_=f"s{point.series % len(MARKS)} {point.classes}"))  # fmt: skip
    label = label if len(shown) == len(points) else f"{label} ({len(shown):,} of {len(points):,} calls)"
    marks.append(tag("text", label, class_="label", x=(LEFT + PLOT_WIDTH) / 2, y=PLOT_HEIGHT - 6, text_anchor="middle"))
    return image(title, PLOT_WIDTH, PLOT_HEIGHT, *marks, kind="plot")


def _apart(values: Sequence[float], how: tuple[float, float], room: float) -> list[tuple[float, float]]:
    """Values and their pixels, without values too close to an earlier one."""
    found: list[tuple[float, float]] = []
    for value in values:
        pixel = how[0] + how[1] * math.log(value)
        if all(abs(pixel - other) >= room for _, other in found):
            found.append((value, pixel))
    return found


def _sizes(low: float, high: float) -> list[float]:
    """Powers of ten on a scale of sizes, or its ends if there are fewer than two."""
    powers = [10.0**power for power in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)]
    step = max(1, math.ceil(len(powers) / 5))
    return powers[::step] if len(powers) > 1 else [low, high]


def _ratios(low: float, high: float) -> list[float]:
    """Round ratios on a scale, farthest from 1 first, so that these are kept."""
    steps = {*STEPS, *(round(1 / step, 3) for step in STEPS), 1.2, 1.3, 1.4, 1.75, 2.5, 4.0, 7.0, 30.0}
    return sorted((step for step in steps if low <= step <= high), key=lambda step: -abs(math.log(step)))


def size_words(size: float) -> str:
    """A size in three digits and a letter: 16.8M."""
    for power, letter in ((12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if 10**power <= size < 10 ** (power + 3):
            return f"{size / 10**power:.3g}{letter}"
    return f"{size:.3g}"


def columns(values: Sequence[tuple[str, float | None, int]]) -> Markup:
    """A bar for each (value, cost, number of choices), taller if faster; thinned out evenly, keeping the best."""
    best = min(values, key=lambda value: value[1] or math.inf)
    shown = sorted({*evenly(range(len(values)), MOST_VALUES - 1), values.index(best)})
    bars = []
    for number, (value, cost, chosen) in enumerate(values[place] for place in shown):
        height = COLUMN_HEIGHT / max(cost or math.inf, 1.0)
        x, top, short = (
            (number + 0.5) * COLUMN,
            16 + COLUMN_HEIGHT - height,
            value[:6] + "\u2026" if value[7:] else value,
        )
        bars.append(tag(
            "g", tag("title", f"{value}: {ratio_words(cost)}, chosen {chosen} times"),
            tag("rect", class_="best" if cost == best[1] else "cost", x=x - 14, y=top, width=28, height=height),
            tag("text", ratio_words(cost), class_="tick", x=x, y=top - 4, text_anchor="middle"),
            tag("text", short, x=x, y=COLUMN_HEIGHT + 31, text_anchor="middle"),
            tag("text", chosen or "", class_="tick", x=x, y=COLUMN_HEIGHT + 45, text_anchor="middle"),
        ))  # fmt: skip
    said = ", ".join(f"{value}: {ratio_words(cost)}, chosen {chosen} times" for value, cost, chosen in values[:40])
    return image(said, COLUMN * len(shown), COLUMN_HEIGHT + 50, *bars, kind="columns")
