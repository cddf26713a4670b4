"""Files of measured spaces: `<kernel>-<shape>-<card>.csv.gz`, or without a shape for tables from other projects.

A column for each parameter, then `time_ms`, empty if a config failed, and `status`, which tables from others lack. A
first line that begins with # has facts of the measurement as JSON.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Row = tuple[Any, ...]


@dataclass
class Recorded:
    """Facts, names of the parameters, and each config's milliseconds (or None) and status."""

    facts: dict[str, Any]
    names: tuple[str, ...]
    rows: dict[Row, tuple[float | None, str]] = field(default_factory=dict)


def read(path: Path) -> Recorded:
    """Read a file, compressed or not."""
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    lines = data.decode().splitlines()
    facts = json.loads(lines.pop(0)[1:]) if lines[0].startswith("#") else {}
    header, *rows = csv.reader(lines)
    names = tuple(header[: header.index("time_ms")])
    found = {}
    for row in rows:
        ms = float(row[len(names)]) if row[len(names)] else None
        given = row[len(names) + 1] if "status" in header else ""
        found[tuple(map(_value, row[: len(names)]))] = ms, given or ("failed" if ms is None else "ok")
    return Recorded(facts, names, found)


def write(recorded: Recorded, path: Path) -> None:
    """Write a file atomically; equal tables give equal files."""
    text = io.StringIO()
    text.write("#" + json.dumps(recorded.facts, sort_keys=True) + "\n")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*recorded.names, "time_ms", "status"])
    for row, (ms, status) in sorted(recorded.rows.items()):
        writer.writerow([*row, "" if ms is None else f"{ms:.5g}", "" if status == "ok" else status])
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_bytes(gzip.compress(text.getvalue().encode(), 9, mtime=0))
    fresh.replace(path)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
