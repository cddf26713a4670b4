"""Triton's API for decorating, keys and devices: kernels, parameters, options, environment (see docs/design.md)."""

from __future__ import annotations

import importlib
import inspect
import logging
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any

from autotuned import env
from autotuned._startup import Frozen, errors

log = logging.getLogger("autotuned")


class Parameter(Frozen):
    """A kernel's parameter; `default` is `inspect.Parameter.empty` if there is none."""

    name: str
    default: Any
    constexpr: bool
    has_name: bool = True  # False: passed by position only
    has_place: bool = True  # False: passed by name only


def is_kernel(value: object) -> bool:
    """Whether a value is launched as `value[grid](...)`: a Triton function, heuristics, or a tuner."""
    if "triton" not in sys.modules:
        return False  # no kernel exists without Triton, and plain callables should not import it
    from triton.runtime.jit import KernelInterface

    return isinstance(value, KernelInterface)


def layers(kernel: Any) -> Iterator[Any]:
    """The kernel and the layers that it wraps, outermost first, down to the Triton function."""
    while is_kernel(kernel):
        yield kernel
        kernel = getattr(kernel, "fn", None)


def innermost(kernel: Any) -> Any:
    """The Triton function in a kernel's layers."""
    return list(layers(kernel))[-1]


def filled(kernel: Any) -> frozenset[str]:
    """Names of parameters computed by heuristics in the kernel's layers."""
    return frozenset(name for layer in layers(kernel) for name in getattr(layer, "values", None) or ())


def is_tuner(layer: object) -> bool:
    """Whether a layer is Triton's tuner or a subclass, such as ours."""
    from triton.runtime.autotuner import Autotuner

    return isinstance(layer, Autotuner)


def is_interpreted(kernel: Any) -> bool:
    """Whether Triton interprets this kernel on the CPU; fixed at decoration."""
    inner, interpreter = innermost(kernel), sys.modules.get("triton.runtime.interpreter")
    interpreted = getattr(interpreter, "InterpretedFunction", None)  # None if not imported: nothing is interpreted yet
    return interpreted is not None and isinstance(inner, interpreted)


def is_plain_jit(kernel: Any) -> bool:
    """Whether the kernel is Triton's compiled function, unwrapped."""
    from triton.runtime.jit import JITFunction

    return type(kernel) is JITFunction


def constexprs(parameters: Iterable[Parameter]) -> frozenset[str]:
    """Names of the parameters whose values are compiled in."""
    return frozenset(parameter.name for parameter in parameters if parameter.constexpr)


def parameters(function: Callable[..., Any]) -> list[Parameter]:
    """The parameters of a kernel's function or a plain callable; DecorationError for `*args` and `**kwargs`."""
    found = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise errors.DecorationError(
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
    """Names of back-end compile options, such as `waves_per_eu`."""
    from triton.backends import backends

    names = {"num_warps", "num_stages", "num_ctas", "maxnreg", "ir_override"}
    for backend in backends.values():
        for value in vars(sys.modules[backend.compiler.__module__]).values():
            names.update(getattr(value, "__dataclass_fields__", ()))
    return frozenset(names)


def environment() -> dict[str, str]:
    """Environment variables that change Triton's compiled code; read again when any variable changed."""
    global _environment
    stamp, (seen, variables) = env.stamp()(), _environment
    if stamp is None or stamp != seen:
        from triton._C.libtriton import get_cache_invalidating_env_vars  # it takes 7 us

        variables = dict(sorted(get_cache_invalidating_env_vars().items()))
        _environment = stamp, variables
    return variables


_environment: tuple[int | None, dict[str, str]] = (None, {})  # with the stamp of all variables
_retired: list[Any] = []  # binaries of earlier environments, kept loaded for CUDA graphs


def forget_binaries(kernel: Any) -> None:
    """Make Triton compile a kernel again: it checks the environment only when compiling, not at look-ups."""
    caches = getattr(innermost(kernel), "device_caches", None)
    if caches:
        _retired.extend(caches.values())
        caches.clear()


def loaded(compiled: Any) -> Any:
    """A compiled kernel with its binary loaded; after a failure the next call tries again.

    Triton creates the launcher before it loads the binary, and considers a kernel with a launcher loaded: after a
    failed load, as on a full device, each later launch would raise a `TypeError`.
    """
    try:
        getattr(compiled, "run", None)  # reading it loads the binary
    except Exception:
        _forget_failed_load(compiled)
        raise
    return compiled


def forget_failed_loads(kernel: Any) -> None:
    """Let Triton retry a kernel's failed loads."""
    for compiled in binaries_of(kernel):
        _forget_failed_load(compiled)


def binaries_of(kernel: Any) -> Iterator[Any]:
    """The binaries in Triton's table, on all devices, without unfinished ones: reading their attributes would wait."""
    for binaries, *_ in list((getattr(innermost(kernel), "device_caches", None) or {}).values()):
        for compiled in list(binaries.values()):
            if type(compiled).__name__ != "FutureKernel":
                yield compiled


def _forget_failed_load(compiled: Any) -> None:
    if getattr(compiled, "module", True) is None:
        compiled._run = None


def version() -> str:
    """Triton's version."""
    import triton

    return str(triton.__version__)


def folder() -> str:
    """Triton's installation folder."""
    import triton

    return os.path.dirname(os.path.abspath(str(triton.__file__)))


def capturing() -> bool:
    """Whether the current stream is captured into a CUDA graph."""
    torch = sys.modules.get("torch")  # importing it would take a second
    if torch is None or not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return False  # querying a stream would initialise CUDA
    return bool(torch.cuda.is_current_stream_capturing())


def current_device() -> int:
    """Index of the device that Triton launches on."""
    driver = _driver()
    if (torch := _asks_torch(driver)) is None:
        return int(driver.active.get_current_device())
    return int(_own_getter(torch.cuda.current_device)())


@contextmanager
def on_device(index: int) -> Iterator[None]:
    """Make another device current in a `with` block."""
    driver = _driver()
    torch: Any = sys.modules.get("torch")
    before = current_device()
    use = torch.cuda.set_device if _asks_torch(driver) else driver.active.set_current_device
    use(index)
    try:
        yield
    finally:
        use(before)


def _driver() -> Any:
    """Triton's holder of drivers; `from ... import` takes eight times as long for an imported module."""
    name = "triton.runtime.driver"
    return (sys.modules[name] if name in sys.modules else importlib.import_module(name)).driver


def _asks_torch(driver: Any) -> Any:
    """The module torch, if it must be used because Triton's driver does not exist yet; otherwise None."""
    if driver._active is not None or driver._default is not None:
        return None
    torch: Any = sys.modules.get("torch")
    return torch if torch is not None and torch.version.hip is None and torch.cuda.is_initialized() else None


def stream_getter() -> Callable[[int], int]:
    """The function returning a device's current stream."""
    return _device_functions()[1]


def _device_functions() -> tuple[Callable[[], int], Callable[[int], int]]:
    """The functions returning the current device, and a device's stream: the driver's, which for CUDA are torch's.

    Until the driver exists, torch is used directly: creating the driver runs a C compiler, which shipped binaries do
    not need.
    """
    driver = _driver()
    if (torch := _asks_torch(driver)) is None:
        return driver.active.get_current_device, driver.active.get_current_stream
    return torch.cuda.current_device, torch._C._cuda_getCurrentRawStream


def current_device_getter() -> Callable[[], int]:
    """The function returning the current device's index, for the hot path."""
    getter = _device_functions()[0]
    torch: Any = sys.modules.get("torch")
    is_of_torch = torch is not None and getter is torch.cuda.current_device
    return _own_getter(getter) if is_of_torch else getter


def _own_getter(getter: Callable[[], int]) -> Callable[[], int]:
    """The C function behind `torch.cuda.current_device`, which checks each time whether CUDA is initialised."""
    if type(getter) is FunctionType and getter.__module__ == "torch.cuda":  # not a replacement
        return getattr(sys.modules["torch"]._C, "_cuda_getDevice", getter)
    return getter


def is_patched() -> bool:
    """Whether the `run` methods of Triton's classes were replaced (as by vLLM, tritonbench, SGLang)."""
    modules = sys.modules  # both are imported, since there is a kernel; see `_driver`
    run = modules["triton.runtime.autotuner"].Autotuner.run
    own = getattr(run, "in_front_of", run)  # as `own_run`
    return modules["triton.runtime.jit"].JITFunction.run is not originals["jit"] or own is not originals["tuner"]


def own_run() -> Any:
    """The current `Autotuner.run`, without the wrapper of `install()`."""
    from triton.runtime.autotuner import Autotuner

    run = Autotuner.run
    return getattr(run, "in_front_of", run)


def is_tritons(function: Any) -> bool:
    """Whether a function is Triton's own, not a replacement."""
    code = getattr(function, "__code__", None)
    return code is not None and is_tritons_code(code)


def is_tritons_code(code: CodeType) -> bool:
    """Whether code is from a file of Triton."""
    return code.co_filename.startswith(folder())


def of_constexpr_function(function: Any) -> Any:
    """The plain function inside Triton's `constexpr_function`; None for other functions."""
    from triton.runtime import jit

    kind = getattr(jit, "ConstexprFunction", None)
    if kind is None or type(function) is not kind or not is_tritons(kind.__call__):
        return None
    return vars(function).get("fn")


class Measuring(Frozen):
    """How a Triton tuner measures; a user's hooks replace zeroing and restoring."""

    do_bench: Any
    zero: list[str]
    restore: list[str]
    before: Any
    after: Any


def measuring_of(tuner: Any) -> Measuring:
    """The `Measuring` of a Triton tuner."""
    before = tuner.pre_hook if getattr(tuner, "user_defined_pre_hook", False) else None
    after = tuner.post_hook if getattr(tuner, "user_defined_post_hook", False) else None
    zero, restore = (list(getattr(tuner, name, None) or ()) for name in ("reset_to_zero", "restore_value"))
    zero, restore = ([], []) if before is not None else (zero, restore if after is None else [])
    return Measuring(getattr(tuner, "_do_bench", None), zero, restore, before, after)


def caches_results(asked: bool) -> bool:
    """Whether Triton caches a tuner's choices in files, by option or `TRITON_CACHE_AUTOTUNING`."""
    from triton import knobs

    return bool(asked or knobs.autotuning.cache) and not knobs.runtime.interpret


def autotuning_listener() -> Any:
    """The listener for choices (`knobs.autotuning.listener`); None before Triton 3.8, which introduced it."""
    import triton.knobs as knobs

    return getattr(knobs.autotuning, "listener", None)


def prints_autotuning() -> bool:
    """Whether `TRITON_PRINT_AUTOTUNING` is on."""
    from triton import knobs

    return bool(knobs.autotuning.print)


def has_driver() -> bool:
    """Whether Triton finds a device, or a stand-in, to measure on."""
    from triton.runtime.driver import driver

    try:
        return driver.active is not None
    except RuntimeError:  # "0 active drivers"
        return False


_named: dict[int, tuple[weakref.ref[Any], str]] = {}  # by address, since hashing a Triton function hashes its source


def name(jit: Any, public_name: str) -> None:
    """Name a Triton function that is tuned or replaced."""
    address = id(jit)
    _named[address] = weakref.ref(jit, lambda gone: _named.pop(address, None)), public_name


def name_of(jit: Any) -> str | None:
    """The name of a Triton function that is tuned or replaced, otherwise None."""
    there, public_name = _named.get(id(jit), (None, ""))
    return public_name if there is not None and there() is jit else None


def has_names() -> bool:
    """Whether any Triton function is tuned or replaced."""
    return bool(_named)


originals: dict[str, object] = {}  # Triton's own methods, by "tuner" and "jit"


def remember_originals() -> None:
    """Record Triton's own methods, once, to detect later patches."""
    from triton.runtime.jit import JITFunction

    originals.setdefault("tuner", own_run())
    originals.setdefault("jit", JITFunction.run)


def stand_in(module: Any, name: str, make: Callable[[Any], Any]) -> Callable[[], None]:
    """Replace a Triton function by `make(original)`; returns an undo function, which keeps a later replacement."""
    before = getattr(module, name)
    made = make(before)
    setattr(module, name, made)

    def undo() -> None:
        if getattr(module, name) is made:
            setattr(module, name, before)

    return undo
