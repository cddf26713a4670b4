"""The guided strategy: tries members that a model of measured and prior times expects to be fast."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from autotuned.space.members import Members
from autotuned.space.parts import Point
from autotuned.space.prior import Prior
from autotuned.space.surrogate import NOISE, SCALES, Encoding, GaussianProcess, Weights, alike, below, expected_gain

OPENING, MIDDLE, DRAWN = 16, 1.2, 40  # trials before the first model; their preference for the middle; draws for each
SOME = 12  # fewest times to judge a prior by; half as many to learn weights from
IN_ORDER = 5  # trials in the prior's order before the first model
SCORED = 400_000  # largest matrix of candidates by trials
CLOSE = 500  # candidates with the least expected times, for which the gain is computed
SLOW = 0.7  # log times this far above the median are clipped
MODELLED = 200  # most trials in a model
NEXT_TO = 5  # best trials; every fourth new one is close to one of them
LEARNING = 12  # changes of weights to try per model
UNRUN = 0.7, 0.4, 0.05  # prior probability that a config runs; length scale and noise of the model of failures
GAIN = 0.01  # relative improvement that counts
DOUBT = 2.0  # log-likelihood ratio above which the prior is dropped
CONTROLLED = 40  # up to this trial, every eighth is random, in case the prior misleads
FAR = 0.1, 0.25, 0.5, 1.0, 8.0  # distances between prior and measured times to try; the last means unrelated


def _one_thread() -> AbstractContextManager[Any]:
    """One BLAS thread: the matrices are small, and on busy cores threads would wait for each other."""
    try:
        import threadpoolctl
    except ImportError:
        return nullcontext()
    limits: AbstractContextManager[Any] = threadpoolctl.threadpool_limits(1, "blas")
    return limits


class Guided:
    """Bayesian optimization: chooses members of a space by a Gaussian process.

    Prior times, as logarithms, join the model at a distance along an extra coordinate, chosen by likelihood; once they
    look unrelated, they are dropped.
    """

    def __init__(
        self, members: Members, seed: int, first: Iterable[Point] = (), prior: Mapping[Point, float] | None = None
    ) -> None:
        self._members, self._source = members, random.Random(seed)
        self._encode = Encoding(members.values)
        self._weights = Weights(self._encode.parameters, self._source)
        self._own = Weights(self._encode.parameters, self._source)  # learned without the prior
        self._prior = Prior(prior or {}, self._encode, self._source)
        self._random = np.random.default_rng(seed)
        self._pool = members.some(self._source)
        self._coordinates = self._encode(self._pool)
        self._rows = {tuple(point): row for row, point in enumerate(self._pool.tolist())}
        self._is_new = np.ones(len(self._pool), bool)
        self._times: dict[Point, float] = {}
        self._failed: dict[Point, None] = {}
        self._asked: dict[Point, None] = {}
        self._first = [*dict.fromkeys([*first, *self._prior.order[:IN_ORDER]])]
        self._opening = OPENING  # up to this many trials, members are spread
        self._led: frozenset[Point] = frozenset()  # trials before a misleading prior was dropped
        self._models = self._turns = 0
        #: Probability that an untried member is better by `GAIN`; 1 before there is a model.
        self.doubt = 1.0

    def ask(self, count: int) -> list[Point]:
        """At most `count` new members; none at the end."""
        with _one_thread():
            return self._ask(count)

    def _ask(self, count: int) -> list[Point]:
        found = self._take(self._first, count)
        if not self._prior:
            found += self._opened(count - len(found))
        if not found or (len(found) < count and self._times):
            found += self._take(self._modelled(count - len(found)) if self._times or self._prior else [], count)
        return found or self._opened(count) or self._take(self._unlike_failures(), count)

    def _opened(self, count: int) -> list[Point]:
        """Spread members before the first model, and again after a prior was dropped."""
        return self._spread(min(count, self._opening - len(self._asked)))

    def tell(self, results: Iterable[tuple[Point, float | None]]) -> None:
        """Take log times; None for failures."""
        for point, time in results:
            self._note(point)
            if time is None:
                self._times.pop(point, None)  # timed before a check failed
                self._failed[point] = None
            else:
                self._failed.pop(point, None)
                self._times[point] = time

    def importance(self) -> list[float]:
        """Weight of each parameter in distances; 0 if it has one value."""
        found = [0.0] * len(self._members.names)
        for place, factor in zip(self._encode.parameters, self._weights.factors.tolist()):
            found[place] = factor
        return found

    def _take(self, points: Iterable[Point], count: int) -> list[Point]:
        found = [point for point in points if point not in self._asked][: max(0, count)]
        for point in found:
            self._note(point)
        return found

    def _note(self, point: Point) -> None:
        self._asked[point] = None
        if point in self._rows:
            self._is_new[self._rows[point]] = False

    def _unlike_failures(self) -> list[Point]:
        """While nothing runs: random new members, preferring those far from failures."""
        points, at = self._candidates()
        if not len(points):
            return [
                point for point in map(tuple, self._members.some(self._source).tolist()) if point not in self._asked
            ]
        order = np.argsort(self._random.exponential(size=len(points)) / self._runs(at.astype(np.float64)))
        return [tuple(point) for point in points[order[:CLOSE]].tolist()]

    def _spread(self, count: int) -> list[Point]:
        """New members far from all trials, preferably with middle values; each is the best of some random ones."""
        found: list[Point] = []
        for _ in range(max(0, count)):
            drawn = [point for point in self._drawn() if point not in self._asked]
            if drawn and self._asked:
                here, there = self._encode(np.array(drawn)), self._encode(np.array(list(self._asked)))
                apart = ((here[:, None] - there[None]) ** 2).sum(-1).min(1)
                drawn = [drawn[int((apart - MIDDLE * ((here - 0.5) ** 2).sum(-1)).argmax())]]
            found += self._take(drawn, 1)
        return found

    def _drawn(self) -> list[Point]:
        """Random members; from the pool if the space is not listed, where draws take long."""
        if self._members.exact:
            return [self._members.draw(self._source) for _ in range(DRAWN)]
        return [tuple(self._pool[self._source.randrange(len(self._pool))].tolist()) for _ in range(DRAWN)]

    # -- by the model ----------------------------------------------------------------------------------------------

    def _modelled(self, count: int) -> list[Point]:
        points, at = self._candidates()
        if not len(points) or count < 1:
            return []
        self._models += 1
        had_prior = bool(self._prior)
        process, offset, factors = self._model()
        if had_prior and not self._prior:  # dropped: its trials are in few corners of the space, so spread new ones
            self._opening, self._led = len(self._asked) + OPENING // 2, frozenset(self._asked)
            return []
        mean = offset + process.mean(process.near(self._here(at * factors)))
        close = np.argpartition(mean, CLOSE)[:CLOSE] if len(mean) > CLOSE else np.arange(len(mean))
        points, at, mean = points[close], at[close].astype(np.float64), mean[close]
        pending = [point for point in self._asked if point not in self._times and point not in self._failed]
        if pending:
            there = self._encode(np.array(pending)).astype(np.float64)
            points, at = np.concatenate([points, np.array(pending, points.dtype)]), np.concatenate([at, there])
            mean = np.concatenate([mean, offset + process.mean(process.near(self._here(there * factors)))])
        picked = self._batch(process, at, self._here(at * factors), mean, count, len(pending))
        return [tuple(point) for point in points[picked].tolist()]

    def _candidates(self) -> tuple[np.ndarray, np.ndarray]:
        """New members with their coordinates: all, or a sample and the neighbours of the best trials."""
        most = max(2 * CLOSE, SCORED // (len(self._prior.at) + min(len(self._times), MODELLED) + 1))
        rows = np.flatnonzero(self._is_new)
        if len(rows) > most:
            rows = self._random.choice(rows, most, replace=False)
        points, at = self._pool[rows], self._coordinates[rows]
        if len(self._pool) <= most and self._members.exact:
            return points, at
        around = {other for best in self._best() for other in self._members.neighbours(best)}
        around |= set(self._prior.order[: len(self._asked) + CLOSE])
        around -= self._asked.keys()
        near = np.array(sorted(around), np.uint16).reshape(-1, points.shape[1])
        return np.concatenate([points, near]), np.concatenate([at, self._encode(near)])

    def _best(self) -> list[Point]:
        return sorted(self._times, key=lambda point: self._times[point])[:NEXT_TO]

    def _model(self) -> tuple[GaussianProcess, float, np.ndarray]:
        """A model of the times, its offset, and the weights of the coordinates."""
        kept = self._kept()
        at = self._encode(np.array(kept, np.int64).reshape(len(kept), len(self._members.names)))
        times = np.array([self._times[point] for point in kept])
        times = np.minimum(times, np.median(times) + SLOW) if len(times) else times
        offset = float(times.mean()) if len(times) else self._prior.level
        factors, scales = self._scaled(at, times - offset)
        if self._prior:
            process, there, far = self._joined(at * factors, times, factors, offset)
            if len(times) < SOME or (far < FAR[-1] and not self._misleads(process, factors, at, times - offset)):
                return process, there, factors
            self._prior = Prior({}, self._encode, self._source)  # misleading, and so are the weights learned with it
            self._weights = self._own
            factors = np.ones_like(factors)
        return GaussianProcess(at * factors, times - offset, scales), offset, factors

    def _misleads(self, joined: GaussianProcess, factors: np.ndarray, at: np.ndarray, times: np.ndarray) -> bool:
        """Whether the measured times are likelier without the prior."""
        self._own.learn(at, times, LEARNING)
        alone = GaussianProcess(at * self._own.factors, times, (1.0,)).likelihood
        prior = GaussianProcess(self._prior.at * factors, self._prior.seen, (1.0,)).likelihood
        return alone > joined.likelihood - prior + DOUBT

    def _kept(self) -> list[Point]:
        """Trials to model: the fastest, and random others; of those that a misleading prior chose, no slow ones.

        These are many, and would hide differences between fast ones.
        """
        times = self._times
        own = [times[point] for point in times if point not in self._led]
        slow = np.median(own) + SLOW if self._led and len(own) >= OPENING // 4 else math.inf
        kept = [point for point in times if point not in self._led or times[point] <= slow]
        if len(kept) <= MODELLED:
            return kept
        order = sorted(kept, key=lambda point: times[point])
        return order[: MODELLED // 2] + self._source.sample(order[MODELLED // 2 :], MODELLED // 2)

    def _joined(
        self, at: np.ndarray, times: np.ndarray, factors: np.ndarray, alone: float
    ) -> tuple[GaussianProcess, float, float]:
        """A model of measured and prior times at the likeliest distance, its offset, and the distance."""
        prior, found = self._prior, []
        agreeing = float((times - prior.expect(at, factors)).mean()) if len(times) else alone
        for far in FAR:
            offset = agreeing if far < FAR[-1] else alone
            there = np.concatenate([prior.at * factors, np.full((len(prior.at), 1), far, np.float32)], 1)
            both = np.concatenate([self._here(at), there]), np.concatenate([times - offset, prior.seen])
            found.append((GaussianProcess(*both, (1.0,)), offset, far))
        return max(found, key=lambda one: one[0].likelihood)

    def _here(self, at: np.ndarray) -> np.ndarray:
        """Coordinates in the model; with a prior, one more separates prior from measured times."""
        return np.concatenate([at, np.zeros((len(at), 1), np.float32)], 1) if self._prior else at

    def _scaled(self, at: np.ndarray, times: np.ndarray) -> tuple[np.ndarray, Sequence[float]]:
        """Weights and length scales; learned and equal weights alternate, as either may mislead."""
        if self._prior and self._models == 1 and len(self._prior.at) > 3:
            self._weights.learn(self._prior.at, self._prior.seen, 40)
        elif len(times) > SOME // 2:
            self._weights.learn(at, times, LEARNING)
        if self._models % 2 == 0 or self._prior:
            return self._weights.factors, (1.0,)
        return np.ones_like(self._weights.factors), SCALES

    def _batch(
        self, process: GaussianProcess, at: np.ndarray, here: np.ndarray, mean: np.ndarray, count: int, pending: int
    ) -> list[int]:
        """Candidates with the largest gain; each assumes that earlier ones take their expected times.

        So do the last `pending` ones, which were asked for before.
        """
        near = process.near(here)
        variance, runs = process.variance(near), self._runs(at)
        best = min(self._times.values(), default=float(mean.min()))
        better = below((best + math.log1p(-GAIN) - mean) / np.sqrt(variance)) * runs
        close_by, new = self._close_by(at), len(at) - pending
        self.doubt = float(better[:new].max(initial=0.0))
        taken: list[int] = []
        before: list[tuple[np.ndarray, float]] = []
        for turn in range(-pending, min(count, new)):
            one = len(at) + turn
            if turn >= 0:
                gain = expected_gain(mean, variance, best) * runs + 1e-12 * runs
                if self._turns % 4 == 3:
                    gain = np.where(close_by, gain, gain * 1e-6)
                gain[new:] = gain[taken] = -1.0
                one = int(gain.argmax())
                if self._prior and self._turns % 8 == 7 and len(self._asked) < CONTROLLED:
                    one = self._source.choice([place for place in range(new) if place not in taken])
                taken.append(one)
                self._turns += 1
            shared = process.joint(here, near, one)
            for other, its in before:
                shared = shared - other * other[one] / its
            before.append((shared, max(float(shared[one]), 0.0) + NOISE * process.spread**2))
            variance = np.maximum(variance - shared**2 / before[-1][1], 1e-6 * process.spread**2)
        return taken

    def _runs(self, at: np.ndarray) -> np.ndarray:
        """Probability that each candidate runs, from failures nearby."""
        if not self._failed:
            return np.ones(len(at))
        usual, reach, unsure = UNRUN
        good, bad = list(self._times)[-MODELLED:], list(self._failed)[-MODELLED:]
        there = self._encode(np.array([*good, *bad])).astype(np.float64)
        ran = np.repeat([1.0 - usual, -usual], [len(good), len(bad)])
        weights = np.linalg.solve(alike(there, there, reach) + unsure * np.eye(len(there)), ran)
        return np.clip(usual + alike(at, there, reach) @ weights, 0.02, 1.0)

    def _close_by(self, at: np.ndarray) -> np.ndarray:
        """Which candidates differ from one of the best trials in at most two coordinates."""
        best = self._best()
        if not best:
            return np.ones(len(at), bool)
        there = self._encode(np.array(best))
        return np.asarray(((at[:, None] != there[None]).sum(-1).min(1)) <= 2)
