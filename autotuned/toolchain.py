"""Triton as this package sees it: the only file that touches Triton's private names (one row a version in docs)."""

from __future__ import annotations

import contextvars
import hashlib
import inspect
import logging
import os
import re
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotuned import disk, env
from autotuned.errors import DecorationError
from autotuned.immutable import Frozen
from autotuned.later import later
from autotuned.values import Json

if TYPE_CHECKING:
    from autotuned import ttir
else:
    ttir = later("ttir")

log = logging.getLogger("autotuned")
_PTXAS_OVERRIDES = ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH")


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
    """The environment variables that change what Triton compiles, asked of Triton whenever any variable has changed."""
    stamp = env.stamp()()
    if stamp is None or stamp not in _environments:
        from triton._C.libtriton import get_cache_invalidating_env_vars  # it takes 7 us

        _environments.clear()
        _environments[stamp] = dict(sorted(get_cache_invalidating_env_vars().items()))
    return _environments[stamp]


_environments: dict[int | None, dict[str, str]] = {}  # the latest, by the stamp of all variables


_retired: list[Any] = []  # binaries of former environments: a module that a CUDA graph holds must stay loaded


def forget_binaries(kernel: Any) -> None:
    """Make Triton compile a kernel anew: it looks at the environment at a compilation, and not at its next look-up."""
    caches = getattr(list(layers(kernel))[-1], "device_caches", None)
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
    caches = getattr(list(layers(kernel))[-1], "device_caches", None) or {}
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

    Hashing libtriton takes a third of a second, so the answer is remembered in `cache_dir` under the names, sizes
    and times of the files it was computed from; any change of these computes it anew. Within a process Triton is what
    was imported, and only ptxas, which is run for each kernel, is looked at again. Errors are not swallowed: an
    unknown fingerprint must never equal another unknown one.

    Args:
        arch: "sm_90" and the like; anything else has no ptxas.
        cache_dir: Where to remember; an unwritable folder only costs time.
    """
    tool = _ptxas(arch)
    now = _stat(tool) if tool else None
    if now not in _fingerprints:
        path = cache_dir / "toolchain" / f"{_signature(now)}.json"
        _fingerprints[now] = _remembered(path, tool)
    return _fingerprints[now]


_fingerprints: dict[tuple[str, int, int] | None, dict[str, Json]] = {}


def _remembered(path: Path, tool: str | None) -> dict[str, Json]:
    try:
        data = disk.read_json(path)
        if isinstance(data, dict) and data.keys() == {"triton", "triton_key", "ptxas"}:
            return data
    except (OSError, ValueError):
        pass
    fresh = _compute(tool)
    try:
        disk.write_text(path, disk.text(fresh))
    except OSError as error:
        log.debug("cannot remember the toolchain fingerprint: %s", error)
    return fresh


def _compute(tool: str | None) -> dict[str, Json]:
    from concurrent.futures import ThreadPoolExecutor

    from triton.runtime.cache import triton_key

    # Triton's own key leaves out its runtime, Gluon, plug-ins and what it links into kernels.
    root = _triton_folder()
    files = sorted(path for path, _, _ in _file_stats(root) if not os.path.basename(path).startswith("libtriton"))
    # Nothing can be compiled before this is known, and Python's lock is free while a file is read or hashed.
    with ThreadPoolExecutor(4, "autotuned-hash") as threads:
        whole = threads.submit(triton_key)
        hashes = threads.map(_sha256, files)
        parts = [f"{os.path.relpath(path, root)} {digest}" for path, digest in zip(files, hashes)]
        parts.insert(0, whole.result())
    return {
        "triton": version(),
        "triton_key": hashlib.sha256("\n".join(parts).encode("utf-8", "surrogateescape")).hexdigest(),
        "ptxas": f"{_ptxas_version(tool)} {_sha256(tool)[:12]}" if tool else None,
    }


def _sha256(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def _signature(tool: tuple[str, int, int] | None) -> str:
    """A hash of name, size and time of every file the fingerprint is computed from."""
    stats = sorted(_file_stats(_triton_folder()))
    text = f"2 {version()} {tool} {stats}"  # 2: what is hashed has changed once
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]


def _triton_folder() -> str:
    import triton

    return os.path.dirname(os.path.abspath(str(triton.__file__)))


def _file_stats(folder: str) -> Iterator[tuple[str, int, int]]:
    """What Triton is made of: Python, libraries, and bit code linked into kernels (1 ms for 150 files)."""
    for entry in os.scandir(folder):
        if entry.name.endswith((".py", ".so", ".pyd", ".bc")):
            info = entry.stat()
            yield entry.path, info.st_size, info.st_mtime_ns
        elif "." not in entry.name and entry.name not in _NO_CODE and entry.is_dir():
            yield from _file_stats(entry.path)


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
    blackwell = int(number) >= 100
    name = "ptxas-blackwell" if blackwell else "ptxas"
    return _PTXAS_OVERRIDES[blackwell], os.path.join(_triton_folder(), "backends", "nvidia", "bin", name)


def _is_tool(path: str) -> bool:
    """Whether Triton would take this file for ptxas; what does not run it passes over."""
    from triton import knobs

    return knobs.NvidiaTool.from_path(path) is not None


def _ptxas_version(path: str) -> str:
    text = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    match = re.search(r"\bV(\d+\.\d+\.\d+)", text)
    return match[1] if match else text.strip()


def compiling_in(executor: Any, warm_up: Callable[[], Any]) -> Any:
    """What a warm-up of a kernel returns, with the compilation itself left to an executor.

    Triton binds the arguments and looks into its table on this thread, and gives the executor only what runs LLVM.

    Args:
        executor: Its `submit` is called with a function, unless the kernel is in Triton's table already.

    Returns:
        The kernel, or what has `.result()`, which waits for it and puts it into the table.
    """
    import triton

    def begun() -> Any:
        with triton.AsyncCompileMode(executor) as mode:
            try:
                return warm_up()
            finally:
                mode.raw_futures.clear()  # else leaving the block would wait for them

    return contextvars.Context().run(begun)  # Triton refuses a second mode within one of the user's own


def innermost(kernel: Any) -> Any:
    """The Triton function in a kernel's layers."""
    return list(layers(kernel))[-1]


def specialization(compile_: Callable[[], Any]) -> tuple[Any, ...] | None:
    """What an executor was given by `compiling_in`, without the kernel, for another process that has the same kernel.

    None where it is of another form than is known here, or would not be looked up in Triton's cache.
    """
    from triton import knobs

    if knobs.compilation.always_compile or knobs.compilation.override or knobs.compilation.dump_ir:
        return None
    try:
        found = inspect.getclosurevars(compile_).nonlocals
        source, target, options = found["src"], found["target"], found["options"]
        return source.signature, source.constants, source.attrs, target, options.__dict__
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def compile_specialization(kernel: Any, parts: tuple[Any, ...]) -> str:
    """Compile what `specialization` gave of a Triton function into Triton's cache, without a device.

    Returns:
        The hash that names the binary there. The environment is this process's own: where that is not the other's, the
        hash is another one too.
    """
    import triton
    from triton.compiler import ASTSource

    signature, constants, attrs, target, options = parts
    compiled = triton.compile(ASTSource(kernel, signature, constants, attrs), target=target, options=options)
    return str(compiled.hash)


def prepare_compiler() -> None:
    """Do what every process must do before its first compilation."""
    import triton.compiler  # noqa: F401
    from triton.runtime.cache import triton_key

    triton_key()


def shared_memory_limit() -> int | None:
    """Bytes of shared memory that one program may use on the current device; None where that is not known."""
    from triton.runtime.driver import driver

    try:
        properties = driver.active.utils.get_device_properties(driver.active.get_current_device())
        return int(properties["max_shared_mem"])
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError):
        return None


def out_of_shared_memory(need: int, limit: int, told_by: str) -> Exception:
    """Triton's error for a kernel that needs too much, for one that was not compiled to find out."""
    from triton.runtime.errors import OutOfResources

    error: Exception = OutOfResources(need, limit, f"shared memory (predicted from {told_by})")
    return error


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

    return own_run() is not _ORIGINAL["tuner"] or JITFunction.run is not _ORIGINAL["jit"]


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


def is_hooked(jit: Any) -> bool:
    """Whether launches of this kernel must go through Triton for now: its `run` is replaced, or hooks wait in it."""
    return is_patched() or bool(jit.pre_run_hooks) or _inspected()


def _inspected() -> bool:
    from triton import knobs

    return knobs.runtime.add_stages_inspection_hook is not None


_ORIGINAL: dict[str, object] = {}


def remember_originals() -> None:
    """Note Triton's own methods, once, so that later patches can be told apart."""
    from triton.runtime.jit import JITFunction

    _ORIGINAL.setdefault("tuner", own_run())
    _ORIGINAL.setdefault("jit", JITFunction.run)


class UnbindableError(Exception):
    """This compiled kernel cannot be launched directly; the text says why."""


class Handle(Frozen):
    """A loaded kernel, and all that launching it without Triton's look-up relies on.

    Attributes:
        kernel: Weak reference: Triton's cache owns the kernel, and whoever evicts it there unloads it.
        cache, cache_key: Where Triton's own look-up finds it.
        run, function, packed: What launches it, its handle, and its launch metadata.
        pre_run, entering, leaving: Lists of hooks; `enter` and `leave` call the latter two.
        holds: Whether everything else is as it was when the kernel was chosen: Triton's `run`, its knobs, the
            globals the kernel uses.
        watched: The dictionaries and types that `holds` looks at, and `cache`.
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
            jit.pre_run_hooks, enter.calls, leave.calls, enter, leave, holds, (cache, *watched),
            driver.active.get_current_stream,
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


class Access(Frozen):
    """Names of a kernel's parameters that it reads and writes through, found in its code."""

    read: frozenset[str]
    written: frozenset[str]


def accesses(compiled: Any) -> Access | None:
    """What a compiled kernel reads and writes; None where its TTIR does not tell (see `ttir.access`).

    TTIR names its arguments after the last variable they were assigned to, so they are matched by their order.
    """
    text = getattr(compiled, "asm", {}).get("ttir")
    signature = getattr(getattr(compiled, "src", None), "signature", None)
    if not isinstance(text, str) or not isinstance(signature, dict):
        return None
    names = [name for name, kind in signature.items() for _ in _memory_in(kind)]
    found = ttir.access(text)
    if found is None or found.count != len(names):
        return None
    return Access(frozenset(names[i] for i in found.read), frozenset(names[i] for i in found.written))


def union(found: Sequence[Access | None]) -> Access | None:
    """What several binaries of one kernel do together; None where one of them does not tell, or there is none."""
    known = [access for access in found if access is not None]
    if not known or len(known) < len(found):
        return None
    return Access(
        frozenset().union(*(access.read for access in known)), frozenset().union(*(access.written for access in known))
    )


def _memory_in(kind: Any) -> Iterator[str]:
    """The pointers and descriptors in one entry of a signature, which may be a tuple."""
    if isinstance(kind, (tuple, list)):
        for part in kind:
            yield from _memory_in(part)
    elif str(kind).startswith(("*", "tensordesc", "nvTmaDesc")):
        yield str(kind)


# What a launch takes from a kernel's metadata besides its code.
_LAUNCHED_WITH = ("name", "shared", "num_warps", "num_ctas", "cluster_dims", "tmem_size", "launch_cooperative_grid",
                  "launch_pdl", "global_scratch_size", "profile_scratch_size")  # fmt: skip


def binary_identity(compiled: Any) -> str | None:
    """A hash of the machine code and of what a launch takes along; None where there is no code to compare."""
    code = getattr(compiled, "kernel", None)
    if not isinstance(code, (bytes, str)):
        return None
    facts = [repr(getattr(compiled.metadata, name, None)) for name in _LAUNCHED_WITH]
    binary = code.encode() if isinstance(code, str) else code
    return hashlib.sha256("\n".join(facts).encode() + b"\0" + binary).hexdigest()
