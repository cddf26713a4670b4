"""The process that compile workers are forked from: it sees no GPU, has imported the targets, and kills workers."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

from autotuned.errors import described
from autotuned.offline import cases
from autotuned.triton_compat import cache, compiled, kernel

PR_SET_PDEATHSIG = 1  # from Linux's <sys/prctl.h>


def main() -> None:
    """Import the targets, report the known kernels, and fork workers until the parent ends."""
    _end_with_parent(signal.SIGKILL)  # it does not read the channel yet
    channel = socket.socket(fileno=int(sys.argv[1]))
    try:
        kernels = _kernels(json.loads(channel.recv(1 << 20)))
        compiled.prepare_compiler()
    except Exception as error:  # a module that needs to see a GPU may raise anything
        channel.send(json.dumps({"failed": described(error)[: 1 << 16]}).encode())
        return
    sys.stdout.flush()  # otherwise each worker would write it again
    with contextlib.suppress(OSError):  # the parent has ended; the next read detects it
        channel.send(json.dumps({"kernels": list(kernels)}).encode())
    _end_with_parent(0)  # from now on the end of the channel is detected, and workers are killed first
    _serve(channel, kernels)


def _kernels(targets: list[str]) -> dict[str, Any]:
    """The targets' tuned kernels that can be compiled ahead, by name."""
    tunables = (found.tuner.tunable for found in cases.load(targets) if found.tuned is not None)  # None: it is gone
    return {tunable.name: kernel.innermost(tunable.fn) for tunable in tunables if tunable.compiles_ahead}


def _serve(channel: socket.socket, kernels: dict[str, Any]) -> NoReturn:
    workers: set[int] = set()
    while True:
        data, descriptors = _asked(channel)
        if not data:  # the parent has ended
            for pid in list(workers):
                _end(pid, workers)
            os._exit(0)
        command = json.loads(data)
        if command["do"] == "end":
            answer = _end(command["pid"], workers)
        else:
            answer = _fork(channel, descriptors[0], kernels)
            workers.add(answer)
        with contextlib.suppress(OSError):
            channel.send(str(answer).encode())


def _asked(channel: socket.socket) -> tuple[bytes, list[int]]:
    try:
        return socket.recv_fds(channel, 1 << 12, 1)[:2]
    except ConnectionResetError:  # the parent was killed with an answer unread
        return b"", []


def _end(pid: int, workers: set[int]) -> int:
    """Kill a worker and its children, and wait for it: until then its pid cannot be reused."""
    workers.discard(pid)
    for kill in (os.killpg, os.kill):  # its group may not exist yet
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _fork(channel: socket.socket, descriptor: int, kernels: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        os.close(descriptor)
        return pid
    try:
        os.setpgid(0, 0)
        _end_with_parent(signal.SIGKILL)
        channel.close()
        _work(Connection(descriptor), kernels)
    finally:
        os._exit(0)


def _work(connection: Connection, kernels: dict[str, Any]) -> None:
    while True:
        try:
            name, parts, folder = connection.recv()
        except EOFError:
            return
        connection.send("begun")
        connection.send(_compiled(kernels[name], parts, folder))
        sys.stdout.flush()


def _compiled(kernel: Any, parts: tuple[Any, ...], folder: str | None) -> tuple[str, str]:
    try:
        with cache.same_as(None if folder is None else Path(folder)):
            return "done", compiled.compile_specialization(kernel, parts)
    except Exception as error:  # of the kernel, or of this process only: the caller compiles again to find out
        return "failed", described(error)


def _end_with_parent(number: int) -> None:
    """Let the operating system send this process a signal when its parent ends; 0 for none."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)


if __name__ == "__main__":
    main()
