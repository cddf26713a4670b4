"""Check configs during a search, by this call's check and by a stricter one that other calls asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from autotuned.search.compiling.compile import CompileStream
from autotuned.search.job import Job
from autotuned.search.safety.check import Checker, Output, outputs_of
from autotuned.search.safety.poison import Poison
from autotuned.search.safety.protection import Guard
from autotuned.search.trial import Trial
from autotuned.search.trials import Board


class Comparison:
    """The checks of one search.

    Args:
        launch: Launches a trial on poisoned tensors; `runs` also returns whether it ran.
    """

    def __init__(
        self, job: Job, board: Board, ahead: CompileStream, guard: Guard,
        launch: Callable[[Trial, Sequence[Any]], None], runs: Callable[[Trial, Sequence[Any]], bool],
    ) -> None:  # fmt: skip
        assert job.check is not None
        self._job, self._board, self._guard, self._launch = job, board, guard, launch
        self.checker = Checker(job.check, job.tunable.name, job.call.arguments)
        tries = any(check is not None and check.poison is True for check in (job.check, job.stricter))
        self._poison = Poison(self.checker, job, ahead, guard, runs, tries)

    @property
    def is_with_first(self) -> bool:
        """Whether the first config is the reference."""
        return self.checker.check.reference == "first"

    def learn(self, survivors: Sequence[Trial], first: Trial | None) -> None:
        """Get the expected values, from `first` or else from the reference.

        Raises:
            CheckError: The reference raises, or returns values that cannot be compared.
        """
        self._poison.find_rewritten(survivors)
        self._guard.with_room(partial(self._expect, first))
        self._poison.find_overwritten([first] if first else survivors)

    def _expect(self, first: Trial | None) -> None:
        checker, written = self.checker, self._written_or_zeroed()
        if checker.expects(written):
            return
        self._guard.protection.renew()
        self._guard.prepare()
        if first is None:
            checker.ask_reference(written)
            return
        self._launch(first, self._poison.tensors(checker.check.poison))
        checker.take(written, outputs_of(self._job.call.arguments, written))

    def _written_or_zeroed(self) -> list[str]:
        written = {*self._guard.written, *self._job.zero}
        return [name for name in self._job.call.arguments if name in written]

    def difference(self, trial: Trial) -> str | None:
        """How a config's results differ under this call's check, as text; None if they do not."""
        own, stricter = self._guard.with_room(partial(self._differences, trial))
        self._note_verdict(trial, own is None, stricter is None)
        return own

    def _differences(self, trial: Trial) -> tuple[str | None, str | None]:
        """Under this call's check, and under the stricter one."""
        checker, job, stricter = self.checker, self._job, self._job.stricter
        self._launch(trial, self._poison.tensors(checker.check.poison))
        own = checker.difference(self._outputs())
        if own or stricter is None:
            return own, own
        if job.checked is not None and stricter.poison != job.checked.poison:
            self._launch(trial, self._poison.tensors(stricter.poison))
        return own, checker.difference(self._outputs(), stricter)

    def _outputs(self) -> list[Output]:
        return outputs_of(self._job.call.arguments, self.checker.names)

    def _note_verdict(self, trial: Trial, right: bool, right_by_stricter: bool) -> None:
        job, identity = self._job, self._board.identity(trial)
        if job.checked is None:
            return
        strictest = job.stricter or job.checked
        passed = [strictest] if right_by_stricter else [job.checked] if right else []
        failed = [] if right_by_stricter else [strictest] if right else [job.checked]
        self._board.passed[identity], self._board.failed_checks[identity] = tuple(passed), tuple(failed)
