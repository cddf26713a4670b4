"""Configs that are not tried: which, why, and for how long."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from enum import Enum
from typing import Any, NamedTuple

from autotuned.store.journal import Journal
from autotuned.store.record import Timing

LIMIT = 4096  # kinds of calls whose exclusions are remembered: those of a process must not grow without end


class Lifetime(Enum):
    """How long an exclusion holds. What is measured with `force` asks neither journal nor record."""

    SEARCH = "this search"
    PROCESS = "this process"
    JOURNAL = "until a search of the key has ended and the record has it; `autotuned tune` tries it once more"
    RECORD = "as long as the record"


class Reason(Enum):
    """Why a config is excluded, for how long, its status in the record, and for people what follows of a skip."""

    PASSING = "memory was full, or a limit of time passed", Lifetime.SEARCH
    NOT_COMPILED = "it does not compile for calls like this, or certainly needs too much memory", Lifetime.PROCESS
    NOT_LAUNCHED = "it was chosen, and does not compile or launch here", Lifetime.PROCESS
    BLAMED = "the process that measured it ended or hung", Lifetime.PROCESS
    CRASHED = (
        "an earlier process ended in its first launch", Lifetime.JOURNAL, "crashed",
        ". If it was killed from outside, `autotuned tune` tries it once more",
    )  # fmt: skip
    LOST = "it cost an earlier process its device", Lifetime.JOURNAL, "failed", "; --force tries it again"
    FAILED = "its launch failed", Lifetime.RECORD
    WRONG = "its results differ from the expected ones", Lifetime.RECORD, "wrong"

    def __init__(self, why: str, lifetime: Lifetime, status: str = "failed", remedy: str = "") -> None:
        self.why, self.lifetime, self.status, self.remedy = why, lifetime, status, remedy


class Exclusion(NamedTuple):
    """Why a config is not tried, and the same in words, as a record keeps them."""

    reason: Reason
    words: str


class Exclusions:
    """Configs that are not tried for one kind of calls: those of a key, by its digest, or those that compile alike."""

    def __init__(self) -> None:
        self._found: dict[Hashable, dict[str, Exclusion]] = {}

    def add(self, calls: Hashable, identity: str, reason: Reason, words: str) -> None:
        """Exclude a config from now on."""
        self._found.setdefault(calls, {})[identity] = Exclusion(reason, words)
        while len(self._found) > LIMIT:
            self._found.pop(next(iter(self._found)), None)

    def of(self, calls: Hashable) -> Mapping[str, Exclusion]:
        """What is excluded for calls of a kind, by identity."""
        return self._found.get(calls, {})

    def clear(self) -> None:
        """Try everything again."""
        self._found.clear()

    def without(self, calls: Hashable, given: Mapping[str, Any]) -> dict[str, Any]:
        """What is given by identity, less what is excluded."""
        return {name: value for name, value in given.items() if name not in self.of(calls)}


process = Exclusions()


def remember(compile_class: Hashable | None, not_compiled: Mapping[str, str]) -> None:
    """Exclude what does not compile for all calls that compile alike. Never for a full memory or a limit of time."""
    if compile_class is not None:
        for identity, words in not_compiled.items():
            process.add(compile_class, identity, Reason.NOT_COMPILED, words)


def of_search(digest: str, compile_class: Hashable | None, journal: Journal) -> dict[str, Exclusion]:
    """What a search for a key does not try, by identity.

    Args:
        compile_class: Calls that have this in common compile alike; None where that is not known.
    """
    lost = dict.fromkeys(journal.lost, Exclusion(Reason.LOST, "Crashed: it left the device in an error state"))
    words = "Crashed: a process ended while this config was launched for the first time"
    crashed = dict.fromkeys(journal.crashed, Exclusion(Reason.CRASHED, words))
    return {**process.of(compile_class), **crashed, **lost, **process.of(digest)}


def measured(known: Mapping[str, Timing], journal: Journal, again: bool) -> dict[str, Timing]:
    """The timings of a record that still hold, by identity; a config that ended two processes has failed for good.

    Args:
        again: Whether a config that ended one process, which may have been killed from outside, is tried once more.
    """
    found = {}
    for identity, timing in known.items():
        if timing.status == "crashed" and identity in journal.crashed:
            found[identity] = timing.replace(status="failed", error=TWICE)
        elif timing.status != "crashed" or not again:
            found[identity] = timing
    return found


TWICE = "Crashed: two processes ended while this config was launched for the first time"
