"""Recreates recorded calls for tuning or preparing: imports kernels by name and rebuilds arguments."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotuned.errors import RecordingError, TargetError
from autotuned.key import opaque
from autotuned.offline import targets
from autotuned.offline.targets import TunedObject
from autotuned.recording import arguments, file, grids
from autotuned.recording.file import RecordedCall
from autotuned.tunable.call import Call
from autotuned.tunable.function import TunableFunction


@dataclass(frozen=True)
class Replayed(TunedObject):
    """The recorded calls of one kernel.

    Attributes:
        tuned: The tuned object; None if it cannot be imported, for the `reason` given.
        kernel: The recorded name.
        calls: The calls, most frequent first.
    """

    kernel: str = ""
    calls: tuple[RecordedCall, ...] = ()
    reason: str = ""

    @property
    def name(self) -> str:
        """The kernel's public name."""
        return self.kernel

    @property
    def count(self) -> int:
        """Total count of the calls."""
        return sum(call.count for call in self.calls)


def load(path: Path, files: Iterable[str] = ()) -> list[Replayed]:
    """Import the kernels of a recording, the most frequently called first.

    Modules are imported by name. A file named by the recording is run only if it is among `files`; otherwise a
    recording could run any file.

    Args:
        path: The recording.
        files: The user's targets; those that are files may be run.

    Raises:
        RecordingError: There is no such file, or no call in it.
    """
    may_run = {os.path.realpath(place) for place in map(targets.file_of, files) if place}
    groups: dict[tuple[str, str], list[RecordedCall]] = {}
    for call in file.read(path):
        groups.setdefault((call.kernel, call.target), []).append(call)
    return [_replayed(kernel, target, group, may_run) for (kernel, target), group in groups.items()]


def _replayed(kernel: str, target: str, group: Sequence[RecordedCall], may_run: Set[str]) -> Replayed:
    try:
        path = targets.file_of(target)
        if path and os.path.realpath(path) not in may_run:
            raise TargetError(
                f"recorded kernel {kernel!r}: expected the file {path} among the targets, since a recording alone may "
                f"not run files, and got none. If you trust it, give it after the recording: calls.jsonl {path}",
                target=target,
            )
        found = _imported(kernel, target)
    except TargetError as error:
        return Replayed(None, (), kernel, tuple(group), str(error))
    return Replayed(found.tuned, found.outer, kernel, tuple(group))


def _imported(kernel: str, target: str) -> TunedObject:
    there = targets.load(target)
    found = next((one for one in there if one.name == kernel), None)
    if found is None:
        names = ", ".join(repr(one.name) for one in there)
        raise TargetError(
            f"recorded kernel {kernel!r}: {target!r} is now {names}. Record again, or give the kernel its old name "
            "with @autotune(name=...).",
            target=target,
        )
    return found


def bound(found: TunedObject, given: Any, device: str) -> tuple[Call, list[str]]:
    """The call of a recording (as `call_of`) or of a generator's item, and the configs without a recorded grid."""
    return call_of(found, given, device) if isinstance(given, RecordedCall) else (targets.bind(found, given), [])


def call_of(found: TunedObject, recorded: RecordedCall, device: str) -> tuple[Call, list[str]]:
    """A call like the recorded one, and the configs (as text) that have no recorded grid.

    Args:
        found: The kernel.
        recorded: The call.
        device: Device of torch tensors, "cuda" or "cpu".

    Raises:
        RecordingError: The arguments cannot be created here, or none of the current configs has a grid.
        CallError, ValueError: The arguments do not fit the current kernel.
    """
    built = arguments.build(recorded.arguments, device)
    places = sorted((name for name in built if name.isdigit()), key=int)
    args, kwargs = tuple(built[name] for name in places), {n: v for n, v in built.items() if not n.isdigit()}
    call = found.tuner.call(args, kwargs, None)
    if isinstance(found.tuner.tunable, TunableFunction):
        return call, []
    grid, lost = _grid(found, call, recorded)
    return found.tuner.call(args, kwargs, grid), lost


def _grid(found: TunedObject, call: Call, recorded: RecordedCall) -> tuple[Any, list[str]]:
    target = found.tuner.tunable
    rebuilt, known, lost = grids.Rebuilt(recorded.grid, opaque.spell), [], []
    for config in found.tuner.chooser.candidates(call).values():
        settings = grids.settings(target, config)
        if rebuilt.has(settings):
            known.append(settings)
        else:
            lost.append(str(config))
    if not known:
        raise RecordingError(
            f"`{found.name}`: expected a recorded grid for one of its configs, got none: all are new. Record again.",
            path="",
        )
    return rebuilt.for_configs(known), lost
