"""How far two calls are apart: the one distance of messages, of `nearest=`, and of what a search tries first."""

from __future__ import annotations

import math
from collections.abc import Iterable

OTHER = 8.0  # octaves for each part that differs and is not a size: as much as a size 256 times as large


def octaves(ours: Iterable[int], theirs: Iterable[int], other_parts: int = 0) -> float:
    """The distance of two calls: the root of the sum of squares of log2 of the ratios of their sizes.

    Args:
        ours, theirs: Sizes, place by place; one below 1 counts as 1.
        other_parts: How many parts differ that are not sizes. Each counts `OTHER` octaves.
    """
    return total([octave(mine) - octave(other) for mine, other in zip(ours, theirs)], other_parts)


def total(differences: Iterable[float], other_parts: int = 0) -> float:
    """The distance of calls whose sizes differ by so many octaves; rounded, so that equal distances compare equal."""
    return round(math.hypot(OTHER * math.sqrt(other_parts), *differences), 6)


def octave(size: int) -> float:
    """The logarithm of a size to base 2; a size below 1 counts as 1."""
    return math.log2(max(size, 1))
