"""Where a function comes from, and the name that it has in every process."""

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
from autotuned.key.source_text import Body, text

BY_PATH_PREFIX = "autotuned_target_"
_SCRIPTS = ("__main__", "__mp_main__")  # the second in what `multiprocessing` starts by "spawn" or "forkserver"
# What is typed in is compiled under these: by Jupyter, by IPython, by marimo, and by Python from 3.13 on and before.
_CELL = re.compile(r"[/\\]ipykernel_\d+[/\\]|^<ipython-input-|__marimo__cell_|^<python-input-|^<stdin>$")


def public_name(body: Body) -> str:
    """`module.qualname`, with a name of the module that it has in the next process too.

    That is the name under which Python would import this very file, else the name that the packages around the file
    (folders with an `__init__.py`) give it: run as a script, by processes that it spawns, or loaded from a path under
    any name, a kernel has one name. In a notebook it is `<notebook>.qualname`, however often its cell is edited, and
    `notebook.qualname` where nothing says the notebook's name. Other code without a file, and a file whose own name was
    made up for this process, is named by the kernel's text: `source_<hash>.qualname`.
    """
    home = module_of(body.function) or f"source_{hashlib.sha256(_own_text(body)).hexdigest()[:12]}"
    return f"{home}.{body.function.__qualname__}"


def _own_text(body: Body) -> bytes:
    return text(body).encode("utf-8", "surrogatepass")


def is_importable(function: FunctionType) -> bool:
    """Whether the module that a function names is what importing that name gives, in another process too."""
    return not _is_script(function.__module__ or "") and _gives(function.__module__ or "", file_of(function))


def _is_script(module: str) -> bool:
    return module in _SCRIPTS or module.startswith(BY_PATH_PREFIX)


def file_of(function: FunctionType) -> str:
    """The file of a function's module; of code without a module's file what the code says, such as "<string>"."""
    code = function.__code__.co_filename
    module = function.__globals__.get("__file__")
    return code if os.path.isfile(code) or not isinstance(module, str) else module


def module_of(function: FunctionType) -> str | None:
    """The name of a function's module that holds in every process; None where there is none."""
    code = function.__code__.co_filename
    if _CELL.search(code):
        return _notebook(function.__globals__)
    return _module(function.__module__ or "", code, file_of(function))


def _notebook(scope: dict[str, Any]) -> str:
    """The name of the notebook that a cell belongs to, as far as Jupyter, VS Code or marimo say it."""
    file = str(scope.get("__vsc_ipynb_file__") or scope.get("__file__") or env.notebook())
    stem = re.sub(r"\W", "_", Path(file).stem)
    return "notebook" if not stem or _is_made_up(stem) else stem


@lru_cache(4096)
def _module(module: str, code: str, file: str) -> str | None:
    derived = module_name(Path(file))
    for name in (module, derived):
        if not _is_script(name) and _gives(name, file):
            return None if _is_passing(name, file) else name
    # Code that a cell of a notebook or `exec` made may stand in a namespace whose file is another.
    if not (os.path.isfile(file) and os.path.isfile(code)):
        return None
    return None if _is_made_up(derived) or _is_passing(derived, file) else derived


def home_of(module: str) -> str:
    """A module as it is written into a fingerprint: by a name that holds in every process; empty without one."""
    loaded = sys.modules.get(module)
    file = getattr(loaded, "__file__", None)
    if isinstance(file, str):
        return _module(module, file, file) or ""
    return "" if _is_script(module) or loaded is None else module


def package_of(function: FunctionType) -> str:
    """Whose code a function is; of a wrapper, which names the module of what it wraps, whose the wrapper is."""
    return _package(str(function.__globals__.get("__name__", function.__module__)), file_of(function))


def package_of_module(module: ModuleType) -> str:
    """Whose code a module is."""
    return _package(module.__name__, getattr(module, "__file__", None) or "")


def package_of_class(kind: type) -> str | None:
    """Whose code a class is; None of one without methods whose module was loaded under no name."""
    functions = (value for value in vars(kind).values() if isinstance(value, FunctionType))
    own = next((one for one in functions if one.__globals__.get("__name__") == kind.__module__), None)
    if own is not None:
        return package_of(own)
    module = sys.modules.get(kind.__module__)
    return package_of_module(module) if isinstance(module, ModuleType) else None


@lru_cache(4096)
def _package(module: str, file: str) -> str:
    """The top package or, for a file outside of any, the file's folder; the module where there is no file."""
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
    """Whether a file will not be there in the next process: one in the temporary folder with a name made up for it."""
    alone = "." not in name
    if not (alone or _is_made_up(name)):
        return False
    folder, temporary = os.path.dirname(os.path.realpath(file)), env.temporary_folders()
    if folder in temporary:
        return True
    within = any(folder.startswith(outer + os.sep) for outer in temporary)
    return within and (_is_made_up(name) or re.search(r"(^|_)(?=\w*\d)[a-z\d_]{8}$", name) is not None)


def _is_made_up(name: str) -> bool:
    """Whether a name looks like those that programs make up: by `tempfile`, from a hash, a time or a process."""
    parts = name.split(".")
    words = [word for part in parts for word in re.split("[_-]", part)]
    return any(re.fullmatch(r"tmp\w{8}", part) for part in parts) or any(map(_is_random, words))


def _is_random(word: str) -> bool:
    digits = sum(map(str.isdigit, word))
    is_hash = len(word) >= 8 and digits > 0 and re.fullmatch("[0-9a-f]+", word) is not None
    return is_hash or digits >= 6 or len(word) >= 32


def _gives(name: str, file: str) -> bool:
    """Whether importing `name` would give the file; nothing is imported for the question.

    Not by `importlib.util.find_spec`: for a module that is loaded already it answers what the module itself says.
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
            spec = None  # somebody's finder that does not know what it is asked
        if spec is not None:
            return spec
    return None


def _same(one: str, other: str) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False
