"""The file of recorded calls, one JSON line each: appended to by many processes, read and merged."""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

from autotuned import disk
from autotuned.errors import RecordingError
from autotuned.key.key import Key, load_key
from autotuned.typed_json import Json, digest, integer, typed, wrong

log = logging.getLogger("autotuned")

SCHEMA = 1
SUFFIX = ".jsonl"
_CHUNK = 1 << 20  # bytes to read at once
_FIELDS = {"schema": int, "kernel": str, "target": str, "key": dict, "arguments": dict}


def misnamed(path: Path) -> str:
    """Why commands would not take a file for a recording, whatever it holds; "" if they would."""
    if path.suffix == SUFFIX:
        return ""
    return f"expected a file whose name ends in {SUFFIX}, as `autotuned tune` takes it, got {str(path)!r}"


@dataclass
class RecordedCall:
    """A distinct call."""

    kernel: str  # name of the kernel
    target: str  # where to import it from, as for `autotuned tune`
    key: Key  # in the context in which it was made
    arguments: Json  # from `arguments.describe`; positional ones are named by position
    grid: Json  # from `grids`; None for plain callables
    count: int = 1  # how often it was made

    def to_json(self) -> dict[str, Json]:
        """Its line in the file, without identity and count."""
        return {
            "schema": SCHEMA,
            "kernel": self.kernel,
            "target": self.target,
            "key": self.key.to_json(),
            "arguments": self.arguments,
            "grid": self.grid,
        }

    @cached_property
    def identity(self) -> str:
        """Equal for the same call in any process."""
        return digest(self.to_json())[:32]

    def line(self) -> str:
        """Its line in the file."""
        return disk.text({"id": self.identity, **self.to_json(), "count": self.count})


class Writer:
    """Appends lines to a file, each with one system call, so that lines of several processes do not mix.

    Raises:
        OSError: The file cannot be opened, or is a pipe, for whose reader the program would wait.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0)
        self._descriptor = os.open(path, flags, 0o666)
        status = os.fstat(self._descriptor)
        if not stat.S_ISREG(status.st_mode):
            self.close()
            raise OSError(errno.EINVAL, "expected a plain file, got a pipe or device", str(path))
        if status.st_size:  # a killed process may have left a partial line
            disk.write_all(self._descriptor, b"\n")

    def call(self, recorded: RecordedCall) -> None:
        """Write a new call."""
        disk.write_all(self._descriptor, recorded.line().encode())

    def more(self, counts: Mapping[str, int]) -> None:
        """Write further counts."""
        for identity, count in counts.items():
            disk.write_all(self._descriptor, disk.text({"id": identity, "more": count}).encode())

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def read(path: Path) -> list[RecordedCall]:
    """The distinct calls of a file, most frequent first; skips invalid lines with a warning.

    Raises:
        RecordingError: The file is missing or unreadable, or has no call.
    """
    gathered = Gathered()
    with _reading(path):
        for line in disk.lines(path):
            gathered.add(line)
    if not gathered.calls:
        raise RecordingError(f"{path}: {_nothing_in(path, gathered.strange, gathered.others)}", path=str(path))
    if gathered.strange:
        message = "%s: %d of its lines are not recorded calls%s and are skipped."
        log.warning(message, path, gathered.strange, gathered.others)
    return sorted(gathered.calls.values(), key=lambda call: -call.count)


class Gathered:
    """The merged lines of a recording."""

    def __init__(self) -> None:
        self.calls: dict[str, RecordedCall] = {}  # distinct calls by identity, with their counts
        self.strange = 0  # number of invalid lines
        self._more: dict[str, int] = {}  # counts of calls whose own line comes later
        self._schemas: set[int] = set()

    @property
    def others(self) -> str:
        """Schemas of other versions among the lines, as text, or ""."""
        schemas = ", ".join(map(str, sorted(self._schemas)))
        return f" (schema {schemas}; this version reads {SCHEMA})" if schemas else ""

    def add(self, line: bytes) -> None:
        """Add a line."""
        try:
            self._add(disk.parse_json(line))
        except ValueError:
            self.strange += 1

    def _add(self, line: Json) -> None:
        """Add a line; ValueError if it is invalid."""
        identity = typed(typed(line, dict, "line").get("id"), str, "id")
        schema = integer(line.get("schema", SCHEMA), "schema")
        if schema != SCHEMA:
            self._schemas.add(schema)
            raise wrong("schema", f"schema {SCHEMA} of recordings", schema)
        known = self.calls.get(identity)
        if "more" in line:
            more = integer(line["more"], "more")
            if known is None:
                self._more[identity] = self._more.get(identity, 0) + more
            else:
                known.count += more
            return
        recorded = _loaded(line)
        if known is not None:
            known.count += recorded.count
            return
        recorded.count += self._more.pop(identity, 0)
        self.calls[identity] = recorded


class Tail(Gathered):
    """Follows a recording that others write to.

    A truncated or replaced file is read from the start and merged with what was read before. An incomplete last line is
    left for the next look.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = self.where = path
        self._file: tuple[int, int] | None = None
        self._end, self._rest = 0, b""

    def look(self) -> bool:
        """Read new lines; returns whether there were any. A missing file counts as empty.

        Raises:
            RecordingError: It cannot be read.
        """
        with _reading(self.path):
            try:
                with os.fdopen(disk.opened(self.path), "rb") as file:
                    return self._read(file)
            except FileNotFoundError:
                return False

    def _read(self, file: BinaryIO) -> bool:
        state = os.fstat(file.fileno())
        if self._file != (state.st_dev, state.st_ino) or state.st_size < self._end:
            self._file, self._end, self._rest = (state.st_dev, state.st_ino), 0, b""
        file.seek(self._end)
        before = self._end
        while chunk := file.read(_CHUNK):
            self._end += len(chunk)
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            if len(self._rest) > disk.MAX_LINE_BYTES:
                self._rest = b"-"  # invalid JSON
            for line in filter(bytes.strip, lines):
                self.add(line)
        return self._end > before


def _nothing_in(path: Path, strange: int, others: str) -> str:
    """Why a file has no calls, and what to do about it."""
    if others:
        return (
            f"expected recorded calls of this version, got those of another{others}. Record again, or update this one."
        )
    got = f"{strange} other line{'s' * (strange > 1)}" if strange else "none"
    return (
        f"expected recorded calls, one JSON object per line, got {got}. `autotuned record {path.name} -- COMMAND` "
        "writes them; the command must call a tuned kernel."
    )


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn errors of reading a file into a RecordingError."""
    try:
        yield
    except OSError as error:
        text = f"{path}: expected a file of recorded calls, and it cannot be read: {error.strerror}."
        raise RecordingError(text, path=str(path)) from error
    except ValueError as error:  # not a regular file
        raise RecordingError(str(error), path=str(path)) from error


def _loaded(line: Json) -> RecordedCall:
    for name, kind in _FIELDS.items():
        typed(line.get(name), kind, name)
    key = load_key(line["kernel"], line["key"].get("call"), line["key"].get("context"))
    count = integer(line.get("count"), "count")
    return RecordedCall(line["kernel"], line["target"], key, line["arguments"], line.get("grid"), count)
