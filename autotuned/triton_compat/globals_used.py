"""Whether Triton records globals that a kernel uses: told from its text, without Triton's walk over its syntax."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

# Names in a text are what stands between other characters. Without `re`: compiling a pattern takes 0.2 ms.
_DIGITS = "0123456789"
_APART = {at: " " for at in range(128) if not (chr(at).isalnum() or chr(at) == "_")}


def may_be_recorded(jit: Any) -> bool:
    """Whether Triton may find globals in a function, or in those it calls, whose values it compiles in.

    False only if it finds none (`used_global_vals` after `cache_key`, which takes thousands of calls): every name in
    the text that is a global or a closed-over name stands for nothing, a module, or a function of Triton's.
    """
    known, seen, waiting = _clear.get(id(jit)), {0}, [jit]
    if known is not None and known[0]() is jit and known[1] is jit.src:  # Triton, too, looks once
        return False
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        found = _outside(one)
        if found is None:
            return True
        waiting += found
    if len(_clear) >= _MOST:
        _clear.clear()
    _clear[id(jit)] = weakref.ref(jit), jit.src
    return False


_clear: dict[int, tuple[Any, str]] = {}  # by id: functions without such globals, and their text
_MOST = 4096


def _outside(jit: Any) -> list[Any] | None:
    """The functions of Triton that a text may name; None if it may name anything else that counts."""
    function, written = getattr(jit, "fn", None), getattr(jit, "src", None)
    if not isinstance(function, FunctionType) or not isinstance(written, str) or not written.isascii():
        return None
    told = written.translate(_APART).split()
    names = {*told}
    names |= {word.lstrip(_DIGITS) for word in names if word[0] in _DIGITS}
    if told.count(function.__name__) == 1:
        names.discard(function.__name__)  # where it is defined
    cells = {} if not function.__closure__ else dict(zip(function.__code__.co_freevars, function.__closure__))
    try:
        named = [*_values(names, function.__globals__), *(cells[name].cell_contents for name in names & cells.keys())]
    except ValueError:  # an empty cell
        return None
    modules = [value for value in named if type(value) is ModuleType]
    functions = [value for value in named if type(value) is not ModuleType]
    within = {id(module): module for module in modules}
    while modules:
        for value in _values(names, vars(modules.pop())):
            if type(value) is not ModuleType:
                functions += [] if _is_harmless(value) else [value]
            elif id(value) not in within:
                within[id(value)] = value
                modules.append(value)
    return functions if all(map(_is_function, functions)) else None


def _values(names: set[str], scope: Mapping[str, Any]) -> list[Any]:
    """What these names stand for, without what Triton passes over."""
    values = [scope[name] for name in names & scope.keys()]
    return [value for value in values if value is not None and not getattr(value, "__triton_builtin__", False)]


def _is_harmless(value: Any) -> bool:
    """Whether Triton records nothing for an attribute of a module, nor for attributes of that."""
    plain = (bool, int, float, str, FunctionType, BuiltinFunctionType)
    kind = value if isinstance(value, type) else type(value)
    if kind.__module__ == "triton.language.core":
        return kind.__name__ != "constexpr" or isinstance(getattr(value, "value", 0), plain)
    return isinstance(value, plain)


def _is_function(value: Any) -> bool:
    from triton.runtime.jit import JITCallable

    return isinstance(value, JITCallable)
