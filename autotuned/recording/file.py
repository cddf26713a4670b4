"""The file of recorded calls, one JSON line each: appended to by many processes at once, read and merged."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from autotuned import disk
from autotuned.errors import RecordingError
from autotuned.key.key import Key, load_key
from autotuned.typed_json import Json, digest, integer, typed, wrong

log = logging.getLogger("autotuned")

SCHEMA = 1
SUFFIX = ".jsonl"
_FIELDS = {"schema": int, "kernel": str, "target": str, "key": dict, "arguments": dict}


@dataclass
class RecordedCall:
    """A distinct call.

    Attributes:
        kernel: Name of what was called. `target`: where it can be imported from, as `autotuned tune` takes it.
        key: Of the call, in the context in which it was made.
        arguments: As `arguments.describe` gives them; those by position are named by it.
        grid: Its grid (`grids`); None for plain callables.
        count: How often it was made.
    """

    kernel: str
    target: str
    key: Key
    arguments: Json
    grid: Json
    count: int = 1

    def to_json(self) -> dict[str, Json]:
        """The line that says so, without its count."""
        return {
            "schema": SCHEMA,
            "kernel": self.kernel,
            "target": self.target,
            "key": self.key.to_json(),
            "arguments": self.arguments,
            "grid": self.grid,
        }

    @property
    def identity(self) -> str:
        """What makes two lines the same call, in whichever process they were written."""
        return digest(self.to_json())[:32]


class Writer:
    """Appends lines to a file. A line is one call to the system, so that lines of several processes do not mix.

    Raises:
        OSError: The file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o666)
        if os.fstat(self._descriptor).st_size:  # a torn line of a killed process may be the last
            disk.write_all(self._descriptor, b"\n")

    def call(self, recorded: RecordedCall, identity: str) -> None:
        """Write a call that was made once."""
        self._write({"id": identity, **recorded.to_json(), "count": recorded.count})

    def more(self, counts: Mapping[str, int]) -> None:
        """Write how often calls were made besides."""
        for identity, count in counts.items():
            self._write({"id": identity, "more": count})

    def _write(self, line: Json) -> None:
        disk.write_all(self._descriptor, disk.text(line).encode())

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def read(path: Path) -> list[RecordedCall]:
    """The distinct calls of a file, most often made first; lines that are torn or strange are left out, which is said.

    Raises:
        RecordingError: There is no such file, it cannot be read, or no line in it is a call.
    """
    found: dict[str, RecordedCall] = {}
    more: dict[str, int] = {}
    strange = 0
    schemas: set[int] = set()
    for line in _lines(path):
        try:
            _add(disk.parse_json(line), found, more, schemas)
        except ValueError:
            strange += 1
    others = f" (schema {', '.join(map(str, sorted(schemas)))}; this version reads {SCHEMA})" if schemas else ""
    if not found:
        raise RecordingError(f"{path}: {_nothing_in(path, strange, others)}", path=str(path))
    if strange:
        log.warning("%s: %d of its lines are no recorded calls%s; they are left out.", path, strange, others)
    for identity, count in more.items():
        if identity in found:
            found[identity].count += count
    return sorted(found.values(), key=lambda call: -call.count)


def _nothing_in(path: Path, strange: int, others: str) -> str:
    """Why there is no call in a file, and what to do about it."""
    if others:
        return (
            f"expected recorded calls of this version, got those of another{others}. Record again, or update this one."
        )
    got = "none" if not strange else f"{strange} lines that are none"
    return (
        f"expected recorded calls, one JSON object a line, got {got}. `autotuned record {path.name} -- COMMAND` writes "
        "them; the command must call a tuned kernel."
    )


def _lines(path: Path) -> Iterator[bytes]:
    try:
        yield from disk.lines(path)
    except OSError as error:
        raise RecordingError(
            f"{path}: expected a file of recorded calls, and it cannot be read: {error.strerror}.", path=str(path)
        ) from error
    except ValueError as error:
        raise RecordingError(str(error), path=str(path)) from error


def _add(line: Json, found: dict[str, RecordedCall], more: dict[str, int], schemas: set[int]) -> None:
    """Take in a line; ValueError if it is none of ours; another schema goes into `schemas`."""
    identity = typed(typed(line, dict, "line").get("id"), str, "id")
    schema = integer(line.get("schema", SCHEMA), "schema")
    if schema != SCHEMA:
        schemas.add(schema)
        raise wrong("schema", f"schema {SCHEMA} of recordings", schema)
    if "more" in line:
        more[identity] = more.get(identity, 0) + integer(line["more"], "more")
        return
    recorded = _loaded(line)
    if identity in found:
        found[identity].count += recorded.count
        return
    found[identity] = recorded


def _loaded(line: Json) -> RecordedCall:
    for name, kind in _FIELDS.items():
        typed(line.get(name), kind, name)
    key = load_key(line["kernel"], line["key"].get("call"), line["key"].get("context"))
    count = integer(line.get("count"), "count")
    return RecordedCall(line["kernel"], line["target"], key, line["arguments"], line.get("grid"), count)
