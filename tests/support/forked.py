"""Run Python programs in processes that start with torch and Triton imported, since importing takes seconds.

For programs that do not test start-up. A server process imports both once, without this package. It is forked for each
process of the test run that connects, and that fork is forked for each program. Settings that an interpreter reads at
start are the server's: `LD_LIBRARY_PATH`, hash seed, `-W`.
"""

import atexit
import contextlib
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

_SERVER = """
import atexit, contextlib, gc, importlib, json, os, socket, sys, threading, types, weakref
typer = "typer.main", "typer.rich_utils", "typer._adapters"
for name in ("numpy", "torch", "triton.language", "rich.live", "rich.table", *typer):
    with contextlib.suppress(ImportError):
        importlib.import_module(name)
with contextlib.suppress(ImportError):  # a key needs the hash of Triton's files, which takes half a second
    importlib.import_module("triton.runtime.cache").triton_key()
    if "TRITON_INTERPRET" not in os.environ:
        importlib.import_module("triton.experimental.gluon")
for one in weakref.finalize._registry:  # of torch's operators: to take them down takes longer than most programs
    one.atexit = False
gc.freeze()
listening = socket.socket(fileno=int(sys.argv[1]))
listening.settimeout(1.0)
while True:  # fork for each process that connects, until the last one has ended
    try:
        asking, _ = listening.accept()
    except TimeoutError:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            os._exit(0)
        continue
    if os.fork() == 0:
        break
    asking.close()
listening.close()
asking.sendall(b"+")
while True:
    length, ends, *_ = socket.recv_fds(asking, 4, 3)
    if not length:
        os._exit(0)
    asked = json.loads(asking.recv(int.from_bytes(length, "little"), socket.MSG_WAITALL))
    if "wait" in asked:
        answer = os.waitstatus_to_exitcode(os.waitpid(asked["wait"], 0)[1])
    else:
        answer = os.fork()
        if answer == 0:
            break
    for end in ends:
        os.close(end)
    asking.sendall(answer.to_bytes(4, "little", signed=True))
asking.close()
for number, end in enumerate(ends):
    os.dup2(end, number)
    os.close(end)
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

_PYTHONPATH = os.environ.get("PYTHONPATH", "")  # before any test sets it
RUN = "PYTEST_FORKED_RUN"  # identifies the run whose processes share servers
_run = os.environ.get(RUN) or uuid.uuid4().hex


class Server:
    """A connection to the server, which the first process of the run that needs it starts.

    Args:
        environment: Its environment variables; those in `_SAME` apply to all programs.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._same = {name: environment.get(name) for name in _SAME}
        own = {**environment, "PYTHONPATH": _PYTHONPATH}  # searched by all programs, so without a test's folders
        words = _run, sys.executable, _PYTHONPATH, sorted(self._same.items())
        address = "\0" + hashlib.sha256(repr(words).encode()).hexdigest()  # abstract: there is no file
        begun = 0
        while not self._connected(address):
            begun += _begin(address, own)
            assert begun < 3, "the server does not start"
        atexit.register(self._asking.close)

    def _connected(self, address: str) -> bool:
        self._asking = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(ConnectionError):
            self._asking.connect(address)
            if self._asking.recv(1):  # nothing if it was about to end
                return True
        self._asking.close()
        return False

    def run(
        self, command: Sequence[str | Path], env: Mapping[str, str] | None = None, cwd: Path | str | None = None,
        timeout: float = 120, check: bool = False,
    ) -> "subprocess.CompletedProcess[str]":  # fmt: skip
        """Like `subprocess.run` with output captured as text.

        Args:
            command: This Python with "-c" and a program or with a file, and arguments.
        """
        with tempfile.TemporaryDirectory() as place:
            files = [f"{place}/{name}" for name in ("stdout", "stderr")]
            with open(os.devnull) as nothing, open(files[0], "w") as out, open(files[1], "w") as err:
                pid = self._start(command, env, cwd, [nothing.fileno(), out.fileno(), err.fileno()])
            status = self._ended(pid, timeout)
            done = subprocess.CompletedProcess(command, status, *(Path(file).read_text() for file in files))
        if status is None:
            raise subprocess.TimeoutExpired(command, timeout, done.stdout, done.stderr)
        if check:
            done.check_returncode()
        return done

    def start(
        self, command: Sequence[str | Path], env: Mapping[str, str] | None = None, cwd: Path | str | None = None,
        stderr: int = 2,
    ) -> "Program":  # fmt: skip
        """Like `subprocess.Popen` with pipes for text; stderr is the tests' own, or an open file's number."""
        (theirs_in, ours_in), (ours_out, theirs_out) = os.pipe(), os.pipe()
        try:
            pid = self._start(command, env, cwd, [theirs_in, theirs_out, stderr])
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
        return Program(self, pid, ours_in, ours_out)

    def _start(
        self, command: Sequence[str | Path], env: Mapping[str, str] | None, cwd: Path | str | None, ends: Sequence[int]
    ) -> int:
        python, *words = map(str, command)
        environment, folder = dict(os.environ if env is None else env), os.path.abspath(cwd or os.getcwd())
        assert python == sys.executable and self._same == {name: environment.get(name) for name in _SAME}
        code, argv = (words[1], ["-c", *words[2:]]) if words[0] == "-c" else (None, words)
        first = "" if code is not None else str(Path(folder, words[0]).parent.resolve())
        asked = {"code": code, "argv": argv, "first": first, "environment": environment, "folder": folder}
        return self.ask(asked, ends)

    def ask(self, asked: Mapping[str, object], ends: Sequence[int] = ()) -> int:
        """Send the server a request, with open files; returns its answer."""
        text = json.dumps(asked).encode()
        socket.send_fds(self._asking, [len(text).to_bytes(4, "little")], ends)
        self._asking.sendall(text)
        answer = self._asking.recv(4, socket.MSG_WAITALL)
        assert len(answer) == 4, "the process that is forked has ended"
        return int.from_bytes(answer, "little", signed=True)

    def _ended(self, pid: int, timeout: float) -> int | None:
        """The exit status of a program; None if it was killed after a timeout."""
        late = threading.Event()

        def kill() -> None:
            late.set()
            os.kill(pid, signal.SIGKILL)

        timer = threading.Timer(timeout, kill)
        timer.start()
        status = self.ask({"wait": pid})
        timer.cancel()
        return None if late.is_set() else status


def _begin(address: str, environment: Mapping[str, str]) -> bool:
    """Start the server that listens at this address, unless another process is starting it."""
    with socket.socket(socket.AF_UNIX) as listening:
        try:
            listening.bind(address)
        except OSError:  # the address is in use
            return False
        listening.listen(64)
        command = [sys.executable, "-c", _SERVER, str(listening.fileno())]
        # It may outlive this process, for others: nobody waits for it or for the end of its output.
        nothing = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        server = subprocess.Popen(command, env=environment, pass_fds=[listening.fileno()], **nothing)
        server.returncode = 0  # or Python would warn that it still runs
    return True


class Program:
    """A running program, with the interface of `subprocess.Popen`."""

    def __init__(self, server: Server, pid: int, stdin: int, stdout: int) -> None:
        self._server, self.pid = server, pid
        self.returncode: int | None = None
        self.stdin, self.stdout = os.fdopen(stdin, "w"), os.fdopen(stdout)

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the program has ended and was waited for."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def wait(self) -> int:
        """Wait for its end; returns its exit status."""
        if self.returncode is None:
            self.returncode = self._server.ask({"wait": self.pid})
        return self.returncode

    def finish(self) -> str:
        """The rest of its output, once it has ended; closes its pipes."""
        with self.stdin, self.stdout:
            rest = self.stdout.read()
        self.wait()
        return rest


_servers: dict[tuple[int, tuple[str | None, ...]], Server] = {}


def run(
    command: Sequence[str | Path], env: Mapping[str, str] | None = None, cwd: Path | str | None = None,
    timeout: float = 120, check: bool = False,
) -> "subprocess.CompletedProcess[str]":  # fmt: skip
    """`Server.run` of this run's server for these start-up settings."""
    return _server(env).run(command, env, cwd, timeout, check)


def start(
    command: Sequence[str | Path], env: Mapping[str, str] | None = None, cwd: Path | str | None = None,
    stderr: int = 2,
) -> Program:  # fmt: skip
    """`Server.start` of the same."""
    return _server(env).start(command, env, cwd, stderr)


def _server(env: Mapping[str, str] | None) -> Server:
    given = os.environ if env is None else env
    key = os.getpid(), tuple(given.get(name) for name in _SAME)
    if key not in _servers:
        own = {name: value for name, value in os.environ.items() if name not in _SAME}
        _servers[key] = Server(own | {name: value for name in _SAME if (value := given.get(name)) is not None})
    return _servers[key]
