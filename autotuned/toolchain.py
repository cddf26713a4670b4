"""Triton as decorating and keys see it: kernels, parameters, its version and files (one row a version in docs)."""

from __future__ import annotations

import hashlib
import inspect
import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

from autotuned import disk, env
from autotuned.errors import DecorationError
from autotuned.immutable import Frozen
from autotuned.values import Json

log = logging.getLogger("autotuned")
# Triton's two: the variable that names another, and its name.
_PTXAS = (("TRITON_PTXAS_PATH", "ptxas"), ("TRITON_PTXAS_BLACKWELL_PATH", "ptxas-blackwell"))


class Parameter(Frozen):
    """A parameter of a kernel; `default` is `inspect.Parameter.empty` where there is none."""

    name: str
    default: Any
    constexpr: bool
    has_name: bool = True  # False: passed by position only
    has_place: bool = True  # False: passed by name only


def is_kernel(value: object) -> bool:
    """Whether a value is launched as `value[grid](...)`: a Triton function, heuristics, or a tuner."""
    if "triton" not in sys.modules:
        return False  # nothing of Triton's exists before its import; a plain callable must not pay for it
    from triton.runtime.jit import KernelInterface

    return isinstance(value, KernelInterface)


def layers(kernel: Any) -> Iterator[Any]:
    """The kernel and what it wraps, outermost first, ending with the Triton function."""
    while is_kernel(kernel):
        yield kernel
        kernel = getattr(kernel, "fn", None)


def innermost(kernel: Any) -> Any:
    """The Triton function in a kernel's layers."""
    return list(layers(kernel))[-1]


def filled(kernel: Any) -> frozenset[str]:
    """Names of parameters that heuristics in the kernel's layers fill in."""
    return frozenset(name for layer in layers(kernel) for name in getattr(layer, "values", None) or ())


def is_tuner(layer: object) -> bool:
    """Whether a layer is a tuner: Triton's own, or a subclass such as ours."""
    from triton.runtime.autotuner import Autotuner

    return isinstance(layer, Autotuner)


def is_interpreted(kernel: Any) -> bool:
    """Whether Triton interprets this kernel on the CPU; it decides at decoration."""
    from triton.runtime.interpreter import InterpretedFunction

    return isinstance(innermost(kernel), InterpretedFunction)


def is_plain_jit(kernel: Any) -> bool:
    """Whether the kernel is exactly Triton's compiled function, with nothing around it."""
    from triton.runtime.jit import JITFunction

    return type(kernel) is JITFunction


def parameters(kernel: Any, function: Callable[..., Any]) -> list[Parameter]:
    """The kernel's parameters in order.

    Raises:
        DecorationError: It takes `*args` or `**kwargs`, which have no names to tune or protect by.
    """
    found = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise DecorationError(
                f"@autotune: expected named parameters only, got {parameter} in `{function.__qualname__}`. "
                "Name every argument."
            )
        found.append(
            Parameter(
                parameter.name,
                parameter.default,
                _is_constexpr(parameter.annotation),
                parameter.kind is not parameter.POSITIONAL_ONLY,
                parameter.kind is not parameter.KEYWORD_ONLY,
            )
        )
    return found


def _is_constexpr(annotation: object) -> bool:
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return "constexpr" in text


@lru_cache(maxsize=1)
def option_names() -> frozenset[str]:
    """Names that are no parameters but compile options of a back end, such as `waves_per_eu`."""
    from triton.backends import backends

    names = {"num_warps", "num_stages", "num_ctas", "maxnreg", "ir_override"}
    for backend in backends.values():
        for value in vars(sys.modules[backend.compiler.__module__]).values():
            names.update(getattr(value, "__dataclass_fields__", ()))
    return frozenset(names)


def environment() -> dict[str, str]:
    """The environment variables that change what Triton compiles, asked of Triton whenever any variable has changed."""
    global _environment
    stamp, (seen, variables) = env.stamp()(), _environment
    if stamp is None or stamp != seen:
        from triton._C.libtriton import get_cache_invalidating_env_vars  # it takes 7 us

        variables = dict(sorted(get_cache_invalidating_env_vars().items()))
        _environment = stamp, variables
    return variables


_environment: tuple[int | None, dict[str, str]] = (None, {})  # the latest, with the stamp of all variables


_retired: list[Any] = []  # binaries of former environments: a module that a CUDA graph holds must stay loaded


def forget_binaries(kernel: Any) -> None:
    """Make Triton compile a kernel anew: it looks at the environment at a compilation, and not at its next look-up."""
    caches = getattr(innermost(kernel), "device_caches", None)
    if caches:
        _retired.extend(caches.values())
        caches.clear()


def loaded(compiled: Any) -> Any:
    """A compiled kernel, its binary on the device; one that could not be loaded is loaded at the next try.

    Triton makes a kernel's launcher before it loads the binary, and takes a kernel with a launcher for loaded: after a
    device that was full it would launch nothing, with a `TypeError`, for as long as the process lives.
    """
    try:
        getattr(compiled, "run", None)  # reading it loads the binary
    except Exception:
        _forget_failed_load(compiled)
        raise
    return compiled


def forget_failed_loads(kernel: Any) -> None:
    """Let Triton load anew what a launch of a kernel could not load."""
    caches = getattr(innermost(kernel), "device_caches", None) or {}
    for binaries, *_ in caches.values():
        for compiled in list(binaries.values()):
            _forget_failed_load(compiled)


def _forget_failed_load(compiled: Any) -> None:
    if getattr(compiled, "module", True) is None:
        compiled._run = None


def version() -> str:
    """Triton's version."""
    import triton

    return str(triton.__version__)


def fingerprint(arch: str, cache_dir: Path) -> dict[str, Json]:
    """What compiles kernels for `arch`: Triton's version, a hash of all of it, and the version of ptxas.

    Hashing libtriton takes a third of a second, so the answer is remembered in `cache_dir` with the sizes and times of
    the files it was computed from; any change of these computes it anew. Within a process Triton is what was imported,
    and only ptxas, which is run for each kernel, is looked at again. Errors are not swallowed: an unknown fingerprint
    must never equal another unknown one.

    Args:
        arch: "sm_90" and the like; anything else has no ptxas.
        cache_dir: Where to remember; an unwritable folder only costs time.
    """
    tool = _ptxas(arch)
    now = _stat(tool) if tool else None
    if now not in _fingerprints:
        _fingerprints[now] = _remembered(_place(cache_dir, tool), now)
    return _fingerprints[now]


_fingerprints: dict[tuple[str, int, int] | None, dict[str, Json]] = {}


def hash_ahead(cache_dir: Path) -> None:
    """Begin to hash Triton's files on another thread, if nothing that `fingerprint` could remember is there.

    Which device it is for is known only from Triton's driver, and that takes the C compiler 0.4 s at its first use; on
    the same host, with an H200, the hash took 0.45 s.
    """
    tools = [None, *(env.triton_tool(variable) or _own_tool(name) for variable, name in _PTXAS)]
    if not (os.getpid() in _ahead or _fingerprints or any(_place(cache_dir, tool).exists() for tool in tools)):
        future = _ahead[os.getpid()] = _future()
        threading.Thread(target=_settle, args=(future,), name="autotuned-hash", daemon=True).start()


_ahead: dict[int, Any] = {}  # what a thread of a process will know; a fork of it has no such thread


def _future() -> Any:
    from concurrent.futures import Future

    return Future()


def _settle(future: Any) -> None:
    try:
        future.set_result(_hashed())
    except BaseException as error:
        future.set_exception(error)


def _place(cache_dir: Path, tool: str | None) -> Path:
    """Where a fingerprint is remembered."""
    name = hashlib.sha256(f"3 {version()} {_triton_folder()} {tool}".encode("utf-8", "surrogateescape"))
    return cache_dir / "toolchain" / f"{name.hexdigest()[:32]}.json"


def _remembered(path: Path, tool: tuple[str, int, int] | None) -> dict[str, Json]:
    try:
        data = disk.read_json(path)
        if _is_made_of(data, tool) and data["is"].keys() == {"triton", "triton_key", "ptxas"}:
            found: dict[str, Json] = data["is"]
            return found
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        pass  # there is none, it is damaged, or a file is gone
    begun = _ahead.pop(os.getpid(), None)
    before, whole = begun.result() if begun else _hashed()
    known = tool and f"{_ptxas_version(tool[0])} {_sha256(tool[0])[:12]}"
    fresh: dict[str, Json] = {"triton": version(), "triton_key": whole, "ptxas": known}
    # Else somebody is installing it: what was read may be a mixture.
    if _parts() == before and (tool is None or _stat(tool[0]) == tool):
        try:
            disk.write_text(path, disk.text({"ptxas": list(tool) if tool else None, **before, "is": fresh}))
        except OSError as error:
            log.debug("cannot remember the toolchain fingerprint: %s", error)
    return fresh


def _parts() -> dict[str, Json]:
    """What is hashed: the files, and the folders, whose times say whether there are others."""
    root = _triton_folder()
    folders = {folder: os.stat(_below(root, folder)).st_mtime_ns for folder in _folders(root)}
    files = {file: _size_and_time(_below(root, file)) for folder in folders for file in _files(root, folder)}
    return {"folders": folders, "files": files}


def _is_made_of(data: Json, tool: tuple[str, int, int] | None) -> bool:
    """Whether what is remembered was computed from what is there now; half a millisecond for 150 files."""
    root = _triton_folder()
    return (
        data["ptxas"] == (list(tool) if tool else None)
        and all(os.stat(_below(root, folder)).st_mtime_ns == time for folder, time in data["folders"].items())
        and all(_size_and_time(_below(root, file)) == there for file, there in data["files"].items())
    )


def _below(root: str, path: str) -> str:
    return f"{root}/{path}"  # os.path.join takes a microsecond


def _size_and_time(path: str) -> list[int]:
    info = os.stat(path)
    return [info.st_size, info.st_mtime_ns]


def _hashed() -> tuple[dict[str, Json], str]:
    """What Triton is made of, and a hash of all that."""
    from concurrent.futures import ThreadPoolExecutor

    from triton.runtime.cache import triton_key

    # Triton's own key leaves out its runtime, Gluon, plug-ins and what it links into kernels.
    root, parts = _triton_folder(), _parts()
    files = sorted(_below(root, file) for file in parts["files"])
    files = [path for path in files if not os.path.basename(path).startswith("libtriton")]
    # Nothing can be compiled before this is known, and Python's lock is free while a file is read or hashed.
    with ThreadPoolExecutor(4, "autotuned-hash") as threads:
        whole = threads.submit(triton_key)
        hashes = threads.map(_sha256, files)
        lines = [f"{os.path.relpath(path, root)} {digest}" for path, digest in zip(files, hashes)]
        lines.insert(0, whole.result())
    return parts, hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def _sha256(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def _triton_folder() -> str:
    import triton

    return os.path.dirname(os.path.abspath(str(triton.__file__)))


def _folders(root: str, folder: str = "") -> Iterator[str]:
    """The folders of Triton that hold what decides code, from `root` on; each ends with a slash but for the first."""
    yield folder
    for entry in os.scandir(_below(root, folder)):
        if "." not in entry.name and entry.name not in _NO_CODE and entry.is_dir():
            yield from _folders(root, f"{folder}{entry.name}/")


def _files(root: str, folder: str) -> Iterator[str]:
    """What Triton is made of in one folder: Python, libraries, and bit code linked into kernels."""
    for entry in os.scandir(_below(root, folder)):
        if entry.name.endswith((".py", ".so", ".pyd", ".bc")):
            yield f"{folder}{entry.name}"


_NO_CODE = {"__pycache__", "profiler", "include", "bin"}  # folders without anything that decides what is compiled


def _stat(path: str) -> tuple[str, int, int]:
    info = os.stat(path)
    return path, info.st_size, info.st_mtime_ns


def _ptxas(arch: str) -> str | None:
    """The ptxas that Triton runs for `arch`, found without running it."""
    variable, default = _ptxas_places(arch)
    override = env.triton_tool(variable) if variable else ""
    return override if override and _is_tool(override) else default


@lru_cache
def _ptxas_places(arch: str) -> tuple[str, str | None]:
    """The variable that names another ptxas for `arch`, and Triton's own."""
    kind, _, number = arch.partition("_")
    if kind != "sm" or not (number.isascii() and number.isdigit()):
        return "", None
    variable, name = _PTXAS[_second_ptxas(int(number))]
    return variable, _own_tool(name)


def _own_tool(name: str) -> str:
    return os.path.join(_triton_folder(), "backends", "nvidia", "bin", name)


def _second_ptxas(arch: int) -> bool:
    """Whether Triton takes its second ptxas for `arch`: by its own rule, which differs between versions.

    Its function runs the tool to see that it is one; here the same code is given the names in the tools' place.
    """
    from triton.backends.nvidia.compiler import get_ptxas

    tools = SimpleNamespace(ptxas=False, ptxas_blackwell=True)
    try:
        return bool(FunctionType(inspect.unwrap(get_ptxas).__code__, {"knobs": SimpleNamespace(nvidia=tools)})(arch))
    except (AttributeError, TypeError, NameError):
        return arch >= 100


def _is_tool(path: str) -> bool:
    """Whether Triton would take this file for ptxas; what does not run it passes over."""
    from triton import knobs

    return knobs.NvidiaTool.from_path(path) is not None


def _ptxas_version(path: str) -> str:
    text = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    match = re.search(r"\bV(\d+\.\d+\.\d+)", text)
    return match[1] if match else text.strip()


def capturing() -> bool:
    """Whether the current stream is being captured into a CUDA graph."""
    torch = sys.modules.get("torch")  # who has not imported it captures nothing, and must not wait a second for it
    if torch is None or not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return False  # asking about a stream would initialise CUDA
    return bool(torch.cuda.is_current_stream_capturing())


def current_device() -> int:
    """Index of the device that Triton launches on now."""
    from triton.runtime.driver import driver

    return int(driver.active.get_current_device())


def current_device_getter() -> Callable[[], int]:
    """The function that tells the current device's index, for the hot path."""
    from triton.runtime.driver import driver

    getter: Callable[[], int] = driver.active.get_current_device
    torch = sys.modules.get("torch")
    if torch is not None and getter is torch.cuda.current_device and _is_of_torch(getter):
        # Triton 3.6 asks torch, which asks each time whether CUDA is up; whoever has launched knows that.
        getter = getattr(torch._C, "_cuda_getDevice", getter)
    return getter


def _is_of_torch(function: Callable[..., Any]) -> bool:
    """Whether a function is torch's own, and nobody's replacement."""
    return inspect.isfunction(function) and function.__module__ == "torch.cuda"


def is_patched() -> bool:
    """Whether somebody replaced the `run` methods of Triton's classes (vLLM, tritonbench, SGLang do)."""
    from triton.runtime.jit import JITFunction

    return own_run() is not originals["tuner"] or JITFunction.run is not originals["jit"]


def own_run() -> Any:
    """`Autotuner.run` as it is now, without what `install()` put in front of it."""
    from triton.runtime.autotuner import Autotuner

    run = Autotuner.run
    return getattr(run, "in_front_of", run)


def is_tritons(function: Any) -> bool:
    """Whether a function is Triton's own, and not one that somebody put in its place."""
    code = getattr(function, "__code__", None)
    return code is not None and code.co_filename.startswith(_triton_folder())


def of_constexpr_function(function: Any) -> Any:
    """The plain function in one of Triton's `constexpr_function`s, which is what it computes of integers; else None."""
    from triton.runtime import jit

    kind = getattr(jit, "ConstexprFunction", None)
    if kind is None or type(function) is not kind or not is_tritons(kind.__call__):
        return None
    return vars(function).get("fn")


def caches_results(asked: bool) -> bool:
    """Whether Triton's own file cache of choices is on for a tuner: asked for, or by `TRITON_CACHE_AUTOTUNING`."""
    from triton import knobs

    return bool(asked or knobs.autotuning.cache) and not knobs.runtime.interpret


def autotuning_listener() -> Any:
    """Who wants to be told of each choice (`knobs.autotuning.listener`); None on Triton 3.6, which has no such."""
    from triton import knobs

    return getattr(knobs.autotuning, "listener", None)


def prints_autotuning() -> bool:
    """Whether `TRITON_PRINT_AUTOTUNING` is on."""
    from triton import knobs

    return bool(knobs.autotuning.print)


def has_driver() -> bool:
    """Whether Triton finds a device, or a stand-in for one, to measure on."""
    from triton.runtime.driver import driver

    try:
        return driver.active is not None
    except RuntimeError:  # "0 active drivers"
        return False


originals: dict[str, object] = {}  # Triton's own methods, by "tuner" and "jit"


def remember_originals() -> None:
    """Note Triton's own methods, once, so that later patches can be told apart."""
    from triton.runtime.jit import JITFunction

    originals.setdefault("tuner", own_run())
    originals.setdefault("jit", JITFunction.run)
