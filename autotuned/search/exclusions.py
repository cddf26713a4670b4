"""Configs to skip: which, why, and for how long."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping
from enum import Enum
from typing import Any, NamedTuple

from autotuned._startup import forget_oldest
from autotuned.store.journal import Journal
from autotuned.store.record import Timing
from autotuned.triton_compat import compiled

LIMIT = 4096  # kinds of calls to remember, to bound memory


class Lifetime(Enum):
    """How long an exclusion holds. A search with `force` asks neither journal nor record."""

    SEARCH = "this search"
    PROCESS = "this process"
    JOURNAL = "until a search of the key has ended and the record has it; `autotuned tune` tries it once more"
    RECORD = "as long as the record"


class Reason(Enum):
    """Why a config is excluded, for how long, its status in the record, and what the user can do."""

    PASSING = "memory was full, or a limit of time passed", Lifetime.SEARCH
    NOT_COMPILED = "it does not compile for calls like this, or certainly needs too much memory", Lifetime.PROCESS
    NOT_LAUNCHED = "it was chosen, and does not compile or launch here", Lifetime.PROCESS
    BLAMED = "the process that measured it ended or hung", Lifetime.PROCESS
    CRASHED = (
        "an earlier process ended in its first launch", Lifetime.JOURNAL, "crashed",
        ". If it was killed from outside, `autotuned tune` tries it once more",
    )  # fmt: skip
    LOST = "it cost an earlier process its device", Lifetime.JOURNAL, "failed", "; force=True tries it again"
    FAILED = "its launch failed", Lifetime.RECORD
    WRONG = "its results differ from the expected ones", Lifetime.RECORD, "wrong"

    def __init__(self, why: str, lifetime: Lifetime, status: str = "failed", remedy: str = "") -> None:
        self.why, self.lifetime, self.status, self.remedy = why, lifetime, status, remedy


class Exclusion(NamedTuple):
    """Why a config is skipped, and the text for the record."""

    reason: Reason
    words: str


class Exclusions(dict[Hashable, dict[str, Exclusion]]):
    """Configs to skip, by kind of call: the digest of a key, or the compile class."""

    def add(self, calls: Hashable, identity: str, reason: Reason, words: str) -> None:
        """Exclude a config from now on."""
        self.setdefault(calls, {})[identity] = Exclusion(reason, words)
        forget_oldest(self, LIMIT)

    def of(self, calls: Hashable) -> Mapping[str, Exclusion]:
        """Configs to skip for a kind of call, by identity."""
        return self.get(calls, {})

    def without(self, calls: Hashable, given: Mapping[str, Any]) -> dict[str, Any]:
        """`given` without the excluded configs."""
        return {name: value for name, value in given.items() if name not in self.of(calls)}


process = Exclusions()
TWICE = "Crashed: two processes ended while this config was launched for the first time"


def remember(compile_class: Hashable | None, not_compiled: Mapping[str, str]) -> None:
    """Exclude configs that do not compile, for all calls that compile alike."""
    if compile_class is not None:
        for identity, words in not_compiled.items():
            process.add(compile_class, identity, Reason.NOT_COMPILED, words)


def of_search(digest: str, compile_class: Hashable | None, journal: Journal) -> dict[str, Exclusion]:
    """Configs that a search for a key skips, by identity."""
    lost = dict.fromkeys(journal.lost, Exclusion(Reason.LOST, "Crashed: it left the device in an error state"))
    words = "Crashed: a process ended while this config was launched for the first time"
    crashed = dict.fromkeys(journal.crashed, Exclusion(Reason.CRASHED, words))
    return {**process.of(compile_class), **crashed, **lost, **process.of(digest)}


def measured(known: Mapping[str, Timing], journal: Journal, again: bool) -> dict[str, Timing]:
    """Timings of a record that still hold; a config that crashed twice has failed for good.

    With `again` a config that crashed once is tried again: its process may have been killed from outside.
    """
    found = {}
    for identity, timing in known.items():
        if timing.status == "crashed" and identity in journal.crashed:
            found[identity] = timing.replace(status="failed", error=TWICE)
        elif timing.status != "crashed" or not again:
            found[identity] = timing
    return found


class SharedMemory:
    """Predicts the shared memory of configs that differ only in their stages.

    The need grows linearly with the stages or not at all (all 12 groups of 36 attention configs, Triton 3.9, sm_90), so
    two compiled configs predict the others.
    """

    def __init__(self, limit_bytes: int | None) -> None:
        self._limit_bytes = limit_bytes
        self._needs: dict[Hashable, dict[int, int]] = {}
        self._guard = threading.Lock()

    def note(self, config: Any, binary: Any) -> None:
        """Note the shared memory that a compiled config needs."""
        need = getattr(getattr(binary, "metadata", None), "shared", None)
        if isinstance(need, int) and config.num_stages is not None:
            with self._guard:
                self._needs.setdefault(_group(config), {})[config.num_stages] = need

    def refuse(self, config: Any) -> None:
        """Raise if a config certainly needs too much; a config without a number of stages is not judged.

        Raises:
            OutOfResources: Triton's own error, saying that it was predicted.
        """
        if config.num_stages is None:
            return
        with self._guard:
            known = sorted(self._needs.get(_group(config), {}).items())
        fewer = [(stages, need) for stages, need in known if stages < config.num_stages]
        if self._limit_bytes is None or len(fewer) < 2:
            return
        (first, less), (second, more) = fewer[0], fewer[-1]
        need = more + (more - less) * (config.num_stages - second) // (second - first)
        if more > less and need > self._limit_bytes:
            raise compiled.out_of_shared_memory(need, self._limit_bytes, f"num_stages={first} and {second}")


def _group(config: Any) -> Hashable:
    settings = {**config.all_kwargs(), "num_stages": None}
    return tuple(sorted((name, repr(value)) for name, value in settings.items()))
