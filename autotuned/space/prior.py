"""What others measured of a space: the order to try first, and times that a model takes into account."""

from __future__ import annotations

import random
from collections.abc import Mapping

import numpy as np

from autotuned.space.parts import Point
from autotuned.space.surrogate import Encoding, Process

MODELLED = 60  # of the fastest times, and as many at random, go into a model


class Prior:
    """Times of the same configs under other conditions: another card, shape or toolchain.

    Args:
        times: Logarithms of times, by member.

    Attributes:
        order: The members, the fastest first.
        at: Coordinates of those that a model takes into account, one row each.
        seen: Their logarithms of times, around `level`.
    """

    def __init__(self, times: Mapping[Point, float], encode: Encoding, source: random.Random) -> None:
        self.order = sorted(times, key=lambda point: (times[point], point))
        rest = self.order[MODELLED:]
        kept = self.order[:MODELLED] + source.sample(rest, min(len(rest), MODELLED))
        found = np.array([times[point] for point in kept])
        self.level = float(found.mean()) if kept else 0.0
        self.seen = found - self.level
        self.at = encode(np.array(kept)) if kept else np.zeros((0, 1), np.float32)

    def __bool__(self) -> bool:
        return bool(self.order)

    def expect(self, at: np.ndarray, factors: np.ndarray) -> np.ndarray:
        """What these times alone say of others, around `level`."""
        model = Process(self.at * factors, self.seen, (1.0,))
        return model.mean(model.near(at))
