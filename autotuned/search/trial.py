"""A config with its samples in a search, and what the samples of all configs share: the drift of clocks and heat."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

NOISE_FLOOR = 0.003  # smallest relative spread that is believed
CUT = 1.5  # standard deviations from the median to which samples are cut in `center_us`


@dataclass
class Trial:
    """One config in the race."""

    index: int  # position in the list of candidates; the earlier one wins a tie
    prepare: Callable[[], None]  # restores, zeroes and runs hooks; not timed
    launch: Callable[[], Any]  # launches the config once; timed
    finish: Callable[[], None] = lambda: None  # runs after the launch; not timed
    samples_us: list[float] = field(default_factory=list)
    launches: int = 1  # launches per sample, which is their mean
    error: str | None = None
    leader_us: float | None = None  # the leader's median when this trial left the race; None while in it

    def fresh(self) -> Trial:
        """The same config without samples, back in the race."""
        return replace(self, samples_us=[], leader_us=None)

    @property
    def median_us(self) -> float:
        """Median of the samples so far, in microseconds."""
        return median(self.samples_us)

    @property
    def center_us(self) -> float:
        """Mean of the samples, each cut to within 1.5 standard deviations of the median, in microseconds.

        Chance moves it less than the median, which of a 28 us kernel moves in steps of 0.1% where a clock counts in
        steps of 32 ns, and lies in one of two modes.
        """
        median_us, most_us = self.median_us, CUT * self.spread * self.median_us
        parts_us = [max(-most_us, min(sample - median_us, most_us)) for sample in self.samples_us]
        return median_us + sum(parts_us) / len(parts_us)

    @property
    def relative_error(self) -> float:
        """Relative standard error of the median: 1.2533 sigma / sqrt(n), sigma from the median deviation."""
        return 1.2533 * self.spread / math.sqrt(len(self.samples_us))

    @property
    def spread(self) -> float:
        """Relative standard deviation of a sample, from the median deviation; at least the noise floor."""
        median_us = self.median_us
        deviation_us = median([abs(sample - median_us) for sample in self.samples_us])
        return max(1.4826 * deviation_us / median_us, NOISE_FLOOR)

    @property
    def middle(self) -> float:
        """Width of the middle 60% of the samples, relative to the median."""
        return (self.percentile(0.8) - self.percentile(0.2)) / self.median_us

    def percentile(self, share: float) -> float:
        """The sample below which `share` of all samples lie, in microseconds."""
        return sorted(self.samples_us)[min(int(share * len(self.samples_us)), len(self.samples_us) - 1)]


def median(values: Sequence[float]) -> float:
    """Like `statistics.median` in a third of its time: a race calls it thousands of times while the device waits."""
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def check_samples(samples_us: Sequence[float]) -> None:
    """Refuse times that no clock can have measured.

    Raises:
        ValueError: A time is zero, negative, NaN or infinite.
    """
    for sample in samples_us:
        if not math.isfinite(sample) or sample <= 0:
            raise ValueError(f"expected a time above 0 us, got {sample!r}.")


# -- drift -------------------------------------------------------------------------------------------------------------

# Passes of the fit: many for the first, few for later ones, which start from it.
FIRST_PASSES, PASSES, SETTLED = 30, 4, 1e-4
WORTH = 1e-3  # smallest relative noise that is believed
CERTAIN = 2.5  # times what noise explains; below it samples stay as measured
LEAST_OF_A_LINE = 6  # samples; a shorter turn gets a constant level
FITTED_TURNS = 32  # the latest; older turns stay as they are


class _Sample(NamedTuple):
    trial: Trial
    at: int  # index in the trial's samples
    place: int  # index in the turn
    log: float


class Drift:
    """The samples of a race, turn by turn, and the removal of what changes for all configs alike.

    Each turn samples every remaining config equally often, in random order. Within a turn times may drift linearly,
    between turns arbitrarily. In logarithms: sample = config's time + turn's line + noise.
    """

    def __init__(self) -> None:
        self._turns: list[list[_Sample]] = []
        self._times: dict[int, float] = {}  # logarithm of each config's time, by index
        self._base: float | None = None  # the common level after correction
        self._shows = False  # whether drift was detected

    def note(self, order: Sequence[Trial], before: Mapping[int, int]) -> None:
        """Add a turn: the order of samples, and how many each trial had before, by index."""
        at, size = dict(before), len(before)
        parts = -(-len(order) // (size * -(-LEAST_OF_A_LINE // size)))
        turns: list[list[_Sample]] = [[] for _ in range(parts)]
        for place, trial in enumerate(order):
            if at[trial.index] < len(trial.samples_us):
                turn = turns[place * parts // len(order)]
                turn.append(_Sample(trial, at[trial.index], place, math.log(trial.samples_us[at[trial.index]])))
                at[trial.index] += 1
        self._turns += [turn for turn in turns if turn]

    def drop(self, count: int) -> None:
        """Forget the last turns, which are measured again."""
        del self._turns[len(self._turns) - count :]

    @property
    def count(self) -> int:
        """Number of turns."""
        return len(self._turns)

    def take_out(self) -> None:
        """Rewrite all samples as if nothing had drifted, if something has."""
        if not self._turns:
            return
        levels = self._fit()
        if self._base is None:
            self._base = median([level for line in levels for level in line])
        self._shows = self._shows or self._changed(levels)
        if self._shows:
            for turn, line in zip(self._turns, levels):
                self._rewrite(turn, line)
        del self._turns[: max(0, len(self._turns) - FITTED_TURNS)]

    def _rewrite(self, turn: Sequence[_Sample], levels: Sequence[float]) -> None:
        """Remove the turn's line, and scale the residual by the noise that the fit took."""
        taken = 1 if len(turn) < LEAST_OF_A_LINE else 2
        larger = math.sqrt(len(turn) / (len(turn) - taken)) if len(turn) > taken else 1.0
        for sample, level in zip(turn, levels):
            if sample.trial.leader_us is None:
                time = self._times[sample.trial.index]
                noise = sample.log - level - time
                sample.trial.samples_us[sample.at] = math.exp(time + larger * noise + (self._base or 0.0))

    def _changed(self, levels: Sequence[Sequence[float]]) -> bool:
        """Whether turns differ by more than their noise."""
        found = [(median(line), len(line)) for line in levels if len(line) > 1]
        noise = [abs(sample.log - level - self._times[sample.trial.index])
                 for turn, line in zip(self._turns, levels) if len(turn) > 1
                 for sample, level in zip(turn, line)]  # fmt: skip
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
        levels = [self._line(turn) for turn in self._turns]
        for _ in range(PASSES if self._times else FIRST_PASSES):
            before, self._times = self._times, self._medians(levels)
            levels = [self._line(turn) for turn in self._turns]
            if before and all(abs(time - before.get(index, math.inf)) < SETTLED for index, time in self._times.items()):
                break
        return levels

    def _medians(self, levels: Sequence[Sequence[float]]) -> dict[int, float]:
        found: dict[int, list[float]] = {}
        for turn, line in zip(self._turns, levels):
            for sample, level in zip(turn, line):
                found.setdefault(sample.trial.index, []).append(sample.log - level)
        return {index: median(values) for index, values in found.items()}

    def _line(self, turn: Sequence[_Sample]) -> list[float]:
        """Levels of a turn, fitted to the configs whose time is known."""
        known = [(one.place, one.log - self._times[one.trial.index]) for one in turn if one.trial.index in self._times]
        offset, slope = line(known) if known else (0.0, 0.0)
        return [offset + slope * one.place for one in turn]


def line(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Offset and slope of a line robust to outliers: from the medians of the outer thirds."""
    third = len(points) // 3
    if len(points) < LEAST_OF_A_LINE:
        return median([value for _, value in points]), 0.0
    first, last = points[:third], points[-third:]
    run = median([place for place, _ in last]) - median([place for place, _ in first])
    slope = (median([value for _, value in last]) - median([value for _, value in first])) / run
    return median([value - slope * place for place, value in points]), slope
