"""Which config a process is about to launch for the first time, on disk, so that one that kills it is met only once."""

from __future__ import annotations

import logging
import os
import socket
import uuid
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
        crashed: Configs that cost a process its device, or in whose first launch two processes ended.
        suspects: Configs in whose first launch one process ended; they are tried once more.

    Args:
        path: The file; None keeps no journal.
        writes: False for one who searches without the lock: what crashed is read, and nothing is written.
    """

    def __init__(self, path: Path | None, writes: bool = True) -> None:
        self._path = path
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
            if data["launching"] is not None and not _is_alive(data):
                (crashed if data["launching"] in suspects else suspects).append(str(data["launching"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return [], []  # no file, or nothing in it that says anything
        return crashed, suspects

    def begin(self, identity: str) -> None:
        """Note a config before it is compiled and launched for the first time."""
        self._write(identity)

    def died(self, identity: str) -> None:
        """Note that a config cost this process its device: the next process must not try it."""
        self.crashed.append(identity)
        self._write(None)

    def end(self) -> None:
        """All first launches are over: only what crashed, or may crash, is kept."""
        if self.crashed or self.suspects:
            self._write(None)
        else:
            self.erase()

    def erase(self) -> None:
        """Remove the file: what crashed is in the record now, or is to be tried again."""
        if self._path is not None:
            disk.remove(self._path)

    def _write(self, launching: str | None) -> None:
        if self._path is None:
            return
        data = {"schema": 1, "launching": launching, "crashed": [*self.crashed], "suspects": [*self.suspects],
                "pid": os.getpid(), "host": socket.gethostname(), "run": _RUN}  # fmt: skip
        try:
            disk.write_text(self._path, disk.text(data))
        except OSError as error:
            log.debug("cannot write the journal %s: %s", self._path, error)
            self._path = None


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
