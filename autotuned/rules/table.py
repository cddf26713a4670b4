"""Times of configs over calls that differ only in sizes: the data for choosing configs and fitting rules."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from autotuned.key.sizes import Sizes, shape_of
from autotuned.rules.rule import Values, pattern_of
from autotuned.typed_json import Json

MISSING = 1e3  # loss of an unmeasured config: more than any sum of measured losses


@dataclass(frozen=True)
class Table:
    """One row per call, with its times.

    Attributes:
        names: The sizes that differ.
        sizes: Their values, one tuple a call.
        times: Microseconds by measured config, one mapping per call; none is empty.
        pattern: The call of a rule for these calls; None if no rule is to be made.
        processors: The device's number of multiprocessors; 0 if unknown.
    """

    names: tuple[str, ...]
    sizes: Sequence[Values]
    times: Sequence[Mapping[str, float]]
    pattern: Json = None
    processors: int = 0

    def __len__(self) -> int:
        return len(self.sizes)

    @cached_property
    def configs(self) -> list[str]:
        """All measured configs, sorted."""
        return sorted({config for times in self.times for config in times})

    @cached_property
    def losses(self) -> np.ndarray:
        """How much slower each config is than the best of its call, calls by configs: 0.1 is 10%, NaN if unmeasured."""
        rows = [[times.get(config, math.nan) / min(times.values()) for config in self.configs] for times in self.times]
        return np.asarray(rows, dtype=float).reshape(len(self), len(self.configs)) - 1.0

    @cached_property
    def along(self) -> str:
        """The size with the most values; the first of several."""
        return max(self.names, key=lambda name: len({row[self.names.index(name)] for row in self.sizes}), default="")

    @cached_property
    def steps(self) -> np.ndarray:
        """The size `along` of each call."""
        return np.asarray([row[self.names.index(self.along)] for row in self.sizes], dtype=float)

    @cached_property
    def others(self) -> list[Values]:
        """The other sizes of each call."""
        at = self.names.index(self.along)
        return [(*row[:at], *row[at + 1 :]) for row in self.sizes]


def tables(calls: Iterable[tuple[Json, Mapping[str, float]]], processors: int = 0) -> list[tuple[Table, list[int]]]:
    """Make a table of each group of calls that differ only in sizes; all are of one kernel and context.

    A size that occurs in several places, such as a matrix's rows and the argument for their number, has one name: the
    scalar argument's, if there is one. Duplicate calls are dropped.

    Args:
        calls: The call part of each key, and microseconds by config; calls without times are dropped.
        processors: The device's number of multiprocessors; 0 if unknown.

    Returns:
        Each table with the indices of its calls.
    """
    groups: dict[str, list[tuple[int, Json, Sizes, Mapping[str, float]]]] = {}
    for number, (call, times) in enumerate(calls):
        rest, sizes = shape_of(call)
        group = groups.setdefault(rest, [])
        if times and all(sizes != known for _, _, known, _ in group):
            group.append((number, call, sizes, times))
    return [_table(group, processors) for group in groups.values() if group]


def _table(group: Sequence[tuple[int, Json, Sizes, Mapping[str, float]]], processors: int) -> tuple[Table, list[int]]:
    paths = [path for path, _ in group[0][2]]
    columns = {path: tuple(sizes[place][1] for _, _, sizes, _ in group) for place, path in enumerate(paths)}
    named: dict[Values, str] = {}  # column -> its first path: values come before the shapes of tensors
    for path, column in columns.items():
        if len(set(column)) > 1:
            named.setdefault(column, path)
    marks = {path: named[column] for path, column in columns.items() if column in named}
    pattern = pattern_of(group[0][1], marks)
    rows = list(zip(*named)) if named else [() for _ in group]
    times = [times for *_, times in group]
    return Table(tuple(named.values()), rows, times, pattern, processors), [number for number, *_ in group]
