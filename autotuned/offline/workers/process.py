"""The process that `tune` measures in: it can be killed, and its messages show which config to blame for an end."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from autotuned import env, errors
from autotuned.errors import AutotunedError
from autotuned.offline.workers.interrupts import held_back
from autotuned.search.job import Progress
from autotuned.tunable.configs import label
from autotuned.typed_json import Json

GRACE_S = 3.0  # extra time for a compilation, which the process may be able to kill itself
END_S = 10.0  # limit for a process that was told to end
LOST = 4  # exit code of a worker whose device is lost


@dataclass
class Doing:
    """The worker's current work on configs."""

    digest: str = ""
    stage: str = ""
    identity: str = ""
    since: float = 0.0
    compiling: dict[str, float] = field(default_factory=dict)  # identity -> start time

    def note(self, progress: Progress, now: float) -> None:
        """Note a progress message of the worker."""
        if (progress.stage, progress.identity) != (self.stage, self.identity) or progress.stage != "compiling":
            self.stage, self.identity, self.since = progress.stage, progress.identity, now
        self.compiling = {identity: now - seconds for identity, seconds in progress.compiling.items()}

    def nothing(self) -> None:
        """Note that the search is over."""
        self.stage, self.identity, self.compiling = "", "", {}

    def overdue(self, limit_s: float, now: float) -> dict[str, str]:
        """Configs over the time limit, with the reason to exclude them."""
        late = {
            identity: f"TimedOut: not compiled within {limit_s:g} s"
            for identity, begun in self.compiling.items()
            if now - begun > limit_s + GRACE_S
        }
        alone = self.stage == "compiling" and not self.compiling
        if (alone or self.stage in ("launching", "sampling")) and now - self.since > limit_s:
            late[self.identity] = f"TimedOut: {'not compiled' if alone else 'did not end'} within {limit_s:g} s"
        return late

    def culprit(self, why: str) -> dict[str, str]:
        """The config that must have ended the process; empty if several are possible."""
        exact = self.stage in ("launching", "sampling") or (self.stage == "compiling" and not self.compiling)
        return {self.identity: f"Crashed: {why} while it was {self.stage.replace('ing', 'ed')}"} if exact else {}


@dataclass
class Ending:
    """How a worker ended, the configs to blame and why, and the seconds lost."""

    why: str
    blamed: dict[str, str]
    seconds: float = 0.0


def left_out(ending: Ending) -> Iterator[str]:
    """A line for each config to blame."""
    for identity, why in ending.blamed.items():
        yield f"{label(json.loads(identity))}: {why}; it is left out (it took {ending.seconds:.1f} s)"


def raised(error: Mapping[str, Json], where: str = "") -> Exception:
    """The worker's exception, with its type if that is this package's."""
    kind = OSError if error["type"] == "OSError" else getattr(errors, error["type"], AutotunedError)
    if kind is errors.OptionError:
        option, _, problem = error["text"].partition(": ")
        return errors.OptionError(error["text"], option=option, problem=problem.removesuffix("."))
    found: Exception = kind(f"{where}: {error['text']}" if where else error["text"])
    return found


class Worker:
    """A process of `autotuned.offline.workers.worker` on this host (so never `lost`), in its own process group."""

    lost = False

    def __init__(
        self,
        given: Mapping[str, Json],
        settings: Mapping[str, str | None] | None = None,
        path: Sequence[str] = (),
        folder: str | None = None,
    ) -> None:
        """Start the process.

        Args:
            given: The first command for `worker.main`.
            settings: Environment variables that differ from this process's.
            path: Import path; default this process's.
            folder: Working folder; default this process's.
        """
        source, sink = os.pipe()
        command = command_for("worker", sink, path or sys.path)
        with held_back():  # until it is ready, so that Ctrl-C during imports shows no traceback
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=printed_to(), pass_fds=[sink], start_new_session=True, text=True,
                env=env.changed(settings or {}), cwd=folder,
            )  # fmt: skip
        os.close(sink)
        self._source, self._rest = source, b""
        self._selector = selectors.DefaultSelector()
        self._selector.register(source, selectors.EVENT_READ)
        self._closed = False
        self.send(given)

    def fileno(self) -> int:
        """A descriptor that is readable when the process has sent a message."""
        return self._source

    def send(self, command: Mapping[str, Json]) -> None:
        """Send a command; does nothing if the process has ended."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()

    def messages(self) -> list[dict[str, Json]]:
        """Messages since the last call; does not wait."""
        found: list[dict[str, Json]] = []
        while not self._closed and self._selector.select(0):
            data = os.read(self._source, 1 << 16)
            self._closed = not data
            *lines, self._rest = (self._rest + data).split(b"\n")
            found += map(json.loads, lines)
        return found

    def wait(self, limit_s: float) -> list[dict[str, Json]]:
        """The next messages; empty after the time limit."""
        if not self._closed:
            self._selector.select(limit_s)
        return self.messages()

    @property
    def is_over(self) -> bool:
        """Whether the process has ended and all its messages have been read.

        Processes forked by the user's code may keep the pipe open after its end.
        """
        if self._closed:
            self._await_end()
        return self._closed or (self._process.poll() is not None and not self._selector.select(0))

    def _await_end(self) -> None:
        """Wait for a process that closed its pipe; kill it if it keeps running."""
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def why(self) -> str:
        """How the process ended."""
        code = self._process.returncode
        if code is not None and code < 0:
            return f"the process ended by {signal_name(-code)}"
        return "the device was lost" if code == LOST else f"the process ended with code {code}"

    def interrupt(self) -> None:
        """Send Ctrl-C to the process, not to its compile workers."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """Kill the process and all its children."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._source >= 0:
            self._selector.close()
            os.close(self._source)
            self._source, self._closed = -1, True
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()


def command_for(module: str, descriptor: int, path: Sequence[str]) -> list[str]:
    """The command that runs a module of this package's `main` with an import path, and this descriptor as argument.

    Not with `-m`, which puts the working folder first on the path: there may be another checkout in it. Unbuffered, so
    that output of the user's code survives when the process is killed.
    """
    start = f"sys.path[:] = json.loads(sys.argv[2]); from autotuned.offline.workers.{module} import main; main()"
    return [sys.executable, "-u", "-c", f"import json, sys; {start}", str(descriptor), json.dumps(list(path))]


def printed_to() -> int | None:
    """This process's standard output, for its workers; None if it is not a file, as in a notebook."""
    try:
        return sys.stdout.fileno()
    except (OSError, ValueError, AttributeError):
        return None


def version() -> str:
    """This package's version, which workers on other hosts must match."""
    return str(sys.modules["autotuned"].__version__)


def signal_name(number: int) -> str:
    """A signal's name; real-time signals only have numbers."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
