"""`tune` with its measuring in a process of its own, which is killed and started anew when a config takes it along."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from autotuned import env, errors
from autotuned.candidates import label
from autotuned.errors import AutotunedError
from autotuned.job import Progress

from .progress import Display

TICK_S = 0.2
END_S = 10.0  # what a process that was asked to end may take
BLAMELESS = 3  # ends of the process that no config can be blamed for, one after the other; then it is given up
# Not by `-m`, which would look into the working folder first: in a checkout the package's sources lie there, in other
# places than those of the installed package.
_START = "import json, sys; sys.path[:] = json.loads(sys.argv[2]); from autotuned.cli.worker import main; main()"
LOST = 4  # exit code of a worker whose device is lost
Json = Any


@dataclass
class Doing:
    """What the worker does at the moment, as far as it is a config's doing."""

    digest: str = ""
    stage: str = ""
    identity: str = ""
    since: float = 0.0
    compiling: dict[str, float] = field(default_factory=dict)  # identity -> when it began

    def note(self, progress: Progress, now: float) -> None:
        """Take in what the worker says of its progress."""
        if (progress.stage, progress.identity) != (self.stage, self.identity) or progress.stage != "compiling":
            self.stage, self.identity, self.since = progress.stage, progress.identity, now
        self.compiling = {identity: now - seconds for identity, seconds in progress.compiling.items()}

    def nothing(self) -> None:
        """The search is over."""
        self.stage, self.identity, self.compiling = "", "", {}

    def overdue(self, limit_s: float, now: float) -> dict[str, str]:
        """Configs that have taken longer than they may, and why each is given up."""
        late = {
            identity: f"TimedOut: not compiled within {limit_s:g} s"
            for identity, begun in self.compiling.items()
            if now - begun > limit_s
        }
        alone = self.stage == "compiling" and not self.compiling
        if (alone or self.stage in ("launching", "sampling")) and now - self.since > limit_s:
            late[self.identity] = f"TimedOut: {'not compiled' if alone else 'did not end'} within {limit_s:g} s"
        return late

    def culprit(self, why: str) -> dict[str, str]:
        """The config that must have ended the process; none where several may have."""
        exact = self.stage in ("launching", "sampling") or (self.stage == "compiling" and not self.compiling)
        return {self.identity: f"Crashed: {why} while it was {self.stage.replace('ing', 'ed')}"} if exact else {}


@dataclass
class Ending:
    """What one worker left behind: how it ended, and whom to blame."""

    blamed: dict[str, str]
    seconds: float = 0.0
    final: dict[str, Json] | None = None  # what the worker says at its very end
    error: dict[str, Json] | None = None


class Supervisor:
    """Runs workers one after the other until all cases have had their turn.

    Attributes:
        rows: What came of each case, as the worker says it.
        final: What the last worker says of the whole run.
        interrupted: Whether Ctrl-C ended it.
    """

    def __init__(self, wishes: Mapping[str, Json], limit_s: float, display: Display) -> None:
        self._wishes, self._limit_s, self._display = dict(wishes), limit_s, display
        self._start = time.monotonic()
        self._condemned: dict[str, dict[str, str]] = {}
        self._blameless = 0
        self.rows: list[Json] = []
        self.final: dict[str, Json] = {}
        self.interrupted = False

    def run(self) -> None:
        """Start workers until one comes to its end.

        Raises:
            AutotunedError: What the worker raised, or it ended again and again with no config to blame.
        """
        while True:
            ending = self._one()
            if ending.final is not None:
                self.final = ending.final
                return
            if ending.error is not None:
                raise _raised(ending.error)
            if self.interrupted:
                return

    def _one(self) -> Ending:
        """One worker, from its start to its end."""
        worker = Worker({
            **self._wishes, "skip": len(self.rows), "condemned": self._condemned, "budget_s": self._left_s(),
        })  # fmt: skip
        doing = Doing()
        try:
            ending = self._watch(worker, doing)
        except KeyboardInterrupt:
            self.interrupted = True
            ending = self._finish(worker, doing)
        finally:
            worker.kill()
        if ending.final is None and ending.error is None and not self.interrupted:
            self._condemn(doing.digest, ending)
        return ending

    def _left_s(self) -> float | None:
        budget_s = self._wishes.get("budget_s")
        return None if budget_s is None else max(0.001, self._start + budget_s - time.monotonic())

    def _watch(self, worker: Worker, doing: Doing) -> Ending:
        began = time.monotonic()
        while True:
            for message in worker.messages(TICK_S):
                ending = self._take(message, doing)
                if ending is not None:
                    return ending
            now = time.monotonic()
            if worker.is_over:
                return Ending(doing.culprit(worker.why()), now - (doing.since or began))
            if late := doing.overdue(self._limit_s, now):
                return Ending(late, self._limit_s)

    def _finish(self, worker: Worker, doing: Doing) -> Ending:
        """Let an interrupted worker store what it has."""
        worker.interrupt()
        end = time.monotonic() + END_S
        while time.monotonic() < end and not worker.is_over:
            for message in worker.messages(TICK_S):
                ending = self._take(message, doing)
                if ending is not None:
                    return ending
        return Ending({})

    def _take(self, message: dict[str, Json], doing: Doing) -> Ending | None:
        match message["event"]:
            case "case":
                doing.nothing()
                doing.digest = message["digest"]
                self._display.begin(message["kernel"], message["call"])
            case "progress":
                progress = Progress(**message["progress"])
                doing.note(progress, time.monotonic())
                self._display.observe(progress)
            case "keep":
                self._display.keep(message["line"])
            case "row":
                doing.nothing()
                self.rows.append(message["row"])
                self._blameless = 0
            case "end":
                return Ending({}, final=message)
            case "error":
                return Ending({}, error=message)
        return None

    def _condemn(self, digest: str, ending: Ending) -> None:
        """Keep the next worker from what ended this one.

        Raises:
            AutotunedError: There is nothing to blame, for the third time.
        """
        self._condemned.setdefault(digest, {}).update(ending.blamed)
        for identity, reason in ending.blamed.items():
            name = label(json.loads(identity))
            self._display.keep(f"{name}: {reason}; it is left out (it took {ending.seconds:.1f} s)")
        # Several were compiled at once: the journal has their names, and the next worker compiles them one by one.
        self._blameless = 0 if ending.blamed else self._blameless + 1
        if self._blameless >= BLAMELESS:
            raise AutotunedError(
                f"the measuring process ended {BLAMELESS} times, and no config can be blamed for it. Its own words are "
                "above; --in-process measures without it."
            )


def _raised(error: Mapping[str, Json]) -> Exception:
    """The worker's exception, as far as this package knows its type."""
    kind = getattr(errors, error["type"], AutotunedError)
    return kind(error["text"]) if error["type"] != "OSError" else OSError(error["text"])


class Worker:
    """A process of `autotuned.cli.worker` in a group of its own, and what it says."""

    def __init__(self, wishes: Mapping[str, Json]) -> None:
        source, sink = os.pipe()
        command = [sys.executable, "-c", _START, str(sink), json.dumps(sys.path)]
        # Where standard output carries JSON, what kernels print must not come into it.
        stdout = sys.__stderr__ if wishes["as_json"] else None
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=stdout, pass_fds=[sink], start_new_session=True, text=True
        )
        os.close(sink)
        self._source, self._rest = source, b""
        self._selector = selectors.DefaultSelector()
        self._selector.register(source, selectors.EVENT_READ)
        self._closed = False
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(wishes) + "\n")
            self._process.stdin.close()

    def messages(self, wait_s: float) -> Iterator[dict[str, Json]]:
        """What it has said since the last time; waits a little for it."""
        if self._closed or not self._selector.select(wait_s):
            return
        data = os.read(self._source, 1 << 16)
        self._closed = not data
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            yield json.loads(line)

    @property
    def is_over(self) -> bool:
        """Whether it has ended and everything it said has been read."""
        return self._closed and self._process.wait(END_S) is not None

    def why(self) -> str:
        """How it ended."""
        code = self._process.returncode
        if code is not None and code < 0:
            return f"the process ended by {signal.Signals(-code).name}"
        return "the device was lost" if code == LOST else f"the process ended with code {code}"

    def interrupt(self) -> None:
        """Ctrl-C for it alone: its compilers would die of it."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """End it and everything it has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._selector.close()
        with contextlib.suppress(OSError):
            os.close(self._source)


def is_wanted(asked: bool | None) -> bool:
    """Whether to measure in a process of its own: as asked, else where there is a GPU that a config can take along."""
    if asked is not None:
        return asked
    try:
        on_cpu = env.interpreter_requested() or env.command_line_device() == "interpreter"
    except ValueError:
        return False  # said in full where the device is chosen
    return os.name == "posix" and not on_cpu and any(map(os.path.exists, ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")))
