"""Values without a JSON form: known by the object itself, in this process only."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from typing import Any

from autotuned import source
from autotuned.errors import EncodingError
from autotuned.values import Json, digest

LIMIT = 4096  # objects kept alive; a key of one that was let go is never asked for again, since numbers are not reused
_MARK = "python object"  # with a space: no parameter can have this name
_kept: OrderedDict[int, tuple[Any, int]] = OrderedDict()  # an id is unique only while its object lives
_numbers = itertools.count()


def spell(value: Any, where: str) -> Json:
    """Spelling for values that typed JSON does not know: functions by source, else this very object in memory."""
    try:
        return source.of_value(value, where)
    except EncodingError:
        return {_MARK: _number(value)}


def _number(value: Any) -> int:
    if id(value) not in _kept:
        _kept[id(value)] = value, next(_numbers)
    _kept.move_to_end(id(value))
    number = _kept[id(value)][1]
    if len(_kept) > LIMIT:
        _kept.popitem(last=False)
    return number


def name_of(bench: Any) -> str:
    """A benchmark function by name and text, so that a stored time says how it was taken."""
    function = source.python_function(bench)
    if function is None:
        return f"do_bench {type(bench).__qualname__}"
    # Its own text only: what it uses holds state of the measurement more often than not.
    return f"do_bench {function.__qualname__} {digest(source.text(function))[:12]}"


def portable(*parts: Json) -> bool:
    """Whether keys or configs mean something in another process: none of their values is known by object only."""
    return not any(map(_has_object, parts))


def _has_object(data: Json) -> bool:
    if isinstance(data, dict):
        return _MARK in data or any(map(_has_object, data.values()))
    return isinstance(data, list) and any(map(_has_object, data))
