"""What tuning bought: each stored or shipped choice against the first config and the default, and the spread of all."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from autotuned.recording.file import RecordedCall
from autotuned.store.record import Timing, identity_of
from autotuned.typed_json import Json

from .. import terminal
from .stored import Stored, of_kernel
from .usage import Missing, missing_of, usage


@dataclass(frozen=True)
class Measured:
    """One config of a case; `roles` are among "chosen", "first" and "default"."""

    label: str
    median_us: float | None
    low_us: float | None
    high_us: float | None
    samples: int
    status: str
    error: str | None
    roles: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Json]:
        """What `report --json` prints of it."""
        return {**vars(self), "roles": list(self.roles)}


@dataclass(frozen=True)
class Case:
    """One choice and what it is worth.

    Attributes:
        vs_first, vs_default: Time of the first config, or of `default=`, over that of the chosen one; None where it was
            not measured, or (from config files) is not known.
        configs: All that were measured, in list order; none from config files.
        seconds: What the search took.
        count: How often a recording has it; None without one.
    """

    stored: Stored
    vs_first: float | None
    vs_default: float | None
    configs: Sequence[Measured] = ()
    seconds: float | None = None
    count: int | None = None

    @property
    def call(self) -> str:
        """The call in few words."""
        return terminal.call_words(self.stored.key.call)

    @property
    def times_us(self) -> list[float]:
        """Of the configs that may be chosen, fastest first."""
        return sorted(c.median_us for c in self.configs if c.median_us and c.status in ("ok", "same"))

    @property
    def spread(self) -> float | None:
        """Time of the slowest config over that of the fastest."""
        times = self.times_us
        return times[-1] / times[0] if times else None

    def failures(self, status: str = "failed") -> list[Measured]:
        """Those that failed, whose process ended in their launch included, or computed something else ("wrong")."""
        alike = ("failed", "crashed") if status == "failed" else (status,)
        return [config for config in self.configs if config.status in alike]

    def to_json(self) -> dict[str, Json]:
        """What `report --json` prints of it."""
        return {
            **self.stored.to_json(),
            "vs_first": self.vs_first,
            "vs_default": self.vs_default,
            "spread": self.spread,
            "failed": len(self.failures()),
            "wrong": len(self.failures("wrong")),
            "seconds": self.seconds,
            "count": self.count,
            "configs": [config.to_json() for config in self.configs],
        }


@dataclass(frozen=True)
class Coverage:
    """How much of a recording has a choice: distinct calls, and calls by how often each was made."""

    distinct: int
    tuned: int
    calls: int
    tuned_calls: int
    missing: Sequence[Missing] = ()

    def to_json(self) -> dict[str, Json]:
        """What `report --json` prints of it."""
        return {**vars(self), "missing": [one.to_json() for one in self.missing]}


def cases(kernel: str, counts: Mapping[str, int] | None = None, own: bool = True) -> Iterator[Case]:
    """A kernel's choices; searches that are not finished are left out.

    Args:
        counts: How often each key was called, by digest.
        own: With what the config files of this package have.
    """
    for stored in of_kernel(kernel, own=own):
        if stored.config is not None:
            yield _case(stored, None if counts is None else counts.get(stored.key.digest, 0))


def _case(stored: Stored, count: int | None) -> Case:
    record = stored.record
    if record is None:
        return Case(stored, None, stored.vs_default, count=count)
    default = record.provenance.get("default")
    names = {"chosen": identity_of(stored.config or {}), "default": identity_of(default) if default else ""}
    names["first"] = record.timings[0].identity if record.timings else ""
    configs = [_measured(timing, names, stored.key.is_of_triton) for timing in record.timings]
    speed = {role: _ratio(configs, role, stored.median_us) for role in ("first", "default")}
    return Case(stored, speed["first"], speed["default"], configs, record.provenance.get("seconds"), count)


def _measured(timing: Timing, names: Mapping[str, str], options: bool) -> Measured:
    roles = tuple(role for role, identity in names.items() if identity == timing.identity)
    label = terminal.config_words(timing.config, options)
    return Measured(
        label, timing.median_us, timing.low_us, timing.high_us, timing.samples, timing.status, timing.error, roles
    )


def _ratio(configs: Sequence[Measured], role: str, chosen_us: float | None) -> float | None:
    us = next((config.median_us for config in configs if role in config.roles), None)
    return us / chosen_us if us and chosen_us else None


def mean(ratios: Iterable[float | None]) -> float | None:
    """Geometric mean of what is known; None where nothing is."""
    known = [ratio for ratio in ratios if ratio]
    return math.exp(math.fsum(map(math.log, known)) / len(known)) if known else None


def coverage(recorded: Sequence[RecordedCall]) -> Coverage:
    """How much of a recording the store or the config files answer."""
    found = usage(recorded)
    tuned = [call for call in recorded if call.key.digest in found.answers]
    return Coverage(
        len(recorded),
        len(tuned),
        sum(call.count for call in recorded),
        sum(call.count for call in tuned),
        list(missing_of(found)),
    )
