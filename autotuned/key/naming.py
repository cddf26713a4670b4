"""Where a function comes from, and its process-independent name."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from functools import lru_cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from autotuned import env
from autotuned.key.reach import file_in, is_toolchain, python_function
from autotuned.key.source_text import Body, text

BY_PATH_PREFIX = "autotuned_target_"
_SCRIPTS = ("__main__", "__mp_main__")  # the second with `multiprocessing`'s "spawn" and "forkserver"
# Patterns are compiled on use: each would take 0.1 to 0.2 ms at process start.
_HEX = frozenset("0123456789abcdef")


def public_name(body: Body) -> str:
    """`module.qualname`, the same in every process.

    The module is the name under which Python would import the file, otherwise derived from the packages around it, so
    that scripts, spawned processes and files loaded by path keep the name. In a notebook it is the notebook's name, or
    "notebook". Other code without a file, or in a temporary file, is named by its text: `source_<hash>.qualname`.
    """
    home = module_of(body.function)
    if not home:
        home = f"source_{hashlib.sha256(text(body).encode('utf-8', 'surrogatepass')).hexdigest()[:12]}"
    return f"{home}.{body.function.__qualname__}"


def is_importable(function: FunctionType) -> bool:
    """Whether another process gets the same function by importing its module by name."""
    return not _is_script(function.__module__ or "") and _gives(function.__module__ or "", file_of(function))


def _is_script(module: str) -> bool:
    return module in _SCRIPTS or module.startswith(BY_PATH_PREFIX)


def file_of(function: FunctionType) -> str:
    """The file of a function's code if it exists, otherwise its module's file, or a name such as "<string>"."""
    code = function.__code__.co_filename
    return code if os.path.isfile(code) else file_in(function.__globals__) or code


def module_of(function: FunctionType) -> str | None:
    """The process-independent name of a function's module, or None."""
    code = function.__code__.co_filename
    if _is_cell(code):
        return _notebook(function.__globals__)
    return _module(function.__module__ or "", code, file_of(function))


def _is_cell(file: str) -> bool:
    """Whether a file name belongs to interactive code: of Jupyter, IPython, marimo or Python."""
    if file.startswith(("<ipython-input-", "<python-input-", "<stdin>")) or "__marimo__cell_" in file:
        return True
    return "ipykernel_" in file and re.search(r"[/\\]ipykernel_\d+[/\\]", file) is not None


def _notebook(scope: dict[str, Any]) -> str:
    """The name of a cell's notebook, as Jupyter, VS Code or marimo report it."""
    file = str(scope.get("__vsc_ipynb_file__") or file_in(scope) or env.notebook())
    stem = re.sub(r"\W", "_", Path(file).stem)
    return "notebook" if not stem or _is_made_up(stem) else stem


@lru_cache(4096)
def _module(module: str, code: str, file: str) -> str | None:
    derived = module_name(Path(file))
    for name in (module, derived):
        if not _is_script(name) and _gives(name, file):
            return None if _is_passing(name, file) else name
    # Code from a notebook cell or `exec` may run in another file's namespace.
    if not (os.path.isfile(file) and os.path.isfile(code)):
        return None
    return None if _is_made_up(derived) or _is_passing(derived, file) else derived


def home_of(module: str) -> str:
    """A module's process-independent name, for fingerprints; "" if it has none."""
    loaded = sys.modules.get(module)
    file = getattr(loaded, "__file__", None)
    if isinstance(file, str):
        return _module(module, file, file) or ""
    return "" if _is_script(module) or loaded is None else module


def package_of_code(value: Any) -> str:
    """The package that a value's code belongs to, ignoring wrappers from other packages."""
    function = None if isinstance(value, type) else python_function(value)
    for _ in range(32):
        wrapped = getattr(function, "__wrapped__", None)
        if not isinstance(wrapped, FunctionType):
            break
        function = wrapped
    if function is not None:
        return package_of(function)
    kind = value if isinstance(value, type) else type(value)
    top = kind.__module__.partition(".")[0]
    if is_toolchain(top) or top in sys.stdlib_module_names:
        return ""  # versioned, and its methods would reach half of torch
    return package_of_class(kind) or ""


def package_of(function: FunctionType) -> str:
    """The package that a function's code belongs to; a wrapper may have copied its `__module__`."""
    return _package(str(function.__globals__.get("__name__", function.__module__)), file_of(function))


def package_of_module(module: ModuleType) -> str:
    """The package that a module belongs to."""
    return _package(module.__name__, getattr(module, "__file__", None) or "")


def package_of_class(kind: type) -> str | None:
    """The package that a class belongs to; None if it has no methods and its module is not loaded."""
    functions = (value for value in vars(kind).values() if isinstance(value, FunctionType))
    own = next((one for one in functions if one.__globals__.get("__name__") == kind.__module__), None)
    if own is not None:
        return package_of(own)
    module = sys.modules.get(kind.__module__)
    return package_of_module(module) if isinstance(module, ModuleType) else None


@lru_cache(4096)
def _package(module: str, file: str) -> str:
    """The top-level package, otherwise the file's folder, or the module if there is no file."""
    path = Path(file)
    name = (_module(module, file, file) or module_name(path)) if file else ""
    top, is_inside, _ = name.partition(".")
    if is_inside or path.stem == "__init__":
        return top
    return str(path.absolute().parent) if os.path.exists(file) or _gives(module, file) else f"<{module}>"


def module_name(path: Path) -> str:
    """The dotted name under which the file at `path` would be imported."""
    parts = [] if path.stem == "__init__" else [path.stem]
    folder = path.parent
    while (folder / "__init__.py").is_file() and folder.name:
        parts.append(folder.name)
        folder = folder.parent
    return ".".join(reversed(parts)) or path.stem


def _is_passing(name: str, file: str) -> bool:
    """Whether a file is temporary: in a temporary folder, with a generated name."""
    alone = "." not in name
    if not (alone or _is_made_up(name)):
        return False
    folder, temporary = os.path.dirname(os.path.realpath(file)), env.temporary_folders()
    if folder in temporary:
        return True
    within = any(folder.startswith(outer + os.sep) for outer in temporary)
    return within and (_is_made_up(name) or re.search(r"(^|_)(?=\w*\d)[a-z\d_]{8}$", name) is not None)


def _is_made_up(name: str) -> bool:
    """Whether a name looks generated: by `tempfile`, or from a hash, a time or a process id."""
    parts = name.split(".")
    words = [word for part in parts for word in part.replace("-", "_").split("_")]
    return any(map(_is_temporary, parts)) or any(map(_is_random, words))


def _is_temporary(part: str) -> bool:
    return len(part) == 11 and part.startswith("tmp") and part.replace("_", "a").isalnum()


def _is_random(word: str) -> bool:
    digits = sum(map(str.isdigit, word))
    is_hash = len(word) >= 8 and digits > 0 and _HEX.issuperset(word)
    return is_hash or digits >= 6 or len(word) >= 32


def _gives(name: str, file: str) -> bool:
    """Whether importing `name` would load the file; imports nothing.

    `importlib.util.find_spec` would return a loaded module's own `__spec__`.
    """
    places: Any = None
    origin = None
    for depth, _ in enumerate(parts := name.split("."), 1):
        spec = _spec(".".join(parts[:depth]), places)
        if spec is None:
            return False
        places, origin = spec.submodule_search_locations, spec.origin
    return origin is not None and (origin == file or _same(origin, file))


def _spec(name: str, places: Any) -> Any:
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        try:
            spec = find(name, places) if find is not None else None
        except (ImportError, ValueError, AttributeError, TypeError, KeyError):
            spec = None  # a third-party finder that fails
        if spec is not None:
            return spec
    return None


def _same(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False
