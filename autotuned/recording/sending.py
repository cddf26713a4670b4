"""Recordings in a shared store: one file put there, and a file that is sent now and then."""

from __future__ import annotations

import importlib
import time
from pathlib import Path
from typing import Any

from autotuned import disk, env
from autotuned.errors import StoreError
from autotuned.recording import file
from autotuned.remote import client, outbox
from autotuned.remote.place import MAX_FILE_BYTES, RECORDINGS, Place, place
from autotuned.store import layout, locks
from autotuned.typed_json import canonical

SEND_S = 60.0  # between two times that a process sends what it records
KEEP_S = 7 * 86400.0  # of a host that sends no more; a companion's reading would keep it in use


def put(path: Path, at: Place, backend: Any) -> str:
    """Put the calls of a recording into a store, one line each with its whole count, in place of those put before.

    Returns:
        The name in the store, another one for another file, cache folder or host.

    Raises:
        RecordingError: There are no calls in the recording.
        StoreError: They are too many.
        Exception: Whatever the client raises.
    """
    name = f"{RECORDINGS}{outbox.salted(canonical([locks.host(), str(path.absolute())]))}"
    lines = [disk.text({"id": one.identity, **one.to_json(), "count": one.count}) for one in file.read(path)]
    data = at.seal(name, "".join(lines).encode())
    if len(data) > MAX_FILE_BYTES:
        raise StoreError(f"{path}: expected at most {MAX_FILE_BYTES} bytes of distinct calls, got {len(data)}.")
    backend.write(name, data, "*")
    backend.keep_for(name, KEEP_S)
    return name


class Sender:
    """Sends a file of the cache folder, into which the processes of this user record, to a store.

    Attributes:
        path: The file.

    Raises:
        OptionError: It is no URL, or a variable cannot have its value.
        StoreError: Nothing may be written there.
    """

    def __init__(self, url: str) -> None:
        importlib.import_module("concurrent.futures.thread")  # by clients too late: not while the interpreter ends
        self._place = place(url, **env.store_settings())
        refuse_reader(self._place)
        self.path = layout.root() / RECORDINGS / f"{outbox.salted(self._place.identity)}.jsonl"
        self._sent: Any = None
        self._backend: Any = None
        self._due = time.monotonic() + SEND_S

    def send(self, now: bool) -> None:
        """Send the file if it has changed, and it is time or `now`.

        Raises:
            StoreError: It could not be sent.
        """
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
    """Raise StoreError for a store that is only read."""
    if at.read_only:
        raise StoreError(f"shared store {at.words}: expected one to write, got AUTOTUNED_STORE_READ_ONLY=1")
