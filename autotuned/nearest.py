"""The nearest tuned shape: a call like another one but for the sizes of some arguments, within a factor of each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from autotuned.values import Json, canonical

Factors = Mapping[str, float]  # argument -> how many times larger or smaller a neighbour may be
T = TypeVar("T")


class Shape(NamedTuple):
    """A call taken apart: all that must be equal, as text, and the sizes that may differ, each with its place."""

    rest: str
    sizes: tuple[tuple[str, int], ...]


def shape_of(call: Json, axes: Iterable[str]) -> Shape:
    """Take a call apart.

    Args:
        call: The call part of a key.
        axes: Arguments whose integers, or whose tensors' shapes, may differ.
    """
    axes = set(axes)
    sizes: list[tuple[str, int]] = []
    values, tensors = dict(call.get("values", {})), dict(call.get("tensors", {}))
    for path, value in sorted(values.items()):
        if _argument(path) in axes and type(value) is int:
            sizes.append((path, value))
            values[path] = {"near": 1}
    for path, tensor in sorted(tensors.items()):
        if _argument(path) in axes and "shape" in tensor:
            sizes += [(f"{path}.shape[{dim}]", size) for dim, size in enumerate(tensor["shape"])]
            tensors[path] = {**tensor, "shape": {"near": len(tensor["shape"])}}
    return Shape(canonical({**call, "values": values, "tensors": tensors}), tuple(sizes))


def _argument(path: str) -> str:
    return path.partition("[")[0]


class Distance(NamedTuple):
    """How far a neighbour is; the least serves.

    Attributes:
        above: Whether any size is larger than ours: tiles for a smaller problem fit a larger one, seldom the reverse.
        octaves: Root of the sum of squares of log2 of the ratios.
    """

    above: bool
    octaves: float


def distance(ours: Sequence[tuple[str, int]], theirs: Sequence[tuple[str, int]], factors: Factors) -> Distance | None:
    """How far sizes are apart; None where one of them is by more than the factor of its axis."""
    octaves = 0.0
    for (path, mine), (_, other) in zip(ours, theirs, strict=True):
        if mine == other:
            continue
        small, large = sorted((mine, other))
        if small <= 0 or large > small * factors[_argument(path.partition(".")[0])]:
            return None  # nothing is near to 0
        octaves += math.log2(large / small) ** 2
    return Distance(any(other > mine for (_, mine), (_, other) in zip(ours, theirs)), round(math.sqrt(octaves), 6))


def words(ours: Sequence[tuple[str, int]], theirs: Sequence[tuple[str, int]], far: Distance) -> str:
    """The neighbour in a line: `nearest shape M=4 for M=3, 0.42 octaves away`."""
    changed = [(path, mine, other) for (path, mine), (_, other) in zip(ours, theirs) if mine != other]
    there = " ".join(f"{path}={other}" for path, _, other in changed)
    here = " ".join(f"{path}={mine}" for path, mine, _ in changed)
    return f"nearest shape {there} for {here}, {far.octaves:.2f} octaves away"


def check(given: Mapping[str, float], allowed: Iterable[str], kernel: str) -> str:
    """What is wrong with a decorator's `nearest=`; "" if nothing is.

    Args:
        allowed: The arguments that are in the kernel's key.
    """
    allowed = list(allowed)
    for name, factor in given.items():
        if name not in allowed:
            return f"`{kernel}`: nearest: {name!r} must be in the key; in it are {', '.join(allowed) or 'none'}."
        number = isinstance(factor, (int, float)) and not isinstance(factor, bool)
        if not (number and math.isfinite(factor) and factor >= 1):
            return f"`{kernel}`: nearest: {name}: expected a factor of 1 or more, such as 2.0, got {factor!r:.60}."
    return ""
