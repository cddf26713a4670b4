"""The input, the progress and the result of a search."""

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
MUCH_BYTES = 256 << 20  # unneeded copies above this are worth a hint


@dataclass(frozen=True)
class Progress:
    """How far a search is.

    Attributes:
        kernel: Name of what is tuned.
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
    """Everything a search needs.

    Attributes:
        configs: Live configs by identity, in list order.
        restore: Names to protect; None to detect them. `zero`: names zeroed before each trial.
        named: Names that this call's decorator protects, if other callers asked for more; None if equal to `restore`.
        checked: The check as records store it. `stricter`: one that also covers what other callers asked of the
            reference.
        known: Timings of an earlier search, by identity; these configs are not measured again.
        incumbent: The winner of the earlier search, measured again next to new configs.
        is_proven: Whether the incumbent has beaten the untuned config.
        untuned: Identity of the config that runs untuned: it stays in the race, and the winner must beat it.
        all_stay: Drop no config before the finals.
        spare: The untuned config if it is not in the user's list: the search fails if the whole list fails.
        objective: What is timed: "kernel" or "call" (`timers`).
        budget_s: Stop after this many seconds with the results so far; None for no limit.
        on_timing: Called with each timing, and again when it has more samples.
        watch: Detect what is written even if `restore` is given.
        compile_class: Shared by calls that compile alike; None if unknown.
        likely: Identities of configs to try first: they won for similar calls.
        excluded: Configs to skip, with the reason, by identity.
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
    """The user's benchmark, else the timer of the device that the call runs on."""
    timer = timers.for_device(tunable.device(call), objective)
    return timer if do_bench is None else GivenTimer(do_bench, timer)


@dataclass(frozen=True)
class Noise:
    """Details of a search whose race was noisy.

    Attributes:
        spread: Relative width of the middle 60% of the winner's samples.
        slowed: Whether heat or hardware held the clocks down.
        waited_s: How long the search waited for calm. `repeated`: whether it raced again.
    """

    spread: float
    slowed: bool
    waited_s: float
    repeated: bool

    def to_json(self) -> dict[str, Json]:
        """As in the provenance of a record."""
        return {"spread": round(self.spread, 4), "slowed": self.slowed, "waited_s": self.waited_s,
                "repeated": self.repeated}  # fmt: skip


@dataclass
class Outcome:
    """The result of a search; `winner` is None until it finishes.

    Attributes:
        written: Arguments that were restored. `unnamed`: written arguments that no list names.
        regime: Conditions of the measurement, as the timer names them.
        noise: Set if the race was noisy.
        unconfirmed: Identity of the config that was ahead when the budget ended before the final duel.
        members: Results for each call of a bucket.
        one_answer_us: The time that the user's benchmark returned for every config, if it did.
        copied_bytes, needed_bytes: Size of all copies, and of those that were written to.
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
        """The record to store.

        Args:
            key: What was tuned.
            seconds: Duration of the search.
            provenance: Further facts on how it was measured.
            restore: What was restored around trials.
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
        """Hints to print once, each with its topic: which arguments to name in a list."""
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
                    " The untuned config is used; let do_bench time its argument."
                ),
            )
        if self.unnamed and log.isEnabledFor(logging.DEBUG):
            yield (
                "unnamed",
                (f"`{kernel}`: {_listed(self.unnamed)} is written, and no list names it."),
            )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))
