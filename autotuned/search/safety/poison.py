"""Finds the tensors that `Check(poison=)` covers, in compiled code or else by trial, and fills them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from autotuned.key.memory import bytes_in, elements, is_torch
from autotuned.search.safety.check import Checker, is_all_nan, outputs_of

if TYPE_CHECKING:
    from autotuned.search.compiling.compile import CompileStream
    from autotuned.search.job import Job
    from autotuned.search.safety.protection import Guard
    from autotuned.search.trial import Trial

PATTERN = 0x5A  # for integers: a value that kernels are unlikely to leave


class Poison:
    """Poisoned arguments of a search.

    With `poison=True` these are the arguments that are written and not read. If compiled code does not tell which, each
    floating-point argument is tried. Integers are skipped: they may be indices, and a wild read ends the process.

    Args:
        runs: Whether a trial runs with these tensors filled.
        tries: Whether to find the arguments by trial if the code does not tell.
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
        self._overwritten: list[str] = []  # arguments whose content no launch needs

    def tensors(self, asked: bool | Sequence[str]) -> list[Any]:
        """Tensors that a value of `poison=` selects in this call."""
        access, arguments = self._ahead.access, self._job.call.arguments
        if asked is False:
            return []
        if not isinstance(asked, bool):
            return [tensor for _, tensor in outputs_of(arguments, asked)]
        if access is None:
            return [tensor for name in self._overwritten for tensor in self._floating(name)]
        pure = access.written - access.read
        restored = self._guard.protection.written
        names = [name for name in restored if name in pure and name not in self._job.zero]
        return [tensor for _, tensor in outputs_of(arguments, names)]

    @property
    def _is_tried(self) -> bool:
        return self._tries and self._ahead.access is None

    def find_rewritten(self, trials: Sequence[Trial]) -> None:
        """Find arguments that a launch writes without changing them, since they hold the result already."""
        known = {*self._guard.written, *self._job.zero}
        asks = self._is_tried or (not known and self._ahead.access is None)  # else there is nothing to check
        for name in self._job.call.arguments if asks else ():
            tensors = self._floating(name)
            if name in known or not tensors:
                continue
            self._guard.protection.keep(name)
            if not any(self._runs(trial, tensors) and not all(map(is_all_nan, tensors)) for trial in trials):
                self._guard.protection.drop(name)

    def find_overwritten(self, trials: Sequence[Trial]) -> None:
        """Find written arguments that can be poisoned: a config's results are right all the same."""
        for name in self._checker.names if self._is_tried else ():
            tensors = self._floating(name)
            if name in self._job.zero or name in self._overwritten or not tensors:
                continue
            self._guard.protection.keep(name)
            if any(self._runs(trial, tensors) and self._agrees() for trial in trials):
                self._overwritten.append(name)

    def _agrees(self) -> bool:
        return self._checker.difference(outputs_of(self._job.call.arguments, self._checker.names)) is None

    def _floating(self, name: str) -> list[Any]:
        """Tensors of an argument with floating-point or complex numbers."""
        return [tensor for _, tensor in outputs_of(self._job.call.arguments, [name]) if _is_floating(tensor)]


def _is_floating(tensor: Any) -> bool:
    return "float" in str(tensor.dtype) or "complex" in str(tensor.dtype)


def fill(tensors: Iterable[Any]) -> None:
    """Fill tensors with values that no kernel should leave: NaN, a pattern for integers, True for booleans."""
    for tensor in tensors:
        value = math.nan if _is_floating(tensor) else True if "bool" in str(tensor.dtype) else PATTERN
        if not is_torch(tensor):
            tensor[...] = value
            continue
        import torch

        with torch.inference_mode(tensor.is_inference()), torch.no_grad():
            _fill_torch(elements(tensor), value)


def _fill_torch(view: Any, value: float | int | bool) -> None:
    try:
        view.fill_(value)
    except NotImplementedError:  # torch fills no four-bit dtypes, among others
        bytes_in(view).fill_(PATTERN)
