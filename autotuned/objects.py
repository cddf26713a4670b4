"""Values without a JSON form: known by the object itself, in this process only."""

from __future__ import annotations

import itertools
import sys
import weakref
from collections import OrderedDict
from typing import Any

from autotuned import source
from autotuned.errors import EncodingError
from autotuned.values import Json, digest

# Objects without weak references that are kept alive. A key of one that was let go is never asked for again, since
# numbers are not reused.
LIMIT = 4096
_MARK = "python object"  # with a space: no parameter can have this name
_Reference = weakref.KeyedRef[int, Any]
_numbers = itertools.count()
# An id is unique only while its object lives: an entry goes with the object, before another can have its id.
_living: dict[int, tuple[_Reference, int]] = {}
_kept: OrderedDict[int, tuple[Any, int]] = OrderedDict()  # what has no weak references: with `__slots__`, and built in


def spell(value: Any, where: str) -> Json:
    """Spelling for values that typed JSON does not know: functions by source, else this very object in memory."""
    try:
        return source.of_value(value, where)
    except EncodingError:
        return {_MARK: _number(value)}


def _number(value: Any) -> int:
    """The number of this very object; no other has it, also when the object is gone."""
    place = id(value)
    reference, number = _living.get(place, (None, 0))
    if reference is not None and reference() is value:
        return number
    try:
        made = weakref.KeyedRef(value, _let_go, place), next(_numbers)
    except TypeError:
        return _number_of_kept(value)
    if reference is not None:
        _let_go(reference)  # of one that is gone, before Python has said so
    return _living.setdefault(place, made)[1]


def _let_go(gone: _Reference, living: dict[int, tuple[_Reference, int]] = _living) -> None:
    if living.get(gone.key, (None, 0))[0] is gone:
        living.pop(gone.key, None)


def _number_of_kept(value: Any) -> int:
    if id(value) not in _kept:
        _drop_unused()
        _kept[id(value)] = value, next(_numbers)
    _kept.move_to_end(id(value))
    number = _kept[id(value)][1]
    if len(_kept) > LIMIT:
        _kept.popitem(last=False)
    return number


_example = {0: (object(), 0)}
_ALONE = sys.getrefcount(_example[0][0])  # of what a dictionary of pairs alone holds


def _drop_unused() -> None:
    """Let go of objects that nobody else holds: none of them can come again."""
    for place in list(_kept):
        if sys.getrefcount(_kept[place][0]) <= _ALONE:
            _kept.pop(place, None)


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
