"""Draws the pictures of the documentation: charts from the measured numbers in docs/data/, and the path of a call.

Run `python docs/draw.py` after new numbers came in; a test compares what it draws with the files that are kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

DOCS = Path(__file__).resolve().parent
WIDTH, LABEL, ROW, BAR, TOP = 600, 240, 34, 20, 64  # narrow, so that a telephone shows letters that can be read
OURS, OTHER, FLOOR = "#2a78d6", "#9aa3ad", "#5c6670"
# One file for light and dark pages: text takes the page's scheme.
STYLE = (
    "text{font-family:system-ui,-apple-system,'Segoe UI',sans-serif;font-size:14px;fill:#1f2328}"
    ".title{font-size:17px;font-weight:600}.note{font-size:12px;fill:#59636e}.value{font-variant-numeric:tabular-nums}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.note{fill:#9198a1}}"
)


@dataclass(frozen=True)
class Bar:
    """One bar: what it stands for, its length in the chart's unit, and its colour."""

    label: str
    value: float
    colour: str


def chart(title: str, note: str, bars: Sequence[Bar], unit: str) -> str:
    """Horizontal bars that begin at zero, as an SVG text.

    Args:
        title: What is compared.
        note: Card, versions and command.
        bars: From top to bottom.
        unit: Written behind each value.
    """
    height = TOP + ROW * len(bars) + 12
    scale = (WIDTH - LABEL - 80) / max(bar.value for bar in bars)
    box = f'viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {box}>',
        f"<style>{STYLE}</style>",
        f'<text class="title" x="8" y="24">{escape(title)}</text>',
        f'<text class="note" x="8" y="46">{escape(note)}</text>',
        *(line for place, bar in enumerate(bars) for line in _bar(bar, TOP + ROW * place, scale, unit)),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _bar(bar: Bar, top: float, scale: float, unit: str) -> Iterator[str]:
    length, middle = bar.value * scale, top + BAR / 2 + 5
    yield f'<text x="{LABEL - 12}" y="{middle:g}" text-anchor="end">{escape(bar.label)}</text>'
    yield f'<rect x="{LABEL}" y="{top:g}" width="{length:.1f}" height="{BAR}" rx="3" fill="{bar.colour}"/>'
    yield f'<text class="value" x="{LABEL + length + 8:.1f}" y="{middle:g}">{bar.value:.1f} {unit}</text>'


LAUNCH_ROWS = (
    ("3 tensors: floor", "cuLaunchKernelEx alone, in C", FLOOR),
    ("3 tensors: ours, lambda grid", "autotuned, grid callable", OURS),
    ("3 tensors: torch.add(x, y, out=o)", "torch.add(x, y, out=o)", OTHER),
    ("3 tensors: plain @triton.jit, tuple grid", "plain @triton.jit, tuple grid", OTHER),
    ("3 tensors: triton.autotune, lambda grid", "triton.autotune, grid callable", OTHER),
)


def launch(data: dict[str, Any], command: str = "python tests/bench/launch.py") -> str:
    """What one call costs the host, for a kernel with three tensors."""
    bars = [Bar(label, data["rows"][name]["us"], colour) for name, label, colour in LAUNCH_ROWS]
    return chart("Host time of one launch, 3 tensors", f"{_where(data)}; {command}", bars, "us")


def _where(data: dict[str, Any]) -> str:
    return f"{data['card']}, Python {data['python']}, torch {data['torch']}, Triton {data['triton']}"


TUNING_ROWS = (
    ("ours", "autotuned", OURS),
    ("strong", "triton.autotune, in threads", OTHER),
    ("stock", "triton.autotune", OTHER),
)


def tuning(data: dict[str, Any], command: str = "python tests/bench/table.py") -> str:
    """What the first call of a matrix product takes, compilers included."""
    bars = [Bar(label, data["rows"][name]["cold_s"], colour) for name, label, colour in TUNING_ROWS]
    return chart(f"Time of a first call: {data['problem']}", f"{_where(data)}; {command}", bars, "s")


# -- the path of a call ------------------------------------------------------------------------------------------------

BOXES = {  # left, top, width, text in lines; the hot path is on top
    "call": (8, 20, 150, ("kernel[grid](*args)",)),
    "table": (218, 20, 190, ("launch table", "in C, or its Python twin")),
    "launch": (522, 20, 230, ("compiled kernel, its config", "launched by the driver's call")),
    "key": (218, 126, 190, ("key", "call + device, toolchain,", "environment, source")),
    "found": (522, 126, 230, ("choice", "compiled and bound", "for the calls to come")),
    "places": (
        8,
        246,
        744,
        (
            "the first place that has a choice:",
            "this process · records of this user · config files · another context by policy · nearest shape ·",
            "default= · a search: one process compiles and races all configs, the others wait",
        ),
    ),
}
ARROWS = (  # from, to, and what the arrow says
    ((158, 44), (212, 44), ""),
    ((408, 44), (516, 44), "hit"),
    ((313, 74), (313, 120), "miss"),
    ((313, 196), (313, 240), ""),
    ((637, 246), (637, 202), ""),
    ((637, 126), (637, 80), ""),
)


def path() -> str:
    """From a call to its launch: the table answers, or the places in their order."""
    width, height = 760, 330
    head = '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        'aria-label="From a call to its launch">',
        f"<style>{STYLE}</style>",
        f'<defs>{head}<path d="M0 0L8 4L0 8z" fill="{FLOOR}"/></marker></defs>',
        *(line for name, box in BOXES.items() for line in _box(*box, OURS if name in HOT else OTHER)),
        *(line for arrow in ARROWS for line in _arrow(*arrow)),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


HOT = {"call", "table", "launch"}


def _box(left: int, top: int, width: int, text: Sequence[str], colour: str) -> Iterator[str]:
    height = 18 * len(text) + 18
    yield (
        f'<rect x="{left}" y="{top}" width="{width}" height="{height}" rx="6" fill="none" stroke="{colour}" '
        'stroke-width="2"/>'
    )
    for number, line in enumerate(text):
        style = "" if number == 0 else ' class="note"'
        yield (
            f'<text{style} x="{left + width / 2:g}" y="{top + 23 + 18 * number}" text-anchor="middle">'
            f"{escape(line)}</text>"
        )


def _arrow(start: tuple[int, int], end: tuple[int, int], text: str) -> Iterator[str]:
    (x1, y1), (x2, y2) = start, end
    yield f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{FLOOR}" stroke-width="2" marker-end="url(#tip)"/>'
    if text:
        x, y = (x1 + x2) / 2 + (0 if y1 == y2 else 22), (y1 + y2) / 2 - 6
        yield f'<text class="note" x="{x:g}" y="{y:g}" text-anchor="middle">{text}</text>'


# -- a terminal --------------------------------------------------------------------------------------------------------

CELL, LINE = 7.25, 19  # of a character, at 12 pixels


def terminal(text: str) -> str:
    """What a terminal of 120 columns showed, as it was captured; commands are bright."""
    lines = text.splitlines()
    width, height = 120 * CELL + 32, LINE * len(lines) + 32
    mono = "font-family:ui-monospace,'SF Mono',Menlo,Consolas,'DejaVu Sans Mono',monospace"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height}" role="img" '
            'aria-label="autotuned tune in a terminal">',
            f"<style>text{{{mono};font-size:12px;fill:#c9d1d9;white-space:pre}}.command{{fill:#fff;font-weight:600}}</style>",
            f'<rect width="{width:g}" height="{height}" rx="8" fill="#161b22"/>',
            *(_line(line, 16, 30 + LINE * number) for number, line in enumerate(lines)),
            "</svg>\n",
        ]
    )


def _line(line: str, x: int, y: int) -> str:
    style = ' class="command"' if line.startswith("$ ") else ""
    # The length is given, so that columns stand below each other in whatever font there is.
    length = f' textLength="{CELL * len(line):g}"' if line else ""
    return f'<text{style} x="{x}" y="{y}"{length} xml:space="preserve">{escape(line)}</text>'


def charts() -> Iterator[tuple[Path, str]]:
    """Each picture's file and text."""
    images = DOCS / "images"
    yield images / "launch.svg", launch(_data("launch-h200-triton-3.9.0"))
    yield images / "tuning.svg", tuning(_data("tuning-h200-triton-3.6.0"))
    yield images / "path.svg", path()
    yield images / "tune.svg", terminal((DOCS / "data" / "tune-terminal.txt").read_text())


def _data(name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((DOCS / "data" / f"{name}.json").read_text())
    return data


def main() -> None:
    """Draw all pictures."""
    for path, text in charts():
        path.write_text(text)


if __name__ == "__main__":
    main()
