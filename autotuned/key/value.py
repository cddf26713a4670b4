"""JSON for values that typed JSON does not support: functions by what they compute, others by their contents."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any

from autotuned.errors import EncodingError
from autotuned.key.reach import is_function
from autotuned.key.source import Fingerprint, Opaque, Walk
from autotuned.typed_json import Json, encode, type_name


class _OfValue(Fingerprint):
    """The fingerprint of a function passed as a value.

    Stored as an attribute of the function, so that both are freed together. Copies of the attribute by
    `functools.wraps`, `copy` or pickle belong to another function and are ignored.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return bool, ()


_OF_VALUE = "__autotuned_fingerprint__"


def _of_function(value: Any, array: Callable[[Any], Json] | None) -> Fingerprint:
    if not isinstance(value, FunctionType):
        return Fingerprint(value, nameless=True, array=array)
    known = vars(value).get(_OF_VALUE)
    if not isinstance(known, _OfValue) or known._function is not value:
        known = vars(value)[_OF_VALUE] = _OfValue(value, nameless=True, array=array)
    return known


def of_value(value: Any, where: str, array: Callable[[Any], Json] | None = None) -> Json:
    """JSON for a value that typed JSON does not support: a function by what it computes, others by class and contents.

    Raises EncodingError if `value`, or a value inside, can only be identified by object.
    """
    if isinstance(value, functools.partial):
        inside = functools.partial(of_value, array=array)
        arguments = [encode(value.args, where, inside), encode(value.keywords, where, inside)]
        return {"partial": [encode(value.func, where, inside), *arguments]}
    if is_function(value):
        found = _of_function(value, array)
        return {"function": _checked(found.value(), found.opaque, value, where)}
    walk = Walk(value, array)
    walk.value("value", value)
    kind = value if isinstance(value, type) else type(value)
    spelled = _checked([kind.__qualname__, walk.digest()], walk.opaque, value, where)
    return {"class" if kind is value else "value": spelled}


def _checked(spelled: Json, opaque: list[Opaque], value: Any, where: str) -> Json:
    if not opaque:
        return spelled
    name, inner = opaque[0]
    inside = "" if inner is value else f", which holds {type_name(inner)} ({name})"
    raise EncodingError(
        f"{where}: expected None, bool, int, float, str, bytes, tuple, list, dict, enum, dtype, device, numpy scalar, "
        f"function, or an object that holds only these, got {type_name(value)}{inside}. Pass one of these, or "
        "leave the argument out of key; until then the choice is kept in memory only.",
        where=where,
    )
