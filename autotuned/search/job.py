"""The input, progress and result of a search."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from autotuned.key import opaque
from autotuned.key.key import Key
from autotuned.search import timers
from autotuned.search.exclusions import Exclusion
from autotuned.search.safety.check import Check
from autotuned.search.timers import GivenTimer, Timer
from autotuned.store.conditions import Checked, Conditions, Restore
from autotuned.store.journal import Journal
from autotuned.store.record import Quality, Timing, TuningRecord
from autotuned.tunable import configs
from autotuned.tunable.call import Call, Hooks
from autotuned.tunable.tunable import Tunable
from autotuned.typed_json import Json

if TYPE_CHECKING:
    from autotuned.search.compiling.stragglers import Stragglers

log = logging.getLogger("autotuned")
MUCH_BYTES = 256 << 20  # unneeded copies above this are worth a hint


@dataclass(frozen=True)
class Progress:
    """The progress of a search.

    Attributes:
        kernel: Name of the kernel or function.
        done, total: Configs launched at least once, and all to be launched.
        config: Label of the config under test.
        best, best_us: Label and median of the fastest so far.
        stage: "compiling", "launching" or "sampling"; "waiting" for another search to end or the reference to finish.
        identity: Identity of the config under test.
        compiling: Seconds since each config that is being compiled began, by identity.
    """

    kernel: str
    done: int
    total: int
    config: str
    best: str | None
    best_us: float | None
    stage: str = ""
    identity: str = ""
    compiling: Mapping[str, float] = field(default_factory=dict)


Observer = Callable[[Progress], None]


@dataclass(frozen=True)
class Job:
    """Everything a search needs."""

    tunable: Tunable
    call: Call
    configs: Mapping[str, Any]  # live configs by identity, in list order
    timer: Timer
    restore: Sequence[str] | None = None  # names to protect; None to detect them
    zero: Sequence[str] = ()  # names zeroed before each trial
    hooks: Hooks = field(default_factory=Hooks)
    known: Mapping[str, Timing] = field(default_factory=dict)  # earlier timings by identity, not measured again
    incumbent: str | None = None  # the winner of the earlier search, measured again next to new configs
    is_proven: bool = False  # whether the incumbent has beaten the untuned config
    untuned: str | None = None  # the untuned config: it stays in the race, and the winner must beat it
    all_stay: bool = False  # drop no config before the finals
    spare: str | None = None  # `untuned` if not in the user's list: the search fails if the whole list fails
    objective: str = "kernel"  # time "kernel" or "call" (`timers`)
    patience: float = 1.0  # share of the usual wait for calm after a noisy race, and of launches that resolve ties
    budget_s: float = math.inf  # stop after this many seconds with the results so far
    slow: Stragglers | None = None  # keeps the compilations that are not waited for; None to wait for all
    observer: Observer | None = None
    check: Check | None = None
    named: Sequence[str] | None = None  # to protect by this call's decorator; None if `restore` says the same
    checked: Checked | None = None  # the check as records store it
    stricter: Checked | None = None  # a check that also covers other callers' demands on the reference
    watch: bool = False  # detect written arguments even if `restore` is given
    compile_class: Hashable | None = None  # shared by calls that compile alike; None if unknown
    journal: Journal = field(default_factory=lambda: Journal(None))
    all_cores: bool = False  # whether to compile on the other ranks' cores too, since they wait for this search
    excluded: Mapping[str, Exclusion] = field(default_factory=dict)  # configs to skip, with the reason, by identity
    likely: Sequence[str] = ()  # identities of configs to try first: they won for similar calls
    on_timing: Callable[[Timing], None] = lambda timing: None  # called again when a timing has more samples
    # Called while configs compile, with rough times since the last call, by identity, and how many are compiling: adds
    # further ones to `configs`, and returns their identities.
    more: Callable[[Mapping[str, Timing], int], Sequence[str]] | None = None

    def form(self, identity: str) -> dict[str, Json]:
        """Canonical form of a candidate."""
        return configs.to_json(self.configs[identity], self.tunable.name, opaque.spell)


def timer_of(tunable: Tunable, call: Call, do_bench: Callable[..., Any] | None, objective: str = "kernel") -> Timer:
    """The user's benchmark, else the timer of the device that the call runs on."""
    timer = timers.for_device(tunable.device(call), objective)
    return timer if do_bench is None else GivenTimer(do_bench, timer)


@dataclass(frozen=True)
class Noise:
    """Details of a search whose race was noisy."""

    spread: float  # relative width of the middle 60% of the winner's samples
    slowed: bool  # whether heat or hardware throttled the clocks
    waited_s: float  # how long the search waited for calm
    repeated: bool  # whether it raced again

    def to_json(self) -> dict[str, Json]:
        """As in the provenance of a record."""
        return {"spread": round(self.spread, 4), "slowed": self.slowed, "waited_s": self.waited_s,
                "repeated": self.repeated}  # fmt: skip


@dataclass
class Outcome:
    """The result of a search; `winner` is None until it finishes."""

    timings: list[Timing] = field(default_factory=list)
    winner: str | None = None
    quality: Quality = "unresolved"
    written: list[str] = field(default_factory=list)  # arguments that were restored
    unnamed: list[str] = field(default_factory=list)  # written arguments that no list names
    one_answer_us: float | None = None  # the time that the user's benchmark returned for every config, if it did
    copied_bytes: int = 0  # size of all copies
    needed_bytes: int = 0  # size of those whose tensors were written
    compile_s: float = 0.0
    regime: dict[str, Json] = field(default_factory=dict)  # conditions of the measurement, as the timer names them
    noise: Noise | None = None  # set if the race was noisy
    unconfirmed: str | None = None  # identity of the leader if the budget ended before the last comparison
    space: dict[str, Json] = field(default_factory=dict)
    members: dict[str, Json] = field(default_factory=dict)  # results for each call of a bucket

    def absorb(self, other: Outcome) -> None:
        """Add the cost and the findings of another search for the same kernel."""
        self.compile_s += other.compile_s
        self.written += [name for name in other.written if name not in self.written]
        self.unnamed += [name for name in other.unnamed if name not in self.unnamed]
        for name in ("one_answer_us", "copied_bytes", "needed_bytes", "regime"):
            setattr(self, name, getattr(other, name))

    def record(self, key: Key, seconds: float, provenance: Mapping[str, Any], restore: Restore = None) -> TuningRecord:
        """The record to store, given the duration of the search and further facts on how it was measured."""
        by_name = {timing.identity: timing for timing in self.timings}
        won, unconfirmed = by_name.get(self.winner or ""), by_name.get(self.unconfirmed or "")
        how = {
            "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "seconds": round(seconds, 3),
            "written": list(self.written),
            "regime": dict(self.regime),
            **({} if self.noise is None else {"noise": self.noise.to_json()}),
            **({"space": dict(self.space)} if self.space else {}),
            **({"members": dict(self.members)} if self.members else {}),
            **({"unconfirmed": unconfirmed.config} if unconfirmed is not None else {}),
            **provenance,
        }
        return TuningRecord(
            key, won.config if won else None, won.median_us if won else None, self.quality, tuple(self.timings), how,
            Conditions(restore, won.passed if won else ()),
        )  # fmt: skip

    def advice(self, kernel: str, automatic: bool) -> Iterator[tuple[str, str]]:
        """Hints to print once, each with its topic: which arguments to name in a list."""
        if automatic and self.copied_bytes - self.needed_bytes > MUCH_BYTES:
            text = f"`{kernel}`: a search copies {self.copied_bytes >> 20} MiB to find out what the kernel writes; "
            yield "copies", f"{text}restore_value=[{_listed(self.written)}] needs {self.needed_bytes >> 20} MiB."
        if self.one_answer_us is not None:
            text = f"`{kernel}`: expected do_bench to tell configs apart, got {self.one_answer_us / 1e3:g} ms for all."
            yield "one answer", f"{text} The untuned config is used; let do_bench time its argument."
        if self.unnamed and log.isEnabledFor(logging.DEBUG):
            yield "unnamed", f"`{kernel}`: {_listed(self.unnamed)} is written, and no list names it."


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))
