"""The trials of a search: which are open, which share a binary, their timings; and the launch of a whole call."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from autotuned.launch import bound, direct
from autotuned.launch.bound import Bound, Prologue
from autotuned.search import failures
from autotuned.search.exclusions import Lifetime, Reason
from autotuned.search.job import Job, Progress
from autotuned.search.trial import Trial
from autotuned.store.conditions import Checked, with_verdicts
from autotuned.store.record import Timing
from autotuned.triton_compat import compiled
from autotuned.tunable import configs
from autotuned.tunable.call import Call
from autotuned.tunable.kernel import TunableKernel

log = logging.getLogger("autotuned")


class Board:
    """The trials of a search; their preparation starts with `restore`."""

    def __init__(self, job: Job, restore: Callable[[], None]) -> None:
        self._job, self._restore = job, restore
        self._identities = list(job.configs)
        self.trials: list[Trial] = []  # one per config that this search measures
        self.duplicates: dict[int, Trial] = {}  # by index: the trial with the same binary that is measured instead
        self.why: dict[int, Reason] = {}  # why trials failed, by index, unless the error's text says it all
        self.passed: dict[str, tuple[Checked, ...]] = {}  # checks that a config passed, by identity
        self.failed_checks: dict[str, tuple[Checked, ...]] = {}  # checks that it failed
        self.launched = 0  # number of configs launched at least once, or excluded from launching

    def place(self, identity: str) -> int:
        """Index of a candidate."""
        return self._identities.index(identity)

    def trial(self, index: int) -> Trial:
        """The trial with an index."""
        return next(trial for trial in self.trials if trial.index == index)

    def extend(self, identities: Sequence[str]) -> list[Trial]:
        """Add trials of more candidates, which are already in the job's `configs`."""
        self._identities += identities
        made = [self.made(identity) for identity in identities]
        self.trials += made
        self.skip_excluded(made)
        return made

    def skip_excluded(self, trials: Iterable[Trial]) -> None:
        """Skip configs that are known to fail."""
        for trial in trials:
            excluded = self._job.excluded.get(self.identity(trial))
            if excluded is None or (excluded.reason is Reason.NOT_COMPILED and self.is_hooked(trial)):
                continue
            self.why[trial.index], trial.error = excluded
            if remedy := excluded.reason.remedy:
                what = self._job.tunable.name, self.label(trial), excluded.reason.why, remedy
                log.warning("`%s`: %s is skipped: %s%s.", *what)

    def reason(self, trial: Trial) -> Reason:
        """Why a trial failed."""
        return self.why.get(trial.index, Reason.FAILED)

    def forgive(self, *trials: Trial) -> None:
        """Clear errors that say nothing about the config, such as lack of memory, so that its samples count."""
        for trial in trials:
            if self.reason(trial).lifetime is Lifetime.SEARCH:
                trial.error = None
                del self.why[trial.index]

    @property
    def wrong(self) -> int:
        """Number of configs whose results the check found wrong."""
        return sum(reason is Reason.WRONG for reason in self.why.values())

    def made(self, identity: str, call: Call | None = None, restore: Callable[[], None] | None = None) -> Trial:
        """A new trial of a config for the job's call, or for another call that `restore` prepares."""
        job, config, call = self._job, self._job.configs[identity], call or self._job.call
        arguments = call.full(config)
        whole = WholeCall(job, config) if job.objective == "call" else None
        restored = restore or self._restore

        def prepare() -> None:
            restored()
            if config.pre_hook is not None and whole is None:
                config.pre_hook(arguments)
            if job.hooks.before is not None:
                job.hooks.before(arguments)

        def launch() -> None:
            try:
                job.tunable.launch(call, config) if whole is None else whole()
            except Exception as error:
                finish(error)
                raise

        def finish(error: Exception | None = None) -> None:
            if job.hooks.after is not None:
                job.hooks.after(arguments, exception=error)

        return Trial(self.place(identity), prepare, launch, finish)

    def identity(self, trial: Trial) -> str:
        """Identity of the trial's config."""
        return self._identities[trial.index]

    def label(self, trial: Trial) -> str:
        """Short label of the trial's config."""
        return self._words(self._job.form(self.identity(trial)))

    def _words(self, form: Mapping[str, Any]) -> str:
        return configs.label(form, self._job.tunable.has_options)

    def is_hooked(self, trial: Trial) -> bool:
        """Whether user code runs before the launch; it may write tensors, and change what is compiled."""
        config = self._job.configs[self.identity(trial)]
        return config.pre_hook is not None or self._job.hooks.before is not None

    def open(self) -> list[Trial]:
        """Trials that may still be launched."""
        return [trial for trial in self.trials if trial.error is None and trial.index not in self.duplicates]

    @property
    def untuned(self) -> Trial | None:
        """The trial of the untuned config, or of its duplicate, if this search measures it."""
        if self._job.untuned not in self._job.configs:
            return None
        place = self.place(self._job.untuned or "")
        found = self.duplicates.get(place)
        return found or next((trial for trial in self.open() if trial.index == place), None)

    def failed(self) -> list[Trial]:
        """Trials with an error."""
        return [trial for trial in self.trials if trial.error]

    def pair(self, trial: Trial, first: Trial) -> Trial:
        """Mark a trial as a duplicate of one that was ready earlier; the earlier in the list is measured.

        Returns:
            The measured trial.
        """
        first = self.duplicates.get(first.index, first)
        if first.index < trial.index:
            self.duplicates[trial.index] = first
            return first
        trial.samples_us, trial.error = first.samples_us, first.error
        first.samples_us, first.error = [], None
        if first.index in self.why:
            self.why[trial.index] = self.why[first.index]
        for index, other in [*self.duplicates.items(), (first.index, first)]:
            if other is first:
                self.duplicates[index] = trial
        return trial

    # -- timings -------------------------------------------------------------------------------------------------

    def timings(self) -> list[Timing]:
        """Timings of the candidates in list order, except those never tried or out of memory."""
        return list(self.found().values())

    def found(self) -> dict[str, Timing]:
        """The same timings by identity."""
        found = {identity: self._judged(identity, timing) for identity, timing in self._job.known.items()}
        for trial in self.trials:
            if trial.index not in self.duplicates and self._is_worth_telling(trial):
                found[self.identity(trial)] = self.timing(trial)
        found.update(self._same())
        return {name: found[name] for name in dict.fromkeys([*self._identities, *found]) if name in found}

    def timing(self, trial: Trial) -> Timing:
        """Timing and verdicts of a trial."""
        return self._judged(self.identity(trial), self._measured(trial))

    def _measured(self, trial: Trial) -> Timing:
        form = self._job.form(self.identity(trial))
        if trial.error:
            return Timing(form, status=self.reason(trial).status, error=trial.error[:2000])
        return Timing(form, trial.median_us, trial.percentile(0.2), trial.percentile(0.8), len(trial.samples_us))

    def _judged(self, identity: str, timing: Timing) -> Timing:
        verdicts = self.passed.get(identity, ()), self.failed_checks.get(identity, ())
        if verdicts == ((), ()):
            return timing
        passed, failed = with_verdicts(verdicts, (timing.passed, timing.failed))
        return timing.replace(passed=passed, failed=failed)

    def _same(self) -> dict[str, Timing]:
        """Timings of duplicates: the measured config's, under their own identity."""
        found = {}
        for index, first in self.duplicates.items():
            if not first.error and not first.samples_us:
                continue
            form, timing = self._job.form(self._identities[index]), self.timing(first)
            text = f"the same binary as {self.label(first)}" + f": {timing.error}" * bool(timing.error)
            status = "same" if timing.status == "ok" else timing.status
            found[self._identities[index]] = timing.replace(config=form, status=status, error=text)
        return found

    def usable(self) -> Iterator[tuple[str, Timing]]:
        """Earlier timings of candidates that did not fail this time."""
        failed = {self.identity(trial) for trial in self.failed()}
        for identity, timing in self._job.known.items():
            if identity in self._job.configs and identity not in failed and timing.usable:
                yield identity, timing

    def reasons(self) -> list[tuple[str, str]]:
        """Reason and label of each config that failed now, or else earlier."""
        if failed := self.failed():
            return [(trial.error or "", self.label(trial)) for trial in failed]
        known = [timing for identity, timing in self._job.known.items() if identity in self._job.configs]
        return [(timing.error or timing.status, self._words(timing.config)) for timing in known]

    # -- reports -------------------------------------------------------------------------------------------------

    def _is_worth_telling(self, trial: Trial) -> bool:
        return self.reason(trial).lifetime is not Lifetime.SEARCH and bool(trial.error or trial.samples_us)

    def raise_if_all_failed(self, first: Exception | None, excluded: Container[str]) -> None:
        """Raise if there is nothing to choose from: `first`, if all raised the same error."""
        if list(self.usable()) or not all(map(self._is_out, self.trials)):
            return
        failed, kernel = self.failed(), self._job.tunable.name
        launched = [trial for trial in failed if self.identity(trial) not in excluded]
        if launched and all(self.reason(trial) is Reason.PASSING for trial in launched):
            raise failures.no_room(kernel, failed[-1].error or "")
        if first is not None and len(failed) > 1 and not failures.is_resource_error(first):
            failures.note(first, f"`{kernel}`: all {len(failed)} configs raised this, {self.label(failed[0])} first.")
            try:
                raise first
            finally:
                del first
        raise failures.all_failed(kernel, self.reasons())  # now, or in an earlier search

    def _is_out(self, trial: Trial) -> bool:
        """Whether a trial cannot win: it failed, is a duplicate, or is not in the list."""
        is_spare = self.identity(trial) == self._job.spare
        return bool(trial.error) or is_spare or trial.index in self.duplicates

    def raise_if_none(self, left: Sequence[Trial]) -> None:
        """Raise if the check rejected every config."""
        if left:
            return
        if unchecked := [trial.error for trial in self.trials if self.reason(trial) is Reason.PASSING]:
            raise failures.no_room(self._job.tunable.name, unchecked[-1] or "")
        raise failures.all_failed(self._job.tunable.name, self.reasons())

    def tell(self, trial: Trial) -> None:
        """Pass a trial's timing to `on_timing`."""
        if self._is_worth_telling(trial):
            self._job.on_timing(self.timing(trial))

    def report(self, trial: Trial, stage: str, compiling: Mapping[str, float] | None = None) -> None:
        """Report progress to the observer."""
        if self._job.observer is None:
            return
        measured = [one for one in self.trials if one.samples_us and not one.error]
        lead = min(measured, key=lambda one: one.median_us, default=None)
        self._job.observer(Progress(
            self._job.tunable.name, self.launched, len(self.trials), self.label(trial),
            self.label(lead) if lead else None, lead.median_us if lead else None, stage, self.identity(trial),
            compiling or {},
        ))  # fmt: skip


class WholeCall:
    """One call as a program makes it, for `objective="call"`: zeroing, the hook, a launch without a look-up.

    The first call goes through Triton; later ones launch directly if possible.
    """

    def __init__(self, job: Job, config: Any) -> None:
        self._job, self._config = job, config
        self._names, self._values = tuple(job.call.arguments), tuple(job.call.arguments.values())
        needs = job.zero or config.pre_hook is not None
        self._before = Prologue(job.tunable.name, config, self._names, job.zero) if needs else None
        self._bound: Bound | None = None

    def __call__(self) -> Any:
        """Make one call."""
        if self._bound is not None:
            return self._bound.run(self._values, self._job.call.grid)
        if self._before is not None:
            self._before(self._values)
        result = self._job.tunable.launch(self._job.call, self._config)
        self._bind(result)
        return result

    def _bind(self, result: Any) -> None:
        tunable, call = self._job.tunable, self._job.call
        if call.options or not isinstance(tunable, TunableKernel) or not tunable.bindable:
            return
        by_triton = bound.through_triton(tunable, self._names, self._config)
        made = Bound(self._config, by_triton, self._before, by_triton)
        with suppress(compiled.EvictedError, compiled.UnbindableError):
            self._bound = direct.direct(made, tunable, call, result, asks=False)
