"""The cases of all targets as one numbered sequence, the same in every process that loads the same targets."""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autotuned.api.pickling import CaseGenerator
from autotuned.errors import AutotunedError, TargetError, described, refused
from autotuned.offline import replay
from autotuned.offline import targets as modules
from autotuned.offline.device import tensors_on
from autotuned.offline.ranges import WantedSizes
from autotuned.offline.replay import Replayed
from autotuned.offline.targets import TunedObject
from autotuned.recording.file import SUFFIX
from autotuned.tunable.call import Call

HINT = "Register some: @kernel.case over a generator fn(device) of dict(args=(...), kwargs={...}, grid=...)."


def load(targets: Sequence[str]) -> list[TunedObject]:
    """The tuned objects of the targets, each once; TargetError if a target cannot be loaded, or no kernel has cases."""
    recorded, imported = load_all(targets)
    replayed = {id(one.tuned) for one in recorded}
    # Recorded kernels need no cases: a file may be given only because a recording names it.
    found = [one for one in imported if one.tuned.cases or id(one.tuned) not in replayed]
    if not recorded and not any(one.tuned.cases for one in found):
        names = ", ".join(one.name for one in found)
        raise TargetError(f"there is nothing to measure: no cases for {names}. {HINT}", target=targets[0])
    return [*recorded, *found]


def load_all(targets: Sequence[str]) -> tuple[list[Replayed], list[TunedObject]]:
    """The kernels of the recordings among the targets, and the tuned objects of the other targets, each once."""
    imported = [target for target in targets if not target.endswith(SUFFIX)]
    recorded = [one for target in targets if target.endswith(SUFFIX) for one in replay.load(Path(target), imported)]
    return recorded, list({id(one.tuned): one for target in imported for one in modules.load(target)}.values())


@dataclass(frozen=True)
class Case:
    """A call of a kernel to tune."""

    found: TunedObject
    given: Any = None  # a generator's item, or a recorded call
    error: str = ""  # why there is no call; "" if there is one
    count: int = 0  # how often a recorded call was made; 0 for other calls
    sizes: dict[str, int] | None = None  # the sizes passed to its generator by keyword
    group: str | None = None  # shared by cases that differ only in these sizes
    number: int = 0  # its position in the sequence


class Cases:
    """The cases of targets in order; a case's tensors live only while it is current.

    Args:
        by_count: Order recorded calls by count, across kernels.

    Attributes:
        without_cases: Kernels that have none.
        recorded_count: Total count of all recorded calls.
    """

    def __init__(
        self, found: Sequence[TunedObject], device: str, wanted: WantedSizes | None = None, by_count: bool = False
    ) -> None:
        self._device, self._wanted, self._by_count = tensors_on(device), wanted, by_count
        self._replayed = [one for one in found if isinstance(one, Replayed)]
        self._imported = [one for one in found if not isinstance(one, Replayed)]
        if wanted is not None:
            _refuse_without_sizes(self._imported, wanted.names)
        self._going: Iterator[Case] = iter(())
        self._next = 0
        self.without_cases = [one.name for one in self._imported if not one.tuned.cases]
        self.recorded_count = sum(one.count for one in self._replayed)

    def counted(self, limit_s: float = 2.0) -> int:
        """Their number; 0 if iterating, which creates the tensors, takes longer than the limit."""
        end = time.monotonic() + limit_s
        count = 0
        for _ in self:
            count += 1
            if time.monotonic() > end:
                return 0
        return count

    def __iter__(self) -> Iterator[Case]:
        made = self._all() if self._wanted is None else self._sized(self._wanted)
        for number, case in enumerate(made):
            yield replace(case, number=number)

    def at(self, number: int) -> Case | None:
        """The case with a number, or None; a smaller number than before starts over."""
        if number < self._next or self._next == 0:
            self._going, self._next = iter(self), 0
        for case in self._going:
            self._next = case.number + 1
            if case.number == number:
                return case
        self._next = 0
        return None

    def _all(self) -> Iterator[Case]:
        recorded = [case for found in self._replayed for case in of(found, self._device)]
        yield from sorted(recorded, key=lambda case: -case.count) if self._by_count else recorded
        for found in self._imported:
            yield from of(found, self._device)

    def _sized(self, wanted: WantedSizes) -> Iterator[Case]:
        """The cases of all wanted points, from generators that take these sizes."""
        for found in self._imported:
            for place, generator in enumerate(found.tuned.cases):
                if takes(generator, wanted.names):
                    for point in wanted.points:
                        yield from self._of_point(found, f"{found.name} {place}", generator, wanted, point)

    def _of_point(
        self, found: TunedObject, name: str, generator: CaseGenerator, wanted: WantedSizes, point: Sequence[int]
    ) -> Iterator[Case]:
        sizes = wanted.sizes(tuple(point))
        sized = functools.partial(generator, **sizes)
        sized.__name__ = getattr(generator, "__name__", "its cases")  # type: ignore[attr-defined]
        for index, case in enumerate(generated(found, sized, self._device)):
            group = f"{name}.{index}"
            if wanted.holds(group, tuple(point)):
                yield replace(case, sizes=sizes, group=group)


def of(found: TunedObject, device: str) -> Iterator[Case]:
    """A kernel's recorded calls, or the cases of its generators."""
    if not isinstance(found, Replayed):
        for generator in found.tuned.cases:
            yield from generated(found, generator, device)
    elif found.reason:
        yield Case(found, error=found.reason, count=found.count)
    else:
        yield from (Case(found, call, count=call.count) for call in found.calls)


def bound(case: Case) -> Call:
    """The call of a generator's case; TargetError if the generator failed, CallError if it does not fit the kernel."""
    if case.error:
        raise TargetError(case.error, target=case.found.name)
    return modules.bind(case.found, case.given)


def generated(found: TunedObject, generator: CaseGenerator, device: str) -> Iterator[Case]:
    """A generator's cases; an exception in it becomes a case with an error."""
    try:
        for given in generator(device):
            yield Case(found, given)
    except Exception as error:
        yield Case(found, error=f"{getattr(generator, '__name__', 'its cases')}: {reason(error)}")


def takes(generator: CaseGenerator, names: Iterable[str]) -> bool:
    """Whether a generator takes all of these sizes by keyword."""
    parameters = list(inspect.signature(generator).parameters.values())[1:]
    return {*names} <= {one.name for one in parameters if one.kind in (one.KEYWORD_ONLY, one.POSITIONAL_OR_KEYWORD)}


def _refuse_without_sizes(found: Sequence[TunedObject], names: Sequence[str]) -> None:
    """Raises OptionError if no generator takes the sizes."""
    generators = [one for each in found for one in each.tuned.cases]
    if any(takes(one, names) for one in generators):
        return
    have = "; ".join(f"{getattr(one, '__name__', 'one')}{inspect.signature(one)}" for one in generators[:4])
    signature = f"def cases(device, *, {', '.join(f'{name}=None' for name in names)})"
    problem = (
        f"expected a generator of cases that takes {' and '.join(names)} by keyword, got {have or 'none'}. Write "
        f"{signature}: with None it yields the cases as before, otherwise those of the given sizes"
    )
    raise refused("cover", problem)


def share(count: int, open_count: int) -> float:
    """A recorded call's share, by count, of the time left for `open_count` recorded calls; 1 for a generator's case."""
    return count / max(open_count, count) if count else 1.0


def reason(error: BaseException) -> str:
    """An exception as text for a case's result, with its type unless it is an `AutotunedError`."""
    return str(error) if isinstance(error, AutotunedError) else described(error)
