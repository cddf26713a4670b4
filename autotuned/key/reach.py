"""Finds the outside values that a function reads: globals, closure cells, attributes, defaults."""

from __future__ import annotations

import ast
import contextlib
import enum
import importlib
import importlib.util
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from types import FunctionType, MethodType, ModuleType
from typing import Any

from autotuned._startup import Frozen
from autotuned.key.source_text import Body, code_of, codes
from autotuned.key.source_text import tree as syntax
from autotuned.typed_json import type_name

# Packages covered by the toolchain part of the key.
_TOOLCHAIN_PACKAGES = ("triton", "torch", "numpy", "cupy", "builtins", "math")
_ADDED_AT_A_LAUNCH = os.path.join("triton", "runtime", "interpreter.py")
NO_HOLDER: Any = object()
_ABSENT: Any = object()
Path = tuple[str, ...]


class Use(Frozen):
    """An outside object that a function reads."""

    name: str
    value: Any
    holder: Any = NO_HOLDER  # for a method or property, the object or class it was found on
    whole: bool = True  # False if the code only reads its attributes, which are separate uses
    is_same: Callable[[], bool] | None = None  # whether the name still refers to it; None if it always does


def uses(body: Body, holder: Any = NO_HOLDER) -> list[Use]:
    """The outside values that the function reads, by name; `holder` is the value of its first parameter."""
    reader = _Reader(body, holder)
    found: dict[str, Use] = {}
    for use in (*reader.names(), *reader.attributes(), *reader.imports(), *_defaults(body.function)):
        known = found.get(use.name)
        found[use.name] = use if known is None else known.replace(whole=known.whole or use.whole)
    return [found[name] for name in sorted(found)]


def _defaults(function: FunctionType) -> Iterator[Use]:
    yield from (Use(f"default {i}", value) for i, value in enumerate(function.__defaults__ or ()))
    yield from (Use(f"default {name}", value) for name, value in (function.__kwdefaults__ or {}).items())


class _Reader:
    def __init__(self, body: Body, holder: Any) -> None:
        self.function, self.code = body.function, code_of(body)
        self.tree = syntax(body)
        # Walked once: that takes as long as tokenizing the text.
        nodes = [node for node in ast.walk(self.tree) if isinstance(node, _READ)]
        self.nodes = [node for node in nodes if not isinstance(node, ast.arg)]
        self._arguments = [node for node in nodes if isinstance(node, ast.arg) and node.annotation]
        self.cells = cells(self.function)
        self.scope = {**self.function.__globals__, **self.cells}
        self.bound = self.code.co_varnames[0] if holder is not NO_HOLDER and self.code.co_argcount else ""
        if self.bound:
            self.scope[self.bound] = holder

    @cached_property
    def own(self) -> set[Path]:
        """Names, attributes and items that the function sets, such as a counter: state, not code."""
        declared = {(name,) for node in self.nodes if isinstance(node, ast.Global) for name in node.names}
        return declared | stored(self.nodes)

    @cached_property
    def paths(self) -> dict[Path, bool]:
        """All dotted names that are read, and whether each is also used as a value, not only for its attributes."""
        found: dict[Path, bool] = {}
        heads = {id(head) for node in self.nodes if (head := _head(node)) is not None}
        annotations = set(map(id, self._annotations))
        for node in self.nodes:
            if isinstance(node, (ast.Name, ast.Attribute, ast.Call)) and (path := dotted(node)):
                by_itself = id(node) not in heads and id(node) not in annotations and not _is_stored(node)
                found[path] = found.get(path, False) or by_itself
        return found

    def names(self) -> Iterator[Use]:
        """Globals, closure cells, and the object bound to the first parameter."""
        # Free variables only of the outermost code: those of inner code are its locals or free variables.
        # A set, since comprehensions have their own code in Python 3.11 but not in 3.12.
        read = {name for code in codes(self.code) for name in code.co_names}
        known = bool(self.nodes)
        if known:  # `co_names` includes attribute names
            read &= {path[0] for path in self.paths}
        read |= {name for name in self._annotated if _is_of_triton(self.scope.get(name))}
        for name in read.union(self.code.co_freevars, [self.bound] if self.bound else ()):
            if name in self.scope and (name,) not in self.own:
                # `super()` reads the cell `__class__` implicitly.
                whole = not known or name == "__class__" or self.paths.get((name,), False)
                yield Use(name, self.scope[name], NO_HOLDER, whole, self._is_same(name))
                yield from () if known else self._read_of(name, read)

    def _read_of(self, name: str, read: set[str]) -> Iterator[Use]:
        """Without source: what may be read from a module or function, by the names in the code."""
        holder = self.scope[name]
        if isinstance(holder, FunctionType) or (isinstance(holder, ModuleType) and not is_toolchain(holder.__name__)):
            for inner in sorted(read & set(vars(holder))):
                yield Use(f"{name}.{inner}", vars(holder)[inner])

    @cached_property
    def _annotations(self) -> list[ast.AST]:
        return [node for argument in self._arguments for node in ast.walk(argument)]

    @cached_property
    def _annotated(self) -> set[str]:
        """Names in annotations, which determine the types that Triton compiles parameters for."""
        return {node.id for node in self._annotations if isinstance(node, ast.Name)}

    def attributes(self) -> Iterator[Use]:
        """Attributes of modules, classes and objects."""
        for path, whole in sorted(self.paths.items()):
            if len(path) > 1 and path not in self.own and path[0] in self._outside:
                yield from self._attribute(path, whole)

    @cached_property
    def _outside(self) -> set[str]:
        return set(self.scope) - ({*self.code.co_varnames, *self.code.co_cellvars} - {self.bound})

    def imports(self) -> Iterator[Use]:
        """Names and attributes that the function imports from its own package at run time."""
        found = {
            alias: value
            for node in self.nodes
            if isinstance(node, (ast.Import, ast.ImportFrom))
            for alias, value in _imported(node, self.function)
        }
        for path, whole in sorted(self.paths.items()) if found else ():
            if path[0] in found:
                known = resolve(path, found)
                if known is not None:
                    is_same = lambda path=path, known=known: _is(resolve(path, found), known)
                    name = f"import {'.'.join(known.path)}"
                    yield Use(name, known.value, known.holder, whole or known.path != path, is_same)

    def _attribute(self, path: Path, whole: bool) -> Iterator[Use]:
        found = resolve(path, self.scope)
        if found is not None:
            head = {path[0]: self.scope[path[0]]}  # the head has its own check
            is_same = lambda: _is(resolve(path, head), found)
            yield Use(".".join(found.path), found.value, found.holder, whole or found.path != path, is_same)

    def _is_same(self, name: str) -> Callable[[], bool] | None:
        value = self.scope[name]
        if name == self.bound:
            return None
        if name in self.cells:
            cell = (self.function.__closure__ or ())[self.function.__code__.co_freevars.index(name)]
            return lambda: cell.cell_contents is value
        outside = self.function.__globals__
        return lambda: outside.get(name, _ABSENT) is value


_READ = (ast.Attribute, ast.Global, ast.Name, ast.Call, ast.Subscript, ast.Import, ast.ImportFrom, ast.arg)


def _imported(node: ast.Import | ast.ImportFrom, function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The names bound by an import statement; imports modules of the function's own package."""
    for one in node.names:
        try:
            if isinstance(node, ast.Import):
                if _is_near(one.name, function):
                    module, top = importlib.import_module(one.name), one.name.partition(".")[0]
                    yield (one.asname, module) if one.asname else (top, importlib.import_module(top))
            else:
                home = f"{'.' * node.level}{node.module or ''}"
                home = importlib.util.resolve_name(home, function.__globals__.get("__package__"))
                if _is_near(home, function):
                    yield one.asname or one.name, _named(importlib.import_module(home), one.name)
        except Exception:  # it also raises when the function runs, or never runs
            continue


def _named(module: ModuleType, name: str) -> Any:
    return getattr(module, name) if hasattr(module, name) else importlib.import_module(f"{module.__name__}.{name}")


def _is_near(module: str, function: FunctionType) -> bool:
    """Whether a module belongs to the function's package or its file's folder."""
    top, home = module.partition(".")[0], function.__globals__
    file = file_in(home)
    folder = os.path.join(os.path.dirname(file), top)
    is_file = bool(file) and (os.path.isfile(f"{folder}.py") or os.path.isdir(folder))
    return not is_toolchain(top) and (top == str(home.get("__name__")).partition(".")[0] or is_file)


def file_in(scope: Mapping[str, Any]) -> str:
    """A namespace's `__file__`, or ""; not that of Triton's interpreter.

    At a launch the interpreter adds its own module's globals to the kernel's: code of a notebook would get that file.
    """
    file = scope.get("__file__")
    return file if isinstance(file, str) and not file.endswith(_ADDED_AT_A_LAUNCH) else ""


def _is(now: Reached | None, then: Reached) -> bool:
    return now is not None and now.value is then.value and now.holder is then.holder


def cells(function: FunctionType) -> dict[str, Any]:
    """A function's closed-over values by name, without empty cells."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        with contextlib.suppress(ValueError):
            found[name] = cell.cell_contents
    return found


def stored(nodes: list[Any]) -> set[Path]:
    """Dotted names that are assigned to, or whose items are assigned to."""
    targets = (node for node in nodes if isinstance(node, (ast.Attribute, ast.Subscript)) and _is_stored(node))
    return {path for node in targets if (path := dotted(node.value if isinstance(node, ast.Subscript) else node))}


def _is_stored(node: ast.AST) -> bool:
    return not isinstance(getattr(node, "ctx", None), (ast.Load, type(None)))


def _head(node: ast.AST) -> ast.AST | None:
    """The expression whose attribute a node reads."""
    if isinstance(node, ast.Attribute):
        return node.value
    return node.args[0] if _is_getattr(node) else None  # type: ignore[attr-defined]


def _is_getattr(node: ast.AST) -> bool:
    """Whether a node is `getattr(x, "name")`."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr"):
        return False
    named = node.args[1] if len(node.args) > 1 else None
    return isinstance(named, ast.Constant) and isinstance(named.value, str)


def dotted(node: Any) -> Path:
    """The names in `a.b.c`; empty for other expressions."""
    if isinstance(node, ast.Name):
        return (node.id,)
    head = dotted(_head(node)) if isinstance(node, (ast.Attribute, ast.Call)) else ()
    return (*head, node.attr if isinstance(node, ast.Attribute) else node.args[1].value) if head else ()


class Reached(Frozen):
    """The object that a dotted name refers to, as far as can be found without running code."""

    path: Path
    value: Any
    holder: Any = NO_HOLDER


def resolve(path: Path, scope: Mapping[str, Any]) -> Reached | None:
    """The object that a dotted name refers to; None if it is irrelevant or recorded elsewhere."""
    value = scope.get(path[0], _ABSENT)
    for depth, name in enumerate(path[1:], 1):
        known = Reached(path[:depth], value)
        if value is None or value is _ABSENT:
            return None
        if isinstance(value, ModuleType):
            if is_toolchain(value.__name__):
                home, value = value.__name__, vars(value).get(name, _ABSENT)
                if not (isinstance(value, ModuleType) or is_triton_function(value)):
                    value = patch(home, name, value)
            else:
                value = getattr(value, name, _ABSENT)
        elif isinstance(value, enum.Enum):
            return known if name not in ("name", "value", "_name_", "_value_") else known.replace(path=path)
        elif isinstance(value, FunctionType):
            value = vars(value).get(name, _ABSENT)
        else:
            value, of_holder = member(value, name)
            if value is _ABSENT:
                return known  # computed by code, or missing
            if of_holder is not NO_HOLDER:
                return Reached(path[: depth + 1], value, of_holder)
    return None if value is None or value is _ABSENT else Reached(path, value)


def member(holder: Any, name: str) -> tuple[Any, Any]:
    """An attribute of an object or class, found without running code; for a method or property also its holder."""
    if isinstance(holder, enum.EnumMeta) and name in holder.__members__:
        return holder.__members__[name], NO_HOLDER
    found = inspect.getattr_static(holder, name, _ABSENT)
    is_class = isinstance(holder, type)
    if found is _ABSENT or (not is_class and name in getattr(holder, "__dict__", ())):
        return found, NO_HOLDER
    if isinstance(found, property) and not is_class:
        return (found.fget, holder) if found.fget is not None else (_ABSENT, NO_HOLDER)
    if isinstance(found, staticmethod):
        return found.__func__, NO_HOLDER
    if isinstance(found, classmethod):
        return found.__func__, holder if is_class else type(holder)
    if inspect.ismemberdescriptor(found) and not is_class:
        return getattr(holder, name, _ABSENT), NO_HOLDER
    if isinstance(found, FunctionType):
        return found, NO_HOLDER if is_class else holder
    return (_ABSENT, NO_HOLDER) if hasattr(type(found), "__get__") else (found, NO_HOLDER)


def is_toolchain(module: str | None) -> bool:
    """Whether a module's package is covered by the toolchain part of the key."""
    return (module or "").partition(".")[0] in _TOOLCHAIN_PACKAGES


def patch(home: str, name: str, value: Any) -> Any:
    """The function that somebody put into a module of Triton as this attribute; None if the value is Triton's own.

    It may be hidden in a wrapper that has copied the names of Triton's function.
    """
    if home[:7] not in ("triton", "triton.") or isinstance(value, type):
        return None
    function = inner = value if isinstance(value, FunctionType) else python_function(value)
    if function is None or function.__code__.co_filename.endswith(_ADDED_AT_A_LAUNCH):
        return None
    for _ in range(32):
        if not isinstance(inner, FunctionType):
            break
        if str(inner.__globals__.get("__name__"))[:7] != "triton.":
            return inner
        inner = inner.__dict__.get("__wrapped__")
    return value if function.__name__ != name else None


def is_triton_function(value: Any) -> bool:
    """Whether a value is, or wraps, a Triton function from outside Triton itself.

    Includes torch's, such as Inductor's helpers: torch's version is in no kernel's key.
    """
    return _wraps(value) and (getattr(python_function(value), "__module__", None) or "").partition(".")[0] != "triton"


def is_tritons_own(value: Any) -> bool:
    """Whether a value is a function of Triton's own library, such as `tl.sigmoid`."""
    return not isinstance(value, type) and _wraps(value) and python_function(value) is not None


def _wraps(value: Any) -> bool:
    return _is_of_triton(value) and hasattr(value, "fn")


def _is_of_triton(value: Any) -> bool:
    kinds = value.__mro__ if isinstance(value, type) else type(value).__mro__
    return any(base.__module__.startswith("triton.") for base in kinds)


def is_function(value: Any) -> bool:
    """Whether a value is a function or a transparent wrapper: a method, a cache, a kernel."""
    if isinstance(value, FunctionType) or is_triton_function(value) or is_tritons_own(value):
        return True
    if isinstance(value, MethodType):
        return isinstance(value.__func__, FunctionType)
    kind = type(value)
    is_around = kind.__module__.startswith("autotuned.") or type_name(value) == "functools._lru_cache_wrapper"
    return is_around and python_function(value) is not None


def python_function(value: Any) -> FunctionType | None:
    """The function inside a Triton function, tuned kernel, partial, method or cache, or None."""
    for _ in range(32):
        if isinstance(value, FunctionType):
            return value
        inside = (getattr(value, name, None) for name in ("func", "__func__", "fn", "__wrapped__"))
        try:
            value = next((function for function in inside if function is not None), None)
        except Exception:  # from its `__getattr__`
            return None
        if value is None:
            return None
    return None


def body_of(value: Any) -> Body | None:
    """The function inside a value; for a Triton function, also the text that Triton compiles."""
    function = python_function(value)
    texts = (getattr(layer, "src", None) for layer in layers(value) if _is_of_triton(layer))
    written = next((text for text in texts if isinstance(text, str)), None)
    return None if function is None else Body(function, written)


def layers(value: Any) -> Iterator[Any]:
    """A value and the layers that it wraps as `fn`, outermost first, without the plain function."""
    for _ in range(32):
        if value is None or isinstance(value, FunctionType):
            return
        yield value
        value = getattr(value, "fn", None)
