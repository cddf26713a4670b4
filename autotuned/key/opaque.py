"""JSON for any value, hook or benchmark: by contents if possible, otherwise by object, in this process only."""

from __future__ import annotations

import dis
import functools
import inspect
import itertools
import sys
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from autotuned._startup import later
from autotuned.errors import EncodingError
from autotuned.key import key, source
from autotuned.key.key import is_tensor
from autotuned.key.reach import cells
from autotuned.key.source_text import Body, codes, text
from autotuned.typed_json import OBJECT, Json, digest, encode, portable, type_name

if TYPE_CHECKING:
    from autotuned.key import value as values
else:
    values = later("key.value")

LIMIT = 4096  # objects kept alive since they allow no weak reference; numbers are not reused, so dropping one is safe
_Reference = weakref.KeyedRef[int, Any]
_numbers = itertools.count()
# Ids are reused, so an entry is removed together with its object.
_living: dict[int, tuple[_Reference, int]] = {}
_kept: OrderedDict[int, tuple[Any, int]] = OrderedDict()  # objects without weak references: slotted, built-in


def spell(value: Any, where: str) -> Json:
    """JSON for values that typed JSON does not support: by what they compute or contain, otherwise by object.

    Arrays inside a value enter like arguments: by dtype, shape and strides.
    """
    if is_tensor(value):
        return _layout(value)
    try:
        return values.of_value(value, where, _layout)
    except EncodingError:
        return this_very(value)


def this_very(value: Any) -> Json:
    """JSON for a value identified by object, in this process only."""
    return {OBJECT: _number(value), "type": type_name(value)}


def hook(given: Any) -> Json:
    """A config's `pre_hook` as a short digest of what it computes, otherwise by object.

    The first digest is kept, since a hook may count its calls in a list. A hook created again for each call from the
    same code and values is the same hook.
    """
    made = _made_of(given)
    found = _hooks.get(made)  # read once: other threads add and remove hooks
    if found is None:
        spelled = spell(given, "pre_hook")
        found = _hooks[made] = digest(spelled)[:16] if portable(spelled) else spelled
        if len(_hooks) > LIMIT:
            _hooks.popitem(last=False)
    return found


_hooks: OrderedDict[Any, Json] = OrderedDict()


def _made_of(value: Any) -> tuple[Any, ...]:
    """A callable's code and the objects it reads; for other objects, the object itself."""
    if isinstance(value, MethodType):
        return (*_made_of(value.__func__), _number(value.__self__))
    if isinstance(value, functools.partial):
        return (*_made_of(value.func), *map(_known, value.args), *((n, _known(v)) for n, v in value.keywords.items()))
    if not isinstance(value, FunctionType):
        return (_known(value),)
    outside = value.__globals__
    names = sorted({name for code in codes(value.__code__) for name in code.co_names if name in outside})
    read = [*((name, outside[name]) for name in names), *cells(value).items()]
    given = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    return (value.__code__, *((name, _known(used)) for name, used in read), *map(_known, given))


def _known(value: Any) -> Any:
    return (type(value), value) if isinstance(value, _PLAIN) else _number(value)


_PLAIN = (bool, int, float, str, bytes, type(None))


def _layout(array: Any) -> Json:
    return {"array": dict(key.layout(array))}


def _number(value: Any) -> int:
    """A number for this object; never reused, even after the object is gone."""
    place = id(value)
    reference, number = _living.get(place, (None, 0))
    if reference is not None and reference() is value:
        return number
    try:
        made = weakref.KeyedRef(value, _let_go, place), next(_numbers)
    except TypeError:
        return _number_of_kept(value)
    if reference is not None:
        _let_go(reference)  # its object is gone, but the callback has not run yet
    return _living.setdefault(place, made)[1]


def _let_go(gone: _Reference, living: dict[int, tuple[_Reference, int]] = _living) -> None:
    if living.get(gone.key, (None, 0))[0] is gone:
        living.pop(gone.key, None)


def _number_of_kept(value: Any) -> int:
    known = _kept.get(id(value))
    if known is None:
        _drop_unused()
        known = _kept.setdefault(id(value), (value, next(_numbers)))
    with suppress(KeyError):  # another thread may have removed it
        _kept.move_to_end(id(value))
    if len(_kept) > LIMIT:
        _kept.popitem(last=False)
    return known[1]


_example = {0: (object(), 0)}
_ALONE = sys.getrefcount(_example[0][0])  # references to an object held only by such a dictionary


def _drop_unused() -> None:
    """Release objects that nobody else holds: they cannot be passed again."""
    for place in list(_kept):
        known = _kept.get(place)  # another thread may have removed it
        if known is not None and sys.getrefcount(known[0]) <= _ALONE:
            _kept.pop(place, None)


def name_of(bench: Any) -> str:
    """A benchmark's short name with a digest."""
    function = source.python_function(bench)
    name = type(bench).__qualname__ if function is None else function.__qualname__
    return f"do_bench {name} {digest(bench_of(bench))[:12]}"


def bench_of(bench: Any) -> Json:
    """A benchmark by its source text and the plain values it was created with, not by its name.

    Other values that it uses, and the object of a bound method, are omitted: they mostly hold state of measurements or
    of the process.
    """
    if isinstance(bench, functools.partial):
        return [bench_of(bench.func), encode([bench.args, bench.keywords], "do_bench", spell)]
    if isinstance(bench, MethodType):
        return bench_of(bench.__func__)
    if isinstance(bench, FunctionType):
        named = f"def {bench.__name__} ("
        return [text(Body(bench)).replace(named, "def _ (", 1), _plain(_given(bench))]
    call = inspect.getattr_static(type(bench), "__call__", None)
    if isinstance(call, FunctionType):
        return [bench_of(call), _plain(_attributes(bench))]
    return spell(bench, "do_bench")


def _given(function: FunctionType) -> dict[str, Any]:
    """A function's defaults, and the closed-over values that it does not set."""
    own = {name for code in codes(function.__code__) for name in _stored(code)}
    closed = {name: value for name, value in cells(function).items() if name not in own}
    defaults = {str(index): value for index, value in enumerate(function.__defaults__ or ())}
    return {**closed, **defaults, **(function.__kwdefaults__ or {})}


def _stored(code: CodeType) -> Iterator[str]:
    return (step.argval for step in dis.get_instructions(code) if step.opname == "STORE_DEREF")


def _attributes(holder: Any) -> dict[str, Any]:
    slots = (slot for kind in type(holder).__mro__ for slot in getattr(kind, "__slots__", ()))
    names = {slot: getattr(holder, slot) for slot in slots if hasattr(holder, slot)}
    return {**getattr(holder, "__dict__", {}), **names}


def _plain(used: Mapping[str, Any]) -> Json:
    """Immutable values, and functions by their text."""
    found = {}
    for name, value in sorted(used.items()):
        if isinstance(value, (bool, int, float, str, bytes, tuple, type(None))):
            found[name] = encode(value, "do_bench", spell)
        elif function := source.python_function(value):  # without its closure, which may be cyclic
            found[name] = text(Body(function))
    return found
