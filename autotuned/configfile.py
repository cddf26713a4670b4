"""Config files that ship with an application: parse, validate, find a call, write in a stable order."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from autotuned import disk
from autotuned import record as records
from autotuned.device import Device, file_stem, from_json
from autotuned.errors import ConfigFileError, RecordError
from autotuned.key import Key
from autotuned.values import Json, canonical

SCHEMA = 1


@dataclass(frozen=True)
class Entry:
    """One tuned call of a file: the call part of a key, and the choice for it."""

    call: Json
    config: Mapping[str, Json]
    median_us: float | None
    vs_default: float | None

    def to_json(self) -> dict[str, Json]:
        """The entry as the file holds it."""
        return {
            "call": self.call,
            "config": dict(self.config),
            "median_us": self.median_us,
            "vs_default": self.vs_default,
        }


class ConfigFile:
    """The choices for one kernel on one kind of device, grouped by the context they hold in."""

    def __init__(self, kernel: str, device: Device) -> None:
        self.kernel = kernel
        self.device = device
        self._groups: dict[str, tuple[Json, dict[str, Entry]]] = {}

    def add(self, context: Json, entry: Entry) -> None:
        """Put an entry in, in place of one for the same call in the same context."""
        group = self._groups.setdefault(canonical(context), (context, {}))
        group[1][canonical(entry.call)] = entry

    def find(self, key: Key) -> Entry | None:
        """The entry for exactly this call in exactly this context."""
        context, device = split_context(key.context)
        group = self._groups.get(canonical(context))
        if group is None or device != self.device.to_json():
            return None
        return group[1].get(canonical(key.call))

    def entries(self) -> Iterator[tuple[Key, Entry]]:
        """Every entry with the key it answers, in the file's order."""
        for context, entries in self._sorted_groups():
            for entry in entries:
                yield Key(self.kernel, entry.call, {**context, "device": self.device.to_json()}), entry

    def _sorted_groups(self) -> Iterator[tuple[Json, list[Entry]]]:
        for name in sorted(self._groups):
            context, entries = self._groups[name]
            yield context, [entries[call] for call in sorted(entries)]

    def dump(self) -> str:
        """The file's text: fields and entries in a stable order, one entry a line, so that git merges it."""
        head = {"schema": SCHEMA, "kernel": self.kernel, "device": self.device.to_json()}
        lines = ["{", *(f" {json.dumps(name)}: {json.dumps(value)}," for name, value in head.items()), ' "groups": [']
        groups = [self._group_lines(context, entries) for context, entries in self._sorted_groups()]
        lines.append(",\n".join("\n".join(group) for group in groups))
        return "\n".join([*lines, " ]", "}"]) + "\n"

    @staticmethod
    def _group_lines(context: Json, entries: Sequence[Entry]) -> list[str]:
        rows = ",\n".join(f"   {json.dumps(entry.to_json(), sort_keys=True, allow_nan=False)}" for entry in entries)
        return [f'  {{"context": {json.dumps(context, sort_keys=True)},', '   "entries": [', rows, "   ]}"]


def split_context(context: Json) -> tuple[dict[str, Json], Json]:
    """A key's context without its device, and the device: a file names the device once."""
    rest = dict(context)
    device = rest.pop("device")
    return rest, device


def file_name(kernel: str) -> str:
    """The file's name for a kernel: the kernel's own, made safe; a hash tells apart names that had to change."""
    return f"{file_stem(kernel)}.json"


def rounded(value: float | None) -> float | None:
    """Three significant digits: what a reviewer reads, and no more than was measured."""
    return None if value is None else float(f"{value:.3g}")


def entry_of(record: records.Record, default: Mapping[str, Json] | None) -> Entry:
    """The entry for a record.

    Args:
        record: With a winner.
        default: The config used without tuning, whose time over the winner's is `vs_default`.
    """
    assert record.winner is not None
    base = record.timing_of(default) if default else None
    ratio = base.median_us / record.median_us if base and base.median_us and record.median_us else None
    return Entry(record.key.call, record.winner, rounded(record.median_us), rounded(ratio))


def parse(text: str | bytes, path: str) -> ConfigFile:
    """Check the text of a config file and return what is in it.

    Raises:
        ConfigFileError: No JSON, a newer schema, or a field that is missing, unknown or of another type.
    """
    try:
        return _parse(disk.parse_json(text))
    except (ValueError, TypeError, RecursionError) as error:
        raise ConfigFileError(f"config file {path}: {_reason(error)}", path=path) from error


def _reason(error: Exception) -> str:
    text = str(error) or type(error).__name__
    return text if text.endswith(".") else f"{text}."


def _parse(data: Any) -> ConfigFile:
    # Before the other fields: a newer schema may have more of them.
    schema = _typed(data, dict, "file").get("schema", SCHEMA)
    if _typed(schema, int, "schema") != SCHEMA:
        raise ValueError(f"expected schema {SCHEMA}, got {schema!r}; upgrade autotuned to read it")
    fields = _fields(data, "file", {"schema", "kernel", "device", "groups"})
    file = ConfigFile(_typed(fields["kernel"], str, "kernel"), from_json(fields["device"]))
    for g, group in enumerate(_typed(fields["groups"], list, "groups")):
        parts = _fields(group, f"groups[{g}]", {"context", "entries"})
        context = _typed(parts["context"], dict, f"groups[{g}].context")
        for e, entry in enumerate(_typed(parts["entries"], list, f"groups[{g}].entries")):
            file.add(context, _entry(entry, f"groups[{g}].entries[{e}]"))
    return file


def _entry(data: Any, where: str) -> Entry:
    fields = _fields(data, where, {"call", "config", "median_us", "vs_default"})
    for name in ("median_us", "vs_default"):
        number = fields[name]
        if number is not None and (not records.is_finite(number) or number <= 0):
            raise RecordError(f"{where}.{name}: expected a number above 0 or null, got {number!r:.60}.", where=where)
    return Entry(
        _typed(fields["call"], dict, f"{where}.call"),
        records.check_config(fields["config"], f"{where}.config"),
        fields["median_us"],
        fields["vs_default"],
    )


def _fields(data: Any, where: str, names: Set[str]) -> dict[str, Any]:
    fields: dict[str, Any] = _typed(data, dict, where)
    missing, unknown = sorted(names - fields.keys()), sorted(fields.keys() - names)
    if missing or unknown:
        kind = "missing" if missing else "unknown"
        raise RecordError(f"{where}: field {(missing or unknown)[0]!r} is {kind}.", where=where)
    return fields


def _typed(data: Any, kind: type, where: str) -> Any:
    if not isinstance(data, kind) or isinstance(data, bool):
        raise RecordError(f"{where}: expected {kind.__name__}, got {type(data).__name__} {data!r:.60}.", where=where)
    return data
