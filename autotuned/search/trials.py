"""The trials of one search: which are open, which are one binary, and what is known of each."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from autotuned.search import failures
from autotuned.search.job import Job, Progress
from autotuned.search.race import Trial
from autotuned.store.conditions import Checked, with_verdicts
from autotuned.store.record import Timing
from autotuned.tunable import configs

log = logging.getLogger("autotuned")


class Board:
    """Trials by their place in the list of candidates.

    Attributes:
        trials: Of the configs that this search measures.
        twins: Trials of the same binary as another, which is measured for both, by index.
        transient: Indices of trials that met a full memory or a limit of time, which says nothing of the config.
        wrong: Indices of trials that did not compute what is expected.
        passed, failed_checks: Checks by which a config was found right, and wrong, by identity.
        crashed: Indices of trials that are not made because a process ended in one.
        launched: How many have been launched at least once, or had no chance to be.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._identities = list(job.configs)
        self.trials: list[Trial] = []
        self.twins: dict[int, Trial] = {}
        self.transient: set[int] = set()
        self.wrong: set[int] = set()
        self.passed: dict[str, tuple[Checked, ...]] = {}
        self.failed_checks: dict[str, tuple[Checked, ...]] = {}
        self.crashed: set[int] = set()
        self.launched = 0

    def place(self, identity: str) -> int:
        """The index of a candidate."""
        return self._identities.index(identity)

    def trial(self, index: int) -> Trial:
        """The trial of a candidate that this search measures."""
        return next(trial for trial in self.trials if trial.index == index)

    def skip_known_failures(self) -> None:
        """Leave out what certainly fails: it ended a process, or did not compile for a call like this one."""
        journal = self._job.journal
        for trial in self.trials:
            identity = self.identity(trial)
            if identity in self._job.condemned:
                trial.error = self._job.condemned[identity]
            elif identity in journal.lost:
                trial.error = "Crashed: it left the device in an error state"
                self._say_skipped(trial, "it cost an earlier process its device; --force tries it again")
            elif identity in journal.crashed:
                trial.error = "Crashed: a process ended while this config was launched for the first time"
                self.crashed.add(trial.index)
                why = "an earlier process ended in its first launch. If it was killed from outside, `autotuned tune` "
                self._say_skipped(trial, why + "tries it once more")
            elif not self.is_hooked(trial):
                trial.error = failures.refused(self._job.compile_class, identity)

    def _say_skipped(self, trial: Trial, why: str) -> None:
        log.warning("`%s`: %s is skipped: %s.", self._job.tunable.name, self.label(trial), why)

    def identity(self, trial: Trial) -> str:
        """The text that says which config this is."""
        return self._identities[trial.index]

    def label(self, trial: Trial) -> str:
        """The config in few words."""
        return self._words(self._job.forms[self.identity(trial)])

    def _words(self, form: Mapping[str, Any]) -> str:
        return configs.label(form, self._job.tunable.has_options)

    def is_hooked(self, trial: Trial) -> bool:
        """Whether user code runs before a launch: it may write, and may change what is compiled."""
        config = self._job.configs[self.identity(trial)]
        return config.pre_hook is not None or self._job.hooks.before is not None

    def open(self) -> list[Trial]:
        """Trials that may still be launched."""
        return [trial for trial in self.trials if trial.error is None and trial.index not in self.twins]

    def failed(self) -> list[Trial]:
        """Trials with an error."""
        return [trial for trial in self.trials if trial.error]

    def pair(self, trial: Trial, first: Trial) -> Trial:
        """Note that a trial is the same binary as one that was ready before it.

        The earlier in the list stands for both.

        Returns:
            The trial that is measured.
        """
        first = self.twins.get(first.index, first)
        if first.index < trial.index:
            self.twins[trial.index] = first
            return first
        trial.samples_us, trial.error = first.samples_us, first.error
        first.samples_us, first.error = [], None
        for facts in (self.transient, self.wrong):
            if first.index in facts:
                facts.add(trial.index)
        for index, other in [*self.twins.items(), (first.index, first)]:
            if other is first:
                self.twins[index] = trial
        return trial

    # -- what is known -------------------------------------------------------------------------------------------

    def timings(self) -> list[Timing]:
        """What is known of each candidate, in list order; configs that were never tried are left out.

        So are those that met a full memory: that says nothing of the config, and it is tried again another time.
        """
        found = {identity: self._judged(identity, timing) for identity, timing in self._job.known.items()}
        for trial in self.trials:
            if trial.index not in self.twins and self._is_worth_telling(trial):
                found[self.identity(trial)] = self.timing(trial)
        found.update(self._same())
        order = [identity for identity in self._identities if identity in found]
        return [found[identity] for identity in [*order, *(name for name in found if name not in order)]]

    def timing(self, trial: Trial) -> Timing:
        """What measuring one config gave, and checking it."""
        return self._judged(self.identity(trial), self._measured(trial))

    def _measured(self, trial: Trial) -> Timing:
        form = self._job.forms[self.identity(trial)]
        if trial.error:
            kinds = {"wrong": self.wrong, "crashed": self.crashed}
            status = next((kind for kind, indices in kinds.items() if trial.index in indices), "failed")
            return Timing(form, status=status, error=trial.error[:2000])
        return Timing(form, trial.median_us, trial.percentile(0.2), trial.percentile(0.8), len(trial.samples_us))

    def _judged(self, identity: str, timing: Timing) -> Timing:
        verdicts = self.passed.get(identity, ()), self.failed_checks.get(identity, ())
        if verdicts == ((), ()):
            return timing
        passed, failed = with_verdicts(verdicts, (timing.passed, timing.failed))
        return timing.replace(passed=passed, failed=failed)

    def _same(self) -> dict[str, Timing]:
        """Timings of the configs whose binary is that of an earlier one: these, under the other name."""
        found = {}
        for index, first in self.twins.items():
            form = self._job.forms[self._identities[index]]
            if not first.error and not first.samples_us:
                continue
            timing = self.timing(first)
            text = f"the same binary as {self.label(first)}" + f": {timing.error}" * bool(timing.error)
            status = "same" if timing.status == "ok" else timing.status
            found[self._identities[index]] = timing.replace(config=form, status=status, error=text)
        return found

    def usable(self) -> Iterator[tuple[str, Timing]]:
        """Earlier times of candidates that did not fail this time."""
        failed = {self.identity(trial) for trial in self.failed()}
        for identity, timing in self._job.known.items():
            if identity in self._job.configs and identity not in failed and timing.usable:
                yield identity, timing

    def reasons(self) -> list[tuple[str, str]]:
        """Reason and label of each config that failed now; of those that failed before if none was tried."""
        if failed := self.failed():
            return [(trial.error or "", self.label(trial)) for trial in failed]
        known = [(identity, timing) for identity, timing in self._job.known.items() if identity in self._job.configs]
        return [(timing.error or timing.status, self._words(timing.config)) for _, timing in known]

    # -- who is told ---------------------------------------------------------------------------------------------

    def _is_worth_telling(self, trial: Trial) -> bool:
        return trial.index not in self.transient and bool(trial.error or trial.samples_us)

    def tell(self, trial: Trial) -> None:
        """Tell whoever keeps timings one by one."""
        if self._is_worth_telling(trial):
            self._job.on_timing(self.timing(trial))

    def report(self, trial: Trial, stage: str, compiling: Mapping[str, float] | None = None) -> None:
        """Tell whoever watches how far the search is, and what comes next."""
        if self._job.observer is None:
            return
        lead = _lead(self.trials)
        self._job.observer(Progress(
            self._job.tunable.name, self.launched, len(self.trials), self.label(trial),
            self.label(lead) if lead else None, lead.median_us if lead else None, stage, self.identity(trial),
            compiling or {},
        ))  # fmt: skip


def _lead(trials: Sequence[Trial]) -> Trial | None:
    measured = [trial for trial in trials if trial.samples_us and not trial.error]
    return min(measured, key=lambda trial: trial.median_us, default=None)
