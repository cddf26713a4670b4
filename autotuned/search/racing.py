"""The samples of a search within its deadline: which configs race, the race, its repetition, the last comparison."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial

from autotuned.search import benchmark, failures, race
from autotuned.search import duel as duels
from autotuned.search.benchmark import AnswerError
from autotuned.search.job import Job, Noise
from autotuned.search.safety import placements
from autotuned.search.safety.protection import Guard
from autotuned.search.timers import GivenTimer
from autotuned.search.trial import Track, Trial, check_samples, nothing
from autotuned.search.trials import Board
from autotuned.store import locks
from autotuned.store.record import Quality

# `race.FAR_OFF` for each config's fastest sample while others compile. The three samples are taken at once, and a burst
# of load may slow them all: with medians and a factor of 2, a tenth of all configs dropped out under 30% load.
FAR_OFF_UNWARMED = 4.0
# After a noisy race, wait until a probe of the untuned config is calm and clocks are up, for at most ten times the
# race's duration.
PATIENCE_S, PATIENCE_RACES = 10.0, 10.0
LEAST_PARTING = 0.4  # share of the launches that part ties, where a program waits for its first step
PROBE, PAUSE_S, LONGEST_PAUSE_S = 8, 0.05, 0.5  # samples of a probe; pauses between probes, doubled each time
DUEL_SHARE = 0.05  # share of the budget reserved for the last comparison; without it the untuned config is chosen


class Sampling:
    """Takes samples until the deadline has passed and a config has a time; the job's budget starts now."""

    def __init__(self, job: Job, board: Board) -> None:
        self._job, self._board = job, board
        self._early: dict[int, list[float]] = {}  # samples taken while others compiled
        self._cost_s: dict[int, float] = {}  # of one sample of a config, overhead included
        self.start_s = now_s = time.monotonic()
        # The deadline leaves time for the last comparison.
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
        """Add samples to a trial; with a deadline, in parts that fit the time left, unless it may be `late`.

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
        """One sample of each at once; False to sample them one by one instead.

        That is needed with a deadline, and after an error, to see which config failed.
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
        """Set early samples aside: they were taken before the clocks were up."""
        for trial in trials:
            self._early[trial.index] = list(trial.samples_us)
            trial.samples_us.clear()

    def take_back(self, trials: Sequence[Trial]) -> None:
        """Restore the early samples of trials without new ones."""
        early, self._early = self._early, {}
        for trial in trials:
            trial.samples_us[:] = trial.samples_us or early.get(trial.index, [])


class Racing:
    """Takes the samples by which a search compares configs.

    Args:
        catching: Returns a context that stores an exception as the trial's error.
        compiling: Returns the seconds that each config has been compiling, by identity.
    """

    def __init__(
        self, job: Job, board: Board, sampling: Sampling, guard: Guard,
        catching: Callable[[Trial], AbstractContextManager[None]], compiling: Callable[[], dict[str, float]],
    ) -> None:  # fmt: skip
        self._job, self._board, self._sampling, self._guard = job, board, sampling, guard
        self._catching, self._compiling = catching, compiling
        self.steady = True  # whether the device ran well in the race that counts
        self.noise: Noise | None = None  # details if the race was noisy, else None

    # -- the race ------------------------------------------------------------------------------------------------

    def worth_racing(self) -> list[Trial]:
        """Trials that ran, except those that were far off while others compiled.

        Clocks were not up yet, so these samples only filter, or answer if there is no time for a race.
        """
        running = self._board.open()
        measured = [min(trial.samples_us) for trial in running if trial.samples_us]
        if self._sampling.is_late or not measured or self._job.all_stay:
            return running
        limit_us = FAR_OFF_UNWARMED * min(measured)
        stays = self._board.untuned
        racing = [one for one in running if one is stays or min(one.samples_us, default=0.0) <= limit_us]
        if self._job.timer.overlaps:
            self._sampling.set_aside(racing)
        return racing

    def run(self, racing: Sequence[Trial], examine: Callable[[Sequence[Trial]], None]) -> None:
        """Race under the GPU's lock, passing survivors of the first samples to `examine`; again if it was noisy."""
        timer, left_s = self._job.timer, max(0.0, self._sampling.left_s)
        self._board.report(racing[0], "waiting")  # blame no config for another search
        with locks.gpu_locked(timer.device, min(locks.GPU_PATIENCE_S, left_s)):
            if not self._sampling.is_late:
                self._guard.with_room(timer.warm_up)
            start = time.monotonic()
            self.steady = self._race(racing, self._track(examine))
            self._race_again(racing, time.monotonic() - start)
        self._sampling.take_back(self._board.open())

    def _race(self, trials: Sequence[Trial], track: Track, random_seed: int = 0) -> bool:
        job, parting = self._job, max(self._job.patience, LEAST_PARTING)
        return race.race(trials, track, random_seed, self._board.untuned, job.all_stay, parting)

    def _race_again(self, racing: Sequence[Trial], took_s: float) -> None:
        """If the race was noisy, wait for calm and race again."""
        ran = _measured(racing)
        is_noisy = self._job.timer.repeats and bool(ran) and self.winner(ran)[1] == "noisy"
        if is_noisy and not self._sampling.is_late:
            waited_s = self._wait_for_calm(self._board.untuned or ran[0], self._patience_s(took_s))
            repeated = not self._sampling.is_late and self._repeat(ran)
            if left := _measured(ran):
                self.noise = Noise(self.winner(left)[0].middle, not self.steady, round(waited_s, 3), repeated)

    def _patience_s(self, took_s: float) -> float:
        return self._job.patience * min(PATIENCE_S, PATIENCE_RACES * took_s)

    def _repeat(self, ran: Sequence[Trial]) -> bool:
        """Race again; if time runs out, restore the first samples and return False."""
        before = [(list(trial.samples_us), trial.leader_us) for trial in ran]
        for trial in ran:
            trial.samples_us.clear()
            trial.leader_us = None
        steady = self._race(ran, self._track(), random_seed=1)
        if not self._sampling.is_late:
            self.steady = steady
            return True
        for trial, (samples_us, leader_us) in zip(ran, before):
            trial.samples_us[:], trial.leader_us = samples_us, leader_us
        return False

    def _wait_for_calm(self, probed: Trial, patience_s: float) -> float:
        """Wait until a short probe is calm; returns the seconds waited."""
        start, pause_s = time.monotonic(), PAUSE_S
        patience_s = min(patience_s, self._sampling.left_s)
        while not self._is_calm(probed):
            left_s = start + patience_s - time.monotonic()
            if left_s <= 0:
                break
            time.sleep(min(pause_s, left_s))
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        return time.monotonic() - start

    def _is_calm(self, trial: Trial) -> bool:
        probe = trial.fresh()
        self._turn([probe] * PROBE, tells=False)
        trial.error = trial.error or probe.error
        return not probe.samples_us or (probe.middle <= race.NOISY and self._job.timer.ran_well())

    # -- sampling ------------------------------------------------------------------------------------------------

    def sample(self, trial: Trial, count: int, late: bool = False) -> None:
        """Add samples to a trial that has not failed, while there is time, or even `late`."""
        if trial.error is not None or (self._sampling.is_over and not late):
            return
        self._board.report(trial, "sampling", self._compiling())
        with self._catching(trial):
            self._sampling.take(trial, count, late)

    def _track(self, examine: Callable[[Sequence[Trial]], None] = nothing) -> Track:
        return Track(self._turn, self._tell, partial(self._in_time, examine), self._ran_well, drifts=not self._is_given)

    def _in_time(self, examine: Callable[[Sequence[Trial]], None], survivors: Sequence[Trial]) -> None:
        """Check the survivors, unless the deadline has passed: then only the winner is checked."""
        if not self._sampling.is_over:
            examine(survivors)

    def _turn(self, trials: Sequence[Trial], tells: bool = True) -> None:
        """One sample of each in this order; with `tells`, report timings of trials sampled one by one."""
        left = [trial for trial in trials if trial.error is None]
        if not left:
            return
        self._board.report(left[0], "sampling")
        if self._sampling.turn(left):
            return
        for trial in left:
            self.sample(trial, 1)
            if tells and (len(trial.samples_us) == race.FIRST_SAMPLES or trial.error):
                self._board.tell(trial)  # so that a killed search loses little

    def _tell(self, trials: Sequence[Trial]) -> None:
        for trial in trials:
            self._board.tell(trial)

    def _ran_well(self) -> bool:
        return self._sampling.is_late or self._job.timer.ran_well()

    @property
    def _is_given(self) -> bool:
        """Whether the user's benchmark measures; it is called once per config."""
        return isinstance(self._job.timer, GivenTimer)

    # -- the winner ----------------------------------------------------------------------------------------------

    def winner(self, ran: Sequence[Trial]) -> tuple[Trial, Quality]:
        """The winner before the last comparison, and the quality of the choice."""
        untuned = self._board.untuned
        if untuned is None:
            untuned = next((one for one in ran if self._board.identity(one) == self._job.untuned), None)
        index = untuned.index if untuned is not None else None
        best, quality = race.winner(ran, self._job.timer.resolution_us, self.steady, index)
        ahead = race.contender(ran, best) if best is untuned else None
        return (ahead, quality) if ahead is not None and self.may_duel(ahead) else (best, quality)

    def may_duel(self, best: Trial) -> bool:
        """Whether there is an untuned config to compare the best with."""
        untuned = self._board.untuned
        same = untuned is None or untuned is best or bool(untuned.error)
        return not (same or self._is_given)

    def duel(self, best: Trial, untuned: Trial) -> duels.Duel:
        """Compare the best with the untuned config, within the whole budget; if it is close, also on copies."""
        self._board.report(best, "sampling")
        self._sampling.use_all()
        # Do not report: records keep the race's samples.
        track = Track(partial(self._turn, tells=False), recovers=self._ran_well)
        duel = duels.fight(best, untuned, track, duels.ROUND)
        if duel.is_close and self._may_move(best, untuned):
            duel = self._elsewhere(duel, track)
        if not duel.elsewhere:
            duel = duels.fight(best, untuned, track, before=duel)
        for trial, fresh in ((best, duel.best), (untuned, duel.untuned)):
            trial.error = trial.error or fresh.error
        self._board.forgive(best, untuned)
        return duel

    def _may_move(self, *trials: Trial) -> bool:
        """Whether a launch depends only on its arguments: hooks and callables may hold the tensors."""
        job = self._job
        plain = job.timer.overlaps and job.objective == "kernel" and job.hooks.after is None
        return plain and not any(map(self._board.is_hooked, trials))

    def _elsewhere(self, duel: duels.Duel, track: Track) -> duels.Duel:
        """Continue on copies of the tensors, while undecided and within a small share of the search's time."""
        written, start = {*self._guard.written, *self._job.zero}, time.monotonic()
        places = placements.elsewhere(self._job.call, written, duels.PLACES)  # all alive, so at different addresses
        others = [duels.Duel(self._moved(duel.best, place), self._moved(duel.untuned, place)) for place in places]
        most, taken, end = 0, 0, start + duels.SHARE * (start - self._sampling.start_s)
        while others and not (duel.elsewhere and duel.is_sure):
            began, before, most = time.monotonic(), taken, most + race.FIRST_SAMPLES
            if duel.elsewhere:
                here = duels.ROUND - race.FIRST_SAMPLES + most
                duel = duels.fight(duel.best, duel.untuned, track, here, duel, exactly=True)
            others = list(self._fought(others, track, most))
            steady = all(one.steady for one in (duel, *others))
            duel, taken = replace(duel, steady=steady, elsewhere=tuple(others)), sum(map(_samples, others))
            now = time.monotonic()
            again = duel.is_contested and most == race.FIRST_SAMPLES  # once, as for a noisy race
            if (now + (now - began) > end and not again) or taken <= before:
                break
        return duel

    def _fought(self, each: Sequence[duels.Duel], track: Track, most: int) -> Iterator[duels.Duel]:
        """Duels on copies, with more samples, up to the first that fails."""
        for duel in each:
            other = duels.fight(duel.best, duel.untuned, track, most, duel, exactly=True)
            failed = duel.best.error or duel.untuned.error
            self._board.forgive(duel.best, duel.untuned)
            if failed or not other.is_fought:
                break
            yield other

    def _moved(self, trial: Trial, place: placements.Placement) -> Trial:
        def prepare() -> None:
            self._guard.prepare()
            place.renew()

        made = self._board.made(self._board.identity(trial), place.call, prepare)
        return replace(made, launches=trial.launches)


def _samples(duel: duels.Duel) -> int:
    return len(duel.best.samples_us)


def _measured(trials: Sequence[Trial]) -> list[Trial]:
    return [trial for trial in trials if trial.samples_us and not trial.error]
