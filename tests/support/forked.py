"""Programs of Python run in processes of their own that begin with torch and Triton imported, which takes seconds.

For programs that are not about how a process starts. A process imports both once, without this package, and is forked
for each program. What an interpreter reads as it starts is that process's: `LD_LIBRARY_PATH`, hash seed, `-W`.
"""

import atexit
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

_SERVER = """
import atexit, gc, json, os, sys, threading, types
import numpy, torch, triton, triton.language, rich, typer
gc.freeze()
for line in sys.stdin:
    asked = json.loads(line)
    pid = os.fork()
    if pid == 0:
        break
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
else:
    os._exit(0)
for number, name in enumerate((os.devnull, *asked["files"])):
    os.dup2(os.open(name, os.O_RDWR), number)
os.environ.clear()
os.environ.update(asked["environment"])
os.chdir(asked["folder"])
sys.stdin = open(0)
sys.argv[:], code = asked["argv"], asked["code"]
sys.path[:0] = [asked["first"], *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
main = sys.modules["__main__"] = types.ModuleType("__main__")
if code is None:
    main.__file__ = sys.argv[0]
    code = compile(open(sys.argv[0]).read(), sys.argv[0], "exec")
status = 0
try:
    exec(code, vars(main))
except SystemExit as ended:
    status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    print(*[ended.code] * isinstance(ended.code, str), end="\\n" * isinstance(ended.code, str), file=sys.stderr)
except BaseException:
    sys.excepthook(*sys.exc_info())
    status = 1
threading._shutdown()
atexit._run_exitfuncs()
sys.stdout.flush()
os._exit(status)  # taking down all that was imported takes as long as importing it
"""
_SAME = (
    "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONHASHSEED", "PYTHONIOENCODING", "PYTHONUTF8", "PYTHONWARNINGS", "TRITON_INTERPRET"
)  # fmt: skip


class Server:
    """The process that is forked.

    Args:
        environment: Its own environment variables: those of `_SAME` are also those of all programs.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._same = {name: environment.get(name) for name in _SAME}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SERVER],
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        atexit.register(self.end)

    def end(self) -> None:
        """Once no program runs any more."""
        self._process.communicate()

    def run(
        self, command: Sequence[str | Path], env: Mapping[str, str] | None = None, cwd: Path | str | None = None,
        timeout: float = 120, check: bool = False,
    ) -> "subprocess.CompletedProcess[str]":  # fmt: skip
        """As `subprocess.run` with output captured as text.

        Args:
            command: This Python with "-c" and a program or with a file, and arguments.
        """
        python, *words = map(str, command)
        environment, folder = dict(os.environ if env is None else env), os.path.abspath(cwd or os.getcwd())
        assert python == sys.executable and self._same == {name: environment.get(name) for name in _SAME}
        code, argv = (words[1], ["-c", *words[2:]]) if words[0] == "-c" else (None, words)
        first = "" if code is not None else str(Path(folder, words[0]).parent.resolve())
        with tempfile.TemporaryDirectory() as place:
            files = [f"{place}/{name}" for name in ("stdout", "stderr")]
            for file in files:
                Path(file).touch()
            asked = {"code": code, "argv": argv, "first": first, "files": files, "environment": environment}
            status = self._asked({**asked, "folder": folder}, timeout)
            done = subprocess.CompletedProcess(command, status, *(Path(file).read_text() for file in files))
        if status is None:
            raise subprocess.TimeoutExpired(command, timeout, done.stdout, done.stderr)
        if check:
            done.check_returncode()
        return done

    def _asked(self, asked: Mapping[str, object], timeout: float) -> int | None:
        """The exit status of a program; None if it was killed for its time."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        late, pid = threading.Event(), int(self._process.stdout.readline())

        def kill() -> None:
            late.set()
            os.kill(pid, signal.SIGKILL)

        timer = threading.Timer(timeout, kill)
        timer.start()
        status = int(self._process.stdout.readline())
        timer.cancel()
        return None if late.is_set() else status


_servers: dict[tuple[int, tuple[str | None, ...]], Server] = {}


def run(
    command: Sequence[str | Path], env: Mapping[str, str] | None = None, cwd: Path | str | None = None,
    timeout: float = 120, check: bool = False,
) -> "subprocess.CompletedProcess[str]":  # fmt: skip
    """`Server.run` of a server of this process: one for each set of what an interpreter reads as it starts."""
    given = os.environ if env is None else env
    key = os.getpid(), tuple(given.get(name) for name in _SAME)
    if key not in _servers:
        own = {name: value for name, value in os.environ.items() if name not in _SAME}
        _servers[key] = Server(own | {name: value for name in _SAME if (value := given.get(name)) is not None})
    return _servers[key].run(command, env, cwd, timeout, check)
