"""Finds from a function's text whether it may use values that Triton's records omit, without walking its syntax."""

from __future__ import annotations

import hashlib
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from autotuned._startup import renewed
from autotuned.key import reach, source_text

# Names are found by splitting at all other characters, without `re`: compiling a pattern takes 0.2 ms.
_DIGITS = "0123456789"
_SETTLED = ("triton", "math")  # modules that are part of the toolchain
_APART = {at: " " for at in range(128) if not (chr(at).isalnum() or chr(at) == "_")}


def may_be_recorded(jit: Any) -> bool:
    """Whether a function, or one that it calls, may use globals whose values Triton compiles in.

    False only if Triton finds none (`used_global_vals` after `cache_key`, which takes thousands of calls): every name
    in the text that is a global or closed-over variable is None, a module, or a Triton function.
    """
    known = _clear.get(id(jit))
    if known is not None and known[0]() is jit and known[1] is jit.src:  # Triton also looks only once
        return False
    if _reached(jit) is None:
        return True
    if len(_clear) >= _MOST:
        _clear.clear()
    _clear[id(jit)] = weakref.ref(jit), jit.src
    return False


def record(jit: Any) -> None:
    """Let Triton record the globals that a function uses, as when it compiles: its launches check them from then on."""
    if may_be_recorded(jit):
        source_text.parsed_again(lambda: jit.cache_key)


_clear: dict[int, tuple[Any, str]] = {}  # by id: functions without such globals, and their text
_MOST = 4096


def is_hashed_whole(source: Any) -> bool:
    """Whether Triton's hash of a source covers everything compiled in, so that its cache has no other code under it.

    The hash omits attributes of modules, values that constexpr functions read, types of constants, and changes of a
    function's globals since Triton hashed it.
    """
    plain = all(value is None or type(value) in (bool, int, float) for value in source.constants.values())
    functions = _reached(source.fn, all_values=True) if plain else None
    return functions is not None and _are_hashes_of_now(functions)


@contextmanager
def cached_as(source: Any, code: str) -> Iterator[None]:
    """Compile a source in a `with` block under a hash that covers everything, if Triton's own hash does not.

    Args:
        source: Triton's source.
        code: Text of everything it is compiled from; it becomes part of the hash.
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
    """Whether Triton's hash of the first of these functions, which may be old, is still right."""
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
    """A function and the Triton functions that it may call; None if one may use any other value that matters."""
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
    """`_outside` of a function; cached for Triton's own functions, which most kernels share."""
    known = _of_triton.get(id(jit))
    if known is None or known[0] is not jit or known[1] is not jit.src:
        found = _outside(jit, False)
        if not str(getattr(jit, "__module__", "")).startswith("triton."):
            return found
        known = _of_triton[id(jit)] = jit, jit.src, found
    return known[2]


_of_triton: dict[int, tuple[Any, str, list[Any] | None]] = {}


def _outside(jit: Any, all_values: bool) -> list[Any] | None:
    """The Triton functions that a text may name; None if it may name any other value that matters.

    With `all_values`, numbers and similar values in modules outside the toolchain matter too.
    """
    function, written = getattr(jit, "fn", None), getattr(jit, "src", None)
    if not isinstance(function, FunctionType) or not isinstance(written, str) or not written.isascii():
        return None
    told = written.translate(_APART).split()
    names = {*told}
    names |= {word.lstrip(_DIGITS) for word in names if word < ":"}  # that begin with a digit
    if told.count(function.__name__) == 1:
        names.discard(function.__name__)  # only its own definition
    cells = {} if not function.__closure__ else dict(zip(function.__code__.co_freevars, function.__closure__))
    try:
        closed = {name: cells[name].cell_contents for name in names & cells.keys()}
    except ValueError:  # an empty cell
        return None
    if all_values and not _is_of_triton(function) and _aliases(names, {**function.__globals__, **closed}):
        return None
    named = [*_values(names, function.__globals__), *closed.values()]
    modules = [value for value in named if type(value) is ModuleType]
    functions = [value for value in named if type(value) is not ModuleType]
    within = {id(module): module for module in modules}
    while modules:
        module = modules.pop()
        settled = module.__name__.partition(".")[0] in _SETTLED
        every = all_values and not settled
        if all_values and (_patches(names, module) if settled else _aliases(names, vars(module))):
            return None
        for value in _values(names, vars(module)):
            if type(value) is not ModuleType:
                functions += [] if _is_harmless(value) and not every else [value]
            elif id(value) not in within:
                within[id(value)] = value
                modules.append(value)
    kind = sys.modules["triton.runtime.jit"].JITCallable
    return functions if all(isinstance(one, kind) for one in functions) else None


def _is_of_triton(function: FunctionType) -> bool:
    return str(function.__globals__.get("__name__")).startswith("triton.")


def _aliases(names: set[str], scope: Mapping[str, Any]) -> bool:
    """Whether a name stands for a builtin or an inner module of Triton: its hash does not say which."""
    return any(
        value.__name__ not in _PLAIN_MODULES and value.__name__.partition(".")[0] in _SETTLED
        if type(value) is ModuleType
        else getattr(value, "__triton_builtin__", False)
        for value in (scope[name] for name in names & scope.keys())
    )


def _patches(names: set[str], module: ModuleType) -> bool:
    """Whether a name stands for a function that somebody put into a module of Triton."""
    scope = vars(module)
    return any(reach.patch(module.__name__, name, scope[name]) is not None for name in names & scope.keys())


_PLAIN_MODULES = ("triton", "triton.language")


def _values(names: set[str], scope: Mapping[str, Any]) -> list[Any]:
    """The values of these names, except None and Triton's builtins, which Triton does not record."""
    values = [scope[name] for name in names & scope.keys()]
    return [
        value for value in values
        if type(value) is ModuleType or (value is not None and not getattr(value, "__triton_builtin__", False))
    ]  # fmt: skip


def _is_harmless(value: Any) -> bool:
    """Whether Triton records neither an attribute of a module nor the attributes of its value."""
    plain = (bool, int, float, str, FunctionType, BuiltinFunctionType)
    kind = value if isinstance(value, type) else type(value)
    if kind.__module__ == "triton.language.core":
        return kind.__name__ != "constexpr" or isinstance(getattr(value, "value", 0), plain)
    return isinstance(value, plain)
