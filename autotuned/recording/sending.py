"""Sends recordings to a shared store, once or at intervals."""

from __future__ import annotations

import importlib
import time
from pathlib import Path
from typing import Any

from autotuned import disk
from autotuned.errors import StoreError
from autotuned.recording import file
from autotuned.remote import client, outbox
from autotuned.remote.place import MAX_FILE_BYTES, RECORDINGS, Place, configured
from autotuned.store import layout, locks
from autotuned.typed_json import canonical

SEND_S = 60.0  # between two uploads of a process's recording
KEEP_S = 7 * 86400.0  # how long the store keeps a recording after it was last sent; reading does not prolong it


def put(path: Path, at: Place, backend: Any) -> str:
    """Put the calls of a recording into a store, one line each with its total count, replacing earlier ones.

    Returns:
        The name in the store, which depends on file, cache folder and host.

    Raises:
        RecordingError: The recording has no calls.
        StoreError: It is too large.
        Exception: Whatever the client raises.
    """
    name = f"{RECORDINGS}{outbox.salted(canonical([locks.host(), str(path.absolute())]))}"
    data = at.seal(name, "".join(call.line() for call in file.read(path)).encode())
    if len(data) > MAX_FILE_BYTES:
        raise StoreError(f"{path}: expected at most {MAX_FILE_BYTES} bytes of distinct calls, got {len(data)}.")
    backend.write(name, data, "*")
    backend.keep_for(name, KEEP_S)
    return name


class Sender:
    """Sends this user's recording, the file `path` of the cache folder, to a store.

    Raises:
        OptionError: The URL or a variable is invalid.
        StoreError: The store is read-only.
    """

    def __init__(self, url: str) -> None:
        importlib.import_module("concurrent.futures.thread")  # clients would import it too late, at interpreter exit
        self._place = configured(url)
        refuse_reader(self._place)
        self.path = layout.root() / RECORDINGS / f"{outbox.salted(self._place.identity)}{file.SUFFIX}"
        self._sent: Any = None
        self._backend: Any = None
        self._due = time.monotonic() + SEND_S

    def send(self, now: bool) -> None:
        """Send the file if it changed and is due, or `now`; StoreError if that fails."""
        stamp = disk.stamp(self.path)
        if stamp == self._sent or not (now or time.monotonic() >= self._due):
            return
        self._due = time.monotonic() + SEND_S
        try:
            self._backend = self._backend or client.backend_of(self._place)
            put(self.path, self._place, self._backend)
        except Exception as error:  # every client has its own
            text = f"shared store {self._place.words}: expected to send a recording, got {self._place.scrubbed(error)}"
            raise StoreError(text) from None
        self._sent = stamp


def refuse_reader(at: Place) -> None:
    """Raise StoreError for a read-only store."""
    if at.read_only:
        raise StoreError(f"shared store {at.words}: expected one to write, got AUTOTUNED_STORE_READ_ONLY=1")
