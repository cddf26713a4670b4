"""Values that Triton's records of a function omit, found from its text, without Triton's walk over its syntax."""

from __future__ import annotations

import hashlib
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from autotuned._startup import renewed

# Names in a text are what stands between other characters. Without `re`: compiling a pattern takes 0.2 ms.
_DIGITS = "0123456789"
_SETTLED = ("triton", "math")  # of the toolchain
_APART = {at: " " for at in range(128) if not (chr(at).isalnum() or chr(at) == "_")}


def may_be_recorded(jit: Any) -> bool:
    """Whether Triton may find globals in a function, or in those it calls, whose values it compiles in.

    False only if it finds none (`used_global_vals` after `cache_key`, which takes thousands of calls): every name in
    the text that is a global or a closed-over name stands for nothing, a module, or a function of Triton's.
    """
    known = _clear.get(id(jit))
    if known is not None and known[0]() is jit and known[1] is jit.src:  # Triton, too, looks once
        return False
    if _reached(jit) is None:
        return True
    if len(_clear) >= _MOST:
        _clear.clear()
    _clear[id(jit)] = weakref.ref(jit), jit.src
    return False


_clear: dict[int, tuple[Any, str]] = {}  # by id: functions without such globals, and their text
_MOST = 4096


def is_hashed_whole(source: Any) -> bool:
    """Whether Triton's hash of a source says all that is compiled in, so that its cache has no other code under it.

    It leaves out values that are attributes of modules, or that constexpr functions read, types of constants, and
    whatever a function's names stand for since Triton hashed it.
    """
    plain = all(value is None or type(value) in (bool, int, float) for value in source.constants.values())
    functions = _reached(source.fn, all_values=True) if plain else None
    return functions is not None and _are_hashes_of_now(functions)


@contextmanager
def cached_as(source: Any, code: str) -> Iterator[None]:
    """While a source compiles: find nothing else in Triton's cache for it, where Triton's hash does not say it all.

    Args:
        code: Text of everything it is compiled from, under which its binary is kept.
    """
    if is_hashed_whole(source):
        yield
        return
    own = source.hash
    source.hash = lambda: hashlib.sha256(f"{own()} {code}".encode("utf-8", "surrogatepass")).hexdigest()
    try:
        yield
    finally:
        del source.hash


def _are_hashes_of_now(functions: list[Any]) -> bool:
    """Whether Triton would hash the first of these functions as before, which may be long ago."""
    with _hashing:
        then, known = functions[0].cache_key, [(one, one.hash) for one in functions]
        if any(str(before).startswith("recursion:") for _, before in known):  # another thread is hashing it
            return False
        try:
            for one in functions:
                one.hash = None
            return bool(then == functions[0].cache_key)
        finally:
            for one, before in known:
                one.hash = before


_hashing = renewed(threading.Lock())


def _reached(jit: Any, all_values: bool = False) -> list[Any] | None:
    """A function and those of Triton that it may call; None if one may name anything else that counts."""
    reached: dict[int, Any] = {}
    waiting = [jit]
    while waiting:
        one = waiting.pop()
        if id(one) not in reached:
            reached[id(one)] = one
            found = _outside(one, True) if all_values else _outside_once(one)
            if found is None:
                return None
            waiting += found
    return list(reached.values())


def _outside_once(jit: Any) -> list[Any] | None:
    """`_outside` of a function, which Triton looks at once too; known of its own, which most kernels share."""
    known = _of_triton.get(id(jit))
    if known is None or known[0] is not jit or known[1] is not jit.src:
        found = _outside(jit, False)
        if not str(getattr(jit, "__module__", "")).startswith("triton."):
            return found
        known = _of_triton[id(jit)] = jit, jit.src, found
    return known[2]


_of_triton: dict[int, tuple[Any, str, list[Any] | None]] = {}


def _outside(jit: Any, all_values: bool) -> list[Any] | None:
    """The functions of Triton that a text may name; None if it may name anything else that counts.

    With `all_values` numbers and similar values count too, as attributes of modules other than Triton's.
    """
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
        module = modules.pop()
        every = all_values and module.__name__.partition(".")[0] not in _SETTLED
        for value in _values(names, vars(module)):
            if type(value) is not ModuleType:
                functions += [] if _is_harmless(value) and not every else [value]
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
