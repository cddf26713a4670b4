"""What a kernel's code says: its own text, what it calls and the values it uses, but not where it stands."""

from __future__ import annotations

import ast
import enum
import functools
import hashlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any

from autotuned.errors import EncodingError
from autotuned.immutable import Frozen
from autotuned.sourcetext import codes
from autotuned.sourcetext import text as text
from autotuned.sourcetext import tree as syntax
from autotuned.values import Json, canonical, digest, encode

# Code that ships with these is covered by the toolchain part of the key.
_TOOLCHAIN_PACKAGES = ("triton", "torch", "numpy", "cupy", "builtins", "math")


def fingerprint(function: FunctionType) -> str:
    """SHA-256, in hex, of everything that decides what `function` computes.

    Covered: its text from `def` on, without comments and blank lines; Triton functions and helpers it reaches
    through globals, closures, attributes of modules and objects, containers and default values, in this and other
    files; the values of globals, closure cells, attributes (`CFG.block`) and defaults it uses, except those that it
    sets itself; the plain data of an object whose bound method it uses. Not covered: file, line numbers, decorators,
    and code of installed packages other than its own, which the toolchain part of the key stands for.
    """
    return Fingerprint(function).value()


class Fingerprint:
    """The fingerprint of one function, computed anew where something it rests on has been bound anew.

    Looked at again are the function's code and defaults, and the globals, closure cells and attributes that it and
    what it calls use: by identity, so that a list or a dict which was edited in place is not noticed.

    Args:
        holder: Of a bound method: its object.
        nameless: Leave out what the function itself is called: it is known by a name of its own.
    """

    def __init__(self, function: FunctionType, holder: Any = None, nameless: bool = False) -> None:
        self._function = function
        self._nameless = nameless
        self._holder = holder
        self._latest: tuple[str, list[Callable[[], bool]]] = ("", [])

    def value(self) -> str:
        """SHA-256, in hex; see `fingerprint`."""
        known, checks = self._latest
        if not known or not all(check() for check in checks):
            walk = _Walk(_package(self._function))
            walk.function(self._function, self._nameless)
            known = hashlib.sha256("\n".join(walk.lines).encode("utf-8", "surrogatepass")).hexdigest()
            self._latest = known, walk.checks
        return known if self._holder is None else digest([known, *map(list, _data_of(self._holder))])


class _OfValue(Fingerprint):
    """The fingerprint of a function passed as a value.

    It is an attribute of the function, since it holds it and all that it closes over: the two go together. Copies of
    that attribute, by `functools.wraps`, `copy` or a pickle, are of another function and count for nothing.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return bool, ()

    def is_of(self, function: FunctionType) -> bool:
        """Whether it is this function's own."""
        return self._function is function


_OF_VALUE = "__autotuned_fingerprint__"


def _remembered(function: FunctionType) -> str:
    known = vars(function).get(_OF_VALUE)
    if not isinstance(known, _OfValue) or not known.is_of(function):
        known = vars(function)[_OF_VALUE] = _OfValue(function)
    return known.value()


def of_value(value: Any, where: str) -> Json:
    """The key's spelling of a function passed as a value: its name and fingerprint.

    Raises:
        EncodingError: `value` is no Python or Triton function.
    """
    function = python_function(value)
    if function is None:
        raise EncodingError(
            f"{where}: expected None, bool, int, float, str, bytes, tuple, list, dict, enum, dtype, device, numpy "
            f"scalar or function, got {type(value).__module__}.{type(value).__qualname__}. Pass one of these, or "
            "leave the argument out of key; until then the choice is kept in memory only.",
            where=where,
        )
    if isinstance(value, functools.partial):
        held = [encode(value.args, where, of_value), encode(value.keywords, where, of_value)]
        return {"partial": [of_value(value.func, where), *held]}
    spelled = {"function": [function.__qualname__, _remembered(function)]}
    holder = getattr(value, "__self__", None) if isinstance(value, MethodType) else None
    return spelled if holder is None else {"method": [spelled, [[name, data] for name, data in _data_of(holder)]]}


def python_function(value: Any) -> FunctionType | None:
    """The plain function inside a Triton function, tuned kernel, partial, method or cache; None for anything else."""
    for _ in range(32):
        if isinstance(value, FunctionType):
            return value
        inside = (getattr(value, name, None) for name in ("func", "__func__", "fn", "__wrapped__"))
        value = next((function for function in inside if function is not None), None)
        if value is None:
            return None
    return None


def public_name(function: FunctionType) -> str:
    """`module.qualname`, where a script counts as what it would be called when imported.

    Run as `__main__`, also by processes that it spawns, or loaded from a path, a file is named by the packages around
    it (folders with an `__init__.py`), else by its stem, so that one kernel has one name however it was reached.
    """
    return f"{_module(function)}.{function.__qualname__}"


BY_PATH_PREFIX = "autotuned_target_"
_SCRIPTS = ("__main__", "__mp_main__")  # the second in what `multiprocessing` starts by "spawn" or "forkserver"


def is_script(module: str) -> bool:
    """Whether a module has this name since its file was run, or loaded from a path, and not imported."""
    return module in _SCRIPTS or module.startswith(BY_PATH_PREFIX)


def _module(function: FunctionType) -> str:
    module = function.__module__ or ""
    if is_script(module):
        return module_name(Path(function.__code__.co_filename))
    return module


def module_name(path: Path) -> str:
    """The dotted name under which the file at `path` would be imported."""
    parts = [] if path.stem == "__init__" else [path.stem]
    folder = path.parent
    while (folder / "__init__.py").is_file() and folder.name:
        parts.append(folder.name)
        folder = folder.parent
    return ".".join(reversed(parts)) or path.stem


def _without_name(text: str, function: FunctionType) -> str:
    """A function's text with "_" for what it is called."""
    return text.replace(f"def {function.__name__} (", "def _ (", 1)


def _package(function: FunctionType) -> str:
    """Whose code a function is: that of its top package or, for a file outside of any, of the file's folder."""
    top, is_inside, _ = _module(function).partition(".")
    path = Path(function.__code__.co_filename)
    return top if is_inside or path.stem == "__init__" else str(path.absolute().parent)


class _Walk:
    """Collects one line a function and one a used value, in an order that only the code decides.

    Functions are numbered as they are met instead of named: a module has another name when it runs as a script.
    """

    def __init__(self, package: str) -> None:
        self.package = package
        self.lines: list[str] = []
        self.checks: list[Callable[[], bool]] = []
        self._numbers: dict[FunctionType, int] = {}

    def function(self, function: FunctionType, nameless: bool = False) -> int:
        """Note a function, its text and what it uses, unless it was met before; return its number."""
        if function in self._numbers:
            return self._numbers[function]
        number = self._numbers[function] = len(self._numbers)  # before what it uses: recursion ends here
        said = text(function)
        self.lines.append(f"function {number}: {_without_name(said, function) if nameless else said}")
        code, defaults, by_name = function.__code__, function.__defaults__, function.__kwdefaults__
        self.checks.append(lambda: function.__code__ is code)
        self.checks.append(lambda: function.__defaults__ is defaults and function.__kwdefaults__ is by_name)
        for use in sorted(_uses(function), key=lambda use: use.name):
            if use.is_same is not None:
                self.checks.append(use.is_same)
            self.value(f"{number}.{use.name}", use.value)
        return number

    def value(self, name: str, value: Any) -> None:
        """Note a used value, following functions and containers."""
        if value is None or isinstance(value, ModuleType) or _is_toolchain(_home(value)):
            return
        if value is sys.modules:  # grows with every import, and says nothing of the code
            return
        function = python_function(value)
        if isinstance(value, functools.partial):
            self.value(f"{name}()", [value.args, value.keywords])
        if isinstance(value, MethodType):
            self.lines += [f"{name}.{field} = {canonical(data)}" for field, data in _data_of(value.__self__)]
        if function is not None and (_is_triton(value) or _package(function) == self.package):
            self.lines.append(f"{name} -> function {self.function(function)}")
        elif function is not None:
            self.lines.append(f"{name} -> {_module(function)}.{function.__qualname__}")
        elif isinstance(value, (dict, list, tuple)):
            self.lines.append(f"{name} = {type(value).__name__} of {len(value)}")
            for key, item in list(value.items() if isinstance(value, dict) else enumerate(value)):
                self.value(f"{name}[{key!r}]", item)
        else:
            self.lines.append(f"{name} = {_spelled(value, name)}")


class _Use(Frozen):
    """Something from outside that a function reads, and whether it is still that; None where that cannot change."""

    name: str
    value: Any
    is_same: Callable[[], bool] | None = None


_ABSENT: Any = object()


def _uses(function: FunctionType) -> Iterator[_Use]:
    """What the function reads from outside: globals, closure cells, attributes of modules and objects, defaults."""
    outside, cells = function.__globals__, _cells(function)
    scope = {**outside, **cells}
    # One walk, for it takes as long as cutting the text into tokens.
    nodes = [node for node in ast.walk(syntax(function)) if isinstance(node, (ast.Attribute, ast.Global))]
    own = _own_state(nodes)
    # Free variables of the outermost code only: those of inner code are its locals, or its own free variables too.
    # Each name once: Python 3.12 has no code of their own for comprehensions, 3.11 has.
    names = {name for code in codes(function.__code__) for name in code.co_names}
    for name in names.union(function.__code__.co_freevars):
        if name in scope and (name,) not in own:
            yield _Use(name, scope[name], _is_same(function, name, scope[name]))
    for path in _attribute_paths(nodes):
        value = None if path in own else _resolve(path, scope)
        if value is not None:
            yield _Use(".".join(path), value, _is_same_attribute(path, scope, value))
    yield from (_Use(f"default {i}", value) for i, value in enumerate(function.__defaults__ or ()))
    yield from (_Use(f"default {name}", value) for name, value in (function.__kwdefaults__ or {}).items())


def _is_same(function: FunctionType, name: str, value: Any) -> Callable[[], bool]:
    if name in function.__code__.co_freevars:
        cell = (function.__closure__ or ())[function.__code__.co_freevars.index(name)]
        return lambda: cell.cell_contents is value
    outside = function.__globals__
    return lambda: outside.get(name, _ABSENT) is value


def _is_same_attribute(path: tuple[str, ...], scope: Mapping[str, Any], value: Any) -> Callable[[], bool]:
    head = {path[0]: scope[path[0]]}  # that the head is the same is a check of its own
    return lambda: _resolve(path, head) is value


def _cells(function: FunctionType) -> dict[str, Any]:
    cells = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            cells[name] = cell.cell_contents
        except ValueError:
            pass  # a recursive inner function whose cell is not filled yet
    return cells


def _own_state(nodes: Sequence[ast.AST]) -> set[tuple[str, ...]]:
    """Names and attributes that the function itself sets, such as a counter: state, and not what decides its code."""
    declared = {(name,) for node in nodes if isinstance(node, ast.Global) for name in node.names}
    return declared.union(_attribute_paths(nodes, ast.Store))


def _attribute_paths(nodes: Sequence[ast.AST], context: type[ast.expr_context] = ast.Load) -> list[tuple[str, ...]]:
    attributes = (node for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, context))
    return sorted({path for node in attributes if (path := _dotted(node))})


def _dotted(node: ast.expr) -> tuple[str, ...]:
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.Attribute):
        head = _dotted(node.value)
        return (*head, node.attr) if head else ()
    return ()


def _resolve(path: tuple[str, ...], scope: Mapping[str, Any]) -> Any:
    """What a dotted name stands for; None where it says nothing, or what it says is noted otherwise."""
    value = scope.get(path[0])
    for name in path[1:]:
        if isinstance(value, ModuleType):
            value = None if _is_toolchain(value.__name__) else getattr(value, name, None)
        elif isinstance(value, enum.Enum) or value is None:
            return value
        elif _is_toolchain(type(value).__module__) and not isinstance(value, type) or python_function(value):
            return None  # attributes of numbers, lists, tensors and functions: the thing itself is noted
        else:
            value = _member(value, name)
    return value


def _member(holder: Any, name: str) -> Any:
    """An attribute of an object or class, without running any of its code."""
    if isinstance(holder, enum.EnumMeta):
        return holder.__members__.get(name)
    found = inspect.getattr_static(holder, name, None)
    if isinstance(found, property):
        return found.fget
    if isinstance(found, (staticmethod, classmethod)):
        return found.__func__
    return getattr(holder, name, None) if inspect.ismemberdescriptor(found) else found


def _data_of(holder: Any) -> Iterator[tuple[str, Json]]:
    """The attributes of an object that are plain data, as JSON and in order; the class's name first."""
    yield "class", type(holder).__qualname__
    for name, value in sorted(getattr(holder, "__dict__", {}).items()):
        try:
            yield name, encode(value, name)
        except EncodingError:
            continue  # neither a number nor text: it would be known by its class only


def _is_toolchain(module: str | None) -> bool:
    return (module or "").partition(".")[0] in _TOOLCHAIN_PACKAGES


def _home(value: Any) -> str | None:
    # Values such as tl.float16 are data, not code: only functions and classes are left to the toolchain part.
    is_code = callable(value) and not hasattr(value, "value")
    return getattr(value, "__module__", None) if is_code and not _is_triton(value) else None


def _is_triton(value: Any) -> bool:
    return any(base.__module__.startswith("triton.") for base in type(value).__mro__) and not _is_toolchain(
        getattr(python_function(value), "__module__", None)
    )


def _spelled(value: Any, name: str) -> str:
    by_name: Callable[[Any, str], Json] = lambda v, w: {"object": f"{type(v).__module__}.{type(v).__qualname__}"}
    if isinstance(value, type):
        return value.__qualname__
    if isinstance(value, (set, frozenset)):
        return canonical(sorted(_spelled(item, name) for item in value))
    return canonical(encode(value, name, by_name))
