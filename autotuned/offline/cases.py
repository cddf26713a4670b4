"""The cases of all targets as one numbered sequence, the same in every process that loads the same targets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from autotuned.api.pickling import CaseGenerator
from autotuned.errors import AutotunedError
from autotuned.offline.replay import Replayed
from autotuned.offline.targets import Found


@dataclass(frozen=True)
class Unit:
    """One case of one kernel.

    Attributes:
        number: Its place in the sequence, from 0.
        case: What a generator yielded, or a recorded call.
        error: Why there is no case; "" if there is one.
        count: How often a recorded call was made; 0 for a generator's case.
    """

    number: int
    found: Found
    case: Any = None
    error: str = ""
    count: int = 0


class Units:
    """The units of targets, in order; tensors of a case are made when it is reached and dropped behind it.

    Attributes:
        without_cases: Kernels that have none.
        recorded_count: How often all recorded calls were made together.
        known: How many units there are, where all targets are recordings; 0 where generators tell as they go.
    """

    def __init__(self, found: Sequence[Found], device: str) -> None:
        self._found, self._device = found, device
        self._going: Iterator[Unit] = iter(())
        self._next = 0
        self.without_cases = [one.name for one in found if not isinstance(one, Replayed) and not one.tuned.cases]
        self.recorded_count = sum(one.count for one in found if isinstance(one, Replayed))
        lengths = [1 if one.reason else len(one.calls) for one in found if isinstance(one, Replayed)]
        self.known = sum(lengths) if len(lengths) == len(found) else 0

    def __iter__(self) -> Iterator[Unit]:
        for number, (found, case, error, count) in enumerate(self._cases()):
            yield Unit(number, found, case, error, count)

    def at(self, number: int) -> Unit | None:
        """The unit with a number; None if there are not so many. Going back means going through all again."""
        if number < self._next or self._next == 0:
            self._going, self._next = iter(self), 0
        for unit in self._going:
            self._next = unit.number + 1
            if unit.number == number:
                return unit
        self._next = 0
        return None

    def _cases(self) -> Iterator[tuple[Found, Any, str, int]]:
        for found in self._found:
            if isinstance(found, Replayed):
                yield from _recorded(found)
            else:
                for generator in found.tuned.cases:
                    yield from self._generated(found, generator)

    def _generated(self, found: Found, generator: CaseGenerator) -> Iterator[tuple[Found, Any, str, int]]:
        """The cases of a generator; an exception in it, the user's code, is one without a case."""
        try:
            for case in generator(tensors_on(self._device)):
                yield found, case, "", 0
        except Exception as error:
            name = getattr(generator, "__name__", "its cases")
            yield found, None, f"{name}: {reason(error)}", 0


def _recorded(found: Replayed) -> Iterator[tuple[Found, Any, str, int]]:
    if found.reason:
        yield found, None, found.reason, found.count
        return
    for call in found.calls:
        yield found, call, "", call.count


def share(count: int, open_count: int) -> float:
    """What a case gets of the time that is left: a recorded call what it was called of all that is open, others all.

    Args:
        count: How often it was called; 0 for a generator's case.
        open_count: How often all recorded calls that nobody has begun were made.
    """
    return count / max(open_count, count) if count else 1.0


def tensors_on(device: str) -> str:
    """Where the tensors of cases are made: "cuda", or "cpu" for the interpreter."""
    return "cpu" if device == "interpreter" else "cuda"


def reason(error: BaseException) -> str:
    """What a row says of an exception: this package's errors speak for themselves."""
    return str(error) if isinstance(error, AutotunedError) else f"{type(error).__name__}: {error}"
