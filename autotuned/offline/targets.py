"""Imports targets, finds the tuned objects in them, and binds their cases."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import os
import pkgutil
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from autotuned._startup import loaded
from autotuned.api.function import TunedFunction
from autotuned.errors import CallError, TargetError, described
from autotuned.key import naming
from autotuned.resolve.tuner import Tuner
from autotuned.triton_compat import kernel
from autotuned.tunable.call import Call

FORMS = "a module (app.kernels), one kernel of it (app.kernels:matmul) or a file (kernels.py)"


def texts(targets: Any, at_least: int = 1) -> list[str]:
    """One or several targets as text, also from paths; TargetError for other types, or too few targets."""
    given = [targets] if isinstance(targets, (str, os.PathLike)) or not isinstance(targets, Iterable) else [*targets]
    for one in given:
        if not isinstance(one, (str, os.PathLike)):
            raise TargetError(f"expected {FORMS}, got {type(one).__name__}: {one!r:.60}.", target=repr(one))
    if len(given) < at_least:
        raise TargetError(f"expected {FORMS}, got none.", target="")
    return [os.fspath(one) for one in given]


@dataclass(frozen=True)
class TunedObject:
    """A tuned object of a module."""

    tuned: Any  # the `Tuned` or `TunedFunction`
    # The `heuristics` around it, outermost first; each adds arguments to the call before the tuner.
    outer: tuple[Any, ...] = ()

    @property
    def tuner(self) -> Tuner:
        """The object's tuner."""
        tuner: Tuner = self.tuned.tuner
        return tuner

    @property
    def name(self) -> str:
        """The object's public name."""
        return self.tuner.tunable.name


def load(target: str) -> list[TunedObject]:
    """Import a target and find its tuned objects, each once, in order of definition.

    Modules can be imported from the current folder, as with `python -m`. A file is imported under its dotted name, with
    the folder of its top-level package on the path, so that a kernel has the name and key that it has in a program. If
    another module has that name (`math.py`), the file gets another one.

    Args:
        target: `pkg.module`, `pkg.module:kernel`, `path/to/file.py` or `path/to/file.py:kernel`.

    Raises:
        TargetError: There is no such module, file or kernel, importing it fails, or nothing in it is tuned.
    """
    place, kernel = _split(target)
    module = _import_file(Path(place), target) if place.endswith(".py") else _import_module(place, target)
    if kernel:
        return [_named(module, kernel, target)]
    found = list(tuned_objects(module))
    if not found:
        raise TargetError(_nothing_tuned(module, target), target=target)
    return found


def find_kernel(name: str) -> TunedObject:
    """Import a kernel by its name `module.qualname`; TargetError if no module or kernel is found."""
    parts = name.split(".")
    missing: TargetError | None = None
    for count in range(len(parts) - 1, 0, -1):
        module, kernel = ".".join(parts[:count]), ".".join(parts[count:])
        try:
            found = load(f"{module}:{kernel}")
        except TargetError as error:
            missing = missing or error
            if error.__cause__ is not None and not isinstance(error.__cause__, ModuleNotFoundError):
                raise
            continue
        return found[0]
    hint = "Give the module of a kernel with name= in targets=."
    raise TargetError(f"kernel {name!r} cannot be imported ({missing or 'it names no module'}). {hint}", target=name)


def tuned_objects(module: ModuleType) -> Iterator[TunedObject]:
    """A module's tuned objects, each once."""
    seen: set[int] = set()
    for value in list(vars(module).values()):
        found = _as_found(value)
        if found is not None and id(found.tuned) not in seen:
            seen.add(id(found.tuned))
            yield found


def bind(found: TunedObject, case: Any) -> Call:
    """The call that a case describes.

    Args:
        found: The tuned object.
        case: `dict(args=(...), kwargs={...}, grid=...)`, each field optional; no grid for a plain callable.

    Raises:
        CallError: `case` is not such a dict, lacks a grid, or its arguments do not fit.
    """
    _check_case(found, case)
    args, kwargs = tuple(case.get("args", ())), dict(case.get("kwargs", {}))
    for layer in found.outer:
        for name, function in layer.values.items():
            kwargs[name] = function({**dict(zip(layer.arg_names, args)), **kwargs})
    return found.tuner.call(args, kwargs, case.get("grid"))


def _check_case(found: TunedObject, case: Any) -> None:
    if not isinstance(case, Mapping) or not case.keys() <= {"args", "kwargs", "grid"}:
        got = f"the fields {', '.join(map(str, case))}" if isinstance(case, Mapping) else type(case).__name__
        raise CallError(
            f"`{found.name}`: case: expected dict(args=(...), kwargs={{...}}, grid=...), got {got}.", kernel=found.name
        )
    launches = not isinstance(found.tuned, TunedFunction)
    if launches == (case.get("grid") is None):
        problem = "a kernel's case needs a grid, got none" if launches else "a plain callable takes no grid, got one"
        raise CallError(f"`{found.name}`: case: {problem}.", kernel=found.name)


# -- from a target to a module ------------------------------------------------------------------------------------


def _split(target: str) -> tuple[str, str]:
    """The module or file, and the kernel's name or ""."""
    place, kernel = _halves(target)
    is_file = place.endswith(".py")
    is_other = "." in place and Path(place).is_file()
    if not is_file and (is_other or set(place) & set("/\\") or not all(place.split("."))):
        raise _error(target, f"expected {FORMS}.{_file_hint(place)}")
    return place, kernel


def _halves(target: str) -> tuple[str, str]:
    """The text before and after the colon that precedes a kernel's name, if there is one."""
    place, colon, kernel = target.rpartition(":")
    is_path = bool(set(kernel) & set("/\\"))  # the colon follows a Windows drive
    return (place, kernel) if colon and not is_path else (target, "")


def file_of(target: str) -> str:
    """The file that a target names; "" for a module."""
    place, _ = _halves(target)
    return place if place.endswith(".py") or set(place) & set("/\\") else ""


def _error(target: str, what: str) -> TargetError:
    return TargetError(f"target {target!r}: {what}", target=target)


def _file_hint(place: str) -> str:
    if Path(place).is_dir():
        return " This is a folder: name a file in it, or the package's dotted name."
    if Path(place).is_file():
        if place.endswith(".jsonl"):
            return " A recording is tuned as a whole: give its file alone."
        return " If it is a recording, give it a name that ends in .jsonl."
    return f" Did you mean {place + '.py'!r}?" if Path(place + ".py").is_file() else ""


def _import_module(name: str, target: str) -> ModuleType:
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.insert(0, os.getcwd())
    with _importing(target):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if not _is_missing(error, name):
                raise
            raise TargetError(_module_missing(name, error.name or name, target), target=target) from error


def _is_missing(error: ModuleNotFoundError, name: str) -> bool:
    """Whether the module itself, or a package around it, is missing, not a module that it imports."""
    return error.name is not None and f"{name}.".startswith(f"{error.name}.")


def _module_missing(name: str, missing: str, target: str) -> str:
    parent, _, last = missing.rpartition(".")
    if name == missing and parent and _as_found(getattr(sys.modules.get(parent), last, None)):
        hint = f" A kernel of a module is written {parent + ':' + last!r}."
    else:
        places = getattr(sys.modules.get(parent), "__path__", []) if parent else None  # None: all of sys.path
        known = [module.name for module in pkgutil.iter_modules(places)]
        near = difflib.get_close_matches(last, known, 1, cutoff=0.75)  # strict, since there are hundreds of names
        hint = f" Did you mean {(parent + '.' if parent else '') + near[0]!r}?" if near else ""
    return (
        f"target {target!r}: no module named {missing!r}; looked in the current folder, PYTHONPATH and the installed "
        f"packages.{hint} Run this where the module can be imported, or set PYTHONPATH."
    )


def _import_file(path: Path, target: str) -> ModuleType:
    path = path.expanduser().absolute()
    if path.is_dir():
        raise _error(target, f"expected a file, got the folder {path}.")
    if not path.is_file():
        near = difflib.get_close_matches(path.name, [file.name for file in path.parent.glob("*.py")], 1)
        hint = f" Did you mean {str(path.with_name(near[0]))!r}?" if near else ""
        raise _error(target, f"there is no file {path}.{hint}")
    name = naming.module_name(path)
    depth = len(name.split(".")) - (path.stem != "__init__")
    folder = str(path.parents[depth])  # holds the top-level package, or the file
    if folder not in sys.path:
        sys.path.insert(0, folder)
    with _importing(target):
        if _gives(name, path):
            return importlib.import_module(name)
        return _load_file(path)


def _gives(name: str, path: Path) -> bool:
    """Whether importing `name` loads the file at `path`."""
    if "." in path.stem:
        return False
    try:
        spec = importlib.util.find_spec(name)  # imports the packages around it
    except ValueError:  # the name belongs to a module without a spec
        return False
    except ModuleNotFoundError as error:
        if _is_missing(error, name):
            return False  # another package has the name
        raise
    origin = spec.origin if spec is not None else None
    return origin is not None and os.path.isfile(origin) and os.path.samefile(origin, path)


def _load_file(path: Path) -> ModuleType:
    name = naming.BY_PATH_PREFIX + path.stem
    there = sys.modules.get(name)
    if there is not None and there.__file__ == str(path):
        return there
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # a file that ends in .py always has a loader
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@contextmanager
def _importing(target: str) -> Iterator[None]:
    """Turn an import error of a target into one line with its place and cause."""
    try:
        yield
    except TargetError:
        raise
    except SyntaxError as error:
        where = f"{error.filename}:{error.lineno}" if error.filename else _line_of(error)
        raise TargetError(f"target {target!r}: syntax error at {where}: {error.msg}.", target=target) from error
    except (Exception, SystemExit) as error:  # a module's top level may raise anything
        raise TargetError(_import_failed(error, target), target=target) from error


def _import_failed(error: BaseException, target: str) -> str:
    hint = ""
    if isinstance(error, ModuleNotFoundError):
        hint = " Install it, or set PYTHONPATH so that it is found."
    elif isinstance(error, SystemExit):
        hint = ' Put the script part under `if __name__ == "__main__":`.'
    text = " ".join(described(error).split()).rstrip(": .")
    return f"target {target!r}: importing it failed at {_line_of(error)}: {text}.{hint}"


def _line_of(error: BaseException) -> str:
    """`file:line` of the innermost frame in the user's code, or of the innermost frame."""
    frames = traceback.extract_tb(error.__traceback__)
    installed = (sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
    foreign = (str(Path(__file__).parent.parent), "<frozen", *installed)
    own = [frame for frame in frames if not frame.filename.startswith(foreign)]
    frame = (own or frames)[-1]
    return f"{frame.filename}:{frame.lineno}"


# -- from a module to its tuned objects ---------------------------------------------------------------------------


def _as_found(value: Any) -> TunedObject | None:
    if isinstance(value, TunedFunction):
        return TunedObject(value)
    # Not imported here, since Triton may be missing; if it is not imported, no Triton kernel is decorated.
    module = loaded("api.tuned")
    layers = list(kernel.layers(value)) if module is not None else []
    for depth, layer in enumerate(layers):
        if module is not None and isinstance(layer, module.Tuned):
            return TunedObject(layer, tuple(layers[:depth]))
    return None


def _named(module: ModuleType, kernel: str, target: str) -> TunedObject:
    value: Any = module
    for part in kernel.split("."):
        value = getattr(value, part, None)
    found = _as_found(value)
    if found is None:
        names = [name for name, member in vars(module).items() if _as_found(member)]
        if module.__name__ == "__main__" and not names:
            got = "one of another program's `__main__`. Put it into a module, and record again."
            raise _error(target, f"expected a kernel that can be imported, got {got}")
        what = f"{kernel!r} is not tuned: put @autotune on it" if value is not None else f"no kernel {kernel!r}"
        raise _error(target, f"{what}.{_kernel_hint(kernel, names)}")
    return found


def _kernel_hint(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"{hint} Tuned in it: {', '.join(known) or 'nothing'}."


def _nothing_tuned(module: ModuleType, target: str) -> str:
    text = f"target {target!r}: nothing in it is tuned by @autotune."
    inside = [f"{module.__name__}.{part.name}" for part in pkgutil.iter_modules(getattr(module, "__path__", []))]
    inside = [name for name in inside if not name.rpartition(".")[2].startswith("_")]
    return text + (f" It is a package; name modules of it: {', '.join(inside[:8])}." if inside else "")
