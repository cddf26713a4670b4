"""Programs whose imports are done already: each is forked off a process that has done them once, and is itself new.

Torch and Triton take 3 s of a processor to import. Not for tests of imports, of options of Python, or of what a process
does at its very end.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import NoReturn


class Program:
    """One of them, as `subprocess.Popen` would start it: with its pipes, in text."""

    def __init__(self, forks: Forks, pid: int, pipes: Sequence[int]) -> None:
        self._forks, self.pid = forks, pid
        self.stdin, self.stdout, self.stderr = (os.fdopen(end, mode) for end, mode in zip(pipes, ("w", "r", "r")))
        self._ended: int | None = None

    def send_signal(self, number: int) -> None:
        if self._ended is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self) -> int:
        """Its exit code, once it has ended."""
        if self._ended is None:
            self._ended = self._forks.ask({"wait": self.pid})
        return self._ended

    def close(self) -> None:
        """End it, and forget it."""
        self.kill()
        self.wait()
        for stream in (self.stdin, self.stdout, self.stderr):
            stream.close()

    def said(self) -> str:
        """What it has printed when it has ended; it must succeed."""
        self.stdin.close()
        out, err = self.stdout.read(), self.stderr.read()  # errors of a test are short
        assert self.wait() == 0, err
        self.close()
        return out


class Forks:
    """The process with the imports; `environment` is its own, and that of programs where `start` is given no other.

    Args:
        loads: Modules to import; of `module:function`, the function is called too.
    """

    def __init__(self, *loads: str, environment: Mapping[str, str] | None = None) -> None:
        self._environment = dict(environment if environment is not None else os.environ)
        self._here, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, __file__, str(theirs.fileno()), *loads]
            self._process = subprocess.Popen(command, env=self._environment, pass_fds=[theirs.fileno()])

    def start(self, *command: str, cwd: object = None, environment: Mapping[str, str] | None = None) -> Program:
        """Run a script, or the text after `-c`, with its arguments."""
        pipes = [os.pipe() for _ in range(3)]
        theirs, ours = [pipes[0][0], pipes[1][1], pipes[2][1]], [pipes[0][1], pipes[1][0], pipes[2][0]]
        asked = {
            "command": command,
            "cwd": str(cwd or os.getcwd()),
            "environment": dict(environment or self._environment),
        }
        try:
            return Program(self, self.ask(asked, theirs), ours)
        finally:
            for end in theirs:
                os.close(end)

    def ask(self, asked: object, ends: Sequence[int] = ()) -> int:
        """What the process answers."""
        text = json.dumps(asked).encode()
        socket.send_fds(self._here, [len(text).to_bytes(4, "little")], ends)
        self._here.sendall(text)
        answer = self._here.recv(4, socket.MSG_WAITALL)
        assert len(answer) == 4, "the process with the imports has ended"
        return int.from_bytes(answer, "little", signed=True)

    def close(self) -> None:
        """End it."""
        self._here.close()
        self._process.wait(60)


def _serve(there: socket.socket) -> None:
    while True:
        length, ends, *_ = socket.recv_fds(there, 4, 3)
        if not length:
            return
        asked = json.loads(there.recv(int.from_bytes(length, "little"), socket.MSG_WAITALL))
        if "wait" in asked:
            answer = os.waitstatus_to_exitcode(os.waitpid(asked["wait"], 0)[1])
        else:
            answer = os.fork()
            if answer == 0:
                there.close()
                _become(asked, ends)
            for end in ends:
                os.close(end)
        there.sendall(answer.to_bytes(4, "little", signed=True))


def _become(asked: dict, ends: Sequence[int]) -> NoReturn:
    code = 1
    try:
        for place, end in enumerate(ends):
            os.dup2(end, place)
            os.close(end)
        os.environ.clear()
        os.environ.update(asked["environment"])
        os.chdir(asked["cwd"])
        first, *rest = asked["command"]
        sys.argv = [first, *rest[first == "-c" :]]
        if first == "-c":
            sys.path[0] = ""
            exec(compile(rest[0], "<string>", "exec"), vars(sys.modules["__main__"]))
        else:
            sys.path[0] = os.path.dirname(first)
            runpy.run_path(first, run_name="__main__")
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    for load in sys.argv[2:]:
        name, _, function = load.partition(":")
        module = importlib.import_module(name)
        if function:
            getattr(module, function)()
    _serve(socket.socket(fileno=int(sys.argv[1])))
