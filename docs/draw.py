"""Draws the charts of the documentation from the measured numbers in docs/data/.

Run `python docs/draw.py` after new numbers came in; a test compares what it draws with the files that are kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

DOCS = Path(__file__).resolve().parent
WIDTH, LABEL, ROW, BAR, TOP = 760, 300, 34, 20, 64
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
    scale = (WIDTH - LABEL - 110) / max(bar.value for bar in bars)
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


def launch(data: dict[str, object], command: str = "python tests/bench/launch.py") -> str:
    """What one call costs the host, for a kernel with three tensors."""
    rows = data["rows"]
    assert isinstance(rows, dict)
    bars = [Bar(label, rows[name]["us"], colour) for name, label, colour in LAUNCH_ROWS]
    return chart("Host time of one launch, 3 tensors", f"{_where(data)}; {command}", bars, "us")


def _where(data: dict[str, object]) -> str:
    return f"{data['card']}, Python {data['python']}, torch {data['torch']}, Triton {data['triton']}"


def charts() -> Iterator[tuple[Path, str]]:
    """Each chart's file and text."""
    newest = json.loads((DOCS / "data" / "launch-h100-triton-3.9.0.json").read_text())
    yield DOCS / "images" / "launch.svg", launch(newest)


def main() -> None:
    """Draw all charts."""
    for path, text in charts():
        path.write_text(text)


if __name__ == "__main__":
    main()
