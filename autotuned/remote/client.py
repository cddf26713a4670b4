"""A process's side of a shared store: what is asked, what is sent, and who searches."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from autotuned import disk, env
from autotuned.errors import StoreError
from autotuned.key.key import Key
from autotuned.remote import outbox
from autotuned.remote.place import MAX_RECORD_BYTES, Place, record_name
from autotuned.remote.worker import LATER, SENT, Job, Worker
from autotuned.store import better, layout, locks, records
from autotuned.store.record import TuningRecord

log = logging.getLogger("autotuned")

EXIT_S = 2.0  # what an ending process gives to sending; the rest is sent by the next one
_ASKED_AGAIN_S = 60.0
_TRIES = 8  # to replace what others replace at the same time
Backend = Any  # `RedisServer` or `FileSystem`: each needs a package that may not be there
Then = Callable[[Key, TuningRecord], Any]


class Asked:
    """Records that were asked for in the background."""

    def __init__(self, job: Job | None) -> None:
        self._job = job

    def wait(self, seconds: float | None = None) -> list[Key]:
        """The keys whose records are others than before, as far as they came in time; they are in the user's store."""
        if self._job is None or not self._job.wait(threading.TIMEOUT_MAX if seconds is None else seconds):
            return []
        return list(self._job.result or ())


class Client:
    """What this process asks and sends; whatever goes wrong, it goes on with the user's own store.

    Args:
        place: The store, and how it is used.
        backend: What talks to it; None for what the URL says, made when something is to be asked.
    """

    def __init__(self, place: Place, backend: Any = None) -> None:
        self.place = place
        self.where = f"{place.words}#{place.namespace}"
        self._given, self._opened = backend, backend
        self._box = layout.outbox(f"{place.words}#{place.namespace}")
        self._said: set[str] = set()
        self._asked: dict[str, float] = {}  # by digest: when
        self._begin()
        _clients.add(self)

    def _begin(self) -> None:
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._worker = Worker(self.place.retry_s, self._say_failure, self._idle)
        self._leases: dict[str, tuple[str, int, float]] = {}  # by digest: nonce, token, when it is to be renewed
        self._unsent: dict[str, tuple[TuningRecord, bool]] = {}  # what the disk did not take
        self._waits = True  # whether something may wait to be sent: of earlier processes, or for the end of a pause

    def after_fork(self) -> None:
        """A forked child has no thread, holds no lease, and makes a connection of its own."""
        if os.getpid() != self._owner:
            self._opened = self._given
            self._begin()

    # -- asking --------------------------------------------------------------------------------------------------

    def find(self, key: Key) -> bool:
        """Wait for a key's record, `wait_s` at most; whether the user's store has another one now."""
        return bool(self._wait(lambda: self._fetch([key])))

    def ask(self, keys: Iterable[Key], then: Then | None = None, again: bool = True) -> Asked:
        """Ask for the newest records of keys in the background. What is new is kept in the user's store.

        Args:
            keys: Of any kernels.
            then: Called with each key whose record is another than before, and that record, on another thread.
            again: False leaves out keys that were asked for within the last minute.

        Returns:
            What can be waited for.
        """
        now = time.monotonic()
        wanted = [key for key in keys if again or now - self._asked.get(key.digest, -1e9) > _ASKED_AGAIN_S]
        if len(self._asked) > 4096:
            self._asked.clear()
        self._asked.update((key.digest, now) for key in wanted)
        if not wanted or self._worker.is_away("read"):
            return Asked(None)
        return Asked(self._worker.submit("read", lambda: self._fetch(wanted, then), LATER))

    def _wait(self, action: Callable[[], Any]) -> Any:
        """The result of something that is asked of the store; None where it takes too long, or fails."""
        if self._worker.is_away("read") or not self._loaded():
            return None
        job = self._worker.submit("read", action)
        if job.wait(self.place.wait_s):
            return job.result
        self._worker.pause("read", TimeoutError(f"expected an answer within {self.place.wait_s:g} s, got none"))
        return None

    def _loaded(self) -> bool:
        """Import the client library here and not on the other thread: what it takes is not the store's slowness."""
        try:
            return self._backend() is not None
        except StoreError as error:
            self._worker.pause("read", error)
            self._worker.pause("write", error)
            return False

    def _backend(self) -> Any:
        with self._lock:
            if self._opened is None:
                self._opened = backend_of(self.place)
                _flush_before_executors_end()
            return self._opened

    def _fetch(self, keys: list[Key], then: Then | None = None) -> list[Key]:
        """Look keys up, and keep what is another than before."""
        by_name = {record_name(key.digest): key for key in keys}
        changed = []
        for name, data in self._backend().read_all(list(by_name), MAX_RECORD_BYTES):
            key = by_name[name]
            found = None if data is None else self.believed(key.digest, data)
            if found is not None and (kept := self._adopt(key, found)) is not None:
                changed.append(key)
                if then is not None:
                    then(key, kept)
        return changed

    def believed(self, digest: str, data: bytes) -> TuningRecord | None:
        """The record in what the store has for a key; None where it is not to be believed, which is said once."""
        try:
            return self.place.load(digest, data)
        except StoreError as error:
            message = "the shared store %s: what it has is not used (%s); this is said once."
            env.warn_once("unverified", message, self.where, self.place.scrubbed(error), said=self._said)
            return None

    def _adopt(self, key: Key, found: TuningRecord) -> TuningRecord | None:
        """Keep a record of the store's in the user's, if it is another; what is still to be sent stays if better."""
        own = records.read_of(key)
        if own is not None:
            if own.timings == found.timings and own.winner == found.winner:
                return None
            is_own = self.place.read_only or own.winner is None or outbox.letter(self._box, key.digest) is not None
            found = (better.merged if is_own else better.joined)(found, own)
            if found.winner == own.winner and found.timings == own.timings:
                return None
        found = found.replace(provenance={**found.provenance, "store": self.where})
        records.keep(found)
        return found

    # -- sending -------------------------------------------------------------------------------------------------

    def keep(self, found: TuningRecord, again: bool = False) -> bool:
        """Keep a record in the user's store, and send it in the background; whether it was kept.

        Args:
            found: What was measured here.
            again: It was measured to replace what the store has.
        """
        if self.place.read_only or found.winner is None:
            return records.keep(found)
        digest = found.key.digest
        letter = outbox.put(self._box, layout.record_path(found.key), again)  # first: a killed process sends it later
        kept = records.keep(found)
        if letter is None or not kept:
            self._unsent[digest] = found, again
        self._worker.submit("write", lambda: self._send(digest), SENT)
        return kept

    def begin(self) -> None:
        """Send what earlier processes could not, unless that was begun."""
        if not self._worker.is_running and not self.place.read_only:
            self._worker.submit("", lambda: None, LATER)

    def drain(self) -> None:
        """Send what could not be sent."""
        if not self.place.read_only:
            for digest in {*outbox.digests(self._box), *self._unsent}:
                self._worker.submit("write", partial(self._send, digest), LATER)

    def _send(self, digest: str) -> None:
        letter = outbox.letter(self._box, digest)
        found, again = self._unsent.get(digest, (None, False))
        if found is None and letter is not None:
            found, again = records.inspect(letter.record)[0], letter.again
            if (found is None or found.winner is None) and not outbox.is_lost(letter):
                return  # its writer has not come so far
        if found is not None and found.winner is not None:
            self._write(found, again)
        self._unsent.pop(digest, None)
        for path in letter.files if letter is not None else ():
            disk.remove(path)
        outbox.digests(self._box)

    def _write(self, found: TuningRecord, again: bool) -> None:
        """Put a record into the store, unless it has a better one; keep the better one here.

        Raises:
            Exception: Whatever the client raises, and OSError where others write all the time.
        """
        backend, name = self._backend(), record_name(found.key.digest)
        found = found.replace(provenance={k: v for k, v in found.provenance.items() if k != "store"})
        for _ in range(_TRIES):
            with backend.updating(name):
                before, seen = self._stored(found.key.digest)
                merge = better.joined if again else better.merged
                merged = found if before is None else merge(*((found, before) if again else (before, found)))
                if merged == before:
                    done = "written"
                else:
                    _, token, _ = self._leases.get(found.key.digest, ("", 0, 0.0))
                    done = backend.write(name, self.place.dump(merged), seen, token)
            if done == "fenced":
                log.info("`%s`: another host has searched %s meanwhile.", found.key.kernel, found.key.digest[:12])
                self._fetch([found.key])
                return
            if done == "written":
                if merged is not found and (merged.winner, merged.timings) != (found.winner, found.timings):
                    records.keep(merged)
                return
        raise OSError(f"expected to replace {name}, got beaten by other writers {_TRIES} times")

    def _stored(self, digest: str) -> tuple[TuningRecord | None, str]:
        """What the store has for a key, as far as it is believed, and what a write replaces."""
        try:
            data, seen = self._backend().read(record_name(digest), MAX_RECORD_BYTES, for_update=True)
        except ValueError:  # too large to be one
            return None, "*"
        return None if data is None else self.believed(digest, data), seen

    def flush(self, seconds: float) -> bool:
        """Wait for what is to be sent; whether it was tried in time."""
        if os.getpid() != self._owner or self._worker.is_away("write"):
            return False
        if not self._worker.is_running:
            return True
        return self._worker.submit("", lambda: None, LATER + 1).wait(seconds)

    def close(self) -> None:
        """Send what there is, for `EXIT_S` at most, and talk to the store no more."""
        self.flush(EXIT_S)
        self._worker.close()
        _clients.discard(self)

    # -- who searches --------------------------------------------------------------------------------------------

    def turn(self, key: Key) -> tuple[bool, str | None]:
        """Look a key up, and try to be the one in the fleet that searches it; waits `wait_s` at most.

        Returns:
            Whether the user's store has another record now, and who searches: "" for this process; None where nobody
            was asked, since there was a record, there are no leases, or the store is away.
        """
        digest, nonce = key.digest, os.urandom(8).hex()

        def ask() -> tuple[bool, str | None]:
            if self._fetch([key]):
                return True, None
            if self.place.read_only or not self._backend().has_leases or self._worker.is_away("write"):
                return False, None
            try:
                who = self._leased(digest, nonce)
            except Exception as error:  # a server that may be read and not written
                self._worker.pause("write", error)
                return False, None
            # Once more: whoever had the lease until now may have written meanwhile.
            return bool(not who and self._fetch([key])), who

        return self._wait(ask) or (False, None)

    def _leased(self, digest: str, nonce: str) -> str:
        """Have or renew a lease: "", or who has it."""
        who = f"process {os.getpid()} on {locks.host() or 'a host'}"
        had, answer = self._backend().lease(record_name(digest), nonce, self.place.lease_s, who)
        if not had:
            self._leases.pop(digest, None)
            return answer or "another host"
        self._leases[digest] = nonce, int(answer), time.monotonic() + self.place.lease_s / 3
        return ""

    def release(self, key: Key) -> None:
        """Let others search a key, once what was measured is sent."""
        self._worker.submit("write", lambda: self._released(key.digest), SENT)

    def _released(self, digest: str) -> None:
        nonce, _, _ = self._leases.pop(digest, ("", 0, 0.0))
        if nonce:
            self._backend().release(record_name(digest), nonce)

    # -- between jobs --------------------------------------------------------------------------------------------

    def _idle(self) -> float | None:
        """Renew leases, and send what could not be sent; the seconds until there is more to do."""
        now = time.monotonic()
        if self._worker.is_away("write"):
            self._waits = True
            return self._worker.until_retry_s() + 0.01
        if self._waits:
            self._waits = False
            self.drain()
        for digest, (nonce, _, due) in list(self._leases.items()):
            if due <= now:
                self._renew(digest, nonce)
        return max(0.01, min(due - now for _, _, due in self._leases.values())) if self._leases else None

    def _renew(self, digest: str, nonce: str) -> None:
        try:
            self._leased(digest, nonce)
        except Exception as error:  # as any job: others may search, and what is measured here is sent later
            self._worker.pause("write", error)

    def _say_failure(self, kind: str, error: BaseException) -> None:
        message = "the shared store %s cannot be %s (%s): going on with the local one, and trying again after %.0f s."
        words = self.where, "asked" if kind == "read" else "written", self.place.scrubbed(error), self.place.retry_s
        env.warn_once(words[1], message, *words, said=self._said)


def backend_of(place: Place) -> Backend:
    """What talks to a store.

    Raises:
        StoreError: Its package is not installed.
    """
    if place.is_redis:
        from autotuned.remote.redis_server import RedisServer

        return RedisServer(place)
    from autotuned.remote.filesystem import FileSystem

    return FileSystem(place)


_clients: weakref.WeakSet[Client] = weakref.WeakSet()


_exit_ends: list[float] = []


@atexit.register
def _flush_all() -> None:
    if not _exit_ends:
        _exit_ends.append(time.monotonic() + EXIT_S)
    for client in list(_clients):
        client.flush(max(0.0, _exit_ends[0] - time.monotonic()))


def _flush_before_executors_end() -> None:
    """Send before what `concurrent.futures` registered: clients of buckets need its threads to look up a host.

    The standard library has no public way; without this one, what is left is sent by the next process.
    """
    register = getattr(threading, "_register_atexit", None)
    if register is not None:
        with contextlib.suppress(RuntimeError):  # the process is ending already
            register(_flush_all)


def _after_fork_in_child() -> None:
    for client in list(_clients):
        client.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
