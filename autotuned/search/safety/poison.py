"""What `Check(poison=)` fills before a checked launch, and how that is found out where the code does not tell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from autotuned.search.safety.check import Checker, is_all_nan, outputs_of

if TYPE_CHECKING:
    from autotuned.search.compiling.compile import CompileStream
    from autotuned.search.job import Job
    from autotuned.search.safety.protection import Guard
    from autotuned.search.trial import Trial


class Poison:
    """The arguments of one search that are filled.

    Asked for by True they are those that are written and not read. Compiled code tells; elsewhere it is tried with
    arguments of floating-point numbers. Integers are left alone: they may be indices, and who reads elsewhere ends the
    process.

    Args:
        runs: Whether a trial runs when it is given these tensors filled.
        tries: Whether it is to be found out, where the code does not tell, what True stands for.
    """

    def __init__(
        self,
        checker: Checker,
        job: Job,
        ahead: CompileStream,
        guard: Guard,
        runs: Callable[[Trial, Sequence[Any]], bool],
        tries: bool,
    ) -> None:
        self._checker, self._job, self._tries = checker, job, tries
        self._ahead, self._guard, self._runs = ahead, guard, runs
        self._overwritten: list[str] = []  # no launch needs what is in them

    def tensors(self, asked: bool | Sequence[str]) -> list[Any]:
        """What `poison=` stands for in this call."""
        access, arguments = self._ahead.access, self._job.call.arguments
        if asked is False:
            return []
        if not isinstance(asked, bool):
            return [tensor for _, tensor in outputs_of(arguments, asked)]
        if access is None:
            return [tensor for name in self._overwritten for tensor in self._floating(name)]
        pure = access.written - access.read
        names = [name for name in self._guard.restored if name in pure and name not in self._job.zero]
        return [tensor for _, tensor in outputs_of(arguments, names)]

    @property
    def _is_tried(self) -> bool:
        return self._tries and self._ahead.access is None

    def find_rewritten(self, trials: Sequence[Trial]) -> None:
        """Find the arguments that a launch writes without a change, since they hold already what it writes."""
        known = {*self._guard.written, *self._job.zero}
        asks = self._is_tried or (not known and self._ahead.access is None)  # there would be nothing to check
        for name in self._job.call.arguments if asks else ():
            tensors = self._floating(name)
            if name in known or not tensors:
                continue
            self._guard.keep(name)
            if not any(self._runs(trial, tensors) and not all(map(is_all_nan, tensors)) for trial in trials):
                self._guard.drop(name)

    def find_overwritten(self, trials: Sequence[Trial]) -> None:
        """Find the written arguments from which one config, at least, computes what is expected although filled."""
        for name in self._checker.names if self._is_tried else ():
            tensors = self._floating(name)
            if name in self._job.zero or name in self._overwritten or not tensors:
                continue
            self._guard.keep(name)
            if any(self._runs(trial, tensors) and self._agrees() for trial in trials):
                self._overwritten.append(name)

    def _agrees(self) -> bool:
        return self._checker.difference(outputs_of(self._job.call.arguments, self._checker.names)) is None

    def _floating(self, name: str) -> list[Any]:
        """The tensors of an argument that hold floating-point or complex numbers."""
        found = outputs_of(self._job.call.arguments, [name])
        return [tensor for _, tensor in found if "float" in str(tensor.dtype) or "complex" in str(tensor.dtype)]
