"""Real servers on loopback for tests of the shared store, and a proxy that delays, cuts and truncates."""

import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any


def free_port() -> int:
    """A free port."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def is_open(port: int) -> bool:
    """Whether a server listens on a port."""
    with socket.socket() as one:
        one.settimeout(1.0)
        return one.connect_ex(("127.0.0.1", port)) == 0


class Server:
    """A process that listens on a port, until `close()`."""

    def __init__(self, *command: str, port: int, folder: Path) -> None:
        self.command, self.port, self.folder = command, port, folder
        self.start()

    def start(self) -> None:
        with open(self.folder / "server.log", "ab") as log:
            self._process = subprocess.Popen(self.command, cwd=self.folder, stdout=log, stderr=log)
        for _ in range(2000):
            if is_open(self.port):
                return
            assert self._process.poll() is None, (self.folder / "server.log").read_text()
            time.sleep(0.01)
        raise AssertionError("the server does not begin")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    close = kill


def redis_missing() -> str:
    """Why there is no Redis server to test with; "" if there is."""
    if shutil.which("redis-server") is None:
        return "needs redis-server (apt-get install redis-server)"
    try:
        import redis  # noqa: F401
    except ImportError:
        return "needs the package redis"
    return ""


def redis_server(folder: Path, *options: str) -> Server:
    """An empty Redis server without persistence."""
    port = free_port()
    command = ("redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", *options)
    return Server(*command, port=port, folder=folder)


def s3_missing() -> str:
    """Why there is no S3 server to test with; "" if there is."""
    try:
        import moto.server  # noqa: F401
        import s3fs  # noqa: F401
    except ImportError as error:
        return f"needs moto[server] and s3fs ({error})"
    return ""


def s3_server(folder: Path) -> Server:
    """An S3 server without buckets."""
    port = free_port()
    return Server(sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port), port=port, folder=folder)


class Proxy:
    """Stands between a client and a server.

    Attributes:
        delay_s: Delay of each answer, in seconds.
        most: Bytes of an answer after which the connection is cut; None for no limit.
        is_cut: Whether new connections are refused, and existing ones are cut.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self.delay_s, self.most, self.is_cut = 0.0, None, False
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Cut all connections, and refuse new ones."""
        self.is_cut = True
        for one in self._sockets:
            one.close()

    def close(self) -> None:
        self.cut()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.is_cut:
                client.close()
                continue
            server = socket.create_connection(("127.0.0.1", self._target))
            self._sockets += [client, server]
            threading.Thread(target=self._pump, args=(client, server, False), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, True), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, is_answer: bool) -> None:
        try:
            while data := source.recv(65536):
                if is_answer and self.delay_s:
                    time.sleep(self.delay_s)
                if is_answer and self.most is not None and len(data) > self.most:
                    sink.sendall(data[: self.most])
                    break
                sink.sendall(data)
        except OSError:
            pass
        finally:
            for one in (source, sink):
                with_error: Any = one
                try:
                    with_error.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
                one.close()
