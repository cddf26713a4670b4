"""One search: protect the caller's data, measure every candidate, choose."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from functools import partial
from typing import Any

from autotuned.errors import CheckError, SealedError
from autotuned.search import benchmark, exclusions, failures, race
from autotuned.search.compiling.compile import CompileStream, Ready, Waiting
from autotuned.search.compiling.pool import Wanted
from autotuned.search.exclusions import Reason
from autotuned.search.failures import describe
from autotuned.search.job import Job, Outcome
from autotuned.search.racing import Racing, Sampling
from autotuned.search.safety import poison, protection
from autotuned.search.safety.comparison import Comparison
from autotuned.search.safety.protection import Guard
from autotuned.search.timers import GivenTimer
from autotuned.search.trial import Trial
from autotuned.search.trials import Board
from autotuned.store.record import Quality, Timing

log = logging.getLogger("autotuned")


def run(job: Job, outcome: Outcome) -> None:
    """Measure the job's candidates and write the results into `outcome`.

    The caller's tensors are restored afterwards, also after an exception. On `KeyboardInterrupt` the timings so far are
    in `outcome`.

    Raises:
        AllConfigsFailedError: No candidate could be launched and timed.
        DeviceLostError: A config left the device in an error state, or it was in one before.
        OutOfMemoryError: Not enough free memory to search now.
        CheckError: The reference raises, or disagrees with most configs.
        SealedError: A seal that began meanwhile forbids compiling the rest.
        Exception: The error that every config raised, if it is the same one: then it is the user's bug, not a config's.
    """
    search = _Search(job, outcome)
    try:
        with protection.without_gradients(), contextlib.closing(search), failures.no_room_for(job.tunable.name):
            search.measure()
            search.raise_if_all_failed()
            search.choose(outcome)
    except CheckError:
        search.board.trials.clear()  # with a wrong reference no timing means anything
        raise
    finally:
        outcome.timings = search.board.timings()


class _Search:
    def __init__(self, job: Job, outcome: Outcome) -> None:
        self._job, self._outcome = job, outcome
        self._ahead = CompileStream(job.tunable, job.call, job.journal, job.all_cores)
        self._guard = Guard(job, self._ahead)
        self.board = Board(job, self._guard.prepare)
        fresh = sorted((name for name in job.configs if name not in job.known), key=lambda name: name not in job.likely)
        if fresh and job.incumbent is not None:  # its old time was taken under other conditions
            fresh.append(job.incumbent)  # last, so that a small budget is spent on new configs
        self.board.trials += [self.board.made(identity) for identity in fresh]
        self._comparison: Comparison | None = None
        if job.check:
            self._comparison = Comparison(job, self.board, self._ahead, self._guard, self._launch, self._runs)
        self._first_error: Exception | None = None  # raised if all fail with the same error
        self._checked: set[int] = set()
        self._earlier: list[Trial] = []  # measured by earlier searches, and may win
        self._recalled: dict[str, Trial] = {}  # trials of earlier timings, by identity
        self._met: set[int] = set()  # recalled trials that this search has launched
        self._stands_first: Trial | None = None  # the reference of check="first"
        self._lost = False
        self._ran = 0  # configs launched without an error
        self._sampling = Sampling(job, self.board)
        self._racing = Racing(job, self.board, self._sampling, self._guard, self._catching, self._ahead.running)

    def close(self) -> None:
        """Restore the caller's data and drop every reference that would keep it alive."""
        self._guard.note(self._outcome)
        self._outcome.regime = dict(self._job.timer.regime)
        self._outcome.noise = self._racing.noise
        try:
            self._guard.release(self._lost)
        finally:
            # Break reference cycles: tensors and the flush buffer must be freed now, not by the garbage collector.
            # Tracebacks hold frames, which hold the arguments.
            failures.let_go(self._first_error)
            self._first_error = self._comparison = self._stands_first = None
            del self._racing  # it holds this search
            for trial in [*self.board.trials, *self._recalled.values()]:
                trial.prepare = trial.launch = trial.finish = lambda *error: None
            self._earlier.clear()
            self._recalled.clear()
            if self._guard.is_short and not self._lost:
                self._job.timer.free()  # torch would keep the memory
            self._job.journal.end()

    # -- compiling and the first launches --------------------------------------------------------------------------

    def measure(self) -> None:
        """Compile, launch each config once as soon as it is ready, then race those that ran."""
        self._check_device()  # no config is to blame for a device that was lost before
        self.board.skip_excluded(self.board.trials)
        start = time.perf_counter()
        self._launch_all()
        self._outcome.compile_s += time.perf_counter() - start
        self._job.journal.end()
        self._guard.protect()
        racing = self._racing.worth_racing()
        if racing:
            exclusions.remember(self._job.compile_class, self._ahead.excluded)
            self._racing.run(racing, self._examine)
        self._answer_late()
        if racing:
            self._finish_hooks(racing[0])

    def _answer_late(self) -> None:
        """If nothing was timed before the deadline, try the skipped configs until one has a time."""
        for trial in [trial for trial in self.board.trials if trial.error == ""]:
            if self._sampling.answered or list(self.board.usable()):
                return
            trial.error = None
            if self._meet_again(trial):
                self._racing.sample(trial, race.FIRST_SAMPLES)
                self.board.tell(trial)

    def _launch_all(self) -> None:
        waiting = {trial.index for trial in self.board.open()}
        wanted = [self._wanted(trial) for trial in self.board.open()]
        fresh = set[str]()  # configs launched since `more` was asked
        slow = Waiting(self._job.tunable.name)

        def more() -> list[Wanted]:
            if self._sampling.is_late or self._job.more is None:
                return []
            news = {name: timing for name, timing in self.board.found().items() if name in fresh}
            fresh.clear()
            added = self.board.extend(self._job.more(news, len(waiting)))
            opened = [trial for trial in added if trial.error is None]
            waiting.update(trial.index for trial in opened)
            return [self._wanted(trial) for trial in opened]

        def tick(one: Wanted) -> None:
            self.board.report(self.board.trial(one.index), "compiling", self._ahead.running())
            if self._job.observer is None:
                slow.tick(self._ahead.done, len(self.board.trials))

        further = self._job.more and more
        stream = self._ahead.stream(wanted, self._sampling.deadline_s, tick, self._has_run, further, self._job.slow)
        with contextlib.closing(stream):
            for ready in stream:
                waiting.discard(ready.wanted.index)
                self._meet(ready)
                fresh.add(ready.wanted.identity)
        for index in waiting:
            self.board.trial(index).error = ""  # not tried, so omitted from the timings

    def _wanted(self, trial: Trial) -> Wanted:
        identity = self.board.identity(trial)
        suspect = identity in self._job.journal.suspects
        hooked, likely = self.board.is_hooked(trial), identity in self._job.likely
        return Wanted(trial.index, identity, self._job.configs[identity], hooked, likely, suspect)

    def _meet(self, ready: Ready) -> None:
        """Launch a compiled config unless an equal binary was launched; sample it while others compile."""
        trial = self.board.trial(ready.wanted.index)
        with self._catching(trial):
            try:
                first = self._take(ready, trial)
            except CancelledError:  # not begun before the deadline
                trial.error = ""
                return
            if first != trial.index:
                trial = self.board.pair(trial, self.board.trial(first))
                return
        if trial.error is None and self._has_run() and self._sampling.is_late:
            trial.error = ""
        elif trial.error is None:
            self._launch_first(trial)
        if trial.error:
            self.board.tell(trial)
        elif self._job.timer.overlaps and (self._job.more is not None or self._ahead.running()):
            if self._job.more is not None:  # the next request depends on it
                self._guard.with_room(self._job.timer.warm_up)
            self._racing.sample(trial, race.FIRST_SAMPLES)
            self.board.tell(trial)
        elif self._sampling.deadline_s < math.inf:  # there may be no time for a race
            self._racing.sample(trial, 1)
            self.board.tell(trial)

    def _take(self, ready: Ready, trial: Trial) -> int:
        """`ready.take()`; the user's post_hook hears of an error, as in Triton, where a trial compiles."""
        try:
            return self._guard.with_room(ready.take)
        except CancelledError:
            raise
        except Exception as error:
            trial.finish(error)
            raise

    def _launch_first(self, trial: Trial) -> None:
        """Protect, load and launch; detect its writes; blame it if it loses the device."""
        self.board.report(trial, "launching", self._ahead.running())
        with self._catching(trial):
            self._guard.protect()
            self._job.journal.begin(self.board.identity(trial))
            self._guard.protection.begin()
            try:
                self._guard.with_room(partial(self._launch, trial))
                self._guard.protection.learn()
            finally:
                self._job.journal.launched()
        self.board.launched += 1
        self._ran += trial.error is None

    def _meet_again(self, trial: Trial) -> bool:
        """Launch a config of an earlier search once, to detect its writes; returns whether it runs."""
        if trial.index in self._met:
            return trial.error is None
        self._met.add(trial.index)
        with self._catching(trial), contextlib.closing(self._ahead.stream([self._wanted(trial)])) as stream:
            for ready in stream:
                self._take(ready, trial)
        if trial.error is None:
            self._launch_first(trial)
        return trial.error is None

    def _launch(self, trial: Trial, poisoned: Sequence[Any] = ()) -> None:
        self._guard.protection.renew()
        trial.prepare()
        if poisoned:
            poison.fill(poisoned)
        trial.launch()
        trial.finish()
        self._job.timer.synchronize()

    # -- checks --------------------------------------------------------------------------------------------------

    def _examine(self, survivors: Sequence[Trial]) -> None:
        comparison = self._comparison
        if comparison is None or not survivors:
            return
        first = self._first() if comparison.is_with_first else None
        stage = "launching" if first else "waiting"  # blame no config for a slow reference
        self.board.report(first or survivors[0], stage)
        comparison.learn(survivors, first)
        for trial in survivors:
            self._check(comparison, trial)
        if 2 * self.board.wrong > len(self._checked):  # perhaps the reference is wrong: ask all configs that ran
            for trial in [*self.board.open(), *filter(self._meet_again, self._known_others())]:
                if trial.index not in self._checked:
                    self._check(comparison, trial)
            self._overrule(list(self._recalled.values()))
            comparison.checker.refuse_majority(self.board.wrong, len(self._checked))

    def _first(self) -> Trial:
        """The first config of the list that runs, in this search or launched again from an earlier one."""
        if self._stands_first is None:
            self._stands_first = next(filter(None, map(self._running, self._job.configs)))
        return self._stands_first

    def _running(self, identity: str) -> Trial | None:
        trial = next((trial for trial in self.board.open() if self.board.identity(trial) == identity), None)
        timing = self._job.known.get(identity)
        if trial is not None or timing is None or not timing.usable:
            return trial
        earlier = self._measured(identity, timing)
        return earlier if self._meet_again(earlier) else None

    def _check(self, comparison: Comparison, trial: Trial) -> None:
        self.board.report(trial, "launching")
        with self._catching(trial):
            difference = comparison.difference(trial)
            self._checked.add(trial.index)
            if difference:
                trial.error = difference
                self.board.why[trial.index] = Reason.WRONG
                self.board.tell(trial)
                log.warning("`%s`: %s is dropped. %s", self._job.tunable.name, self.board.label(trial), difference)

    def _runs(self, trial: Trial, poisoned: Sequence[Any]) -> bool:
        """Whether a config runs on poisoned tensors; one that reads them may raise."""
        try:
            self._guard.with_room(partial(self._launch, trial, poisoned))
        except Exception as error:
            failures.let_go(error)
            self._check_device(trial)
            return False
        return True

    @contextlib.contextmanager
    def _catching(self, trial: Trial) -> Iterator[None]:
        try:
            yield
        except SealedError:  # since the search began: no fault of the config
            raise
        except Exception as error:
            trial.error = describe(error)
            self._note_error(trial, error)
        else:
            return
        self._check_device(trial)
        self._guard.protection.learn()

    def _note_error(self, trial: Trial, error: Exception) -> None:
        if failures.is_passing(error):
            self.board.why[trial.index] = Reason.PASSING
        failed = self.board.failed()
        alike = all(other.error == trial.error for other in failed) and not failures.is_passing(error)
        kept = (self._first_error or error) if alike else None
        for one in (self._first_error, error):
            if one is not kept:
                failures.let_go(one)
        self._first_error = kept

    def _check_device(self, trial: Trial | None = None) -> None:
        """Raise if the device is lost, by this trial or, without one, before the search."""
        try:
            self._job.timer.synchronize()
        except Exception as error:
            if failures.is_passing(error):
                return  # the device is fine: the next launch may find memory
            self._lost, label = True, ""
            if trial is not None:
                self._job.journal.died(self.board.identity(trial))
                label = self.board.label(trial)
            raise failures.device_lost(self._job.tunable.name, error, label) from error

    def _has_run(self) -> bool:
        """Whether a config has run in this search or an earlier one: then the deadline ends compiling and launching."""
        return self._ran > 0 or any(True for _ in self.board.usable())

    def _finish_hooks(self, trial: Trial) -> None:
        """Call the user's pre_hook a last time with `reset_only`, as Triton does."""
        if self._job.hooks.before is not None:
            config = self._job.configs[self.board.identity(trial)]
            self._job.hooks.before(self._job.call.full(config), reset_only=True)

    def raise_if_all_failed(self) -> None:
        first, self._first_error = self._first_error, None
        try:
            self.board.raise_if_all_failed(first, self._ahead.excluded)
            failures.let_go(first)
        finally:
            del first  # its traceback holds this frame: a cycle that would keep the caller's tensors

    def choose(self, outcome: Outcome) -> None:
        """Pick the winner among old and new measurements."""
        ran = [trial for trial in self.board.trials if trial.samples_us and not trial.error]
        if not any(self.board.identity(trial) == self._job.incumbent for trial in ran):
            self._earlier = [self._measured(identity, timing) for identity, timing in self.board.usable()]
        ran += self._earlier
        best = self._best(ran, outcome)
        while (overruled := self._overruled(best, ran)) is None and best.error:  # it failed in the last comparison
            best = self._best(ran, outcome)
        if overruled is not None:
            best, outcome.quality = overruled
        outcome.winner = self.board.identity(best)
        if isinstance(self._job.timer, GivenTimer) and benchmark.is_one_answer(trial.samples_us for trial in ran):
            outcome.quality, outcome.one_answer_us = "unresolved", best.median_us

    def _best(self, ran: list[Trial], outcome: Outcome) -> Trial:
        """The winner of `ran`, checked; trials that failed are removed from the list."""
        while True:
            if any(trial.error for trial in ran):
                self._overrule(self._earlier)
                self._earlier = [trial for trial in self._earlier if not trial.error]
                ran[:] = [trial for trial in ran if not trial.error]
                self.board.raise_if_none(ran)
                for trial in ran:
                    trial.leader_us = None  # it may have left the race because the other was faster
            best, outcome.quality = self._racing.winner(ran)
            if self._comparison is None or best.index in self._checked:
                return best
            if best not in self._earlier or self._meet_again(best):
                self._examine([best])

    def _overruled(self, best: Trial, ran: Sequence[Trial]) -> tuple[Trial, Quality] | None:
        """The untuned config and its quality, if the best runs and does not beat it in a last comparison; else None."""
        untuned = self.board.untuned
        if not self._racing.may_duel(best):
            return None
        assert untuned is not None
        if not untuned.samples_us:  # time ran out after its launch: a choice needs a time
            self._racing.sample(untuned, 1, late=True)
            self.board.tell(untuned)
        if untuned.error:
            return None
        late = best in self._earlier and self._sampling.is_late
        if late or (best in self._earlier and not self._meet_again(best)):
            return self._unconfirmed(best, untuned, ran) if late else None
        duel = self._racing.duel(best, untuned)
        if best.error or untuned.error or duel.is_won:
            return None
        if not duel.is_fought:
            return self._unconfirmed(best, untuned, ran)
        if self._comparison is not None and untuned.index not in self._checked:
            self._examine([untuned])
        if untuned.error:
            return None
        log.info("`%s`: %s is no faster than the untuned config in a last comparison: the untuned config stays",
                 self._job.tunable.name, self.board.label(best))  # fmt: skip
        return untuned, duel.quality(self._job.timer.resolution_us)

    def _unconfirmed(self, best: Trial, untuned: Trial, ran: Sequence[Trial]) -> tuple[Trial, Quality] | None:
        """The choice if time runs out before the duel: an incumbent that won one earlier, else the untuned config."""
        job, name = self._job, self.board.identity
        stays = next((trial for trial in ran if job.is_proven and name(trial) == job.incumbent), untuned)
        if stays is best:
            return None
        self._outcome.unconfirmed = name(best)
        log.info("`%s`: the budget ended before %s could be compared with the untuned config, which stays",
                 job.tunable.name, self.board.label(best))  # fmt: skip
        return stays, "noisy" if self._outcome.quality == "noisy" else "unresolved"

    def _measured(self, identity: str, timing: Timing) -> Trial:
        """A trial with the times of an earlier search; the same object on each call."""
        if identity not in self._recalled:
            trial = self._recalled[identity] = self.board.made(identity)
            trial.samples_us = timing.typical_us
        return self._recalled[identity]

    def _known_others(self) -> list[Trial]:
        """Configs measured by earlier searches and not by this one."""
        ours = {trial.index for trial in self.board.trials}
        return [self._measured(name, one) for name, one in self.board.usable() if self.board.place(name) not in ours]

    def _overrule(self, trials: Sequence[Trial]) -> None:
        """Drop the earlier timings of configs that fail now."""
        self.board.trials += [trial for trial in trials if trial.error and trial not in self.board.trials]
