"""The process that `tune` measures in: it lists and measures units as it is told, and says in JSON how far it is."""

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
from types import TracebackType
from typing import Any, NoReturn, TextIO

import autotuned
from autotuned import disk
from autotuned.errors import AutotunedError, DeviceLostError, TargetError
from autotuned.gpu import device
from autotuned.key.key import Key
from autotuned.offline import tuning
from autotuned.offline.cases import Unit
from autotuned.offline.results import Result, Wishes
from autotuned.offline.workers import process
from autotuned.offline.workers.process import LOST
from autotuned.search import compile, failures
from autotuned.search.job import Progress
from autotuned.store import conditions, record, records
from autotuned.typed_json import Json, digest


class Reporter:
    """Stands in for the display: everything goes to the parent."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        os.set_inheritable(descriptor, False)  # what the user's code starts is not to hold it open

    def __enter__(self) -> Reporter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def say(self, event: str, **fields: Json) -> None:
        """One message."""
        data = json.dumps({"event": event, **fields}).encode() + b"\n"
        try:
            disk.write_all(self._descriptor, data)
        except BrokenPipeError:
            leave(1)  # nobody is there to hear of it

    def begin(self, kernel: str, call: str) -> None:
        """Said with the key's digest, by `_Session`."""

    def observe(self, progress: Progress) -> None:
        """How far a search is, and which config is next."""
        self.say("progress", progress=asdict(progress))

    def keep(self, line: str) -> None:
        """A line that stays."""
        self.say("keep", line=line)


class _Session(tuning.Session):
    """A session whose units are measured as the parent asks for them."""

    def __init__(self, targets: list[str], wishes: Mapping[str, Json], device: str, reporter: Reporter) -> None:
        super().__init__(tuning.load(targets), Wishes(force=wishes["force"]), device, reporter)
        self._reporter, self._gathers = reporter, wishes["gathers"]

    def list(self) -> None:
        """Say which units there are."""
        for unit in self.units:
            found, compiled = self.identify(unit)
            group = "" if compiled is None else digest([found.row.kernel, repr(compiled)])
            key = _key(found.key) if self._gathers and found.key is not None else None
            self._reporter.say(
                "unit", number=unit.number, row=asdict(found.row), group=group, count=unit.count, key=key
            )
        self._reporter.say("listed", without_cases=self.without_cases)

    def do(self, command: Mapping[str, Json]) -> None:
        """Measure one unit, and say what came of it."""
        for identity, why in command["condemned"].items():
            failures.condemn(command["digest"], identity, why)
        if command["seen"]:
            self._seen.add(command["digest"])
        if command["known"] is not None:
            _take_in(record.load(command["known"]))
        unit = self.units.at(command["number"])
        if unit is None:
            raise TargetError(
                f"the targets have no case {command['number']} any more: their generators must yield the same cases "
                "whenever they are called.",
                target="",
            )
        result = self._measured(unit, command["budget_s"])
        self._reporter.say("row", row=asdict(result.row), **self._kept(result))

    def _measured(self, unit: Unit, budget_s: float | None) -> Result:
        try:
            return self.measure(unit, budget_s)
        except DeviceLostError:
            leave(LOST)  # the parent knows which config ran

    def _kept(self, result: Result) -> dict[str, Json]:
        """What the parent needs to write config files, and on another host records."""
        key, entry, found = result.key, result.entry, result.record
        if key is None or entry is None:
            return {"key": None, "entry": None, "record": None}
        dumped = record.dump(found) if self._gathers and found is not None else None
        return {"key": _key(key), "entry": entry.to_json(), "record": dumped}

    def _tune(self, found: Any, call: Any, result: Result, *rest: Any) -> None:
        self._reporter.say("case", digest=result.row.digest)
        super()._tune(found, call, result, *rest)


def _key(key: Key) -> dict[str, Json]:
    return {"kernel": key.kernel, **key.to_json()}


def _take_in(known: record.TuningRecord) -> None:
    """Store what was measured on another host, unless it was measured here too, under conditions as strong."""
    mine = records.read_of(known.key)
    unfinished = mine is not None and mine.winner is None and len(mine.timings) < len(known.timings)
    if mine is None or unfinished or _is_more(known, mine):
        records.keep(known)


def _is_more(known: record.TuningRecord, mine: record.TuningRecord) -> bool:
    return known.winner is not None and conditions.is_more(known.conditions, mine.conditions)


def leave(code: int) -> NoReturn:
    """End at once: threads that still compile, or a lost device, may hang at the interpreter's own end."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class _Commands:
    """What the parent says, one line each; when the parent has ended, so does this process and all it has started."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._waiting: queue.SimpleQueue[dict[str, Json]] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with contextlib.suppress(ValueError):  # half a line: the parent was killed as it wrote
            for line in self._stream:
                self._waiting.put(json.loads(line))
        if os.getpgid(0) == os.getpid():  # a group of its own
            os.killpg(os.getpid(), signal.SIGKILL)
        os._exit(1)

    def next(self) -> dict[str, Json]:
        """The next one."""
        return self._waiting.get()


def _wake_gpu() -> None:
    """Make the context on the first GPU that is visible, which takes NVIDIA's driver a second, while torch is imported.

    It is the one that torch uses later. Where there is none, or the driver refuses, torch has its own words for that.
    """
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if cuda.cuInit(0) == 0 and cuda.cuDeviceGet(ctypes.byref(device), 0) == 0:
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)


def _serve(commands: _Commands, reporter: Reporter) -> None:
    wishes = commands.next()
    if process.on_gpu():  # before anything else: they have as much to import
        threading.Thread(target=_wake_gpu, daemon=True).start()
        from autotuned.offline.workers import compile_pool

        if compile_pool.are_wanted():
            compile.compilers.append(compile_pool.Compilers(wishes["targets"], wishes["timeout_s"]))
    kind = tuning.use_device()
    mine = _Session(wishes["targets"], wishes, kind, reporter)
    model = (device.cuda() if kind == "cuda" else device.cpu()).slug  # CPUs of two kinds are two kinds as well
    reporter.say("ready", device=kind, model=model, version=autotuned.__version__)
    while (command := commands.next())["do"] != "end":
        if command["do"] == "list":
            mine.list()
        else:
            mine.do(command)


def _own_input() -> TextIO:
    """What the parent writes, out of reach of the user's code and of what that starts: these read nothing."""
    commands = os.fdopen(os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return commands


def main() -> None:
    """Do what the parent says, and tell it of errors: it prints them."""
    reporter = Reporter(int(sys.argv[1]))
    try:
        # The parent has held it back until here, or Ray from all of its own: here it comes from the parent alone.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        _serve(_Commands(_own_input()), reporter)
    except (AutotunedError, OSError) as error:
        kind = type(error).__name__ if isinstance(error, AutotunedError) else "OSError"
        reporter.say("error", type=kind, text=str(error))
        leave(1)
    except KeyboardInterrupt:
        leave(1)
    leave(0)


if __name__ == "__main__":
    main()
