"""A Gaussian process over the members of a space: predicts times and their uncertainty."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from autotuned.space.members import is_ordered

NOISE = 1e-3  # variance of a time, relative to that of all times
SCALES = (0.4, 0.7, 1.2)  # length scales, relative to a parameter's range
UNORDERED = 0.5  # distance of two unordered values, relative to an ordered range
LEARNED_FROM = 100  # most times to learn weights from: half the best, half random
SPREAD = 0.7  # prior standard deviation of log weights around their mean, and of their mean
LEAST_SPREAD = 1e-4  # least standard deviation of log times in the prior


class Encoding:
    """Points as coordinates: ordered parameters run from 0 to 1, unordered values are equidistant."""

    def __init__(self, values: Sequence[Sequence[Any]]) -> None:
        self._columns = [_column(one) for one in values]
        #: The parameter of each coordinate.
        self.parameters = [
            place for place, one in enumerate(self._columns) if len(one) > 1 for _ in range(one.shape[1])
        ]

    def __call__(self, points: np.ndarray) -> np.ndarray:
        """Coordinates, one row per point."""
        found = [column[points[:, place]] for place, column in enumerate(self._columns) if len(column) > 1]
        return np.concatenate(found, 1, dtype=np.float32) if found else np.zeros((len(points), 1), np.float32)


def _column(values: Sequence[Any]) -> np.ndarray:
    if is_ordered(values) or len(values) <= 2:
        return np.linspace(0, 1, len(values), dtype=np.float32)[:, None]
    return np.asarray(np.eye(len(values), dtype=np.float32) * np.float32(UNORDERED / math.sqrt(2)))


class GaussianProcess:
    """A Gaussian process fitted to measured times.

    Args:
        at: Coordinates of the measured points, one row each.
        seen: Their values, with mean 0.
        scales: Length scales to try; the one with the largest `likelihood` (log, up to a constant) is used.
    """

    def __init__(self, at: np.ndarray, seen: np.ndarray, scales: Sequence[float]) -> None:
        self._at = at
        fits = (_fit(at, seen, scale) for scale in scales)
        self.likelihood, self._scale, self._root, self._weights, self.spread = max(fits, key=lambda fit: fit.likelihood)

    def near(self, at: np.ndarray) -> np.ndarray:
        """Correlations with the measured points."""
        return alike(at, self._at, self._scale)

    def mean(self, near: np.ndarray) -> np.ndarray:
        """Expected values."""
        return np.asarray(near @ self._weights.astype(near.dtype))

    def variance(self, near: np.ndarray) -> np.ndarray:
        """Their variance."""
        known = ((near @ self._root.T) ** 2).sum(1)
        return np.asarray(np.maximum(1e-6, 1.0 - known) * self.spread**2)

    def joint(self, at: np.ndarray, near: np.ndarray, one: int) -> np.ndarray:
        """Covariance of some coordinates with one of them."""
        alone = alike(at, at[one : one + 1], self._scale)[:, 0]
        return np.asarray((alone - near @ (self._root.T @ (self._root @ near[one]))) * self.spread**2)


class _Fit(NamedTuple):
    """A factored covariance: `root` is the inverse of its lower triangle."""

    likelihood: float
    scale: float
    root: np.ndarray
    weights: np.ndarray
    spread: float


def _fit(at: np.ndarray, seen: np.ndarray, scale: float) -> _Fit:
    lower = np.linalg.cholesky(_covariance(at, scale))
    root = np.linalg.inv(lower)
    rest = root @ seen
    likelihood, deviation = _likelihood(np.diag(lower), rest)
    return _Fit(likelihood, scale, root, root.T @ rest, deviation)


def _covariance(at: np.ndarray, scale: float) -> np.ndarray:
    return np.asarray(alike(at.astype(np.float64), at.astype(np.float64), scale) + NOISE * np.eye(len(at)))


def _likelihood(diagonal: np.ndarray, rest: np.ndarray) -> tuple[float, float]:
    """Log-likelihood at the best standard deviation, and this deviation."""
    square, count = float(rest @ rest), len(rest)
    variance = max(LEAST_SPREAD**2, square / max(1, count))
    return -0.5 * (count * math.log(variance) + square / variance) - float(np.log(diagonal).sum()), math.sqrt(variance)


class Weights:
    """The weight of each coordinate, learned by random search; `parameters`: the parameter of each."""

    def __init__(self, parameters: Sequence[int], source: random.Random) -> None:
        self._source = source
        self._groups = [[at for at, one in enumerate(parameters) if one == place] for place in sorted(set(parameters))]
        self._usual = -math.log(SCALES[1])
        self._logs = np.full(max(1, len(parameters)), self._usual)

    @property
    def factors(self) -> np.ndarray:
        """The weights, one per coordinate."""
        return np.asarray(np.exp(self._logs).astype(np.float32))

    def learn(self, at: np.ndarray, seen: np.ndarray, steps: int) -> None:
        """Try random changes, keeping those that make the times likelier."""
        order = np.argsort(seen, kind="stable")
        best, rest = order[: LEARNED_FROM // 2], order[LEARNED_FROM // 2 :].tolist()
        kept = np.concatenate([best, self._source.sample(rest, min(len(rest), LEARNED_FROM // 2))]).astype(int)
        at, seen = at[kept], seen[kept] - seen[kept].mean()
        now = self._score(self._logs, at, seen)
        for _ in range(steps):
            logs = self._changed()
            score = self._score(logs, at, seen)
            if score > now:
                now, self._logs = score, logs

    def _changed(self) -> np.ndarray:
        logs = self._logs.copy()
        if not self._groups or self._source.random() < 0.25:
            return np.asarray(logs + self._source.gauss(0, 0.4))
        logs[self._source.choice(self._groups)] += self._source.gauss(0, 0.8)
        return np.asarray(logs)

    def _score(self, logs: np.ndarray, at: np.ndarray, seen: np.ndarray) -> float:
        mean = float(logs.mean())
        unlikely = float((((logs - mean) / SPREAD) ** 2).sum()) + ((mean - self._usual) / SPREAD) ** 2
        scaled = at * np.exp(logs).astype(np.float32)
        lower = np.linalg.cholesky(_covariance(scaled, 1.0))
        return _likelihood(np.diag(lower), np.linalg.solve(lower, seen))[0] - 0.5 * unlikely


def alike(at: np.ndarray, other: np.ndarray, scale: float) -> np.ndarray:
    """Matérn 5/2 covariance between two sets of coordinates."""
    square = (at * at).sum(1)[:, None] + (other * other).sum(1)[None] - 2.0 * np.einsum("id,jd->ij", at, other)
    far = np.sqrt(np.maximum(square, 0.0) * square.dtype.type(5.0 / scale**2))
    return np.asarray((1.0 + far * (1.0 + far / 3.0)) * np.exp(-far))


def expected_gain(mean: np.ndarray, variance: np.ndarray, best: float) -> np.ndarray:
    """Expected improvement over the best time (Mockus, 1975)."""
    deviation = np.sqrt(variance)
    ratio = (best - mean) / deviation
    return np.asarray(deviation * (ratio * below(ratio) + np.exp(-ratio * ratio / 2) / math.sqrt(2 * math.pi)))


def below(ratio: np.ndarray) -> np.ndarray:
    """Normal distribution function, to 2e-7 (Abramowitz and Stegun, 26.2.19)."""
    size = np.minimum(np.abs(ratio), 12.0)
    series = np.polyval([5.3830e-6, 4.88906e-5, 3.80036e-5, 3.2776263e-3, 2.11410061e-2, 4.98673470e-2, 1.0], size)
    tail = 0.5 * series**-16.0
    return np.asarray(np.where(ratio < 0, tail, 1 - tail))
