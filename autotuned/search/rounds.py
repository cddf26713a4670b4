"""Rounds of a race: the trials that are left take turns, and what they share of a change is taken out."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autotuned.search.drift import Drift
from autotuned.search.trial import Trial

TOGETHER = 16  # samples per wait for the device, if fewer configs are left
# A round during which the device's clocks were held down is repeated, at most this often in a race; after that the race
# goes on and its result is noisy. Undetected changes are removed by `drift`.
DISTURBED_ROUNDS = 4


def nothing(trials: Sequence[Trial]) -> None:
    """Default callback."""


@dataclass(frozen=True)
class Track:
    """How a race takes its samples."""

    # Appends one sample to each trial, in this order, or sets its `error`; skips trials with an error. A trial may be
    # listed several times.
    sample: Callable[[Sequence[Trial]], None]
    measured: Callable[[Sequence[Trial]], None] = nothing  # called with the trials after each round
    examine: Callable[[Sequence[Trial]], None] = nothing  # called with the survivors of the first samples
    recovers: Callable[[], bool] = lambda: True  # after each round: whether the device ran well; if not, pauses first
    drifts: bool = True  # whether samples are listed in the order they were taken, so that drift can be removed


class Rounds:
    """Rounds of a race: each samples its trials in random order, several times if they are few.

    `left` counts the disturbed rounds that may still be thrown away.
    """

    def __init__(self, track: Track, shuffle: random.Random) -> None:
        self._track, self._shuffle = track, shuffle
        self._drift = Drift()
        self.left = DISTURBED_ROUNDS  # disturbed rounds that may still be thrown away

    def run(self, trials: Sequence[Trial], count: int) -> bool:
        """Take `count` samples of each; False if none came: out of time, or the timer gives one answer only."""
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
        """Sample each `count` times, or until nothing comes; returns how many turns were noted."""
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
