"""Values without a JSON form: known by the object itself, in this process only."""

from __future__ import annotations

import itertools
import sys
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from autotuned import key, source
from autotuned.errors import EncodingError
from autotuned.sourcetext import Body, text
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
    """Spelling for values that typed JSON does not know: by what they compute or hold, else this very object in memory.

    An array within another value counts as an argument does: by dtype, shape and strides.
    """
    if key.is_tensor(value):
        return _layout(value)
    try:
        return source.of_value(value, where, _layout)
    except EncodingError:
        return this_very(value)


def this_very(value: Any) -> Json:
    """Spelling for a value that is known by itself only, in this process."""
    return {_MARK: _number(value), "type": source.type_name(value)}


def _layout(array: Any) -> Json:
    return {"array": dict(key.layout(array))}


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
    return f"do_bench {function.__qualname__} {digest(text(Body(function)))[:12]}"


def portable(*parts: Json) -> bool:
    """Whether keys or configs mean something in another process: none of their values is known by object only."""
    return not any(map(_has_object, parts))


def _has_object(data: Json) -> bool:
    return next(_marked("", data), None) is not None


def _marked(path: str, data: Json) -> Iterator[tuple[str, str]]:
    """The values known by object only: where they stand and their types."""
    if isinstance(data, dict) and _MARK in data:
        yield path, data["type"]
    elif isinstance(data, (dict, list)):
        for name, inner in data.items() if isinstance(data, dict) else enumerate(data):
            yield from _marked(f"{path}.{name}" if path else str(name), inner)


def why_not_portable(data: Json) -> str:
    """Of what `portable` denies: the first value that is known by object only, and what to do about it."""
    path, kind = next(_marked("", data))
    _, _, name = path.partition("values.")
    if name:
        hint = "Leave it out of key, or name a callable that returns what of it matters"
        return f"{name!r}, of type {kind}, has no JSON form. {hint}"
    name = path.partition("process.")[2] or path
    return f"{name!r}, a value of type {kind} that its code uses, has no JSON form. Say in version= what of it matters"
