"""A process's client of a shared store: reading, sending, and leases that decide who searches."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple

from autotuned import disk, env
from autotuned.errors import StoreError
from autotuned.key.key import Key
from autotuned.remote import ending, outbox
from autotuned.remote.outage import Outage
from autotuned.remote.place import MAX_RECORD_BYTES, Place, record_name
from autotuned.remote.worker import LATER, SENT, JobThread, QueuedJob
from autotuned.store import better, layout, locks, records
from autotuned.store.record import TuningRecord, inspect

log = logging.getLogger("autotuned")

_ASKED_AGAIN_S = 60.0
_MANY, _FEW = 100, 4  # keys read by one job: in one round trip, or in one round trip each
PATIENCE_S = 5.0  # longest wait for the lock around keeping a record, which takes milliseconds
TRIES = 8  # attempts to replace a record while others replace it too
Backend = Any  # `RedisServer` or `FileSystem`; each needs a package that may not be installed
Then = Callable[[Key, TuningRecord], Any]
_REPLACES = "replaces"  # in the provenance of a record measured to replace the store's: a random number


class _Lease(NamedTuple):
    """The right to search a key. Its token fences writes; a lost or expired lease is not renewed."""

    nonce: str
    token: int
    due: float  # when to renew it
    thread: int  # the one that searches
    has_ended: bool = False


def _keeping() -> AbstractContextManager[object]:
    """A reentrant lock between threads and processes, around reading, merging and keeping a record."""
    return locks.polled(layout.root() / layout.LOCKS / "shared-store.lock", PATIENCE_S)


class Requested:
    """Records requested in the background."""

    def __init__(self, jobs: list[QueuedJob]) -> None:
        self._jobs = jobs

    def wait(self, seconds: float | None = None) -> list[Key]:
        """Wait, and return the keys whose records changed; the user's store has those that arrived in time."""
        end = time.monotonic() + (threading.TIMEOUT_MAX / 2 if seconds is None else seconds)
        done = [job for job in self._jobs if job.wait(max(0.0, end - time.monotonic()))]
        return [key for job in done for key in job.result or ()]


class Client:
    """Reads and writes the shared store for this process; after a failure the process uses only the user's store.

    Args:
        place: The store, and how to use it.
        backend: None creates the URL's backend at the first request.
    """

    def __init__(self, place: Place, backend: Any = None) -> None:
        self.place = place
        self.where = f"{place.words}#{place.namespace}"
        self._given, self._opened = backend, backend
        self._box = outbox.folder(place.identity)
        self._said: set[str] = set()
        self._asked: dict[str, float] = {}  # by digest: when
        self._start()
        ending.clients[id(self)] = self

    def _start(self) -> None:
        self._owner = os.getpid()
        self._lock, self._outage = threading.Lock(), Outage()
        self._worker = JobThread(self.place.retry_s, self._say_failure, self._idle)
        self._leases: dict[str, _Lease] = {}  # by digest
        self._unsent: dict[str, tuple[TuningRecord, bool, int]] = {}  # records that could not be written to disk
        self._waits = True  # records may wait to be sent: from earlier processes, or since a pause

    def after_fork(self) -> None:
        """Start over in a forked child, which has no thread and no lease, and needs its own connection."""
        if os.getpid() != self._owner:
            self._opened = self._given
            self._start()

    # -- reading -------------------------------------------------------------------------------------------------

    def find(self, key: Key) -> bool:
        """Read a key's record, waiting at most `wait_s`; returns whether the user's store has a new one."""
        return bool(self._wait(lambda: self._fetch([key])))

    def ask(self, keys: Iterable[Key], then: Then | None = None, again: bool = True) -> Requested:
        """Read the newest records of keys in the background and keep them in the user's store.

        Args:
            keys: Keys, of any kernels.
            then: Called on another thread with each key whose record changed, and the record.
            again: False skips keys requested within the last minute.

        Returns:
            A handle to wait for.
        """
        now = time.monotonic()
        wanted = [key for key in keys if again or now - self._asked.get(key.digest, -1e9) > _ASKED_AGAIN_S]
        if len(self._asked) > 4096:
            self._asked.clear()
        self._asked.update((key.digest, now) for key in wanted)
        if not wanted or self._worker.is_away("read"):
            return Requested([])
        size = _MANY if self.place.is_redis else _FEW  # between two jobs a waiting call is served
        parts = [wanted[start : start + size] for start in range(0, len(wanted), size)]
        return Requested([self._worker.submit("read", partial(self._fetch, part, then), LATER) for part in parts])

    def _wait(self, action: Callable[[], Any]) -> Any:
        """The result of a request; None if it fails or takes too long."""
        if self._worker.is_away("read") or not self._loaded():
            return None
        job = self._worker.submit("read", action)
        if job.wait(self.place.wait_s):
            return job.result
        self._worker.pause("read", TimeoutError(f"expected an answer within {self.place.wait_s:g} s, got none"))
        return None

    def _loaded(self) -> bool:
        """Import the client library on this thread, so that its import does not count as a slow store."""
        try:
            return self._backend() is not None
        except Exception as error:  # each client has its own errors for a bad URL or option
            self._worker.pause("read", error)
            self._worker.pause("write", error)
            return False

    def _backend(self) -> Any:
        with self._lock:
            if self._opened is None:
                self._opened = backend_of(self.place)
                ending.flush_before_executors_end()
            return self._opened

    def _fetch(self, keys: list[Key], then: Then | None = None, tries: int = TRIES) -> list[Key]:
        """Look keys up and keep changed records; retries keys whose record another process kept meanwhile."""
        by_name = {record_name(key.digest): key for key in keys}
        stamps = {name: disk.stamp(layout.record_path(key)) for name, key in by_name.items()}
        changed, again = [], []
        with self._outage.reading():
            for name, data in self._backend().read_all(list(by_name), MAX_RECORD_BYTES):
                key = by_name[name]
                found = None if data is None else self.believed(key.digest, data)
                if found is None:
                    continue
                with _keeping():
                    is_old = tries and disk.stamp(layout.record_path(key)) != stamps[name]
                    kept = None if is_old else self._adopt(key, found)
                if is_old:
                    again.append(key)  # the file may be newer by now
                elif kept is not None:
                    changed.append(key)
                    if then is not None:
                        then(key, kept)
        if again:
            self._fetch(again, then, tries - 1)
        return changed + again

    def believed(self, digest: str, data: bytes | ValueError) -> TuningRecord | None:
        """The record in the store's data for a key; None, with one warning, if it is not trusted."""
        try:
            if isinstance(data, ValueError):
                raise StoreError(str(data))
            return self.place.load(digest, data)
        except StoreError as error:
            message = "the shared store %s: some of its contents are ignored (%s); this is logged once."
            env.warn_once("unverified", message, self.where, self.place.scrubbed(error), said=self._said)
            return None

    def _adopt(self, key: Key, found: TuningRecord, is_later: bool = False) -> TuningRecord | None:
        """Copy a record to the user's store, if it differs; a better one measured here stays.

        Args:
            key: The record's key.
            found: The store's record.
            is_later: Replace a record measured here, even a better one.

        Returns:
            The record that was kept; None if nothing changed.
        """
        with _keeping():
            own, kept = records.read_of(key), self._marked(found)
            if own is not None:
                if better.is_same(own, found):
                    return None
                is_sent = outbox.letter(self._box, key.digest) is None
                follows = is_later or (is_sent and ("store" in own.provenance or self._is_replaced(own, found)))
                kept = better.joined(kept, own) if follows else better.merged(kept, own)
                if is_sent and not follows and not better.is_same(kept, found) and not self.place.read_only:
                    self._put(kept, False, 0)  # measured before the store was used, or lost by it
                if better.is_same(kept, own):
                    return None
            records.keep(kept)
            return kept

    def _is_replaced(self, own: TuningRecord, found: TuningRecord) -> bool:
        """Whether another host measured the store's record to replace an earlier one."""
        mark = found.provenance.get(_REPLACES)
        return not self.place.read_only and mark is not None and mark != own.provenance.get(_REPLACES)

    def _marked(self, found: TuningRecord) -> TuningRecord:
        return found.replace(provenance={**found.provenance, "store": self.where})

    # -- sending -------------------------------------------------------------------------------------------------

    def keep(self, found: TuningRecord, again: bool = False) -> bool:
        """Keep a record in the user's store and send it in the background; returns whether it was kept.

        Args:
            found: A record measured here.
            again: It was measured to replace the store's record.
        """
        if self.place.read_only or found.winner is None:
            return records.keep(found)
        if again:
            found = found.replace(provenance={**found.provenance, _REPLACES: os.urandom(8).hex()})
        lease = self._leases.get(found.key.digest)
        return self._put(found, again, 0 if lease is None else lease.token)

    def _put(self, found: TuningRecord, again: bool, fence: int) -> bool:
        """Keep a record and send it through the outbox; returns whether it was kept."""
        digest, path = found.key.digest, layout.record_path(found.key)
        with _keeping():
            letter = outbox.put(self._box, path, again, fence)  # first: if killed, a later process sends it
            kept = records.keep(found)
        if letter is None or not kept:
            self._unsent[digest] = found, again, fence
        self._worker.submit("write", lambda: self._send(digest), SENT)
        return kept

    def begin(self) -> None:
        """Begin to send records left by earlier processes."""
        if not self._worker.is_running and not self.place.read_only:
            self._worker.submit("", lambda: None, LATER)

    def drain(self) -> None:
        """Send waiting records, and release the leases of ended searches."""
        if not self.place.read_only:
            for digest in {*outbox.digests(self._box), *self._unsent}:
                self._worker.submit("write", partial(self._send, digest), LATER)
            for digest, lease in list(self._leases.items()):
                if lease.has_ended:
                    self._worker.submit("write", partial(self._let_go, digest), LATER)

    def _send(self, digest: str) -> None:
        letter = outbox.letter(self._box, digest)
        found, again, fence = self._unsent.get(digest, (None, False, 0))
        if found is None and letter is not None:
            found, again, fence = inspect(letter.record)[0], letter.again, letter.fence
            if (found is None or found.winner is None) and not outbox.is_lost(letter):
                return  # not written yet
        if found is not None and found.winner is not None:
            self._write(found, again, fence)
        self._unsent.pop(digest, None)
        for path in letter.files if letter is not None else ():
            disk.remove(path)
        outbox.digests(self._box)

    def _write(self, found: TuningRecord, again: bool, fence: int = 0) -> None:
        """Write a record to the store; if the store has a better or later-leased one, keep that one here instead.

        Raises:
            Exception: Any error of the client; OSError if other writers always come first.
        """
        backend, name = self._backend(), record_name(found.key.digest)
        found = _unmarked(found)
        for _ in range(TRIES):
            with backend.updating(name):
                before, seen = self._stored(found.key.digest)
                merged = found
                if before is not None:
                    merged = better.joined(found, before) if again else better.merged(before, found)
                if _unmarked(merged) == (before and _unmarked(before)):
                    done = "written"
                else:
                    done = backend.write(name, self.place.dump(_unmarked(merged)), seen, fence, before is not None)
            if done == "fenced":
                log.info("`%s`: another host has searched %s meanwhile.", found.key.kernel, found.key.digest[:12])
                later, _ = self._stored(found.key.digest)
                if later is not None:
                    self._adopt(found.key, later, is_later=True)
                return
            if done == "written":
                if not better.is_same(merged, found):
                    self._keep_sent(found, merged)
                return
        raise beaten(name)

    def _keep_sent(self, found: TuningRecord, merged: TuningRecord) -> None:
        """Keep the merged record, unless a new one was measured here meanwhile."""
        with _keeping():
            own = records.read_of(found.key)
            if own is None or better.is_same(own, found):
                records.keep(merged)

    def _stored(self, digest: str) -> tuple[TuningRecord | None, str]:
        """The store's trusted record for a key, and the version that a write would replace."""
        try:
            with self._outage.reading():
                data, seen = self._backend().read(record_name(digest), MAX_RECORD_BYTES, for_update=True)
        except ValueError as error:  # too large for a record
            return self.believed(digest, error), "*"
        found = None if data is None else self.believed(digest, data)
        return found and self._marked(found), seen

    def flush(self, seconds: float) -> bool:
        """Wait until every record was sent or tried; returns whether that was done in time."""
        if os.getpid() != self._owner or self._worker.is_away("write"):
            return False
        if not self._worker.is_running:
            return True
        return self._worker.submit("", lambda: None, LATER + 1).wait(seconds)

    def close(self) -> None:
        """Send waiting records, for at most 2 s, and disconnect."""
        end = time.monotonic() + ending.EXIT_S
        self.flush(ending.EXIT_S)
        self._worker.close(max(0.0, end - time.monotonic()))
        with self._lock:
            backend, self._opened = self._opened, self._given
        if backend is not self._given:
            backend.close()
        ending.clients.pop(id(self), None)

    # -- who searches --------------------------------------------------------------------------------------------

    def turn(self, key: Key) -> tuple[bool, str | None]:
        """Look a key up and, if there is no record, try to take the lease for its search; waits at most `wait_s`.

        Returns:
            Whether the user's store has a new record, and who searches: "" for this process, None if no lease was
            requested (there was a record, the store has no leases or is down).
        """
        digest, nonce, thread = key.digest, os.urandom(8).hex(), threading.get_ident()

        def ask() -> tuple[bool, str | None]:
            if self._fetch([key]):
                return True, None
            if self.place.read_only or not self._backend().has_leases or self._worker.is_away("write"):
                return False, None
            try:
                who = self._leased(digest, nonce, thread)
            except Exception as error:  # such as a read-only server
                self._worker.pause("write", error)
                return False, None
            # Look again: the previous holder of the lease may have written meanwhile.
            return bool(not who and self._fetch([key])), who

        return self._wait(ask) or (False, None)

    def _leased(self, digest: str, nonce: str, thread: int, token: int = 0) -> str:
        """Take a lease, or renew the one with this token; returns "" or its holder."""
        who = f"process {os.getpid()} on {locks.host() or 'a host'}"
        had, answer = self._backend().lease(record_name(digest), nonce, self.place.lease_s, who, token)
        if not had:
            return answer or "another host"
        self._leases[digest] = _Lease(nonce, int(answer), time.monotonic() + self.place.lease_s / 3, thread)
        return ""

    def release(self, key: Key) -> None:
        """Release this thread's lease of a key once the result is sent."""
        thread = threading.get_ident()
        self._worker.submit("", lambda: self._released(key.digest, thread), SENT)  # kind "": runs during pauses too

    def _released(self, digest: str, thread: int) -> None:
        lease = self._leases.get(digest)
        if lease is None or lease.thread != thread:
            return
        self._leases[digest] = lease._replace(due=math.inf, has_ended=True)
        if not self._worker.is_away("write"):
            try:
                self._let_go(digest)
            except Exception as error:  # released after the pause
                self._worker.pause("write", error)

    def _let_go(self, digest: str) -> None:
        lease = self._leases.get(digest)
        if lease is not None and lease.has_ended:
            self._backend().release(record_name(digest), lease.nonce)
            del self._leases[digest]

    # -- between jobs --------------------------------------------------------------------------------------------

    def _idle(self) -> float | None:
        """Renew leases and send waiting records; returns the seconds until the next work is due."""
        now, is_away = time.monotonic(), self._worker.is_away("write")
        for digest, lease in list(self._leases.items()):  # also in a pause, which may outlast them
            if lease.due <= now:
                self._renew(digest, lease)
        if self._waits and not is_away:
            self.drain()
        self._waits = is_away
        left_s = min((lease.due for lease in self._leases.values()), default=math.inf) - time.monotonic()
        if is_away:
            left_s = min(left_s, self._worker.until_retry_s() + 0.01)
        return max(0.01, left_s) if left_s < math.inf else None

    def _renew(self, digest: str, lease: _Lease) -> None:
        try:
            renewed = self._outage.reading()(self._leased)  # it was given before: a failure is that of the store
            if renewed(digest, lease.nonce, lease.thread, lease.token):  # lost: another holds it, or wrote since
                self._leases[digest] = lease._replace(due=math.inf)
        except Exception as error:  # any client error; tried again before the lease ends
            self._leases[digest] = lease._replace(due=time.monotonic() + self.place.lease_s / 3)
            if not self._worker.is_away("write"):
                self._worker.pause("write", error)

    def _say_failure(self, kind: str, error: BaseException) -> None:
        message = "the shared store %s cannot be %s (%s): using the local one, and trying again after %.0f s."
        words = self.where, "read" if kind == "read" else "written", self.place.scrubbed(error), self.place.retry_s
        env.warn_once(self._outage.about(kind), message, *words, said=self._said)


def _unmarked(found: TuningRecord) -> TuningRecord:
    return found.replace(provenance={name: value for name, value in found.provenance.items() if name != "store"})


def beaten(name: str) -> OSError:
    """The error if other writers always come first."""
    return OSError(f"expected to replace {name}, got beaten by other writers {TRIES} times")


def backend_of(place: Place) -> Backend:
    """Create the backend of a store.

    Raises:
        StoreError: Its package is not installed, or refuses the URL or an option.
    """
    if place.is_redis:
        from autotuned.remote.redis_server import RedisServer

        return RedisServer(place)
    from autotuned.remote.filesystem import FileSystem

    return FileSystem(place)
