"""Compile workers of a measuring process, killed if they take too long."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from autotuned import env
from autotuned.errors import LeftOutError
from autotuned.offline.workers import process

log = logging.getLogger("autotuned")
# Compiling needs no GPU, and a process that sees none cannot disturb measurements or take device memory.
_BLIND = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": ""}
BEGIN_S = 20.0  # a forked process that is silent for longer has failed before it began the config


class _LostError(Exception):
    """The server has ended."""


class _Worker:
    """A process that compiles one config after the other."""

    def __init__(self, pid: int, connection: Connection) -> None:
        self.pid, self._connection = pid, connection

    def ask(self, request: Any, limit_s: float, begun: Callable[[], None]) -> tuple[str, str] | None:
        """The answer to a request; None if the process ended or timed out. OSError or EOFError if it did not begin."""
        self._connection.send(request)
        if not self._connection.poll(BEGIN_S) or self._connection.recv() != "begun":
            raise EOFError("a compile worker does not start")
        begun()
        try:
            answer: tuple[str, str] | None = self._connection.recv() if self._connection.poll(limit_s) else None
            return answer
        except EOFError:
            return None

    def close(self) -> None:
        self._connection.close()


class CompileWorkers:
    """Compile workers: blind to GPUs, forked on demand from a server process that has imported Triton and the targets.

    Until the server is ready, and for kernels it does not know, `compile` returns None and the caller compiles.
    Binaries are passed through Triton's cache on disk.

    Args:
        targets: As for `tune`.
        limit_s: Time limit for one config, in seconds.
    """

    def __init__(self, targets: Sequence[str], limit_s: float) -> None:
        self._limit_s = limit_s
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = process.command_for("compile_server", theirs.fileno(), sys.path)
        # In its own process group, so that it outlives a killed measuring process and can kill the workers.
        self._server = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=sys.__stderr__, pass_fds=[theirs.fileno()],
            start_new_session=True, env=env.changed(_BLIND),
        )  # fmt: skip
        theirs.close()
        self._guard = threading.Lock()  # one request to the server at a time
        self._kernels: set[str] | None = None
        self._given_up: set[str] = set()  # kernels whose binaries are not found
        self._idle: list[_Worker] = []
        self._over = ""
        self.compiled = 0
        with contextlib.suppress(OSError):
            self._channel.send(json.dumps(list(targets)).encode())

    def compile(
        self, kernel: str, parts: tuple[Any, ...], folder: Path | None, begun: Callable[[], None]
    ) -> str | None:
        """Compile one config of a kernel into Triton's cache or a scratch folder.

        Args:
            kernel: The kernel's name.
            parts: From `compiled.specialization`.
            folder: The scratch folder; None for Triton's cache.
            begun: Called when the compilation begins.

        Returns:
            The binary's hash in Triton's cache; "" if it failed in the worker and should be tried here; None if it
            was not tried.

        Raises:
            LeftOutError: The config timed out or crashed its process.
            MemoryError: The process was killed from outside, probably for lack of memory.
        """
        if not self._knows(kernel):
            return None
        try:
            worker = self._take()
        except _LostError as error:
            self._end(str(error))
            return None
        start = time.monotonic()
        try:
            answer = worker.ask((kernel, parts, None if folder is None else str(folder)), self._limit_s, begun)
        except Exception as error:  # pickling arbitrary values may raise anything
            self._dispose(worker)
            self._give_up(kernel, f"{type(error).__name__}: {error}")
            return None
        if answer is None:
            raise self._why(self._dispose(worker), time.monotonic() - start)
        with self._guard:
            self._idle.append(worker)
        return self._told(kernel, *answer)

    def missed(self, kernel: str) -> None:
        """Note that a worker's binary was not found: from now on this process compiles that kernel itself."""
        self._give_up(kernel, "their binaries are not found in Triton's cache")

    def close(self) -> None:
        """End all processes."""
        with self._guard:
            self._channel.close()
        self._over = self._over or "closed"
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._server.wait(1.0)
            return
        self._server.kill()
        self._server.wait()

    # -- known kernels -------------------------------------------------------------------------------------------

    def _knows(self, kernel: str) -> bool:
        with self._guard:
            if self._kernels is None and not self._over and select.select([self._channel], [], [], 0)[0]:
                self._take_kernels()
            return not self._over and kernel in (self._kernels or ()) and kernel not in self._given_up

    def _take_kernels(self) -> None:
        try:
            answer = json.loads(self._channel.recv(1 << 20))
        except (OSError, ValueError):
            answer = {"failed": "their server has ended"}
        self._kernels, self._over = set(answer.get("kernels", ())), answer.get("failed", "")
        if self._over:
            log.info("compile workers: %s; configs are compiled by threads.", self._over)

    def _told(self, kernel: str, kind: str, text: str) -> str:
        self.compiled += kind == "done"
        if kind != "done":
            log.debug("`%s`: a compile worker says: %s", kernel, text)
        return text if kind == "done" else ""

    def _give_up(self, kernel: str, why: str) -> None:
        with self._guard:
            if kernel in self._given_up:
                return
            self._given_up.add(kernel)
        log.warning("`%s`: compile workers are no longer used: %s. Threads compile instead.", kernel, why)

    def _end(self, why: str) -> None:
        if not self._over:
            self._over = why
            log.warning("compile workers: %s; configs are compiled by threads from now on.", why)

    # -- processes -----------------------------------------------------------------------------------------------

    def _take(self) -> _Worker:
        with self._guard:
            if self._idle:
                return self._idle.pop()
        mine, theirs = socket.socketpair()
        try:
            pid = self._ask({"do": "fork"}, [theirs.fileno()])
        except _LostError:
            mine.close()
            raise
        finally:
            theirs.close()
        return _Worker(pid, Connection(mine.detach()))

    def _dispose(self, worker: _Worker) -> int:
        """Kill a worker and its children; returns its exit code as `os.waitstatus_to_exitcode` does."""
        try:
            return self._ask({"do": "end", "pid": worker.pid})
        except _LostError as error:
            self._end(str(error))
            return -signal.SIGKILL
        finally:
            worker.close()

    def _ask(self, command: dict[str, Any], descriptors: Sequence[int] = ()) -> int:
        """Send the server a command; returns its answer, a number."""
        with self._guard:
            try:
                socket.send_fds(self._channel, [json.dumps(command).encode()], descriptors)
                return int(self._channel.recv(64))
            except (OSError, ValueError) as error:
                raise _LostError(f"their server has ended ({type(error).__name__}: {error})") from error

    def _why(self, code: int, seconds: float) -> Exception:
        if seconds >= self._limit_s:
            return LeftOutError(f"TimedOut: not compiled within {self._limit_s:g} s", seconds=seconds)
        if code == -signal.SIGKILL:
            return MemoryError("a compile worker was killed, probably for lack of memory")
        how = f"by {process.signal_name(-code)}" if code < 0 else f"with code {code}"
        return LeftOutError(f"Crashed: the compiler ended {how}", seconds=seconds)


def are_wanted() -> bool:
    """Whether this system supports compile workers, and more than one compilation at once is allowed."""
    asked = env.compile_workers()
    return sys.platform == "linux" and hasattr(os, "fork") and (asked is None or asked > 1)
