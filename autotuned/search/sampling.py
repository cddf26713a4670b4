"""Takes the samples of a search within its deadline."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence

from autotuned.search import benchmark, failures
from autotuned.search.job import Job
from autotuned.search.timers import AnswerError
from autotuned.search.trial import Trial, check_samples
from autotuned.search.trials import Board

DUEL_SHARE = 0.05  # share of the budget for the final duel, without which nothing but the untuned config is chosen


class Sampling:
    """Takes samples until the deadline has passed and a config has a time; the job's budget starts now."""

    def __init__(self, job: Job, board: Board) -> None:
        self._job, self._board = job, board
        self._early: dict[int, list[float]] = {}  # samples taken while others compiled
        self._cost_s: dict[int, float] = {}  # of one sample of a config, overhead included
        self.start_s = now_s = time.monotonic()
        # The deadline is for all but the final duel.
        self.deadline_s, self._end_s = now_s + (1 - DUEL_SHARE) * job.budget_s, now_s + job.budget_s

    @property
    def left_s(self) -> float:
        """Seconds until the deadline; negative after it."""
        return self.deadline_s - time.monotonic()

    @property
    def is_late(self) -> bool:
        """Whether the deadline has passed."""
        return self.left_s < 0

    def use_all(self) -> None:
        """Use the whole budget from now on."""
        self.deadline_s = self._end_s

    @property
    def answered(self) -> bool:
        """Whether a config has a time."""
        return any((one.samples_us or self._early.get(one.index)) and not one.error for one in self._board.trials)

    @property
    def is_over(self) -> bool:
        """Whether to take no further samples."""
        return self.is_late and self.answered

    def take(self, trial: Trial, count: int, late: bool = False) -> None:
        """Add samples to a trial; with a deadline in parts that fit the time left, all at once if it may be `late`.

        Raises:
            AnswerError: The user's benchmark returned an invalid time.
            ValueError: A timer did.
        """
        for part in (count,) if late else self._parts(trial, count):
            start = time.monotonic()
            samples = self._measured(trial, part)
            check_samples(samples)
            trial.samples_us += samples
            if samples:
                self._cost_s[trial.index] = (time.monotonic() - start) / part

    def turn(self, trials: Sequence[Trial]) -> bool:
        """One sample of each at once; False to sample each by itself instead.

        That is so with a deadline, and after an error, to see which config failed.
        """
        if self.deadline_s < math.inf:
            return False
        try:
            times_us = self._job.timer.turn(trials)
            check_samples(times_us or ())
        except Exception as error:
            failures.let_go(error)
            return False
        for trial, time_us in zip(trials, times_us or ()):
            trial.samples_us.append(time_us)
        return times_us is not None

    def _parts(self, trial: Trial, count: int) -> Iterator[int]:
        while count > 0 and not self.is_over:
            cost_s = self._cost_s.get(trial.index)
            fit = count if self.deadline_s == math.inf else int(self.left_s / cost_s) if cost_s else 1
            part = max(1, min(count, fit))
            yield part
            count -= part

    def _measured(self, trial: Trial, count: int) -> list[float]:
        try:
            return self._job.timer.sample(trial, count)
        except AnswerError as error:
            name, config = self._job.tunable.name, self._board.label(trial)
            benchmark.say_left_out(name, config, error)
            raise AnswerError(f"`{name}`: do_bench for {config}: {error}") from None

    def set_aside(self, trials: Sequence[Trial]) -> None:
        """Start over for some trials: their samples were taken before the clocks were up."""
        for trial in trials:
            self._early[trial.index] = list(trial.samples_us)
            trial.samples_us.clear()

    def take_back(self, trials: Sequence[Trial]) -> None:
        """Give trials without new samples their early ones back."""
        early, self._early = self._early, {}
        for trial in trials:
            trial.samples_us[:] = trial.samples_us or early.get(trial.index, [])
