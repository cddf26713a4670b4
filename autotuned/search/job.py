"""What one search is given, what it tells while it runs, and what it finds."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property
from typing import Any

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
from autotuned.tunable.call import Call, Hooks, Tunable
from autotuned.typed_json import Json

log = logging.getLogger("autotuned")
MUCH_BYTES = 256 << 20  # copied for nothing: worth a line that says how to avoid it


@dataclass(frozen=True)
class Progress:
    """How far a search is.

    Attributes:
        kernel: Name of what is tuned.
        done, total: Configs launched at least once, and all that are to be.
        config: Label of the config under test.
        best, best_us: Label and median of the fastest so far.
        stage: What is done to it: "compiling", "launching" or "sampling"; "waiting" while nothing is: for another
            search to end, or for the reference to compute.
        identity: The text that identifies it.
        compiling: What else is being compiled, by identity, and for how many seconds already.
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
    """Everything one search needs.

    Attributes:
        configs: The live configs of the candidates, by identity, in list order.
        restore: Names to protect, None to find out; `zero`: names zeroed before each trial.
        named: Those that this call's decoration protects, where others asked for more; None for those of `restore`.
        checked: The check as records hold it. `stricter`: one that also covers what others asked of the reference.
        known: Timings of an earlier search, by identity; these configs are not measured again.
        incumbent: Of these, the one to beat: measured again beside configs that are new.
        is_proven: Whether the incumbent has beaten what runs without tuning.
        untuned: The config that runs without tuning, by identity: it stays in the race, and what wins must beat it.
        all_stay: None leaves the race before there are finalists.
        spare: The same where the user's list does not have it: where the whole list fails, the search has failed.
        objective: What of a call is timed: "kernel" or "call" (`timers`).
        budget_s: The search stops after this many seconds with what it has; None never.
        on_timing: Told of each timing as it is measured, and again when there are more samples of it.
        watch: Find out what is written also where `restore` is given.
        compile_class: Calls that have this in common compile alike; None where that is not known.
        likely: Configs to try first, by identity: they won for calls like this one.
        excluded: Configs that are not tried, and why, by identity.
    """

    tunable: Tunable
    call: Call
    configs: Mapping[str, Any]
    timer: Timer
    restore: Sequence[str] | None = None
    zero: Sequence[str] = ()
    hooks: Hooks = field(default_factory=Hooks)
    known: Mapping[str, Timing] = field(default_factory=dict)
    incumbent: str | None = None
    is_proven: bool = False
    untuned: str | None = None
    all_stay: bool = False
    spare: str | None = None
    objective: str = "kernel"
    budget_s: float | None = None
    observer: Observer | None = None
    check: Check | None = None
    named: Sequence[str] | None = None
    checked: Checked | None = None
    stricter: Checked | None = None
    watch: bool = False
    compile_class: Hashable | None = None
    journal: Journal = field(default_factory=lambda: Journal(None))
    excluded: Mapping[str, Exclusion] = field(default_factory=dict)
    likely: Sequence[str] = ()
    on_timing: Callable[[Timing], None] = lambda timing: None

    @cached_property
    def forms(self) -> dict[str, dict[str, Json]]:
        """Canonical form of each candidate, by identity, in list order."""
        kernel = self.tunable.name
        return {name: configs.to_json(config, kernel, opaque.spell) for name, config in self.configs.items()}


def timer_of(tunable: Tunable, call: Call, do_bench: Callable[..., Any] | None, objective: str = "kernel") -> Timer:
    """What measures a call: the user's benchmark, else the timer of the device that the call runs on."""
    timer = timers.for_device(tunable.device(call), objective)
    return timer if do_bench is None else GivenTimer(do_bench, timer)


@dataclass(frozen=True)
class Noise:
    """What there is to say of a search whose race was noisy.

    Attributes:
        spread: Over how much of its median the middle 60% of the winner's samples spread.
        slowed: Whether heat or the hardware held the clocks down.
        waited_s: How long it waited for calm. `repeated`: whether there was time for another race.
    """

    spread: float
    slowed: bool
    waited_s: float
    repeated: bool

    def to_json(self) -> dict[str, Json]:
        """As the provenance of a record has it."""
        return {"spread": round(self.spread, 4), "slowed": self.slowed, "waited_s": self.waited_s,
                "repeated": self.repeated}  # fmt: skip


@dataclass
class Outcome:
    """What a search found; `winner` is None while it is not finished.

    Attributes:
        written: Names of the arguments that were restored. `unnamed`: those written that no list names.
        regime: The conditions under which times were taken, as the timer names them.
        noise: What there is to say of a race that was noisy; None of another.
        unconfirmed: The config, by identity, that would have won had the budget left time for the last comparison.
        members: What was found for each call of a bucket.
        one_answer_us: The time that the user's benchmark gave to all configs alike, where it did.
        copied_bytes, needed_bytes: What was copied aside, and how much of that is written.
    """

    timings: list[Timing] = field(default_factory=list)
    winner: str | None = None
    quality: Quality = "unresolved"
    written: list[str] = field(default_factory=list)
    unnamed: list[str] = field(default_factory=list)
    one_answer_us: float | None = None
    copied_bytes: int = 0
    needed_bytes: int = 0
    compile_s: float = 0.0
    regime: dict[str, Json] = field(default_factory=dict)
    noise: Noise | None = None
    unconfirmed: str | None = None
    space: dict[str, Json] = field(default_factory=dict)
    members: dict[str, Json] = field(default_factory=dict)

    def record(self, key: Key, seconds: float, provenance: Mapping[str, Any], restore: Restore = None) -> TuningRecord:
        """What is kept of it.

        Args:
            key: What was tuned.
            seconds: How long the search took.
            provenance: What else there is to say of how it was measured.
            restore: What was put back around trials.
        """
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
        """Lines that are worth saying once, each with what it is about: what the user could name in a list."""
        if automatic and self.copied_bytes - self.needed_bytes > MUCH_BYTES:
            yield (
                "copies",
                (
                    f"`{kernel}`: a search copies {self.copied_bytes >> 20} MiB to find out what the kernel writes; "
                    f"restore_value=[{_listed(self.written)}] needs {self.needed_bytes >> 20} MiB."
                ),
            )
        if self.one_answer_us is not None:
            yield (
                "one answer",
                (
                    f"`{kernel}`: expected do_bench to tell configs apart, got {self.one_answer_us / 1e3:g} ms for all."
                    " What runs untuned is taken; let it time its argument."
                ),
            )
        if self.unnamed and log.isEnabledFor(logging.DEBUG):
            yield (
                "unnamed",
                (f"`{kernel}`: {_listed(self.unnamed)} is written, and no list names it."),
            )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))
