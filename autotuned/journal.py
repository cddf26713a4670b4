"""Which config a process is about to launch for the first time, on disk, so that one that kills it is met only once."""

from __future__ import annotations

import logging
import os
import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from autotuned import disk

log = logging.getLogger("autotuned")
_RUN = uuid.uuid4().hex  # in a container every process may have the same id


class Journal:
    """The journal of one search: a small file that is there only between two first launches, or after a crash.

    Written under the key's lock. A file that a living process of this machine is writing says nothing of a crash. Nor
    does one death alone: a job that is cancelled, or killed for its memory, ends in somebody's launch too.

    Attributes:
        crashed: Configs that cost a process its device, or on which two processes ended.
        suspects: Configs that a process was compiling or launching when it ended; they are tried once more, alone.

    Args:
        path: The file; None keeps no journal.
        writes: False for one who searches without the lock: what crashed is read, and nothing is written.
    """

    def __init__(self, path: Path | None, writes: bool = True) -> None:
        self._path = path
        self._compiling: list[str] = []
        self._launching: str | None = None
        self._guard = threading.Lock()
        self.crashed, self.suspects = self._left_behind()
        if not writes:
            self._path = None

    def _left_behind(self) -> tuple[list[str], list[str]]:
        if self._path is None:
            return [], []
        try:
            data: Any = disk.read_json(self._path)
            crashed = [str(identity) for identity in data["crashed"]]
            suspects = [str(identity) for identity in data.get("suspects", ())]
            for identity in [] if _is_alive(data) else _underway(data):
                (crashed if identity in suspects else suspects).append(identity)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return [], []  # no file, or nothing in it that says anything
        return crashed, suspects

    def begin(self, identity: str) -> None:
        """Note a config before it is compiled alone, or launched for the first time."""
        with self._guard:
            self._launching = identity
            self._write()

    @contextmanager
    def compiling(self, identity: str) -> Iterator[None]:
        """Note a config while a thread compiles it, beside others: none of them can be blamed for a crash by itself."""
        with self._guard:
            self._compiling.append(identity)
            self._write()
        try:
            yield
        finally:
            with self._guard:
                self._compiling.remove(identity)  # on disk with the next that begins, or at the end

    def died(self, identity: str) -> None:
        """Note that a config cost this process its device: the next process must not try it."""
        with self._guard:
            self.crashed.append(identity)
            self._launching = None
            self._write()

    def launched(self) -> None:
        """The launch is over; on disk with the next that begins, sooner only while others are compiled beside it."""
        with self._guard:
            self._launching = None
            if self._compiling:
                self._write()

    def end(self) -> None:
        """All first launches are over: only what crashed, or may crash, is kept."""
        with self._guard:
            self._launching = None
            if self.crashed or self.suspects:
                self._write()
            else:
                self.erase()

    def erase(self) -> None:
        """Remove the file: what crashed is in the record now, or is to be tried again."""
        if self._path is not None:
            disk.remove(self._path)

    def _write(self) -> None:
        if self._path is None:
            return
        data = {"schema": 1, "launching": self._launching, "compiling": [*self._compiling],
                "crashed": [*self.crashed], "suspects": [*self.suspects],
                "pid": os.getpid(), "host": socket.gethostname(), "run": _RUN}  # fmt: skip
        try:
            disk.overwrite(self._path, disk.text(data))
        except OSError as error:
            log.debug("cannot write the journal %s: %s", self._path, error)
            self._path = None


def _underway(data: Any) -> list[str]:
    """What a process was launching, and what it was compiling beside that."""
    launching = [] if data["launching"] is None else [str(data["launching"])]
    return launching + [str(identity) for identity in data.get("compiling", ())]


def _is_alive(data: Any) -> bool:
    """Whether the process that wrote a journal still runs; one of another machine is told by the key's lock alone."""
    if data["host"] != socket.gethostname():
        return False
    if data["pid"] == os.getpid():
        return bool(data["run"] == _RUN)
    try:
        os.kill(int(data["pid"]), 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return True
