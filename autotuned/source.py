"""What a kernel's code says: its own text, what it calls and the values it uses, but not where it stands."""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import io
import textwrap
import tokenize
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from autotuned.errors import EncodingError
from autotuned.values import Json, canonical, encode

# Code that ships with these is covered by the toolchain part of the key.
_TOOLCHAIN_PACKAGES = ("triton", "torch", "numpy", "cupy", "builtins", "math")
_SKIPPED_TOKENS = (tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.ENDMARKER)


def fingerprint(function: FunctionType) -> str:
    """SHA-256, in hex, of everything that decides what `function` computes.

    Covered: its text from `def` on, without comments and blank lines; Triton functions and helpers it reaches
    through globals, closures, attributes of modules, containers and default values, in this and other files; the
    values of globals, closure cells and defaults it uses. Not covered: file, line numbers, decorators, and code of
    installed packages other than its own, which the toolchain part of the key stands for.
    """
    walk = _Walk(_package(function))
    walk.function(function)
    return hashlib.sha256("\n".join(walk.lines).encode("utf-8", "surrogatepass")).hexdigest()


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
    return {"function": [function.__qualname__, fingerprint(function)]}


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

    Run as `__main__`, or loaded from a path, a file is named by the packages around it (folders with an
    `__init__.py`), else by its stem, so that one kernel has one name however it was reached.
    """
    return f"{_module(function)}.{function.__qualname__}"


BY_PATH_PREFIX = "autotuned_target_"


def _module(function: FunctionType) -> str:
    module = function.__module__ or ""
    if module == "__main__" or module.startswith(BY_PATH_PREFIX):
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


def text(function: FunctionType) -> str:
    """The function's source from `def` (or `lambda`) on, one token apart, without comments and blank lines.

    Tokens rather than an AST dump: the dump's form changes between Python versions, and a shipped config must not.
    Without source (a REPL, an `exec`), the byte code stands in.
    """
    try:
        source = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        return _bytecode_text(function.__code__)
    tokens = list(_tokens(source))
    keyword = "lambda" if function.__code__.co_name == "<lambda>" else "def"  # a decorator may hold lambdas, no def
    start = next((i for i, token in enumerate(tokens) if token == keyword), 0)
    return " ".join(tokens[start:])


def _tokens(source: str) -> Iterator[str]:
    lines = source.splitlines(keepends=True)
    formatted: list[tuple[int, int]] = []  # where each open f-string began: Python 3.12 cuts them up, 3.11 does not
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            kind = tokenize.tok_name[token.type]
            if kind == "FSTRING_START":
                formatted.append(token.start)
            elif kind == "FSTRING_END":
                start = formatted.pop()
                if not formatted:
                    yield _slice(lines, start, token.end)
            elif not formatted and token.type not in _SKIPPED_TOKENS:
                yield _spelling(token)
    except (tokenize.TokenError, SyntaxError):
        return  # a lambda cut out of a longer statement: what came before the break identifies it


def _spelling(token: tokenize.TokenInfo) -> str:
    # The width of an indent is layout; that there is one is meaning.
    if token.type == tokenize.INDENT:
        return "<indent>"
    if token.type == tokenize.DEDENT:
        return "<dedent>"
    return "<newline>" if token.type == tokenize.NEWLINE else token.string


def _slice(lines: list[str], start: tuple[int, int], end: tuple[int, int]) -> str:
    block = lines[start[0] - 1 : end[0]]
    block[-1] = block[-1][: end[1]]
    block[0] = block[0][start[1] :]
    return "".join(block)


def _bytecode_text(code: CodeType) -> str:
    constants = [_bytecode_text(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return f"{code.co_code.hex()} {constants} {code.co_names} {code.co_varnames}"


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
        self._numbers: dict[FunctionType, int] = {}

    def function(self, function: FunctionType) -> int:
        """Note a function, its text and what it uses, unless it was met before; return its number."""
        if function in self._numbers:
            return self._numbers[function]
        number = self._numbers[function] = len(self._numbers)  # before what it uses: recursion ends here
        self.lines.append(f"function {number}: {text(function)}")
        for name, value in sorted(_uses(function), key=lambda use: use[0]):
            self.value(f"{number}.{name}", value)
        return number

    def value(self, name: str, value: Any) -> None:
        """Note a used value, following functions and containers."""
        if value is None or isinstance(value, ModuleType) or _is_toolchain(_home(value)):
            return
        function = python_function(value)
        if isinstance(value, functools.partial):
            self.value(f"{name}()", [value.args, value.keywords])
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


def _uses(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Names the function reads from outside and their values: globals, closure cells, module attributes, defaults."""
    scope = {**function.__globals__, **_cells(function)}
    # Free variables of the outermost code only: those of inner code are its locals, or its own free variables too.
    # Each name once: Python 3.12 has no code of their own for comprehensions, 3.11 has.
    names = {name for code in _codes(function.__code__) for name in code.co_names}
    for name in names.union(function.__code__.co_freevars):
        if name in scope:
            yield name, scope[name]
    for path in _attribute_paths(function):
        value = _resolve(path, scope)
        if value is not None:
            yield ".".join(path), value
    yield from ((f"default {i}", value) for i, value in enumerate(function.__defaults__ or ()))
    yield from ((f"default {name}", value) for name, value in (function.__kwdefaults__ or {}).items())


def _cells(function: FunctionType) -> dict[str, Any]:
    cells = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            cells[name] = cell.cell_contents
        except ValueError:
            pass  # a recursive inner function whose cell is not filled yet
    return cells


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _attribute_paths(function: FunctionType) -> list[tuple[str, ...]]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return []
    for node in tree.body:
        getattr(node, "decorator_list", []).clear()
    paths = {_dotted(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return sorted(path for path in paths if path)


def _dotted(node: ast.expr) -> tuple[str, ...]:
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.Attribute):
        head = _dotted(node.value)
        return (*head, node.attr) if head else ()
    return ()


def _resolve(path: tuple[str, ...], scope: Mapping[str, Any]) -> Any:
    value = scope.get(path[0])
    if not isinstance(value, ModuleType) or _is_toolchain(value.__name__):
        return None
    found: Any = value
    for name in path[1:]:
        found = getattr(found, name, None)
    return found


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
