"""Triton as this package sees it: the only file that touches Triton's private names (one row a version in docs)."""

from __future__ import annotations

import hashlib
import inspect
import logging
import os
import re
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from autotuned import disk, env
from autotuned.errors import DecorationError
from autotuned.values import Json

log = logging.getLogger("autotuned")
_PTXAS_OVERRIDES = ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH")


@dataclass(frozen=True)
class Parameter:
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

    return isinstance(list(layers(kernel))[-1], InterpretedFunction)


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
    """The environment variables that change what Triton compiles, asked of Triton at this moment."""
    from triton._C.libtriton import get_cache_invalidating_env_vars

    return dict(sorted(get_cache_invalidating_env_vars().items()))


def version() -> str:
    """Triton's version."""
    import triton

    return str(triton.__version__)


def fingerprint(arch: str, cache_dir: Path) -> dict[str, Json]:
    """What compiles kernels for `arch`: Triton's version, a hash of all of it, and the version of ptxas.

    Hashing libtriton takes a third of a second, so the answer is remembered in `cache_dir` under the names, sizes
    and times of the files it was computed from; any change of these computes it anew. Errors are not swallowed:
    an unknown fingerprint must never equal another unknown one.

    Args:
        arch: "sm_90" and the like; anything else has no ptxas.
        cache_dir: Where to remember; an unwritable folder only costs time.
    """
    signature = _signature(arch)
    if signature not in _fingerprints:
        _fingerprints[signature] = _remembered(cache_dir / "toolchain" / f"{signature}.json", arch)
    return _fingerprints[signature]


_fingerprints: dict[str, dict[str, Json]] = {}


def _remembered(path: Path, arch: str) -> dict[str, Json]:
    try:
        data = disk.read_json(path)
        if isinstance(data, dict) and data.keys() == {"triton", "triton_key", "ptxas"}:
            return data
    except (OSError, ValueError):
        pass
    fresh = _compute(arch)
    try:
        disk.write_text(path, disk.text(fresh))
    except OSError as error:
        log.debug("cannot remember the toolchain fingerprint: %s", error)
    return fresh


def _compute(arch: str) -> dict[str, Json]:
    from triton.runtime.cache import triton_key

    return {
        "triton": version(),
        "triton_key": hashlib.sha256(triton_key().encode()).hexdigest(),
        "ptxas": _ptxas_version(tool) if (tool := _ptxas(arch)) else None,
    }


def _signature(arch: str) -> str:
    """A hash of name, size and time of every file the fingerprint is computed from (1 ms for 200 files)."""
    lines = [f"{path} {size} {time}" for path, size, time in sorted(_file_stats(arch))]
    return hashlib.sha256("\n".join([version(), *lines]).encode("utf-8", "surrogateescape")).hexdigest()[:32]


def _file_stats(arch: str) -> Iterator[tuple[str, int, int]]:
    import triton

    root = Path(triton.__file__).parent
    for name in ("compiler", "backends", "language", "runtime", "_C"):
        for folder, _, files in os.walk(root / name):
            for file in files:
                if file.endswith((".py", ".so", ".pyd")):
                    yield _stat(os.path.join(folder, file))
    tool = _ptxas(arch)
    if tool:
        yield _stat(tool)


def _stat(path: str) -> tuple[str, int, int]:
    info = os.stat(path)
    return path, info.st_size, info.st_mtime_ns


def _ptxas(arch: str) -> str | None:
    """The ptxas that Triton runs for `arch`, found without running it."""
    match = re.fullmatch(r"sm_(\d+)", arch)
    if not match:
        return None
    import triton

    blackwell = int(match[1]) >= 100
    override = env.triton_tool(_PTXAS_OVERRIDES[blackwell])
    folder = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    default = folder / ("ptxas-blackwell" if blackwell else "ptxas")
    return override if override and os.path.isfile(override) else str(default)


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
    return getter


def is_patched() -> bool:
    """Whether somebody replaced the `run` methods of Triton's classes (vLLM, tritonbench, SGLang do)."""
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction

    return Autotuner.run is not _ORIGINAL["tuner"] or JITFunction.run is not _ORIGINAL["jit"]


def is_hooked(jit: Any) -> bool:
    """Whether launches of this kernel must go through Triton for now: its `run` is replaced, or hooks wait in it."""
    return is_patched() or bool(jit.pre_run_hooks) or _inspected()


def _inspected() -> bool:
    from triton import knobs

    return knobs.runtime.add_stages_inspection_hook is not None


_ORIGINAL: dict[str, object] = {}


def remember_originals() -> None:
    """Note Triton's own methods, once, so that later patches can be told apart."""
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction

    _ORIGINAL.setdefault("tuner", Autotuner.run)
    _ORIGINAL.setdefault("jit", JITFunction.run)


class UnbindableError(Exception):
    """This compiled kernel cannot be launched directly; the text says why."""


@dataclass(frozen=True)
class Handle:
    """A loaded kernel, and all that launching it without Triton's look-up relies on.

    Attributes:
        kernel: Weak reference: Triton's cache owns the kernel, and whoever evicts it there unloads it.
        cache, cache_key: Where Triton's own look-up finds it.
        run, function, packed: What launches it, its handle, and its launch metadata.
        pre_run, entering, leaving: Lists of hooks; `enter` and `leave` call the latter two.
        holds: Whether everything else is as it was when the kernel was chosen: Triton's `run`, its knobs, the
            globals the kernel uses.
        watched: The dictionaries and types that `holds` looks at.
        stream_of: Gives the current stream of a device.
    """

    kernel: Callable[[], Any]
    device: int
    cache: dict[str, Any]
    cache_key: str
    run: Callable[..., Any]
    function: int
    packed: Any
    pre_run: list[Any]
    entering: list[Any]
    leaving: list[Any]
    enter: Any
    leave: Any
    holds: Callable[[], bool]
    watched: tuple[Any, ...]
    stream_of: Callable[[int], int]


def handle(jit: Any, compiled: Any, device: int) -> Handle:
    """What a direct launch of a compiled kernel needs.

    Raises:
        UnbindableError: Triton's internals are not as known here.
    """
    from triton import knobs
    from triton.compiler.compiler import CompiledKernel
    from triton.runtime.driver import driver

    if type(compiled) is not CompiledKernel:
        raise UnbindableError(f"expected a CompiledKernel, got {type(compiled).__name__}")
    try:
        cache = jit.device_caches[device][0]
        cache_key = next(key for key, kernel in cache.items() if kernel is compiled)
        enter, leave = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
        holds, watched = _holds(jit)
        return Handle(
            weakref.ref(compiled), device, cache, cache_key, compiled.run, compiled.function, compiled.packed_metadata,
            jit.pre_run_hooks, enter.calls, leave.calls, enter, leave, holds, watched, driver.active.get_current_stream,
        )  # fmt: skip
    except (AttributeError, StopIteration, TypeError, ValueError, KeyError) as error:
        raise UnbindableError(f"{type(error).__name__}: {error}") from error


def _holds(jit: Any) -> tuple[Callable[[], bool], tuple[Any, ...]]:
    """A function that says whether what decides a kernel's choice is as now, and what it looks at."""
    from triton import knobs
    from triton.runtime.jit import JITFunction

    runtime, compilation = knobs.runtime.__dict__, knobs.compilation.__dict__
    # A stages hook answers anew at each of Triton's look-ups: while there is one, nothing equals what was.
    runtime_then, compilation_then = None if _inspected() else dict(runtime), dict(compilation)
    used = [(name, value, scope) for (name, _), (value, scope) in jit.used_global_vals.items()]
    original, absent = _ORIGINAL["jit"], object()

    def holds() -> bool:
        # hot path of the Python twin: comparisons of dictionaries that are nearly always empty
        if JITFunction.run is not original or runtime != runtime_then or compilation != compilation_then:
            return False
        # Triton's own launch raises its error about a changed global.
        return all(scope.get(name, absent) == value for name, value, scope in used) if used else True

    return holds, (JITFunction, runtime, compilation, *{id(scope): scope for _, _, scope in used}.values())


Launch = Callable[[Sequence[int], tuple[Any, ...]], Any]


def direct_launch(found: Handle) -> Launch:
    """A function that launches a loaded kernel without looking it up again.

    It takes the grid and the values of all parameters in order, and returns the kernel, or None, having launched
    nothing, when something it relies on has changed: then Triton's own launch must decide. What it relies on is
    listed in `docs/launcher.md`.
    """
    cache, cache_key, bound, holds, pre_run = found.cache, found.cache_key, found.kernel, found.holds, found.pre_run
    entering, leaving, enter, leave = found.entering, found.leaving, found.enter, found.leave
    run, function, packed, stream_of, device = found.run, found.function, found.packed, found.stream_of, found.device

    def launch(grid: Sequence[int], values: tuple[Any, ...]) -> Any:
        # hot path
        kernel: Any = cache.get(cache_key)
        if kernel is None or kernel is not bound() or pre_run or not holds():
            return None
        sizes = len(grid)
        x, y, z = grid[0], grid[1] if sizes > 1 else 1, grid[2] if sizes > 2 else 1
        stream = stream_of(device)
        if entering or leaving:
            metadata = kernel.launch_metadata(grid, stream, *values)
            run(x, y, z, stream, function, packed, metadata, enter, leave, *values)
        else:
            run(x, y, z, stream, function, packed, None, None, None, *values)
        return kernel

    return launch
