"""Times measured under other conditions: the order of the first trials, and data for the model."""

from __future__ import annotations

import random
from collections.abc import Mapping

import numpy as np

from autotuned.space.parts import Point
from autotuned.space.surrogate import Encoding, GaussianProcess

MODELLED = 60  # fastest times in the model; as many random others are added


class Prior:
    """Log times of the same configs under other conditions: another card, shape or toolchain."""

    def __init__(self, times: Mapping[Point, float], encode: Encoding, source: random.Random) -> None:
        self.order = sorted(times, key=lambda point: (times[point], point))  # members, fastest first
        rest = self.order[MODELLED:]
        kept = self.order[:MODELLED] + source.sample(rest, min(len(rest), MODELLED))
        found = np.array([times[point] for point in kept])
        self.level = float(found.mean()) if kept else 0.0
        self.seen = found - self.level  # their log times, relative to `level`
        self.at = encode(np.array(kept)) if kept else np.zeros((0, 1), np.float32)  # coordinates, one row each

    def __bool__(self) -> bool:
        return bool(self.order)

    def expect(self, at: np.ndarray, factors: np.ndarray) -> np.ndarray:
        """Log times that the prior alone predicts, relative to `level`."""
        model = GaussianProcess(self.at * factors, self.seen, (1.0,))
        return model.mean(model.near(at))
