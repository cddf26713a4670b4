"""Which config a process is about to launch for the first time, on disk, so that one that kills it is met only once."""

from __future__ import annotations

import logging
import os
import socket
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from autotuned import disk
from autotuned.key.key import Key
from autotuned.typed_json import PID_MAX, canonical, integer, texts, typed

log = logging.getLogger("autotuned")
_RUN = uuid.uuid4().hex  # in a container every process may have the same id
_MOST_BYTES = 16 << 20  # of identities of configs, some hundred bytes each


class Journal:
    """The journal of one search: a small file that is there only between two first launches, or after a crash.

    Written under the key's lock. A file that a living process of this machine is writing says nothing of a crash. Who
    ended in a first launch is not launched again by the next search. Who ended while it was compiled beside others may
    be blameless, as may be the process that was killed then: such a config is tried once more.

    Attributes:
        lost: Configs that cost a process its device.
        crashed: Configs in whose first launch a process ended.
        suspects: Configs that a process was compiling when it ended; they are tried once more, alone.

    Args:
        path: The file; None keeps no journal.
        key: Of the search; a journal of another key says nothing.
        writes: False for one who searches without the lock: what crashed is read, and nothing is written.
    """

    def __init__(self, path: Path | None, key: Key | None = None, writes: bool = True) -> None:
        self._key = None if key is None else {"kernel": key.kernel, **key.to_json()}
        self._path = path
        self._compiling: list[str] = []
        self._launching: str | None = None
        self._guard = threading.Lock()
        self.lost: list[str] = []
        self.crashed: list[str] = []
        self.suspects: list[str] = []
        self._look_back()
        if not writes:
            self._path = None

    def forget(self) -> None:
        """Try everything again."""
        self.lost, self.crashed, self.suspects = [], [], []

    def _look_back(self) -> None:
        if self._path is None:
            return
        try:
            data: Any = disk.read_json(self._path, _MOST_BYTES)
            said = _load(data)
            if canonical(said["key"]) != canonical(self._key):
                return
        except (OSError, ValueError):
            return  # no file, or nothing in it that says anything
        launching, compiling = ([], []) if _is_alive(said) else (said["launching"], said["compiling"])
        self.lost, self.crashed, self.suspects = said["lost"], said["crashed"] + launching, said["suspects"]
        for identity in compiling:
            (self.crashed if identity in said["suspects"] else self.suspects).append(identity)

    def begin(self, identity: str) -> None:
        """Note a config before it is launched for the first time."""
        with self._guard:
            self._launching = identity
            self._write()

    @contextmanager
    def compiling(self, identity: str) -> Iterator[None]:
        """Note a config while it is compiled: it, or another one beside it, or none, may be to blame for a crash."""
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
            self.lost.append(identity)
            self._launching = None
            self._write()

    def launched(self) -> None:
        """The launch is over; on disk at once: whoever kills the process from now on blames nobody for it."""
        with self._guard:
            self._launching = None
            self._write()

    def end(self) -> None:
        """All first launches are over: only what crashed, or may crash, is kept."""
        with self._guard:
            self._launching = None
            if self.lost or self.crashed or self.suspects:
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
        data = {"schema": 2, "key": self._key, "launching": self._launching, "compiling": [*self._compiling],
                "lost": [*self.lost], "crashed": [*self.crashed], "suspects": [*self.suspects],
                "pid": os.getpid(), "host": socket.gethostname(), "run": _RUN}  # fmt: skip
        try:
            disk.overwrite(self._path, disk.text(data))
        except OSError as error:
            log.debug("cannot write the journal %s: %s", self._path, error)
            self._path = None


def _load(data: Any) -> dict[str, Any]:
    """What a journal says.

    Raises:
        RecordError: It is none.
    """
    found = dict(typed(data, dict, "journal"))
    begun = found.get("launching")
    found["launching"] = [] if begun is None else [typed(begun, str, "launching")]
    for kind in ("compiling", "lost", "crashed", "suspects"):
        found[kind] = texts(found.get(kind), kind)
    integer(found.get("pid"), "pid", 1, PID_MAX)
    typed(found.get("key"), dict, "key")
    return found


def _is_alive(said: Mapping[str, Any]) -> bool:
    """Whether the process that wrote a journal still runs; one of another machine is told by the key's lock alone."""
    if said.get("host") != socket.gethostname():
        return False
    if said["pid"] == os.getpid():
        return bool(said.get("run") == _RUN)
    try:
        os.kill(said["pid"], 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return True
