"""The entries of a config file that differ in sizes only: the nearest shape is found without asking them all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from autotuned.configfiles import nearest_shape
from autotuned.configfiles.file import ConfigFile, Entry
from autotuned.typed_json import Json


class Alike(NamedTuple):
    """Entries of one context that differ in sizes only."""

    context: Json
    entries: nearest_shape.Neighbourhood[Entry]


def alike(file: ConfigFile, rest: str, factors: nearest_shape.Factors) -> list[Alike]:
    """The entries that differ in sizes of some axes only, by context; worked out once a file and set of axes."""
    axes = frozenset(factors)
    if axes not in file.indexes:
        file.indexes[axes] = _index(file, axes)
    found: list[Alike] = file.indexes[axes].get(rest, [])
    return found


def _index(file: ConfigFile, axes: Iterable[str]) -> dict[str, list[Alike]]:
    index: dict[str, list[Alike]] = {}
    for group in file.groups():
        by_rest: dict[str, list[tuple[nearest_shape.Sizes, Entry]]] = {}
        for entry in group.entries.values():
            shape = nearest_shape.shape_of(entry.call, axes)
            if shape.sizes:
                by_rest.setdefault(shape.rest, []).append((shape.sizes, entry))
        for rest, found in by_rest.items():
            index.setdefault(rest, []).append(Alike(group.context, nearest_shape.Neighbourhood(found)))
    return index
