"""Files of times over many shapes, one per kernel and card, and the shapes to measure: for `shapes.py`."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import json
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotuned.rules.table import Table, tables

# -- files ------------------------------------------------------------------------------------------------------------


@dataclass
class Recorded:
    """A file: facts of the measurement, the configs as text of their canonical forms, and a row per shape.

    Attributes:
        sizes: Names of the sizes.
        rows: Microseconds by shape, in the order of the configs; None if one fails.
    """

    facts: dict[str, Any]
    sizes: tuple[str, ...]
    configs: list[str]
    rows: dict[tuple[int, ...], list[float | None]]

    @property
    def name(self) -> str:
        """The kernel and the card."""
        return f"{self.facts['kernel']} on {self.facts['device']}"

    def table(self) -> Table:
        """The table to fit rules to, with shapes in the order of measurement."""
        calls = [
            ({"tensors": {}, "values": dict(zip(self.sizes, shape)), "none": []},
             {config: us for config, us in zip(self.configs, times) if us is not None})
            for shape, times in self.rows.items()
        ]  # fmt: skip
        count = self.facts["device"].rpartition("-")[2]  # number of multiprocessors, from the device's slug
        [(found, _)] = tables(calls, int(count) if count.isdecimal() else 0)
        return found


def load(path: Path) -> Recorded:
    """Read a file."""
    facts, header, *rows = csv.reader(io.StringIO(gzip.decompress(path.read_bytes()).decode()))
    count = len(json.loads(facts[0])["sizes"])
    found = {
        tuple(map(int, row[:count])): [float(text) if text else None for text in row[count:]] for row in rows
    }  # fmt: skip
    return Recorded(json.loads(facts[0]), tuple(header[:count]), header[count:], found)


def save(recorded: Recorded, path: Path) -> None:
    """Write a file atomically; equal tables give equal files."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([json.dumps({**recorded.facts, "sizes": list(recorded.sizes)}, sort_keys=True)])
    writer.writerow([*recorded.sizes, *recorded.configs])
    for shape, times in recorded.rows.items():
        writer.writerow([*shape, *("" if us is None else f"{us:.4g}" for us in times)])
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_bytes(gzip.compress(text.getvalue().encode(), 9, mtime=0))
    fresh.replace(path)


# -- shapes -----------------------------------------------------------------------------------------------------------

PAIRS = ((4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336), (1024, 8192), (2048, 2048), (5120, 5120))
KERNELS = {
    "matmul": (("M", "N", "K"), 315, PAIRS, (1, 8192)),
    "matmul-dense": (("M", "N", "K"), 240, ((4096, 4096),), (1, 8192)),  # what --cover chooses from
    "splitk": (("M", "N", "K"), 105, PAIRS, (1, 128)),
    "attention": (("heads", "length", "dims"), 100, ((16, 128), (32, 128), (64, 64), (8, 64)), (64, 8192)),
    "rmsnorm": (("rows", "cols"), 100, ((1024,), (2048,), (4096,), (8192,), (16384,)), (1, 16384)),
}


def shapes(kernel: str) -> Iterator[tuple[int, ...]]:
    """The shapes of a kernel, reproducible: one size log-uniform, the others in turn."""
    _, count, others, (low, high) = KERNELS[kernel]
    source, seen = random.Random(kernel), set()
    for number in itertools.count():
        rest = others[number % len(others)]
        size = round(math.exp(source.uniform(math.log(low), math.log(high))))
        shape = (rest[0], size, *rest[1:]) if kernel == "attention" else (size, *rest)
        if shape not in seen:
            seen.add(shape)
            yield shape
        if len(seen) == count:
            return


def interleaved(done: dict[str, set[tuple[int, ...]]]) -> list[tuple[str, tuple[int, ...]]]:
    """The shapes to measure, with kernels interleaved evenly, so that a budget cuts all kernels equally."""
    waiting = []
    for kernel in done:
        listed = list(shapes(kernel))
        waiting += [
            ((place + 0.5) / len(listed), kernel, shape)
            for place, shape in enumerate(listed)
            if shape not in done[kernel]
        ]
    return [(kernel, shape) for _, kernel, shape in sorted(waiting)]
