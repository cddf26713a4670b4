"""`tune --follow`: tunes the calls that a service records while it runs, most expensive calls first."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from autotuned import disk, env
from autotuned.errors import AutotunedError, NoDeviceError, OptionError
from autotuned.offline.device import check_environment
from autotuned.offline.results import CaseResult, Observer, TuneOptions, TuneResult
from autotuned.offline.store_recordings import StoreTail
from autotuned.offline.targets import texts
from autotuned.offline.tuning import measured
from autotuned.recording.file import SUFFIX, RecordedCall, Tail, Writer
from autotuned.resolve import explain
from autotuned.search.job import Progress
from autotuned.store import records
from autotuned.store.record import look_up
from autotuned.typed_json import Json, canonical

POLL_S = 2.0  # interval of checking the recording
TELL_S = 60.0
TURN_S = 30.0  # time to keep measuring before newly recorded calls are queued
ENDS = 3  # consecutive failures, with no call to blame, before giving up
BYTES_PER_US = 1e6  # assumed if no similar call was measured: 1 TB/s


@dataclass
class FollowStatus:
    """Progress of `follow`, reported once a minute and returned at the end.

    Attributes:
        calls: Recorded keys so far, `waiting` of them not measured yet.
        chosen: Keys with a stored choice, `measured` of them by this run.
        share: Their share of the recorded time, at what each call takes now, from 0 to 1.
        latest: The last measured case.
        problems: Calls that cannot be rebuilt and kernels that fail, each once.
        strange: Invalid lines in the recording.
        interrupted: Whether Ctrl-C ended it.
    """

    calls: int = 0
    waiting: int = 0
    chosen: int = 0
    measured: int = 0
    share: float = 0.0
    latest: CaseResult | None = None
    problems: list[str] = field(default_factory=list)
    strange: int = 0
    interrupted: bool = False
    seconds: float = 0.0

    def to_json(self) -> dict[str, Json]:
        """A line of `autotuned tune --follow --json`."""
        return {**asdict(self), "share": round(self.share, 4), "seconds": round(self.seconds, 3)}


@env.interpreter_put_back()
def follow(
    calls: str | os.PathLike[str],
    files: Sequence[str] | None = None,
    *,
    devices: str | None = None,
    isolate: bool | None = None,
    timeout_s: float = 60.0,
    progress: Callable[[FollowStatus], Any] | None = None,
    stop: threading.Event | None = None,
) -> FollowStatus:
    """Tune a recording while a service writes it: `autotuned tune --follow` from Python.

    Calls that take the most time (count times duration) come first. The duration is that of the stored choice, or of
    the most similar measured call, or a guess from the tensors' size. A winner is stored, for `autotuned.refresh` to
    find, only after it beat the current choice in a final comparison. Stored choices are not measured again, so a new
    run continues an earlier one. A call that cannot be rebuilt, or a kernel that fails, is reported once and skipped.

    Args:
        calls: The file that `autotuned record` or `AUTOTUNED_RECORD` writes; it may appear later, be truncated or
            replaced. Or the URL of a shared store, for all recordings that `push` sent; `-` for that of
            `AUTOTUNED_STORE`.
        files: Files that the recording names and that may be run; kernels of modules are imported by name.
        devices: As for `autotuned.tune`.
        isolate: As for `autotuned.tune`.
        timeout_s: As for `autotuned.tune`.
        progress: Called at the start and then once a minute.
        stop: Set it to end after the current call. Ctrl-C ends at once and keeps the results.

    Raises:
        RecordingError: The recording cannot be read.
        OptionError, NoDeviceError, DeviceChoiceError: An option is invalid, or the device is not available.
        AutotunedError: Measuring keeps failing, and no call can be blamed.
    """
    options = TuneOptions(isolate=isolate, timeout_s=timeout_s, devices=devices, follows=True)
    check_environment()
    given = texts(files or (), 0)
    one = _Follower(_tail(calls), given, options, progress or (lambda status: None), stop or threading.Event())
    try:
        one.run()
    except KeyboardInterrupt:
        one.status.interrupted = True
    finally:
        one.close()
    return one.status


def is_store(calls: str | os.PathLike[str]) -> bool:
    """Whether `calls` names a shared store, not a file."""
    return str(calls) == "-" or "://" in str(calls)


def _tail(calls: str | os.PathLike[str]) -> Tail | StoreTail:
    if is_store(calls):
        return StoreTail(str(calls))
    path = Path(calls)
    if path.is_dir():
        got = f"the folder {path}"
        raise OptionError(f"calls: expected a file of recorded calls, got {got}.", option="", problem=f"got {got}")
    return Tail(path)


class _NewerError(Exception):
    """New calls arrived: stop measuring and queue them."""


class _Follower(Observer):
    """Reads the recording, sorts its calls, and measures them with `tune`, in turn."""

    def __init__(
        self,
        tail: Tail | StoreTail,
        files: list[str],
        options: TuneOptions,
        tell: Callable[[FollowStatus], Any],
        stop: threading.Event,
    ) -> None:
        self.status = FollowStatus()
        self._tail, self._files, self._options, self._tell, self._stop = tail, files, options, tell, stop
        self._start = self._turn_began = time.monotonic()
        self._told = self._looked = 0.0
        self._calls: dict[str, RecordedCall] = {}  # one per key, by digest, with the key's total count
        self._tried: set[str] = set()
        self._digests: dict[tuple[str, str], str] = {}  # by kernel and recorded call
        self._doing: CaseResult | None = None
        self._said: set[str] = set()
        self._is_newer, self._ends = False, 0

    def run(self) -> None:
        """Measure until it is stopped."""
        while not self._stop.is_set():
            self._look()
            self._tick()
            if waiting := self._waiting():
                self._turn(waiting)
            else:
                self._stop.wait(POLL_S)

    def close(self) -> None:
        """Report the final status."""
        self._told = 0.0
        self._tick()

    # -- the recording ----------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Read the calls recorded since the last time."""
        self._looked = time.monotonic()
        is_newer = self._tail.look()
        if not self._tail.calls:
            got = f"{self._tail.strange} invalid lines or recordings" if self._tail.strange else "none yet"
            message = "%s: expected recorded calls, got %s; waiting for them."
            env.warn_once(f"waiting {got == 'none yet'}", message, self._tail.where, got, said=self._said)
        if not is_newer:
            return
        found: dict[str, RecordedCall] = {}
        for call in self._tail.calls.values():
            digest = call.key.digest
            of_key = found.setdefault(digest, call)
            if of_key is not call:  # another grid or alignment: the most frequent call is measured for all
                most = max(of_key, call, key=lambda one: one.count)
                found[digest] = replace(most, count=of_key.count + call.count)
            self._digests[call.kernel, canonical(call.key.call)] = digest
        self._is_newer = self._is_newer or not found.keys() <= self._calls.keys()
        self._calls, self.status.strange = found, self._tail.strange

    def _waiting(self) -> list[RecordedCall]:
        """The calls to measure, most expensive first, with microseconds in place of counts."""
        waiting = [call for digest, call in self._calls.items() if digest not in self._tried]
        with explain.reading_once():
            timed = [replace(call, count=max(1, round(call.count * duration_us(call)))) for call in waiting]
        return sorted(timed, key=lambda call: -call.count)

    # -- a turn --------------------------------------------------------------------------------------------------

    def _turn(self, waiting: Sequence[RecordedCall]) -> None:
        """Measure the waiting calls until they are done or newer ones should go first."""
        self._turn_began, self._is_newer, self._doing = time.monotonic(), False, None
        try:
            result = self._measured(waiting)
        except _NewerError:
            return
        except (NoDeviceError, OptionError):
            raise
        except AutotunedError as error:
            self._ended(error)
            return
        self._ends = 0
        if result.interrupted:
            raise KeyboardInterrupt
        self._tried |= {call.key.digest for call in waiting}

    def _measured(self, waiting: Sequence[RecordedCall]) -> TuneResult:
        with disk.temporary_folder() as folder:
            path = folder / f"calls{SUFFIX}"
            writer = Writer(path)
            for call in waiting:
                writer.call(call)
            writer.close()
            return measured([str(path), *self._files], self._options, self)

    def _ended(self, error: AutotunedError) -> None:
        """Continue after an error, without the call that was being measured, if any."""
        self._ends += 1
        if self._doing is None and self._ends >= ENDS:
            raise error
        if self._doing is not None:
            self._done(self._doing)
        self._say(str(error))
        self._stop.wait(POLL_S)

    def _done(self, case: CaseResult) -> None:
        """Do not try this case again, nor any case of a kernel that cannot be imported."""
        digest = self._digests.get((case.kernel, canonical(case.call)))
        if case.call is None:
            self._tried |= {digest for digest, call in self._calls.items() if call.kernel == case.kernel}
        self._tried |= {one for one in (digest, case.digest) if one}

    def begin(self, case: CaseResult, device: str = "") -> None:
        """A case starts."""
        self._doing = case

    def done(self, case: CaseResult, device: str = "") -> None:
        """A case is done."""
        self._done(case)
        self._doing, self.status.latest = None, case
        self.status.measured += case.source == "measured"
        if case.status == "failed":
            self._say(f"{case.kernel}: {case.reason}")
        if time.monotonic() - self._looked > POLL_S:
            self._look()
        self._tick()
        if self._stop.is_set() or (self._is_newer and time.monotonic() - self._turn_began > TURN_S):
            raise _NewerError

    def observe(self, progress: Progress, device: str = "") -> None:
        """Called between launches."""
        self._tick()

    def note(self, line: str, device: str = "") -> None:
        """A config was left out, or a process restarted."""
        self._say(line)

    # -- the status ----------------------------------------------------------------------------------------------

    def _say(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            self.status.problems.append(line)

    def _tick(self) -> None:
        """Report the status if it is due."""
        now = time.monotonic()
        if self._told and now - self._told < TELL_S:
            return
        self._told, status = now, self.status
        chosen = {digest for digest, call in self._calls.items() if _record_us(call) is not None}
        with explain.reading_once():
            times = {digest: call.count * duration_us(call) for digest, call in self._calls.items()}
        status.calls, status.chosen = len(self._calls), len(chosen)
        status.waiting = len(self._calls.keys() - self._tried)
        status.share = sum(times[digest] for digest in chosen) / (sum(times.values()) or 1.0)
        status.seconds = now - self._start
        self._tell(status)


def duration_us(call: RecordedCall) -> float:
    """Estimated time of a call: the stored one, or that of the most similar call, or a guess from its tensors' size."""
    us = _record_us(call)
    if us is None and (near := explain.nearest(call.key)) is not None:
        found = records.read_of(near)
        us = found.median_us if found is not None else None
    return us or _size_us(call)


def _record_us(call: RecordedCall) -> float | None:
    found = look_up(call.key)[0]
    return found.median_us if found is not None and found.winner is not None else None


def _size_us(call: RecordedCall) -> float:
    """A guess from the memory of its tensors."""
    memories = call.arguments.get("memories") if isinstance(call.arguments, dict) else None
    sizes = [one.get("bytes") for one in memories or () if isinstance(one, dict)]
    return max(1.0, sum(size for size in sizes if isinstance(size, int)) / BYTES_PER_US)
