"""Reads the recordings that hosts send to a shared store."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

from autotuned import env
from autotuned.errors import OptionError, StoreError
from autotuned.recording.file import Gathered, RecordedCall
from autotuned.remote import client
from autotuned.remote.place import MAX_FILE_BYTES, RECORDINGS, configured

LOOK_S = 10.0  # interval of reading all recordings


class StoreTail:
    """The recordings of a shared store, merged.

    Recordings name modules to import, so anyone who can write to the store could run code. Only recordings signed with
    AUTOTUNED_STORE_KEY are read; without a key only those of a `file://` store, whose folder has permissions.

    Attributes:
        calls: Distinct calls by identity, with their counts over all hosts.
        strange: Number of invalid lines and untrusted recordings.

    Raises:
        OptionError: The URL is invalid, or there is no key.
        StoreError: Its package is not installed, or refuses the URL.
    """

    def __init__(self, url: str) -> None:
        self._place = configured(url)
        if self._place.key is None and not self._place.url.startswith("file://"):
            got = f"no AUTOTUNED_STORE_KEY for {self._place.words}"
            text = f"calls: expected signed recordings, since they name code, got {got}. Set it here and there."
            raise OptionError(text, option="calls", problem=got)
        self.where = self._place.words
        self._backend = client.backend_of(self._place)
        self._said: set[str] = set()
        self._seen: dict[str, bytes] = {}
        self._gathered: dict[str, Gathered] = {}
        self._due = 0.0
        self.calls: dict[str, RecordedCall] = {}
        self.strange = 0

    def look(self) -> bool:
        """Read changed recordings; returns whether any changed. If the store cannot be read, a later call retries."""
        if time.monotonic() < self._due:
            return False
        self._due = time.monotonic() + LOOK_S
        try:
            names = sorted(self._backend.names(RECORDINGS))
            read = self._backend.read_all(names, MAX_FILE_BYTES)
            found = {name: data if isinstance(data, bytes) else b"" for name, data in read if data is not None}
        except Exception as error:  # each client has its own errors
            message = "recordings cannot be read from the shared store %s (%s); trying again later."
            env.warn_once("asked", message, self._place.words, self._place.scrubbed(error), said=self._said)
            return False
        return self._take(found)

    def _take(self, found: Mapping[str, bytes]) -> bool:
        fresh = [(name, data) for name, data in found.items() if self._seen.get(name) != data]
        gone = self._gathered.keys() - found.keys()
        for name in gone:
            del self._seen[name], self._gathered[name]
        for name, data in fresh:
            self._seen[name], self._gathered[name] = data, self._lines(name, data)
        self.calls = {}
        for one in self._gathered.values():
            for identity, call in one.calls.items():
                before = self.calls.get(identity)
                self.calls[identity] = replace(call, count=call.count + (before.count if before else 0))
        self.strange = sum(one.strange for one in self._gathered.values())
        return bool(fresh or gone)

    def _lines(self, name: str, data: bytes) -> Gathered:
        gathered = Gathered()
        try:
            content = self._place.open(name, data)
        except StoreError as error:
            message = "a recording in the shared store %s is not used (%s); this is logged once."
            env.warn_once("recording", message, self._place.words, self._place.scrubbed(error), said=self._said)
            gathered.strange = 1
            return gathered
        for line in filter(bytes.strip, content.split(b"\n")):
            gathered.add(line)
        return gathered
