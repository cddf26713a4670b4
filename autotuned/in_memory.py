"""Values that typed JSON cannot write, spelled for keys and configs of this process only."""

from __future__ import annotations

from typing import Any

from autotuned import source
from autotuned.errors import EncodingError
from autotuned.values import Json

_OBJECT = "python object"  # with a space: no parameter can have this name
_kept: dict[int, Any] = {}  # an id is unique only while its object lives


def in_memory(value: Any, where: str) -> Json:
    """Spelling for values that typed JSON does not know: functions by source, else this very object in memory."""
    try:
        return source.of_value(value, where)
    except EncodingError:
        _kept[id(value)] = value
        return {_OBJECT: id(value)}


def portable(*parts: Json) -> bool:
    """Whether keys or configs mean something in another process: none of their values is known by address only."""
    return not any(map(has_object, parts))


def has_object(data: Json) -> bool:
    """Whether a value somewhere inside is known by address only."""
    if isinstance(data, dict):
        return _OBJECT in data or any(map(has_object, data.values()))
    return isinstance(data, list) and any(map(has_object, data))
