"""One entry of a config file: a call, its config, and the conditions it was measured under."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any

from autotuned._startup import once
from autotuned.errors import RecordError
from autotuned.key.key import check_call
from autotuned.store import conditions, record
from autotuned.store.conditions import Conditions
from autotuned.store.record import Quality
from autotuned.typed_json import Json, texts, typed

_LARGEST = sys.float_info.max
WARPS = (1, 2, 4, 8, 16, 32, 64)  # Triton takes powers of two only


@dataclass(frozen=True)
class Entry:
    """One tuned call of a file.

    Attributes:
        quality: None if unknown.
        binaries: Digests of its compiled kernels in the file of binaries next to this one. Ignored by `==`, since they
            are not part of the choice.
    """

    call: Json
    config: Mapping[str, Json]
    median_us: float | None
    vs_default: float | None
    conditions: Conditions = Conditions()
    quality: Quality | None = None
    binaries: tuple[str, ...] = field(default=(), compare=False)

    @once
    def identity(self) -> str:
        """The config's identity among a call's candidates."""
        return record.identity_of(self.config)

    def to_json(self) -> dict[str, Json]:
        """The entry as the file holds it."""
        return {
            "call": self.call,
            "config": dict(self.config),
            "conditions": self.conditions.to_json(),
            "median_us": self.median_us,
            "vs_default": self.vs_default,
            **({} if self.quality is None else {"quality": self.quality}),
            **({"compiled": sorted(self.binaries)} if self.binaries else {}),
        }

    def with_binaries(self, digests: Iterable[str]) -> Entry:
        """A copy with these binaries only."""
        return replace(self, binaries=tuple(sorted(set(digests))))


def load_entry(data: Any, where: str, is_asked: bool = False) -> Entry:
    """Parse and check an entry's JSON; RecordError if a field is missing, unknown, of another type or out of range.

    `is_asked`: its call was found by a key's text, so it is valid.
    """
    fields = {"compiled": [], "quality": _UNKNOWN, **(data if type(data) is dict else typed(data, dict, where))}
    if fields.keys() != _FIELDS:
        fields_of(fields, where, _FIELDS)
    for name in ("median_us", "vs_default"):
        number = fields[name]
        if not (number is None or (type(number) in (float, int) and 0 < number <= _LARGEST)):
            raise RecordError(f"{where}.{name}: expected a number above 0 or null, got {number!r:.60}.", where=where)
    call = fields["call"] if is_asked else check_call(fields["call"], f"{where}.call")
    config = record.check_config(fields["config"], f"{where}.config")
    check_values(call, config, f"{where}.config")
    measured = conditions.load(fields["conditions"], f"{where}.conditions")
    binaries = fields["compiled"]
    if type(binaries) is not list or not {*map(type, binaries)} <= _TEXT:
        texts(binaries, f"{where}.compiled")
    said = fields["quality"]
    quality = None if said is _UNKNOWN else record.check_quality(said, f"{where}.quality")
    times = fields["median_us"], fields["vs_default"]
    return Entry(call, config, *times, measured, quality, tuple(sorted({*binaries})))


_TEXT = {str}
_UNKNOWN = object()  # the field is absent; null would be a fault
_FIELDS = {"call", "config", "conditions", "median_us", "vs_default", "quality", "compiled"}


def check_values(call: Json, config: Mapping[str, Json], where: str) -> None:
    """Check a config against its call; RecordError if Triton would refuse a value, or the caller passes it."""
    if config["num_warps"] is not None and config["num_warps"] not in WARPS:
        warps = f"one of {', '.join(map(str, WARPS))}"
        raise RecordError(f"{where}.num_warps: expected {warps}, got {config['num_warps']!r:.60}.", where=where)
    if taken := passed(call).intersection(config["kwargs"]):
        raise RecordError(
            f"{where}.kwargs: sets {min(taken)!r}, which the caller passes: a config cannot override it.", where=where
        )


_PARTS = ("tensors", "values", "none", "options")


def passed(call: Json) -> set[str]:
    """The names of a call's arguments and options that are in its key."""
    names = {name for part in _PARTS if part in call for name in call[part]}
    return {name.partition("[")[0] for name in names} if "[" in "".join(names) else names


def fields_of(data: Any, where: str, names: Set[str]) -> dict[str, Any]:
    """Return an object that must have exactly these fields, else RecordError."""
    fields: dict[str, Any] = typed(data, dict, where)
    if fields.keys() == names:
        return fields
    missing, unknown = sorted(names - fields.keys()), sorted(fields.keys() - names)
    raise RecordError(
        f"{where}: field {(missing or unknown)[0]!r} is {'missing' if missing else 'unknown'}.", where=where
    )
