"""Timings of a search in progress, appended to disk one by one, so that a killed process loses only the last."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from autotuned import disk
from autotuned.key.key import Key
from autotuned.store import record
from autotuned.store.conditions import Restore
from autotuned.store.record import Timing
from autotuned.typed_json import Json, canonical

log = logging.getLogger("autotuned")


@contextmanager
def open_for(path: Path, key: Key, restore: Restore = None) -> Iterator[Callable[[Timing], None]]:
    """Append timings to a key's logbook; yields the function that does so.

    Each line is one system call, so a kill tears at most the last line. On errors nothing is written and the search
    continues.
    """
    try:
        disk.make_folder(path.parent)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        log.debug("timings cannot be written one by one (%s)", error)
        yield lambda timing: None
        return
    try:
        disk.share(descriptor, path.parent)
        # A newline first: the last line may be torn.
        _append(descriptor, "\n" + disk.text(_header(key, restore)))
        yield lambda timing: _append(descriptor, _line(timing))
    finally:
        with contextlib.suppress(OSError):
            os.close(descriptor)


def _header(key: Key, restore: Restore) -> dict[str, Json]:
    names = None if restore is None else list(restore)
    return {"schema": record.SCHEMA, "kernel": key.kernel, "key": key.to_json(), "restore": names}


def _line(timing: Timing) -> str:
    try:
        return disk.text(timing.to_json())
    except (TypeError, ValueError):  # a config value without JSON form, which is not stored either
        return ""


def _append(descriptor: int, text: str) -> None:
    try:
        disk.write_all(descriptor, text.encode())
    except OSError as error:
        log.debug("a timing cannot be written (%s)", error)


def read(path: Path, key: Key, restore: Restore = None) -> dict[str, Timing]:
    """Each config's last timing in a key's logbook under the given protection, by identity; skips invalid lines."""
    try:
        lines = disk.read_bytes(path).split(b"\n")
    except (OSError, ValueError):
        return {}
    found: dict[str, Timing] = {}
    ours, ours_text = False, canonical(_header(key, restore))
    for line in lines:
        with contextlib.suppress(ValueError):  # torn or invalid, such as the empty lines before headers
            data = disk.parse_json(line)
            if isinstance(data, dict) and "key" in data:
                ours = canonical(data) == ours_text
            elif ours:
                timing = record.load_timing(data, "logbook")
                found[timing.identity] = timing
    return found
