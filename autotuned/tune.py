"""One search: protect the caller's data, measure every candidate, choose."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Sequence
from typing import Any

from autotuned import candidates, failures, measure, state
from autotuned.check import Checker, outputs_of
from autotuned.compiling import Ahead
from autotuned.errors import CheckError, DeviceLostError, OutOfMemoryError
from autotuned.failures import describe
from autotuned.job import Job, Outcome, Progress
from autotuned.measure import Trial
from autotuned.record import Timing
from autotuned.state import Protection

log = logging.getLogger("autotuned")


def run(job: Job, outcome: Outcome) -> None:
    """Measure the job's candidates and write what was found into `outcome`.

    The caller's tensors are afterwards as they were given, also after an exception. On `KeyboardInterrupt` the
    timings so far are in `outcome`.

    Raises:
        AllConfigsFailedError: No candidate could be launched and timed.
        DeviceLostError: A config left the device in an error state.
        OutOfMemoryError: There is no room for the search now.
        CheckError: The reference raises, or stands against most configs.
        Exception: The one error that every config raised, if it is the same: it is the user's, not a config's.
    """
    search = _Search(job, outcome)
    try:
        with state.without_gradients(), contextlib.closing(search):
            search.measure()
            search.raise_if_all_failed()
            search.choose(outcome)
    except CheckError:
        search.forget()  # with a reference in doubt nothing can be said of any config
        raise
    finally:
        outcome.timings = search.timings()


class _Search:
    """The state of one search."""

    def __init__(self, job: Job, outcome: Outcome) -> None:
        self._job, self._outcome = job, outcome
        self._protection = Protection({}, [], [])
        fresh = [identity for identity in job.configs if identity not in job.known]
        if fresh and job.incumbent is not None:  # its old time was taken in other conditions than those of the new
            fresh.append(job.incumbent)  # last: within a small budget the search must get on
        self._identities = list(job.configs)
        self._trials = [self._trial(identity) for identity in fresh]
        self._checker = Checker(job.check, job.target.name, job.call.arguments) if job.check else None
        self._ahead = Ahead(job.target, job.call)
        self._twins: dict[int, Trial] = {}  # of the same binary as another trial, which is measured for both
        self._first_error: Exception | None = None  # to be raised if all fail alike; dropped as soon as they do not
        self._transient: set[int] = set()
        self._checked: set[int] = set()
        self._wrong: set[int] = set()
        self._lost = False
        self._deadline = time.monotonic() + (job.budget_s or float("inf"))
        self._launched = 0

    def close(self) -> None:
        """Put the caller's data back and drop what would keep it alive."""
        self._note_facts()
        try:
            if self._lost:
                self._protection.abandon()
            self._protection.release()
        finally:
            # What follows breaks reference cycles: the caller's tensors and the flush buffer must go when their last
            # user goes, not when the garbage collector comes by. Tracebacks hold frames, and these the arguments.
            failures.let_go(self._first_error)
            self._first_error = self._checker = None
            for trial in self._trials:
                trial.prepare = trial.launch = trial.finish = _nothing
            self._job.journal.end()

    def _note_facts(self) -> None:
        facts, protection = self._outcome, self._protection
        facts.written = protection.written
        facts.copied_bytes, facts.needed_bytes = protection.nbytes
        if self._job.restore is not None:
            named = {*self._job.restore, *self._job.zero}
            facts.unnamed = [name for name in self._written() if name not in named]

    def forget(self) -> None:
        """Drop every timing."""
        self._trials.clear()

    # -- before the first launch ---------------------------------------------------------------------------------

    def _trial(self, identity: str) -> Trial:
        job, config = self._job, self._job.configs[identity]
        arguments = job.call.full(config)

        def prepare() -> None:
            self._protection.prepare()
            if config.pre_hook is not None:
                config.pre_hook(arguments)
            if job.hooks.before is not None:
                job.hooks.before(arguments)

        def launch() -> None:
            try:
                job.target.launch(job.call, config)
            except Exception as error:
                finish(error)
                raise

        def finish(error: Exception | None = None) -> None:
            if job.hooks.after is not None:
                job.hooks.after(arguments, exception=error)

        return Trial(self._identities.index(identity), prepare, launch, finish)

    def measure(self) -> None:
        """Compile, set aside what may be written, launch each config once, then race those that ran."""
        self._skip_known_failures()
        self._compile_all()
        self._protect()
        for trial in self._open():
            if self._launched and self._out_of_time():
                trial.error = ""  # not tried, which is no failure: it is left out of the timings
                continue
            self._launch_first(trial)
        self._job.journal.end()
        racing = self._open()
        if racing:
            failures.remember_refused(self._job.compile_class, self._ahead.refused)
            self._job.timer.warm_up()
            measure.race(racing, self._sample, examine=self._examine)
            self._finish_hooks(racing[0])

    def _open(self) -> list[Trial]:
        return [trial for trial in self._trials if trial.error is None and trial.index not in self._twins]

    def _skip_known_failures(self) -> None:
        for trial in self._trials:
            identity = self._identities[trial.index]
            if identity in self._job.journal.crashed:
                trial.error = "Crashed: processes ended while this config was compiled or launched for the first time"
                log.warning(
                    "`%s`: %s is skipped: earlier processes ended in its first launch; --force tries it again.",
                    self._job.target.name, self._label(trial),
                )  # fmt: skip
            elif not self._is_hooked(trial):
                trial.error = failures.refused(self._job.compile_class, identity)

    def _is_hooked(self, trial: Trial) -> bool:
        """Whether user code runs before a launch: it may write, and may change what is compiled."""
        config = self._job.configs[self._identities[trial.index]]
        return config.pre_hook is not None or self._job.hooks.before is not None

    def _compile_all(self) -> None:
        """Compile ahead what may be: then the code says what is written, and equal binaries are launched once."""
        start, compiled = time.perf_counter(), False
        for trial in self._open():
            identity = self._identities[trial.index]
            if self._is_hooked(trial):
                self._ahead.skip()
            elif compiled and self._out_of_time():
                trial.error = ""
            else:
                self._report(trial)
                with self._catching(trial):
                    self._job.journal.begin(identity)
                    first = self._ahead.compile(trial.index, identity, self._job.configs[identity])
                    compiled = True
                    if first != trial.index:
                        self._twins[trial.index] = next(other for other in self._trials if other.index == first)
        self._outcome.compile_s += time.perf_counter() - start

    def _protect(self) -> None:
        job, restore, access = self._job, self._job.restore, self._ahead.access
        if restore is None and access is not None:
            restore = [name for name in job.call.arguments if name in access.written]
        named = job.check.poison if job.check and not isinstance(job.check.poison, bool) else ()
        watch = access is None and (job.watch or job.check is not None)
        try:
            self._protection = Protection(job.call.arguments, restore, job.zero, watch, known=named)
        except Exception as error:
            if not failures.is_memory_error(error):
                raise
            job.timer.free()
            self._protection = Protection(job.call.arguments, restore, job.zero, watch, True, named)

    def _written(self) -> list[str]:
        """Names of the arguments known to be written, in order."""
        access = self._ahead.access
        written = {*self._protection.seen, *(access.written if access else ())}
        return [name for name in self._job.call.arguments if name in written]

    def _launch_first(self, trial: Trial) -> None:
        """Compile, load and launch; learn what it writes; blame it if the device does not survive."""
        self._report(trial)
        start = time.perf_counter()
        with self._catching(trial):
            self._job.journal.begin(self._identities[trial.index])
            self._once(trial)
            self._protection.learn()
        if trial.error:
            self._tell(trial)
        self._outcome.compile_s += time.perf_counter() - start
        self._launched += 1

    def _once(self, trial: Trial) -> None:
        """One launch, waited for; tried again with all the memory that can be spared if it runs out."""
        try:
            self._launch(trial)
            return
        except Exception as error:
            if not failures.is_memory_error(error):
                raise
        self._job.timer.free()
        self._protection.move_to_host()
        self._launch(trial)

    def _launch(self, trial: Trial, poisoned: Sequence[Any] = ()) -> None:
        trial.prepare()
        state.poison(poisoned)
        trial.launch()
        trial.finish()
        self._job.timer.synchronize()

    # -- what is expected ----------------------------------------------------------------------------------------

    def _examine(self, survivors: Sequence[Trial]) -> None:
        """Check those still in the race."""
        if self._checker is None or not survivors:
            return
        checker = self._checker
        self._expect(checker)
        for trial in survivors:
            self._check(checker, trial)
        if 2 * len(self._wrong) > len(self._checked):  # is it the reference? Then all that ran must speak
            for trial in self._open():
                if trial.index not in self._checked:
                    self._check(checker, trial)
            checker.refuse_majority(len(self._wrong), len(self._checked))

    def _expect(self, checker: Checker) -> None:
        if checker.is_ready:
            return
        written = self._written_or_zeroed()
        self._protection.prepare()
        if checker.check.reference != "first":
            checker.ask_reference(written)
            return
        first = next(trial for trial in self._trials if not trial.error and trial.index not in self._twins)
        self._launch(first, self._poisoned(checker))
        checker.take(outputs_of(self._job.call.arguments, written))

    def _check(self, checker: Checker, trial: Trial) -> None:
        with self._catching(trial):
            self._launch(trial, self._poisoned(checker))
            self._checked.add(trial.index)
            difference = checker.difference(outputs_of(self._job.call.arguments, self._written_or_zeroed()))
            if difference:
                trial.error = difference
                self._wrong.add(trial.index)
                self._tell(trial)
                log.warning("`%s`: %s is dropped. %s", self._job.target.name, self._label(trial), difference)

    def _written_or_zeroed(self) -> list[str]:
        written = {*self._written(), *self._job.zero}
        return [name for name in self._job.call.arguments if name in written]

    def _poisoned(self, checker: Checker) -> list[Any]:
        names = checker.check.poison
        if isinstance(names, bool):
            access = self._ahead.access
            pure = access.written - access.read if names and access else frozenset()
            names = [name for name in self._protection.written if name in pure and name not in self._job.zero]
        return [tensor for _, tensor in outputs_of(self._job.call.arguments, names)]

    def _sample(self, trial: Trial, count: int) -> None:
        if trial.error is not None or (trial.samples_us and self._out_of_time()):
            return
        with self._catching(trial):
            samples = self._job.timer.sample(trial, count)
            measure.check_samples(samples)
            trial.samples_us += samples
        self._tell(trial)
        self._report(trial)

    @contextlib.contextmanager
    def _catching(self, trial: Trial) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            trial.error = describe(error)
            self._note_error(trial, error)
        else:
            return
        self._check_device(trial)
        self._protection.learn()

    def _note_error(self, trial: Trial, error: Exception) -> None:
        if failures.is_passing(error):
            self._transient.add(trial.index)
        failed = [other for other in self._trials if other.error]
        alike = all(other.error == trial.error for other in failed) and not failures.is_passing(error)
        kept = (self._first_error or error) if alike else None
        for one in (self._first_error, error):
            if one is not kept:
                failures.let_go(one)
        self._first_error = kept

    def _check_device(self, trial: Trial) -> None:
        try:
            self._job.timer.synchronize()
        except Exception as error:
            kernel, self._lost = self._job.target.name, True
            self._job.journal.died(self._identities[trial.index])
            raise DeviceLostError(
                f"`{kernel}`: config {self._label(trial)} left the device in an error state ({error}). Nothing can "
                "run on it in this process any more: restart the process; other configs are not to blame.",
                kernel=kernel,
                config=self._label(trial),
            ) from error

    def _out_of_time(self) -> bool:
        return time.monotonic() > self._deadline

    def _finish_hooks(self, trial: Trial) -> None:
        """Triton's last word to a user's pre_hook: one reset without a launch after it."""
        if self._job.hooks.before is not None:
            config = self._job.configs[self._identities[trial.index]]
            self._job.hooks.before(self._job.call.full(config), reset_only=True)

    def raise_if_all_failed(self) -> None:
        """Raise if nothing can be chosen from."""
        failed = [trial for trial in self._trials if trial.error]
        if list(self._usable()) or len(failed) + len(self._twins) < len(self._trials):
            return
        if not failed:  # every config of this list failed in an earlier search
            raise failures.all_failed(self._job.target.name, list(self._known_failures()))
        first, kernel = self._first_error, self._job.target.name
        launched = [trial for trial in failed if self._identities[trial.index] not in self._ahead.refused]
        if launched and all(trial.index in self._transient for trial in launched):
            raise OutOfMemoryError(
                f"`{kernel}`: there is no room to tune now ({failed[-1].error}). Tune before memory is taken, or name "
                "what is written in restore_value=.",
                kernel=kernel,
            )
        if first is not None and len(failed) > 1 and not failures.is_resource_error(first):
            self._first_error = None
            try:
                raise first
            finally:
                del first  # this frame is in its traceback: the two would keep each other, and the caller's tensors
        raise failures.all_failed(kernel, [(trial.error or "", self._label(trial)) for trial in failed])

    def _known_failures(self) -> Iterator[tuple[str, str]]:
        for identity, timing in self._job.known.items():
            if identity in self._job.configs:
                yield timing.error or timing.status, candidates.label(timing.config)

    def _usable(self) -> Iterator[tuple[str, Timing]]:
        """Earlier times of candidates that did not fail this time."""
        failed = {self._identities[trial.index] for trial in self._trials if trial.error}
        for identity, timing in self._job.known.items():
            if identity in self._job.configs and identity not in failed and timing.usable:
                yield identity, timing

    def choose(self, outcome: Outcome) -> None:
        """Pick the winner among what was measured now and before."""
        ran = [trial for trial in self._trials if trial.samples_us and not trial.error]
        again = any(self._identities[trial.index] == self._job.incumbent for trial in ran)
        known = {}
        for identity, timing in () if again else self._usable():
            earlier = self._trial(identity)
            earlier.samples_us = timing.typical_us
            known[earlier.index] = earlier
        ran += known.values()
        best, outcome.quality = measure.winner(ran, self._job.timer.resolution_us)
        while self._checker is not None and best.index not in self._checked:
            self._examine([best])
            if best.error:
                ran.remove(best)
                self._trials += [best] * (best.index in known)  # its timing is overruled
                self.raise_if_none(ran)
                best, outcome.quality = measure.winner(ran, self._job.timer.resolution_us)
        outcome.winner = self._identities[best.index]

    def raise_if_none(self, left: Sequence[Trial]) -> None:
        """Raise if the check has left nothing."""
        if not left:
            failed = [(trial.error, self._label(trial)) for trial in self._trials if trial.error]
            raise failures.all_failed(self._job.target.name, failed)

    def timings(self) -> list[Timing]:
        """What is known of each candidate, in list order; configs that were never tried are left out.

        So are those that met a full memory: that says nothing of the config, and it is tried again another time.
        """
        found = dict(self._job.known)
        for trial in self._trials:
            if trial.index in self._twins:
                continue
            if trial.index not in self._transient and (trial.error or trial.samples_us):
                found[self._identities[trial.index]] = self._timing(trial)
        found.update(self._same())
        order = [identity for identity in self._identities if identity in found]
        return [found[identity] for identity in [*order, *(name for name in found if name not in order)]]

    def _tell(self, trial: Trial) -> None:
        if trial.index not in self._transient and (trial.error or trial.samples_us):
            self._job.on_timing(self._timing(trial))

    def _same(self) -> dict[str, Timing]:
        """Timings of the configs whose binary is that of an earlier one: these, under the other name."""
        found = {}
        for index, first in self._twins.items():
            form = self._job.forms[self._identities[index]]
            if not first.error and not first.samples_us:
                continue
            timing = self._timing(first)
            text = f"the same binary as {self._label(first)}" + f": {timing.error}" * bool(timing.error)
            status = "same" if timing.status == "ok" else timing.status
            found[self._identities[index]] = timing.replace(config=form, status=status, error=text)
        return found

    def _timing(self, trial: Trial) -> Timing:
        form = self._job.forms[self._identities[trial.index]]
        if trial.error:
            status = "wrong" if trial.index in self._wrong else "failed"
            return Timing(form, status=status, error=trial.error[:2000])
        return Timing(form, trial.median_us, trial.percentile(0.2), trial.percentile(0.8), len(trial.samples_us))

    def _label(self, trial: Trial) -> str:
        return candidates.label(self._job.forms[self._identities[trial.index]])

    def _report(self, trial: Trial) -> None:
        if self._job.observer is None:
            return
        measured = [trial for trial in self._trials if trial.samples_us and not trial.error]
        lead = min(measured, key=lambda trial: trial.median_us, default=None)
        best = (self._label(lead), lead.median_us) if lead else (None, None)
        name, total = self._job.target.name, len(self._trials)
        self._job.observer(Progress(name, self._launched, total, self._label(trial), *best))


def _nothing() -> None:
    """Stands in for what a finished trial did."""
