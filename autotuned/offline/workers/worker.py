"""The process that `tune` measures in: lists and measures cases on command, and reports in JSON."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict
from types import FrameType
from typing import NoReturn, TextIO

from autotuned import disk
from autotuned.errors import AutotunedError, TargetError
from autotuned.gpu import device
from autotuned.key.key import Key
from autotuned.offline import cases
from autotuned.offline.cases import Cases
from autotuned.offline.device import has_driver, use_device
from autotuned.offline.measure import MeasuredCase, Measurer
from autotuned.offline.ranges import WantedSizes
from autotuned.offline.results import CaseResult, Observer
from autotuned.offline.workers import process
from autotuned.offline.workers.process import LOST
from autotuned.search import exclusions
from autotuned.search.compiling import pool
from autotuned.search.job import Progress
from autotuned.store import conditions, record, records
from autotuned.typed_json import Json, digest


class Reporter(Observer):
    """Reports everything to the parent."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        os.set_inheritable(descriptor, False)  # children of the user's code must not hold it open

    def say(self, event: str, **fields: Json) -> None:
        """Send one message."""
        data = json.dumps({"event": event, **fields}).encode() + b"\n"
        try:
            disk.write_all(self._descriptor, data)
        except BrokenPipeError:
            leave(1)  # the parent has ended

    def begin(self, case: CaseResult, device: str = "") -> None:
        """Report a case that begins: from now on its configs are to blame."""
        self.say("begin", digest=case.digest)

    def observe(self, progress: Progress, device: str = "") -> None:
        """Report a search's progress and its next config."""
        self.say("progress", progress=asdict(progress))

    def note(self, line: str, device: str = "") -> None:
        """Report a line for the log of the run."""
        self.say("note", line=line)


class _Server:
    """Lists and measures cases on the parent's commands."""

    def __init__(self, given: Mapping[str, Json], device: str, reporter: Reporter) -> None:
        wanted = WantedSizes.from_json(given["wanted"])
        self._cases = Cases(cases.load(given["targets"]), device, wanted, given["follows"])
        self._measurer = Measurer(self._cases, device, given["force"], reporter, given["follows"])
        self._reporter, self._gathers = reporter, given["gathers"]

    def list(self) -> None:
        for case in self._cases:
            known, compiled = self._measurer.identify(case)
            group = "" if compiled is None else digest([known.result.kernel, repr(compiled)])
            key = _key(known.key) if self._gathers and known.key is not None else None
            self._reporter.say(
                "case", number=case.number, result=asdict(known.result), group=group, count=case.count, key=key
            )
        self._reporter.say("listed", without_cases=self._cases.without_cases)

    def measure(self, command: Mapping[str, Json]) -> None:
        for identity, why in command["excluded"].items():
            exclusions.process.add(command["digest"], identity, exclusions.Reason.BLAMED, why)
        if command["seen"]:
            self._measurer.seen.add(command["digest"])
        if command["known"] is not None:
            _take_in(record.load(command["known"]))
        case = self._cases.at(command["number"])
        if case is None:
            raise TargetError(
                f"the targets no longer have case {command['number']}: their generators must yield the same cases "
                "whenever they are called.",
                target="",
            )
        measured = self._measurer.measure(case, command["budget_s"])
        if measured.lost is not None:
            self._reporter.note(f"{measured.result.kernel}: {measured.result.reason}")
            leave(LOST)  # the parent knows which config ran
        self._reporter.say("done", result=asdict(measured.result), **self._kept(measured))

    def _kept(self, measured: MeasuredCase) -> dict[str, Json]:
        """The data that the parent needs to write config files, and records if it is on another host."""
        key, entry, found = measured.key, measured.entry, measured.record
        if key is None or entry is None:
            return {"key": None, "entry": None, "record": None}
        dumped = record.dump(found) if self._gathers and found is not None else None
        return {"key": _key(key), "entry": entry.to_json(), "record": dumped}


def _key(key: Key) -> dict[str, Json]:
    return {"kernel": key.kernel, **key.to_json()}


def _take_in(known: record.TuningRecord) -> None:
    """Store another host's record, unless this host has one under conditions at least as strong."""
    mine = records.read_of(known.key)
    unfinished = mine is not None and mine.winner is None and len(mine.timings) < len(known.timings)
    if mine is None or unfinished or (known.winner and conditions.is_more(known.conditions, mine.conditions)):
        records.keep(known)


def leave(code: int) -> NoReturn:
    """Exit at once: compiling threads or a lost device could hang the interpreter's shutdown."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _interrupted_import(number: int, frame: FrameType | None) -> NoReturn:
    """Exit on Ctrl-C while modules are imported: raised in an extension's callback, an exception aborts the process."""
    leave(1)


class _Commands:
    """The parent's commands, one line each; kills this process and its children if the parent ends."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._waiting: queue.SimpleQueue[dict[str, Json]] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with contextlib.suppress(ValueError):  # a partial line: the parent was killed while writing
            for line in self._stream:
                self._waiting.put(json.loads(line))
        if os.getpgid(0) == os.getpid():  # a group of its own
            os.killpg(os.getpid(), signal.SIGKILL)
        os._exit(1)

    def next(self) -> dict[str, Json]:
        return self._waiting.get()


def _wake_gpu() -> None:
    """Create the first visible GPU's context, which takes a second, while torch is imported.

    torch uses the same context later, and reports errors.
    """
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if cuda.cuInit(0) == 0 and cuda.cuDeviceGet(ctypes.byref(device), 0) == 0:
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)


def _serve(commands: _Commands, reporter: Reporter) -> NoReturn:
    given = commands.next()
    if has_driver():  # before the imports below: the compile workers need as long for theirs
        threading.Thread(target=_wake_gpu, daemon=True).start()
        from autotuned.offline.workers import compile_pool

        if compile_pool.are_wanted():
            pool.compilers.append(compile_pool.CompileWorkers(given["targets"], given["timeout_s"]))
    kind = use_device()
    server = _Server(given, kind, reporter)
    if signal.getsignal(signal.SIGINT) is _interrupted_import:  # not another one, of the user's code
        signal.signal(signal.SIGINT, signal.default_int_handler)
    model = (device.cuda() if kind == "cuda" else device.cpu()).slug  # CPUs differ in kind too
    reporter.say("ready", device=kind, model=model, version=process.version())
    while True:  # until the parent ends this process
        command = commands.next()
        if command["do"] == "list":
            server.list()
        else:
            server.measure(command)


def _own_input() -> TextIO:
    """The parent's input; the user's code and its children get an empty input instead."""
    commands = os.fdopen(os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return commands


def main() -> None:
    """Follow the parent's commands; errors are sent to it to print."""
    reporter = Reporter(int(sys.argv[1]))
    try:
        # Ctrl-C was blocked by the parent, or by Ray, until now; from now on only the parent sends it.
        signal.signal(signal.SIGINT, _interrupted_import)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        _serve(_Commands(_own_input()), reporter)
    except (AutotunedError, OSError) as error:
        kind = type(error).__name__ if isinstance(error, AutotunedError) else "OSError"
        reporter.say("error", type=kind, text=str(error))
        leave(1)
    except KeyboardInterrupt:
        leave(1)


if __name__ == "__main__":
    main()
