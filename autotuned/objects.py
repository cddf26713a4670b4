"""Values without a JSON form: known by the object itself, in this process only."""

from __future__ import annotations

import dis
import functools
import inspect
import itertools
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType, MethodType
from typing import Any

from autotuned import source
from autotuned.errors import EncodingError
from autotuned.sourcetext import codes
from autotuned.values import Json, digest, encode

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
    """A benchmark in a few words: its name, and what tells it from others of that name."""
    function = source.python_function(bench)
    name = type(bench).__qualname__ if function is None else function.__qualname__
    return f"do_bench {name} {digest(bench_of(bench))[:12]}"


def bench_of(bench: Any) -> Json:
    """A benchmark by its own text and the plain values that it was made with, whatever it is called.

    Not by what else it uses, nor by the object of a bound method: these hold state of the measurement, or of this
    process, more often than not.
    """
    if isinstance(bench, functools.partial):
        return [bench_of(bench.func), encode([bench.args, bench.keywords], "do_bench", spell)]
    if isinstance(bench, MethodType):
        return bench_of(bench.__func__)
    if isinstance(bench, FunctionType):
        named = f"def {bench.__name__} ("
        return [source.text(bench).replace(named, "def _ (", 1), _plain(_given(bench))]
    call = inspect.getattr_static(type(bench), "__call__", None)
    if isinstance(call, FunctionType):
        return [bench_of(call), _plain(_attributes(bench))]
    return spell(bench, "do_bench")


def _given(function: FunctionType) -> dict[str, Any]:
    """Defaults of a function, and what it closes over and does not set."""
    free, cells = function.__code__.co_freevars, function.__closure__ or ()
    own = {node for code in codes(function.__code__) for node in _stored(code)}
    closed = {name: cell.cell_contents for name, cell in zip(free, cells) if name not in own and _is_filled(cell)}
    defaults = {str(index): value for index, value in enumerate(function.__defaults__ or ())}
    return {**closed, **defaults, **(function.__kwdefaults__ or {})}


def _stored(code: CodeType) -> Iterator[str]:
    return (step.argval for step in dis.get_instructions(code) if step.opname == "STORE_DEREF")


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _attributes(holder: Any) -> dict[str, Any]:
    names = {**getattr(holder, "__dict__", {})}
    slots = (slot for kind in type(holder).__mro__ for slot in getattr(kind, "__slots__", ()))
    return {**names, **{slot: getattr(holder, slot) for slot in slots if hasattr(holder, slot)}}


def _plain(values: Mapping[str, Any]) -> Json:
    """Values that cannot change, and functions by their text."""
    found = {}
    for name, value in sorted(values.items()):
        if isinstance(value, (bool, int, float, str, bytes, tuple, type(None))):
            found[name] = encode(value, "do_bench", spell)
        elif function := source.python_function(value):  # not what that closes over: it may be what closes over it
            found[name] = source.text(function)
    return found


def portable(*parts: Json) -> bool:
    """Whether keys or configs mean something in another process: none of their values is known by object only."""
    return not any(map(_has_object, parts))


def _has_object(data: Json) -> bool:
    if isinstance(data, dict):
        return _MARK in data or any(map(_has_object, data.values()))
    return isinstance(data, list) and any(map(_has_object, data))
