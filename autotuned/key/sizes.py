"""Splits a call into its sizes, each with its place, and the rest, which must be equal for similar calls."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from autotuned.typed_json import Json, canonical

Sizes = tuple[tuple[str, int], ...]  # place and size


class Shape(NamedTuple):
    """A call split up: the part that must be equal, as text, and the sizes that may differ, with their places."""

    rest: str
    sizes: Sizes


def shape_of(call: Json, axes: Iterable[str] | None = None) -> Shape:
    """Split the call part of a key; only sizes of the arguments in `axes` may differ, or of all if None."""
    free = None if axes is None else set(axes)
    sizes: list[tuple[str, int]] = []
    values, tensors = dict(call.get("values", {})), dict(call.get("tensors", {}))
    for path, value in sorted(values.items()):
        if type(value) is int and (free is None or argument_of(path) in free):
            sizes.append((path, value))
            values[path] = {"near": 1}
    for path, tensor in sorted(tensors.items()):
        if "shape" in tensor and (free is None or argument_of(path) in free):
            sizes += [(f"{path}.shape[{dim}]", size) for dim, size in enumerate(tensor["shape"])]
            tensors[path] = {**tensor, "shape": {"near": len(tensor["shape"])}}
    return Shape(canonical({**call, "values": values, "tensors": tensors}), tuple(sizes))


def argument_of(path: str) -> str:
    """The argument that a place belongs to; for an item of a tuple, the tuple."""
    return path.partition("[")[0]
