"""Finds arguments that pruners and callables may have read: their exact values affect the choice."""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from types import CodeType, FunctionType, MethodType
from typing import Any

_VARARGS, _VARKEYWORDS = 4, 8  # CO_VARARGS and CO_VARKEYWORDS of the module `inspect`
# These read variables without naming them.
_FRAMES = frozenset({"locals", "vars", "dir", "eval", "exec", "_getframe", "currentframe"})


class Watched(dict[str, Any]):
    """Arguments by name, as a pruner gets them, recording which values are read.

    A dict, since pruners may require one. Reading several values at once counts as reading all, including `{**named}`
    and `dict(named)`, which use a subclass's `keys` if it defines `__iter__`.
    """

    def __init__(self, arguments: Mapping[str, Any] | Iterable[tuple[str, Any]], seen: set[str]) -> None:
        super().__init__(arguments)
        self._seen = seen

    def __getitem__(self, name: str) -> Any:
        self._seen.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """The value of one argument."""
        self._seen.add(name)
        return super().get(name, default)


def _looks_at_all(method: Callable[..., Any]) -> Callable[..., Any]:
    def look(self: Watched, *args: Any) -> Any:
        self._seen.update(dict.keys(self))
        return method(self, *args)

    return look


for _name in ("__iter__", "__reversed__", "keys", "values", "items", "copy", "pop", "popitem", "setdefault", "__or__",
              "__ror__", "__eq__", "__ne__", "__repr__"):  # fmt: skip
    setattr(Watched, _name, _looks_at_all(getattr(dict, _name)))


def read_by(function: Callable[..., Any], names: Iterable[str]) -> set[str]:
    """The keywords that a function may read: parameters that its code loads, or all if it loads its `**` dict."""
    names = set(names)
    if isinstance(function, MethodType):
        function = function.__func__
    elif not isinstance(function, FunctionType) and isinstance(type(function).__call__, FunctionType):
        function = type(function).__call__
    if not isinstance(function, FunctionType):
        return names
    code = function.__code__
    loaded = _loaded(code)
    if loaded is None:
        return names
    count = code.co_argcount + code.co_kwonlyargcount
    rest = set(code.co_varnames[count + bool(code.co_flags & _VARARGS) :][:1] if code.co_flags & _VARKEYWORDS else ())
    parameters = set(code.co_varnames[:count])
    return names if rest & loaded else names & loaded & parameters


@lru_cache(256)
def _loaded(code: CodeType) -> frozenset[str] | None:
    """The variables a function's code reads, also in inner functions; None if unknown."""
    if _FRAMES.intersection(code.co_names):
        return None
    found = set(code.co_cellvars)
    for step in dis.get_instructions(code):
        if "LOAD_FAST" in step.opname:  # one name, or two of a joint instruction
            found.update(step.argval if isinstance(step.argval, tuple) else (step.argval,))
    return frozenset(found)
