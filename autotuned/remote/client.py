"""A process's side of a shared store: what is asked, what is sent, and who searches."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

from autotuned import disk, env
from autotuned.errors import StoreError
from autotuned.key.key import Key
from autotuned.remote import ending, outbox
from autotuned.remote.keeping import Keeping, stamp
from autotuned.remote.place import MAX_RECORD_BYTES, Place, record_name
from autotuned.remote.worker import LATER, SENT, Job, Worker
from autotuned.store import better, layout, locks, records
from autotuned.store.record import TuningRecord

log = logging.getLogger("autotuned")

_ASKED_AGAIN_S = 60.0
_MANY, _FEW = 100, 4  # keys that are asked for in one round trip, and in one each
TRIES = 8  # to replace what others replace at the same time
Backend = Any  # `RedisServer` or `FileSystem`: each needs a package that may not be there
Then = Callable[[Key, TuningRecord], Any]
_REPLACES = "replaces"  # in the provenance of what was measured to replace what the store has: a number of its own


class _Lease(NamedTuple):
    """The right to search a key; one that was lost or has ended is not renewed, and its token fences what is sent."""

    nonce: str
    token: int
    due: float  # when it is to be renewed
    thread: int  # that searches
    has_ended: bool = False


class Asked:
    """Records that were asked for in the background."""

    def __init__(self, jobs: list[Job]) -> None:
        self._jobs = jobs

    def wait(self, seconds: float | None = None) -> list[Key]:
        """The keys whose records are others than before, as far as they came in time; they are in the user's store."""
        end = time.monotonic() + (threading.TIMEOUT_MAX / 2 if seconds is None else seconds)
        done = [job for job in self._jobs if job.wait(max(0.0, end - time.monotonic()))]
        return [key for job in done for key in job.result or ()]


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
        self._box = outbox.folder(place.identity)
        self._said: set[str] = set()
        self._asked: dict[str, float] = {}  # by digest: when
        self._begin()
        ending.clients.add(self)

    def _begin(self) -> None:
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._keeping = Keeping(getattr(self, "_keeping", None))  # around reading, joining and keeping a record
        self._worker = Worker(self.place.retry_s, self._say_failure, self._idle)
        self._leases: dict[str, _Lease] = {}  # by digest
        self._unsent: dict[str, tuple[TuningRecord, bool, int]] = {}  # what the disk did not take
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
            return Asked([])
        size = _MANY if self.place.is_redis else _FEW  # a call that waits is answered in between
        parts = [wanted[start : start + size] for start in range(0, len(wanted), size)]
        return Asked([self._worker.submit("read", partial(self._fetch, part, then), LATER) for part in parts])

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
        except Exception as error:  # each client has its own for a URL or an option that it does not take
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
        """Look keys up, and keep what is another than before; once more where another process kept one meanwhile."""
        by_name = {record_name(key.digest): key for key in keys}
        stamps = {name: stamp(key) for name, key in by_name.items()}
        changed, again = [], []
        for name, data in self._backend().read_all(list(by_name), MAX_RECORD_BYTES):
            key, kept = by_name[name], None
            found = None if data is None else self.believed(key.digest, data)
            with self._keeping:
                if found is not None and tries and stamp(key) != stamps[name]:
                    again.append(key)  # what was read may be older than what is there now
                elif found is not None:
                    kept = self._adopt(key, found)
            if kept is not None:
                changed.append(key)
                if then is not None:
                    then(key, kept)
        if again:
            self._fetch(again, then, tries - 1)
        return changed + again

    def believed(self, digest: str, data: bytes | ValueError) -> TuningRecord | None:
        """The record in what the store has for a key; None where it is not to be believed, which is said once."""
        try:
            if isinstance(data, ValueError):
                raise StoreError(str(data))
            return self.place.load(digest, data)
        except StoreError as error:
            message = "the shared store %s: what it has is not used (%s); this is said once."
            env.warn_once("unverified", message, self.where, self.place.scrubbed(error), said=self._said)
            return None

    def _adopt(self, key: Key, found: TuningRecord, is_later: bool = False) -> TuningRecord | None:
        """Keep a record of the store's in the user's, if it is another; what was measured here stays if better.

        Args:
            key: Of the record.
            found: What the store has.
            is_later: It replaces what was measured here, however well that was measured.

        Returns:
            What is kept; None where that was there already.
        """
        with self._keeping:
            return self._joined(key, self._marked(found), is_later)

    def _joined(self, key: Key, found: TuningRecord, is_later: bool) -> TuningRecord | None:
        own, kept = records.read_of(key), found
        if own is not None:
            if better.is_same(own, found):
                return None
            is_sent = outbox.letter(self._box, key.digest) is None
            follows = is_later or (is_sent and ("store" in own.provenance or self._is_replaced(own, found)))
            kept = (better.joined if follows else better.merged)(found, own)
            if is_sent and not follows and not better.is_same(kept, found) and not self.place.read_only:
                self._put(kept, False, 0)  # it was measured before there was a store, or the store has lost it
            if better.is_same(kept, own):
                return None
        records.keep(kept)
        return kept

    def _is_replaced(self, own: TuningRecord, found: TuningRecord) -> bool:
        """Whether what the store has was measured to replace what was there, and not here."""
        mark = found.provenance.get(_REPLACES)
        return not self.place.read_only and mark is not None and mark != own.provenance.get(_REPLACES)

    def _marked(self, found: TuningRecord) -> TuningRecord:
        return found.replace(provenance={**found.provenance, "store": self.where})

    # -- sending -------------------------------------------------------------------------------------------------

    def keep(self, found: TuningRecord, again: bool = False) -> bool:
        """Keep a record in the user's store, and send it in the background; whether it was kept.

        Args:
            found: What was measured here.
            again: It was measured to replace what the store has.
        """
        if self.place.read_only or found.winner is None:
            return records.keep(found)
        if again:
            found = found.replace(provenance={**found.provenance, _REPLACES: os.urandom(8).hex()})
        lease = self._leases.get(found.key.digest)
        return self._put(found, again, 0 if lease is None else lease.token)

    def _put(self, found: TuningRecord, again: bool, fence: int) -> bool:
        """Note that a record is to be sent, keep it, and send it; whether it was kept."""
        digest, path = found.key.digest, layout.record_path(found.key)
        with self._keeping:
            letter = outbox.put(self._box, path, again, fence)  # first: a killed process sends it later
            kept = records.keep(found)
        if letter is None or not kept:
            self._unsent[digest] = found, again, fence
        self._worker.submit("write", lambda: self._send(digest), SENT)
        return kept

    def begin(self) -> None:
        """Send what earlier processes could not, unless that was begun."""
        if not self._worker.is_running and not self.place.read_only:
            self._worker.submit("", lambda: None, LATER)

    def drain(self) -> None:
        """Send what could not be sent, and let go of what nobody searches any more."""
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
            found, again, fence = records.inspect(letter.record)[0], letter.again, letter.fence
            if (found is None or found.winner is None) and not outbox.is_lost(letter):
                return  # its writer has not come so far
        if found is not None and found.winner is not None:
            self._write(found, again, fence)
        self._unsent.pop(digest, None)
        for path in letter.files if letter is not None else ():
            disk.remove(path)
        outbox.digests(self._box)

    def _write(self, found: TuningRecord, again: bool, fence: int = 0) -> None:
        """Put a record into the store, unless it has a better one, or a later lease's; keep that one here.

        Raises:
            Exception: Whatever the client raises, and OSError where others write all the time.
        """
        backend, name = self._backend(), record_name(found.key.digest)
        found = _unmarked(found)
        for _ in range(TRIES):
            with backend.updating(name):
                before, seen = self._stored(found.key.digest)
                merge = better.joined if again else better.merged
                merged = found if before is None else merge(*((found, before) if again else (before, found)))
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
        """Keep what was made of a record in the store, unless another was measured here meanwhile."""
        with self._keeping:
            own = records.read_of(found.key)
            if own is None or better.is_same(own, found):
                records.keep(merged)

    def _stored(self, digest: str) -> tuple[TuningRecord | None, str]:
        """What the store has for a key, as far as it is believed, and what a write replaces."""
        try:
            data, seen = self._backend().read(record_name(digest), MAX_RECORD_BYTES, for_update=True)
        except ValueError as error:  # too large to be one
            return self.believed(digest, error), "*"
        found = None if data is None else self.believed(digest, data)
        return found and self._marked(found), seen

    def flush(self, seconds: float) -> bool:
        """Wait for what is to be sent; whether it was tried in time."""
        if os.getpid() != self._owner or self._worker.is_away("write"):
            return False
        if not self._worker.is_running:
            return True
        return self._worker.submit("", lambda: None, LATER + 1).wait(seconds)

    def close(self) -> None:
        """Send what there is, for 2 s at most, and talk to the store no more."""
        end = time.monotonic() + ending.EXIT_S
        self.flush(ending.EXIT_S)
        self._worker.close(max(0.0, end - time.monotonic()))
        ending.clients.discard(self)

    # -- who searches --------------------------------------------------------------------------------------------

    def turn(self, key: Key) -> tuple[bool, str | None]:
        """Look a key up, and try to be the one in the fleet that searches it; waits `wait_s` at most.

        Returns:
            Whether the user's store has another record now, and who searches: "" for this process; None where nobody
            was asked, since there was a record, there are no leases, or the store is away.
        """
        digest, nonce, thread = key.digest, os.urandom(8).hex(), threading.get_ident()

        def ask() -> tuple[bool, str | None]:
            if self._fetch([key]):
                return True, None
            if self.place.read_only or not self._backend().has_leases or self._worker.is_away("write"):
                return False, None
            try:
                who = self._leased(digest, nonce, thread)
            except Exception as error:  # a server that may be read and not written
                self._worker.pause("write", error)
                return False, None
            # Once more: whoever had the lease until now may have written meanwhile.
            return bool(not who and self._fetch([key])), who

        return self._wait(ask) or (False, None)

    def _leased(self, digest: str, nonce: str, thread: int, token: int = 0) -> str:
        """Have a lease, or renew the one with this token: "", or who has it."""
        who = f"process {os.getpid()} on {locks.host() or 'a host'}"
        had, answer = self._backend().lease(record_name(digest), nonce, self.place.lease_s, who, token)
        if not had:
            return answer or "another host"
        self._leases[digest] = _Lease(nonce, int(answer), time.monotonic() + self.place.lease_s / 3, thread)
        return ""

    def release(self, key: Key) -> None:
        """Let others search a key, once what was measured is sent."""
        thread = threading.get_ident()
        self._worker.submit("", lambda: self._released(key.digest, thread), SENT)  # also while the store is away

    def _released(self, digest: str, thread: int) -> None:
        lease = self._leases.get(digest)
        if lease is None or lease.thread != thread:
            return
        self._leases[digest] = lease._replace(due=math.inf, has_ended=True)
        if not self._worker.is_away("write"):
            try:
                self._let_go(digest)
            except Exception as error:  # it is let go of after the pause
                self._worker.pause("write", error)

    def _let_go(self, digest: str) -> None:
        lease = self._leases.get(digest)
        if lease is not None and lease.has_ended:
            self._backend().release(record_name(digest), lease.nonce)
            del self._leases[digest]

    # -- between jobs --------------------------------------------------------------------------------------------

    def _idle(self) -> float | None:
        """Renew leases, and send what could not be sent; the seconds until there is more to do."""
        now, is_away = time.monotonic(), self._worker.is_away("write")
        for digest, lease in list(self._leases.items()):  # also in a pause, which may be longer than they last
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
            if self._leased(digest, lease.nonce, lease.thread, lease.token):  # lost: another has it, or has written
                self._leases[digest] = lease._replace(due=math.inf)
        except Exception as error:  # as any job; it is tried again before it ends
            self._leases[digest] = lease._replace(due=time.monotonic() + self.place.lease_s / 3)
            if not self._worker.is_away("write"):
                self._worker.pause("write", error)

    def _say_failure(self, kind: str, error: BaseException) -> None:
        message = "the shared store %s cannot be %s (%s): going on with the local one, and trying again after %.0f s."
        words = self.where, "asked" if kind == "read" else "written", self.place.scrubbed(error), self.place.retry_s
        env.warn_once(words[1], message, *words, said=self._said)


def _unmarked(found: TuningRecord) -> TuningRecord:
    return found.replace(provenance={name: value for name, value in found.provenance.items() if name != "store"})


def beaten(name: str) -> OSError:
    """What is raised where others write all the time."""
    return OSError(f"expected to replace {name}, got beaten by other writers {TRIES} times")


def backend_of(place: Place) -> Backend:
    """What talks to a store.

    Raises:
        StoreError: Its package is not installed, or does not take the URL or an option.
    """
    if place.is_redis:
        from autotuned.remote.redis_server import RedisServer

        return RedisServer(place)
    from autotuned.remote.filesystem import FileSystem

    return FileSystem(place)
