"""Fields of JSON that was read from disk, checked one by one: of the right type, within limits, and named if not."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from autotuned.errors import RecordError
from autotuned.typed_json import Json

INT64_MAX = (1 << 63) - 1
PID_MAX = (1 << 31) - 1  # what the C type holds; above it the system calls raise


def typed(value: Json, kind: type, where: str) -> Any:
    """A value that must be of a type.

    Raises:
        RecordError: It is of another.
    """
    # bool is an int in Python, and never meant where a number is asked for.
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise wrong(where, kind.__name__, value)
    return value


def integer(value: Json, where: str, least: int = 0, most: int = INT64_MAX) -> int:
    """A whole number within bounds, both included.

    Raises:
        RecordError: It is none, or beyond them.
    """
    number: int = typed(value, int, where)
    if not least <= number <= most:
        below = "or more" if most == INT64_MAX else f"to {most}"
        raise wrong(where, f"a number of {least} {below}", value)
    return number


def texts(value: Json, where: str) -> list[str]:
    """A list of texts.

    Raises:
        RecordError: It is none.
    """
    return [typed(text, str, f"{where}[{i}]") for i, text in enumerate(typed(value, list, where))]


def integers(value: Json, where: str, least: int = 0) -> list[int]:
    """A list of whole numbers that 64 bits hold.

    Raises:
        RecordError: It is none.
    """
    return [integer(number, f"{where}[{i}]", least) for i, number in enumerate(typed(value, list, where))]


def named(data: Json, where: str, names: Iterable[str]) -> dict[str, Json]:
    """An object that must have just these fields.

    Raises:
        RecordError: It is none, one is missing, or there is another.
    """
    fields: dict[str, Json] = typed(data, dict, where)
    wanted = set(names)
    if fields.keys() == wanted:
        return fields
    for name in sorted(wanted - fields.keys()):
        raise wrong(f"{where}.{name}", "a value", None)
    name = min(fields.keys() - wanted)
    raise wrong(f"{where}.{name:.60}", "no such field", fields[name])


def is_finite(value: Json) -> bool:
    """Whether a JSON value is a number that a float can hold."""
    try:
        return not isinstance(value, bool) and isinstance(value, (int, float)) and math.isfinite(value)
    except OverflowError:  # an int of more than 308 digits
        return False


def wrong(where: str, expected: str, got: Json) -> RecordError:
    """The error for a field that is not what its schema says."""
    return RecordError(f"{where}: expected {expected}, got {type(got).__name__} {_short(got)}.", where=where)


def _short(value: Json) -> str:
    # An integer of more digits than Python writes would raise here, and a list of millions be written out.
    if isinstance(value, (dict, list)) and len(value) > 100:
        return f"of {len(value)} items"
    if isinstance(value, int) and value.bit_length() > 1000:
        return f"of {value.bit_length()} bits"
    return f"{(value[:100] if isinstance(value, str) else value)!r:.60}"
