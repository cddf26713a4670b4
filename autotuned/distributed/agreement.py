"""One choice for all ranks: a rank that has one publishes it; otherwise one rank searches and the others wait."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from autotuned import disk, errors
from autotuned._startup import after_fork
from autotuned.distributed import ranks
from autotuned.distributed.ranks import Ranks
from autotuned.errors import AutotunedError, SyncError
from autotuned.key.key import Key
from autotuned.remote import connection
from autotuned.resolve import active, sealing, sources, tuner
from autotuned.resolve.chooser import Chooser
from autotuned.resolve.request import Question
from autotuned.search import failures, race
from autotuned.search.do_bench import FixedLaunches
from autotuned.store import conditions, record
from autotuned.store import records as stored_records
from autotuned.store.choice import Choice, Origin, origin
from autotuned.store.record import Timing, TuningRecord
from autotuned.triton_compat import kernel
from autotuned.tunable import configs
from autotuned.typed_json import Json, digest

log = logging.getLogger("autotuned")

VOTE_S = 5.0  # longest wait before a search for a rank that has an answer: ranks arrive at about the same time


class Agreement:
    """The agreed choices of a group's ranks, until `close()`.

    The first rank to publish wins, by one atomic operation of the group's store, without collectives. A rank with an
    answer never waits; one without waits at most `timeout_s`.
    """

    def __init__(self, group: Ranks) -> None:
        self._ranks = group
        self._agreed: dict[str, Json] = {}
        self._voted: set[str] = set()
        self._alone: set[Key] = set()
        self._compared = self._refreshed = 0
        self._swapped: dict[str, Json] = {}  # newer choices that all ranks use, by the key's digest
        self._deciding = threading.local()

    def __enter__(self) -> Agreement:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Let each rank choose alone again; may be called twice."""
        if self in active.agreements:
            active.agreements.remove(self)
            active.tell_change()

    def choose(self, question: Question, alone: Chooser, do_bench: Any) -> Choice:
        """The choice of all ranks for a call.

        Raises:
            SyncError: The searching rank did not finish in time, or the ranks have different configs.
            AutotunedError: The deciding rank's error, raised on every rank.
        """
        name = _name(question)
        try:
            return self._choose(name, question, alone, do_bench)
        except _OtherCandidatesError:  # agreed for another call with this key: agree again, for these candidates
            own = f"{name}/{digest(sorted(question.live))}"
            return self._choose(own, question.replace(narrowed=False), alone, do_bench)

    def _choose(self, name: str, question: Question, alone: Chooser, do_bench: Any) -> Choice:
        if question.key in self._alone or name in self._names():
            return alone.decide(question)  # a hook calls the kernel being searched
        said = self._swapped.get(question.key.digest)
        if said is None or said["config"] not in question.live:
            said = self._agreed.get(name) or self._heard(name)
        if said is None:
            known = alone.known(question)
            if known is not None and alone.is_enough(known, question):
                return self._publish(name, known, question, alone)
            if kernel.capturing() or sealing.forbids():
                return alone.decide(question)  # it must not wait
            return self._search(name, question, alone, isinstance(do_bench, FixedLaunches))
        return self._take(name, said, question, alone)

    def leave(self, key: Key) -> None:
        """Let this rank choose alone for a key: the agreed choice cannot be launched here."""
        self._alone.add(key)
        log.warning("`%s` key %s: this rank may choose another config than the others.", key.kernel, key.digest[:12])

    def _names(self) -> list[str]:
        """Names of the choices that this thread is making."""
        names: list[str] = self._deciding.__dict__.setdefault("names", [])
        return names

    def _heard(self, name: str) -> Json:
        text = self._ranks.read(name)
        return None if text is None else disk.parse_json(text)

    # -- searching -----------------------------------------------------------------------------------------------

    def _search(self, name: str, question: Question, alone: Chooser, together: bool) -> Choice:
        """Vote; the first voter decides once all have voted or time is up, and the others wait for it."""
        is_first = self._vote(name, question)
        if together:
            return self._decide(name, question, alone, lambda: self._measure_together(name, question, alone))
        if is_first:
            limit_s = min(VOTE_S, self._ranks.timeout_s)
            if self._wait(name, limit_s, "the other ranks' votes", self._all_voted(name)) is None:
                return self._decide(name, question, alone, lambda: alone.decide(question))
        what = f"rank {self._leader(name)}, which tunes `{question.key.kernel}`"
        said = self._wait(name, self._ranks.timeout_s, what)
        if said is None:
            raise self._too_late(question, f"rank {self._leader(name)}, which searches, did not finish")
        return self._take(name, said, question, alone)

    def _vote(self, name: str, question: Question) -> bool:
        """Publish, once, that this rank has no answer; returns whether it was the first."""
        if name in self._voted:  # another thread of this rank voted, and decides if it was first
            return False
        self._voted.add(name)
        self._ranks.publish(f"{name}/candidates/{self._ranks.rank}", digest(sorted(question.live)))
        is_first = self._ranks.count(f"{name}/votes") == 1
        if is_first:
            self._ranks.publish(f"{name}/leader", str(self._ranks.rank))
        return is_first

    def _all_voted(self, name: str) -> Callable[[], bool]:
        return lambda: self._ranks.count(f"{name}/votes", 0) >= self._ranks.size

    def _leader(self, name: str) -> str:
        return self._ranks.read(f"{name}/leader") or "?"

    def _wait(self, name: str, limit_s: float, what: str, enough: Callable[[], bool] = lambda: False) -> Json:
        text = self._ranks.wait(name, limit_s, what, enough)
        return None if text is None else disk.parse_json(text)

    def _gather(self, name: str, question: Question) -> None:
        """Wait until every rank is here with the same candidates: ranks launch each candidate together."""
        self._wait(name, self._ranks.timeout_s, "all ranks, to measure together", self._all_voted(name))
        # Atomic: a rank that arrives while another gives up must not begin without it.
        if self._ranks.publish(f"{name}/together", "yes" if self._all_voted(name)() else "no") == "no":
            raise self._too_late(question, "some rank did not call the kernel")
        found = {self._ranks.read(f"{name}/candidates/{rank}") for rank in range(self._ranks.size)}
        if len(found) > 1:
            raise SyncError(
                f"`{question.key.kernel}`: expected the same configs on every rank to measure together, got different "
                "ones. Let configs= and prune_configs_by= depend on what all ranks share.",
                kernel=question.key.kernel,
            )

    def _decide(self, name: str, question: Question, alone: Chooser, how: Callable[[], Choice]) -> Choice:
        """Make the choice for all ranks and publish it, or the error."""
        self._names().append(name)
        try:
            choice = how()
        except BaseException as error:  # also Ctrl-C: the others must not wait in vain
            said = _failure(error, self._ranks.rank)
            if self._ranks.publish(name, disk.text(said)) == disk.text(said) or not isinstance(error, Exception):
                raise
        else:
            return self._publish(name, choice, question, alone)
        finally:
            self._names().remove(name)
        return self._take(name, self._heard(name), question, alone)

    def _measure_together(self, name: str, question: Question, alone: Chooser) -> Choice:
        """Search on every rank at once; a config's time is that of its slowest rank."""
        self._gather(name, question)
        found = alone.decide(question.replace(force=True))  # ignores earlier results: all must launch the same configs
        assert found.record is not None
        mine = f"{name}/record/{self._ranks.rank}"
        self._ranks.publish(mine, disk.text(record.dump(found.record)))
        has_failed = lambda: "error" in (self._heard(name) or {})
        records = []
        for rank in range(self._ranks.size):
            said = self._wait(f"{name}/record/{rank}", self._ranks.timeout_s, "the times of all ranks", has_failed)
            if said is None:  # timed out, or a rank published an error, which all raise
                raise self._too_late(question, f"rank {rank} did not finish measuring")
            records.append(record.load(said))
        merged = slowest(records, question.live)
        if alone.state.keeps(question.key):
            connection.keep(merged, again=question.fresh)
        winner = record.identity_of(merged.winner or {})
        tried = frozenset(question.live)
        under = sources.under(merged, winner)
        return Choice(question.live[winner], Origin.SEARCH, merged, tried=tried, conditions=under)

    def _too_late(self, question: Question, what: str) -> SyncError:
        return SyncError(
            f"`{question.key.kernel}` key {question.key.digest[:12]}: {what} within {self._ranks.timeout_s:g} s (rank "
            f"{self._ranks.rank} of {self._ranks.size}). Look at the log of that rank; autotuned.sync(timeout_s=...) "
            "waits longer, tuning with `autotuned tune` beforehand avoids the wait.",
            kernel=question.key.kernel,
        )

    # -- comparing -----------------------------------------------------------------------------------------------

    def compare(self) -> None:
        """Fail on every rank if two ranks use different configs for a call; every rank must call it at the same point.

        Compares all choices that the ranks have made so far; untuned configs do not count.

        Raises:
            SyncError: Two ranks differ (it names the first such key), or a rank did not call this in time.
        """
        self._compared += 1
        place, mine = f"choices/{self._compared}", tuner.choices()
        said = {key.digest: [key.kernel, identity] for key, identity in mine.items()}
        found: dict[str, tuple[int, list[str]]] = {}
        different: list[tuple[list[str], str]] = []
        for rank, theirs in enumerate(self._of_all(place, said, "the choices of rank {}")):
            if theirs is None:
                raise SyncError(
                    f"sync: expected the choices of every rank within {self._ranks.timeout_s:g} s, got none from rank "
                    f"{rank} (rank {self._ranks.rank} of {self._ranks.size}). Let every rank call .compare().",
                    kernel="",
                )
            for digest_, (kernel_, identity) in theirs.items():
                first, told = found.setdefault(digest_, (rank, [kernel_, identity]))
                if told[1] != identity:
                    words = f"rank {first} uses {told[1]}, rank {rank} {identity}"
                    different.append(([kernel_, digest_], words))
        if different:
            (name, key), words = min(different)
            raise SyncError(
                f"`{name}` key {key[:12]}: expected one choice on all ranks, got {len(different)} that differ: "
                f"{words}. The log of a rank says why it chose by itself; tune beforehand and ship config files.",
                kernel=name,
            )

    # -- newer choices -------------------------------------------------------------------------------------------

    def proposals(self, mine: Mapping[str, Json]) -> Mapping[str, Json]:
        """The ranks' newer choices, by digest; the lowest rank's if several have one.

        Raises:
            SyncError: A rank did not call `autotuned.refresh()` in time.
        """
        self._refreshed += 1
        found: dict[str, Json] = {}
        for rank, theirs in enumerate(self._gathered("found", dict(mine))):
            for digest_, said in theirs.items():
                found.setdefault(digest_, {**said, "rank": rank})
        return found

    def all_ready(self, agreed: Mapping[str, Json], impossible: Collection[str]) -> Collection[str]:
        """Digests of keys whose newer choice is ready on every rank; all ranks use it from now on.

        Raises:
            SyncError: A rank did not arrive in time.
        """
        without = {digest_ for theirs in self._gathered("without", sorted(impossible)) for digest_ in theirs}
        together = agreed.keys() - without
        self._swapped.update((digest_, agreed[digest_]) for digest_ in together)
        return together

    def _gathered(self, what: str, mine: Json) -> list[Json]:
        """Each rank's contribution to this refresh, by rank."""
        said = list(self._of_all(f"refresh/{self._refreshed}/{what}", mine, "rank {}, to refresh together"))
        if None in said:
            raise SyncError(
                f"refresh: expected every rank within {self._ranks.timeout_s:g} s, got nothing from rank "
                f"{said.index(None)} (rank {self._ranks.rank} of {self._ranks.size}). Let every rank call "
                "autotuned.refresh() at the same point.",
                kernel="",
            )
        return said

    def _of_all(self, place: str, mine: Json, what: str) -> Iterator[Json]:
        """Publish a value and yield every rank's in order; None if it does not arrive in time."""
        self._ranks.publish(f"{place}/{self._ranks.rank}", disk.text(mine))
        for rank in range(self._ranks.size):
            yield self._wait(f"{place}/{rank}", self._ranks.timeout_s, what.format(rank))

    # -- messages ------------------------------------------------------------------------------------------------

    def _publish(self, name: str, choice: Choice, question: Question, alone: Chooser) -> Choice:
        """Publish a choice; returns it, or another rank's earlier one."""
        text = disk.text(_success(choice, question, self._ranks.rank))
        held = self._ranks.publish(name, text)
        if held != text:
            return self._take(name, disk.parse_json(held), question, alone)
        self._remember(name, disk.parse_json(text))
        return choice

    def _remember(self, name: str, said: Json) -> None:
        if len(self._agreed) >= 4096:
            self._agreed.clear()  # the store still has them
        self._agreed[name] = {**said, "record": None}

    def _take(self, name: str, said: Json, question: Question, alone: Chooser) -> Choice:
        """The choice from a published message."""
        self._remember(name, said)
        if "error" in said:
            raise _error_of(said, question)
        if said["config"] is None:
            return alone.default(question.call, question.live)
        config = question.live.get(said["config"])
        if config is None and question.narrowed:
            raise _OtherCandidatesError
        if config is None:
            raise SyncError(
                f"`{question.key.kernel}`: rank {said['rank']} chose {said['config']}, which is not a config of this "
                "call on this rank. Give every rank the same configs.",
                kernel=question.key.kernel,
            )
        found = record.load(said["record"]) if said["record"] else None
        if found is not None and alone.state.keeps(question.key) and stored_records.read_of(question.key) is None:
            stored_records.keep(found)
        under = None if said["conditions"] is None else conditions.load(said["conditions"], "conditions")
        tried = frozenset(question.live) if said["origin"] == Origin.SEARCH.name else frozenset()
        where = f"rank {said['rank']}"
        return Choice(config, origin(said["origin"]), found, where=where, tried=tried, conditions=under)


class _OtherCandidatesError(Exception):
    """Raised if the agreed config is not a candidate of this call."""


def _success(choice: Choice, question: Question, rank: int) -> dict[str, Json]:
    identity = next((name for name, config in question.live.items() if config is choice.config), None)
    found = None if choice.record is None else record.dump(choice.record)
    under = None if choice.conditions is None else choice.conditions.to_json()
    return {"rank": rank, "config": identity, "origin": choice.origin.name, "record": found, "conditions": under}


def _name(question: Question) -> str:
    """The name under which ranks agree: a key and the conditions of measurement, as short digests."""
    asked = digest([question.key.text, question.needed.to_json()])
    return f"{question.key.digest}/{asked}/{question.mode}"


def _failure(error: BaseException, rank: int) -> dict[str, Json]:
    facts = {name: value for name, value in vars(error).items() if isinstance(value, str)}
    return {"rank": rank, "error": type(error).__name__, "message": errors.text_of(error)[:4000], "facts": facts}


def _error_of(said: Json, question: Question) -> AutotunedError:
    """The deciding rank's error, of the same class, so that handlers do the same on all ranks."""
    kind = getattr(errors, said["error"], None)
    message = f"{said['message']} (said by rank {said['rank']}, which decides for all)"
    if isinstance(kind, type) and issubclass(kind, AutotunedError):
        return kind(message, **{"reasons": {}, **said["facts"]})
    kernel = question.key.kernel
    return SyncError(f"`{kernel}`: expected a choice, got {said['error']}: {message}", kernel=kernel)


def slowest(records: list[TuningRecord], live: Mapping[str, Any]) -> TuningRecord:
    """Merge the ranks' records: a config's time is that of its slowest rank, and it fails if it failed on any.

    Raises:
        AllConfigsFailedError: No config ran on every rank.
    """
    timings = [_slowest_timing(identity, records) for identity in live]
    samples_us = {timing.identity: timing.typical_us for timing in timings if timing.usable}
    if not samples_us:
        options = records[0].key.is_of_triton
        reasons = [(timing.error or "failed", configs.label(timing.config, options)) for timing in timings]
        raise failures.all_failed(records[0].key.kernel, reasons)
    best, quality = race.pick(samples_us, records[0].untuned)
    won = next(timing for timing in timings if timing.identity == best)
    provenance = {**records[0].provenance, "ranks": len(records)}
    return records[0].replace(
        winner=won.config, median_us=won.median_us, quality=quality, timings=tuple(timings),
        provenance=provenance, conditions=records[0].conditions.replace(checks=won.passed),
    )  # fmt: skip


def _slowest_timing(identity: str, records: list[TuningRecord]) -> Timing:
    found = [timing for each in records for timing in each.timings if timing.identity == identity]
    form = disk.parse_json(identity)
    failed = next((timing for timing in found if not timing.usable), None)
    if failed is not None or len(found) < len(records):
        return failed or Timing(form, status="failed", error="not measured on every rank")
    return max(found, key=lambda timing: timing.median_us or 0.0)


def sync(group: Any = None, timeout_s: float = 600.0) -> Agreement:
    """Make all ranks of a process group choose the same config for the same call, from now on.

    At a miss one rank searches and the others wait for its choice; a rank that has one publishes it and continues.
    Ranks communicate through the group's store, without collectives; a hit costs nothing. Every rank of the group must
    call this equally often. It replaces the file lock between processes.

    Args:
        group: A `torch.distributed` process group; None for the default one.
        timeout_s: Longest wait for the searching rank, in seconds.

    Returns:
        The agreement; `.close()` or the end of a `with` block ends it.

    Raises:
        SyncError: There is no process group, or this process is not in it.
    """
    if not timeout_s > 0:
        raise SyncError(f"sync: timeout_s: expected seconds above 0, got {timeout_s!r}.", kernel="")
    agreement = Agreement(ranks.of_group(group, timeout_s))
    active.agreements.append(agreement)
    active.tell_change()
    return agreement


def _after_fork_in_child() -> None:
    """A forked child is not a rank: it chooses alone and does not use the rank's connection."""
    active.agreements.clear()


after_fork(_after_fork_in_child)
