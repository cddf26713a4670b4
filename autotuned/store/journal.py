"""Notes on disk which config is launched for the first time: one that kills the process is not launched again."""

from __future__ import annotations

import logging
import os
import socket
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from autotuned import disk
from autotuned.key.key import Key
from autotuned.typed_json import PID_MAX, canonical, integer, texts, typed

log = logging.getLogger("autotuned")
_RUN = uuid.uuid4().hex  # processes in containers may share an id
_MOST_BYTES = 16 << 20  # of identities of configs, some hundred bytes each


class Journal:
    """The journal of one search: a small file that exists only between first launches, or after a crash.

    Written under the key's lock; a file whose writer is alive proves no crash. A config whose first launch killed the
    process (`crashed`), or that cost a process its device (`lost`), is not launched again. One that was compiling
    (`suspects`) may not be the cause, since others compiled at the same time: it is tried once more, alone.

    Args:
        path: The file; None for no journal.
        key: The key of the search; a journal of another key is ignored.
        writes: False to only read the journal, when searching without the lock.
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
            return  # no file, or not a journal
        launching, compiling = ([], []) if _is_alive(said) else (said["launching"], said["compiling"])
        self.lost, self.crashed, self.suspects = said["lost"], said["crashed"] + launching, said["suspects"]
        for identity in compiling:
            (self.crashed if identity in said["suspects"] else self.suspects).append(identity)

    def begin(self, identity: str) -> None:
        """Note a config before its first launch."""
        with self._guard:
            self._launching = identity
            self._write()

    @contextmanager
    def compiling(self, identity: str) -> Iterator[None]:
        """Note a config while it compiles: after a crash it is one of the suspects."""
        self.note_compiling([identity])
        try:
            yield
        finally:
            with self._guard:
                self._compiling.remove(identity)  # written with the next config, or at the end

    def note_compiling(self, identities: Iterable[str]) -> None:
        """Note configs that compile beyond their search; `erase` when all have ended."""
        with self._guard:
            self._compiling.extend(identities)
            self._write()

    def died(self, identity: str) -> None:
        """Note that a config cost this process its device, so that the next process avoids it."""
        with self._guard:
            self.lost.append(identity)
            self._launching = None
            self._write()

    def launched(self) -> None:
        """Note at once that the launch is over, so that no config is blamed if the process is killed later."""
        with self._guard:
            self._launching = None
            self._write()

    def end(self) -> None:
        """End the first launches: keep only configs that are lost, crashed or suspects."""
        with self._guard:
            self._launching = None
            if self.lost or self.crashed or self.suspects:
                self._write()
            else:
                self.erase()

    def erase(self) -> None:
        """Remove the file: crashes are now in the record, or will be retried."""
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
    """A journal's content; RecordError if it is not one."""
    found = dict(typed(data, dict, "journal"))
    begun = found.get("launching")
    found["launching"] = [] if begun is None else [typed(begun, str, "launching")]
    for kind in ("compiling", "lost", "crashed", "suspects"):
        found[kind] = texts(found.get(kind), kind)
    integer(found.get("pid"), "pid", 1, PID_MAX)
    typed(found.get("key"), dict, "key")
    return found


def _is_alive(said: Mapping[str, Any]) -> bool:
    """Whether the journal's writer still runs; False on other machines, where only the key's lock shows it."""
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
