"""Configs with their samples: how they are compared, also under load, and the rounds in which they take turns."""

from __future__ import annotations

import bisect
import itertools
import math
import operator
import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

NOISE_FLOOR = 0.003  # assume at least this relative spread
FAST = 1 / 3  # share of the samples, the fastest, to use under load by others
# Samples this much faster are outliers: under load, 0.2% of an rmsnorm's samples and 2.5% of an addition's take 10% to
# 50% less than the launch takes on an idle H200.
TOO_FAST = 0.9
CUT = 1.5  # standard deviations from the median; `center_us` clamps samples to it


@dataclass
class Trial:
    """One config in the race."""

    index: int  # position in the list of candidates; the earlier one wins a tie
    prepare: Callable[[], None]  # restores, zeroes and runs hooks; not timed
    launch: Callable[[], Any]  # launches the config once; timed
    finish: Callable[..., None] = lambda error=None: None  # runs after the launch, or its error; not timed
    samples_us: list[float] = field(default_factory=list)
    launches: int = 1  # launches averaged into each sample
    error: str | None = None
    leader_us: float | None = None  # the leader's median when this trial left the race; None while racing

    def fresh(self) -> Trial:
        """The same config without samples, back in the race."""
        return replace(self, samples_us=[], leader_us=None)

    @property
    def median_us(self) -> float:
        """Median of the samples so far, in microseconds."""
        return median(self.samples_us)

    @property
    def center_us(self) -> float:
        """Mean of the samples, clamped to within 1.5 standard deviations of the median, in microseconds.

        It is less noisy than the median. That of a 28 us kernel moves in steps of 0.1%, because the clock counts in
        steps of 32 ns, and falls into either of two modes.
        """
        median_us = self.median_us
        most_us = CUT * _spread(self.samples_us, median_us) * median_us
        parts_us = [us - median_us for us in self.samples_us]
        inner_us = [us if -most_us <= us <= most_us else math.copysign(most_us, us) for us in parts_us]
        return median_us + sum(inner_us) / len(inner_us)

    @property
    def fast_us(self) -> float:
        """Mean of the fastest third of the samples, at least one, in microseconds.

        Other users of the device make samples slower, never faster.
        """
        fast, _ = self._fast
        return sum(fast) / len(fast)

    @property
    def fast_error(self) -> float:
        """Relative standard error of `fast_us`, as of a trimmed mean: slower samples count as the slowest of these."""
        fast, count = self._fast
        most_us, slower, total_us = fast[-1], count - len(fast), sum(fast)
        mean_us = (total_us + slower * most_us) / count
        squares = sum((us - mean_us) ** 2 for us in fast) + slower * (most_us - mean_us) ** 2
        return max(math.sqrt(squares) / total_us, NOISE_FLOOR / math.sqrt(count))

    @property
    def _fast(self) -> tuple[list[float], int]:
        """The fastest third of the samples in ascending order, and the number of samples, both without outliers."""
        ordered = sorted(self.samples_us)
        least_us = TOO_FAST * ordered[_third(ordered) // 2]
        plausible = [us for us in ordered if us >= least_us]
        return plausible[: _third(plausible)], len(plausible)

    @property
    def relative_error(self) -> float:
        """Relative standard error of the median: 1.2533 sigma / sqrt(n), sigma from the median deviation."""
        return 1.2533 * self.spread / math.sqrt(len(self.samples_us))

    @property
    def spread(self) -> float:
        """Relative standard deviation of a sample, from the median deviation; at least the noise floor."""
        return _spread(self.samples_us, self.median_us)

    @property
    def middle(self) -> float:
        """Width of the middle 60% of the samples, relative to the median."""
        ordered = sorted(self.samples_us)
        return (_percentile(ordered, 0.8) - _percentile(ordered, 0.2)) / median(ordered)

    @property
    def slowed(self) -> float:
        """Share of the samples that took over `SLOW` times the fastest twentieth's."""
        ordered = sorted(self.samples_us)
        return _share_above(ordered, SLOW * _percentile(ordered, QUICK))

    def percentile(self, share: float) -> float:
        """The sample below which `share` of all samples lie, in microseconds."""
        return _percentile(sorted(self.samples_us), share)


def median(values: Sequence[float]) -> float:
    """`statistics.median`, three times as fast: a race calls it thousands of times while the device waits."""
    ordered, count = sorted(values), len(values)
    half = count // 2
    return ordered[half] if count % 2 else (ordered[half - 1] + ordered[half]) / 2


def _spread(samples_us: Sequence[float], median_us: float) -> float:
    return max(1.4826 * median([abs(us - median_us) for us in samples_us]) / median_us, NOISE_FLOOR)


def _percentile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def _share_above(ordered: Sequence[float], most: float) -> float:
    return (len(ordered) - bisect.bisect_right(ordered, most)) / len(ordered)


def _third(ordered: Sequence[float]) -> int:
    return max(1, int(FAST * len(ordered)))


def relative(trials: Sequence[Trial], time_us: Callable[[Trial], float]) -> list[float]:
    """All samples, each divided by its trial's time."""
    times_us = [(one, time_us(one)) for one in trials]
    return [us / own_us for one, own_us in times_us for us in one.samples_us]


def check_samples(samples_us: Sequence[float]) -> None:
    """Reject times that no clock can have measured.

    Raises:
        ValueError: A time is zero, negative, NaN or infinite.
    """
    for sample in samples_us:
        if not math.isfinite(sample) or sample <= 0:
            raise ValueError(f"expected a time above 0 us, got {sample!r}.")


# -- scales: how trials are compared -----------------------------------------------------------------------------------

ENOUGH = 12  # samples needed to detect load by others
# Others use the device if the middle 60% of the samples spread over more than `LOAD`, relative, or if the share
# `SLOWED` takes `SLOW` times the fastest, which is the sample below which the share `QUICK` lies: bursts for 30% of the
# time slow 14% to 18% of a split-K matmul's samples, and spread the middle over 7% to 8% (H200). Of six kernels on idle
# devices 0.7% at most are that slow.
LOAD, SLOWED, SLOW, QUICK = 0.08, 0.04, 1.25, 0.05


@dataclass(frozen=True)
class Scale:
    """The time of a trial in microseconds, and its relative standard error."""

    us: Callable[[Trial], float]
    error: Callable[[Trial], float]


MEDIAN = Scale(operator.attrgetter("median_us"), operator.attrgetter("relative_error"))
CENTER = Scale(operator.attrgetter("center_us"), operator.attrgetter("relative_error"))
# Load makes samples slower, never faster. With load for 30% of the time, the mean of the fastest third of 240 samples
# resolved a difference of 0.2% between two configs, the center one of 0.5% (replayed rmsnorm, split-K matmul).
FASTEST = Scale(operator.attrgetter("fast_us"), operator.attrgetter("fast_error"))


def are_loaded(trials: Sequence[Trial]) -> bool:
    """Whether most of these trials show load by others."""
    known = [trial for trial in trials if len(trial.samples_us) >= ENOUGH]
    if not known:
        return False
    return median([one.middle for one in known]) > LOAD or median([one.slowed for one in known]) > SLOWED


def scale(trials: Sequence[Trial], calm: Scale = CENTER) -> Scale:
    """The scale to compare these trials by."""
    return FASTEST if are_loaded(trials) else calm


# -- rounds ------------------------------------------------------------------------------------------------------------

TOGETHER = 16  # samples per wait for the device, if fewer configs are left
# Repeat rounds with throttled clocks at most this often per race; after that the race continues and its result is
# noisy. `Drift` removes undetected changes.
DISTURBED_ROUNDS = 4


def nothing(trials: Sequence[Trial]) -> None:
    """Default callback."""


@dataclass(frozen=True)
class Track:
    """How a race takes its samples."""

    # Appends one sample to each trial in order, or sets its `error`; skips trials with an error. A trial may be listed
    # several times.
    sample: Callable[[Sequence[Trial]], None]
    measured: Callable[[Sequence[Trial]], None] = nothing  # called with the trials after each round
    examine: Callable[[Sequence[Trial]], None] = nothing  # called with the survivors of the first samples
    recovers: Callable[[], bool] = lambda: True  # after each round: whether the device ran well; if not, it pauses
    drifts: bool = True  # whether samples are in the order they were taken, so that drift can be removed


class Rounds:
    """Rounds of a race: each samples its trials in random order, several times if they are few."""

    def __init__(self, track: Track, shuffle: random.Random) -> None:
        self._track, self._shuffle = track, shuffle
        self._drift = Drift()
        self.left = DISTURBED_ROUNDS  # disturbed rounds that may still be discarded

    def run(self, trials: Sequence[Trial], count: int) -> bool:
        """Take `count` samples of each; False if there were none: out of time, or the timer answers only once."""
        before = [len(trial.samples_us) for trial in trials]
        while trials:
            turns = self._turns(trials, count)
            if not self.left or self._track.recovers():
                break
            self.left -= 1
            if self.left:
                self._drift.drop(turns)
                for trial, length in zip(trials, before):
                    del trial.samples_us[length:]
        self._drift.take_out()
        self._track.measured(trials)
        return any(len(trial.samples_us) > length for trial, length in zip(trials, before))

    def _turns(self, trials: Sequence[Trial], count: int) -> int:
        """Sample each `count` times, or until no samples come; returns the number of turns noted."""
        noted, passes = self._drift.count, max(1, TOGETHER // len(trials))
        while count > 0:
            order = [trial for _ in range(min(count, passes)) for trial in self._shuffled(trials)]
            before = {trial.index: len(trial.samples_us) for trial in trials}
            self._track.sample(order)
            count -= passes
            if all(len(trial.samples_us) == before[trial.index] for trial in trials):
                break
            if self._track.drifts:
                self._drift.note(order, before)
        return self._drift.count - noted

    def _shuffled(self, trials: Sequence[Trial]) -> list[Trial]:
        order = list(trials)
        self._shuffle.shuffle(order)
        return order


# -- changes common to all configs: clocks, heat, other users of the device -------------------------------------------

# Passes of the fit: many for the first fit; later fits start from its result.
FIRST_PASSES, PASSES, SETTLED = 30, 4, 1e-4
WORTH = 1e-3  # assume at least this relative noise
CERTAIN = 2.5  # turns differ if they do so by this many times their noise; otherwise samples stay as measured
LEAST_OF_A_LINE = 6  # samples; a shorter turn gets a constant level
LOADED = 0.05  # relative; others use the device if the middle 60% of the residuals spread over more
FITTED_TURNS = 32  # fit the latest turns; older ones stay as they are


class _Turn:
    """Samples of one turn, as columns: a fit goes through them dozens of times while the device waits."""

    def __init__(self, trip: int) -> None:
        self.trip = trip  # number of the call of `note`
        self.trials: list[Trial] = []
        self.indices: list[int] = []  # of the trials
        self.ats: list[int] = []  # index in the trial's samples
        self.places: list[int] = []  # index among the samples taken together
        self.logs: list[float] = []

    def add(self, trial: Trial, at: int, place: int) -> None:
        """Add a sample of a trial."""
        self.trials.append(trial)
        self.indices.append(trial.index)
        self.ats.append(at)
        self.places.append(place)
        self.logs.append(math.log(trial.samples_us[at]))

    def apart(self, times: Mapping[int, float]) -> list[float]:
        """Each sample's distance from its config's time, which is known of all."""
        return [log - times[index] for index, log in zip(self.indices, self.logs)]

    def levels(self, times: Mapping[int, float]) -> list[float]:
        """The level at each sample, fitted to the configs whose time is known."""
        values = [log - times[index] for index, log in zip(self.indices, self.logs) if index in times]
        places = self.places
        if len(values) < len(places):
            places = [place for index, place in zip(self.indices, places) if index in times]
        offset, slope = line(places, values) if values else (0.0, 0.0)
        return [offset + slope * place for place in self.places] if slope else [offset] * len(self.places)


class Drift:
    """The samples of a race by turn, and the removal of changes common to all configs.

    Each turn samples every remaining config equally often, in random order. Times may drift linearly within a turn and
    arbitrarily between turns. In logarithms: sample = config's time + turn's line + noise.
    """

    def __init__(self) -> None:
        self._turns: list[_Turn] = []
        self._times: dict[int, float] = {}  # logarithm of each config's time, by index
        self._base: float | None = None  # the common level after correction
        self._trips = 0
        self._shows = False  # whether drift was detected

    def note(self, order: Sequence[Trial], before: Mapping[int, int]) -> None:
        """Add a turn: the order of samples, and how many each trial had before, by index."""
        at, size = dict(before), len(before)
        parts = -(-len(order) // (size * -(-LEAST_OF_A_LINE // size)))
        turns = [_Turn(self._trips) for _ in range(parts)]
        for place, trial in enumerate(order):
            if at[trial.index] < len(trial.samples_us):
                turns[place * parts // len(order)].add(trial, at[trial.index], place)
                at[trial.index] += 1
        self._turns += [turn for turn in turns if turn.logs]
        self._trips += 1

    def drop(self, count: int) -> None:
        """Forget the last turns, which are measured again."""
        del self._turns[len(self._turns) - count :]

    @property
    def count(self) -> int:
        """Number of turns."""
        return len(self._turns)

    def take_out(self) -> None:
        """Remove drift from all samples, if there is any."""
        if not self._turns:
            return
        levels = self._fit()
        if self._base is None:
            self._base = median([level for line in levels for level in line])
        self._shows = self._shows or self._changed(levels)
        if self._shows and not self._is_loaded():
            for turn, line in zip(self._turns, levels):
                self._rewrite(turn, line)
        del self._turns[: max(0, len(self._turns) - FITTED_TURNS)]

    def _rewrite(self, turn: _Turn, levels: Sequence[float]) -> None:
        """Remove the turn's line, and scale up the residuals, since the fit absorbs some noise."""
        count = len(turn.logs)
        taken = 1 if count < LEAST_OF_A_LINE else 2
        larger = math.sqrt(count / (count - taken)) if count > taken else 1.0
        for trial, at, log, level in zip(turn.trials, turn.ats, turn.logs, levels):
            if trial.leader_us is None:
                time = self._times[trial.index]
                trial.samples_us[at] = math.exp(time + larger * (log - level - time) + (self._base or 0.0))

    def _is_loaded(self) -> bool:
        """Whether the spread of times shows load by others.

        Load comes and goes within a few samples. It would raise a turn's level, and the correction would make the
        turn's undisturbed samples faster than any real one.
        """
        apart: list[float] = []
        for _, together in itertools.groupby(self._turns, operator.attrgetter("trip")):
            turns = list(together)
            places = [place for turn in turns for place in turn.places]
            values = [value for turn in turns for value in turn.apart(self._times)]
            if len(values) > LEAST_OF_A_LINE:
                offset, slope = line(places, values)
                apart += [value - offset - slope * place for place, value in zip(places, values)]
        apart.sort()
        if not apart:
            return False
        slowed = _share_above(apart, _percentile(apart, QUICK) + math.log(SLOW))
        return _percentile(apart, 0.8) - _percentile(apart, 0.2) > LOADED or slowed > SLOWED

    def _changed(self, levels: Sequence[Sequence[float]]) -> bool:
        """Whether turns differ by more than their noise."""
        found = [(median(line), len(line)) for line in levels if len(line) > 1]
        noise = [abs(log - level - self._times[index])
                 for turn, line in zip(self._turns, levels) if len(turn.logs) > 1
                 for index, log, level in zip(turn.indices, turn.logs, line)]  # fmt: skip
        if len(found) < 2:
            return False
        size = min(count for _, count in found)
        expected = max(1.25 * 1.4826 * median(noise) * math.sqrt(2), WORTH) / math.sqrt(size)
        middle = median([level for level, _ in found])
        spread = 1.4826 * median([abs(level - middle) for level, _ in found])
        third = max(1, len(found) // 3)
        ends = median([level for level, _ in found[-third:]]) - median([level for level, _ in found[:third]])
        return spread > CERTAIN * expected or abs(ends) > CERTAIN * 2 * expected / math.sqrt(third)

    def _fit(self) -> list[list[float]]:
        """The level of each sample: fit configs' times and turns' lines in turn."""
        levels = [turn.levels(self._times) for turn in self._turns]
        for _ in range(PASSES if self._times else FIRST_PASSES):
            before, self._times = self._times, self._medians(levels)
            levels = [turn.levels(self._times) for turn in self._turns]
            if before and all(abs(time - before.get(index, math.inf)) < SETTLED for index, time in self._times.items()):
                break
        return levels

    def _medians(self, levels: Sequence[Sequence[float]]) -> dict[int, float]:
        found: defaultdict[int, list[float]] = defaultdict(list)
        for turn, line in zip(self._turns, levels):
            for index, log, level in zip(turn.indices, turn.logs, line):
                found[index].append(log - level)
        return {index: median(values) for index, values in found.items()}


def line(places: Sequence[int], values: Sequence[float]) -> tuple[float, float]:
    """Offset and slope of a line, robust to outliers: from the medians of the outer thirds."""
    third = len(values) // 3
    if len(values) < LEAST_OF_A_LINE:
        return median(values), 0.0
    run = median(places[-third:]) - median(places[:third])
    slope = (median(values[-third:]) - median(values[:third])) / run
    return median([value - slope * place for place, value in zip(places, values)]), slope
