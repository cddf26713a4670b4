"""Triton's compiled kernels: compiled in an executor, launched without Triton's look-up, their memory accesses."""

from __future__ import annotations

import contextvars
import hashlib
import inspect
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from autotuned import _native
from autotuned._startup import Frozen, forget_oldest, later
from autotuned.key.key import PLAIN, TENSORS, is_descriptor
from autotuned.triton_compat import globals_used, kernel, versions

if TYPE_CHECKING:
    from autotuned.triton_compat import ttir
else:
    ttir = later("triton_compat.ttir")  # used only by searches


def is_hooked(jit: Any) -> bool:
    """Whether this kernel must now be launched through Triton: its `run` is replaced, or it has hooks."""
    return kernel.is_patched() or "run" in jit.__dict__ or bool(jit.pre_run_hooks) or _inspected()


def _inspected() -> bool:
    import triton.knobs as knobs

    return knobs.runtime.add_stages_inspection_hook is not None


def compiling_in(executor: Any, warm_up: Callable[[], Any], promised: Iterable[tuple[str, Any]] = ()) -> Any:
    """Run a kernel's warm-up, but compile in an executor; Triton binds arguments and checks its table on this thread.

    Returns the kernel, or a future whose `.result()` waits for it and adds it to Triton's table: the one in `promised`
    (futures by Triton's keys) if it is for the same kernel.
    """
    import triton

    def begun() -> Any:
        with triton.AsyncCompileMode(executor) as mode:
            mode.future_kernels.update(promised)
            try:
                return warm_up()
            finally:
                mode.raw_futures.clear()  # otherwise leaving the block waits for them

    return contextvars.Context().run(begun)  # Triton refuses to nest this mode in one of the user's


class Compilation(Frozen):
    """A compilation that Triton would do for a launch.

    Attributes:
        digest: Its hash in Triton's cache.
        run: Compiles.
        ended: Puts the compiled kernel into Triton's table; does nothing by default.
    """

    digest: str
    run: Callable[[], Any]
    ended: Callable[[Any], Any] = id


class _AskedError(Exception):
    """Stops a warm-up before Triton compiles."""

    def __init__(self, asked: Compilation) -> None:
        super().__init__(asked.digest)
        self.asked = asked


def asked(warm_up: Callable[[], Any]) -> Compilation | None:
    """What Triton would compile for a kernel's warm-up; None if its table has the kernel. The table stays unchanged."""
    import triton

    class Asking(triton.AsyncCompileMode):  # type: ignore[misc]
        def submit(self, key: str, compile_: Callable[[], Any], *ends: Any) -> Any:
            hooked = triton.knobs.runtime.jit_post_compile_hook is not None  # then the launch must call it
            raise _AskedError(Compilation(hashlib.sha256(key.encode()).hexdigest(), compile_, *ends[: not hooked]))

    def ask() -> Compilation | None:
        with Asking(None):
            try:
                warm_up()
            except _AskedError as stopped:
                return stopped.asked
        return None

    return contextvars.Context().run(ask)  # Triton refuses to nest this mode in one of the user's


def compiles_for_cache(jit: Any) -> bool:
    """Whether Triton caches a function's kernels and reuses them, and no hook is involved."""
    from triton import knobs

    hooked = is_hooked(jit) or knobs.runtime.jit_cache_hook is not None or not kernel.is_tritons(type(jit).run)
    asked = knobs.compilation.always_compile or knobs.compilation.override or knobs.compilation.dump_ir
    return not (hooked or asked or versions.strange_triton())


def specialization(compile_: Callable[[], Any]) -> tuple[Any, ...] | None:
    """The picklable part of a task of `compiling_in`, for another process that has the same kernel.

    None if its form is unknown, or if Triton would not look it up in its cache.
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


def compile_specialization(jit: Any, parts: tuple[Any, ...]) -> str:
    """Compile the result of `specialization` into Triton's cache, without a device, and return its hash there."""
    import triton
    from triton.compiler import ASTSource

    signature, constants, attrs, target, options = parts
    compiled = triton.compile(ASTSource(jit, signature, constants, attrs), target=target, options=options)
    return str(compiled.hash)


def replace_if_refused(compiled: Any, again: Callable[[Exception], Any]) -> None:
    """If the driver refuses to load a kernel's binary, load that of `again(error)` instead, unless it is None."""

    def load() -> None:
        del compiled._init_handles  # restores Triton's own
        try:
            compiled._init_handles()
        except RuntimeError as error:
            other = again(error)
            if other is None:
                compiled._init_handles = load
                raise
            vars(compiled).update(vars(other))
            compiled._init_handles()

    compiled._init_handles = load


def prepare_compiler() -> None:
    """Do what each process must do before its first compilation."""
    import triton.compiler  # noqa: F401
    from triton.runtime.cache import triton_key

    triton_key()


def shared_memory_limit() -> int | None:
    """Bytes of shared memory available to one program on the current device; None if unknown."""
    from triton.runtime.driver import driver

    try:
        properties = driver.active.utils.get_device_properties(driver.active.get_current_device())
        return int(properties["max_shared_mem"])
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError):
        return None


def out_of_shared_memory(need: int, limit: int, told_by: str) -> Exception:
    """Triton's error for too much shared memory, for a kernel whose need is predicted without compiling it."""
    from triton.runtime.errors import OutOfResources

    error: Exception = OutOfResources(need, limit, f"shared memory (predicted from {told_by})")
    return error


class UnbindableError(Exception):
    """This compiled kernel cannot be launched directly; the text says why."""


class EvictedError(Exception):
    """Triton's cache has dropped this kernel since its launch."""


class Handle(Frozen):
    """A loaded kernel, and everything that a launch without Triton's look-up relies on."""

    kernel: Callable[[], Any]  # a weak reference: Triton's cache owns the kernel and unloads it on eviction
    device: int
    cache: dict[str, Any]  # Triton's table that has it, under `cache_key`
    cache_key: str
    run: Callable[..., Any]  # its launcher
    function: int  # the driver's handle
    packed: Any  # launch metadata
    pre_run: list[Any]  # hooks
    entering: list[Any]  # hooks called by `enter`
    leaving: list[Any]  # hooks called by `leave`
    enter: Any
    leave: Any
    holds: Callable[[], bool]  # whether everything else is unchanged: Triton's `run`, knobs, and the globals used
    watched: tuple[Any, ...]  # `cache`, and what `holds` checks (dictionaries, types) unless it is watched already
    dicts: tuple[Any, ...]  # the dictionaries among them
    stream_of: Callable[[int], int]  # returns a device's current stream


def handle(jit: Any, compiled: Any, device: int) -> Handle:
    """Prepare a direct launch of a compiled kernel.

    Raises EvictedError if Triton's cache no longer holds it, UnbindableError if Triton's internals are unexpected.
    """
    from triton.compiler.compiler import CompiledKernel

    if type(compiled) is not CompiledKernel:
        raise UnbindableError(f"expected a CompiledKernel, got {type(compiled).__name__}")
    try:
        cache = jit.device_caches[device][0]
        cache_key = next((key for key, binary in cache.items() if binary is compiled), None)
        if cache_key is None:
            raise EvictedError(compiled)
        return _handle(jit, compiled, device, cache, cache_key, jit.device_caches[device])
    except (AttributeError, TypeError, ValueError, KeyError) as error:
        raise UnbindableError(f"{type(error).__name__}: {error}") from error


def stands(found: Handle) -> bool:
    """Whether Triton's look-up would still find this kernel."""
    binary = found.kernel()
    return binary is not None and found.cache.get(found.cache_key) is binary and found.holds()


def handle_of(jit: Any, binary: Any, device: int) -> Handle:
    """Prepare a direct launch of Triton's kernel, or of a binary with its own `handle`; raises like `handle`."""
    own = getattr(binary, "handle", None)
    found: Handle | None = None if own is None else own(jit, device)
    return handle(jit, binary, device) if found is None else found


def handle_outside(jit: Any, binary: Any, device: int) -> Handle:
    """Prepare a direct launch of a binary outside Triton's caches: the same guards except for the cache."""
    try:
        globals_used.record(jit)
        return _handle(jit, binary, device, {"": binary}, "", None)
    except (AttributeError, TypeError, ValueError, KeyError) as error:
        raise UnbindableError(f"{type(error).__name__}: {error}") from error


def _handle(jit: Any, binary: Any, device: int, cache: dict[str, Any], cache_key: str, loaded: Any) -> Handle:
    import triton.knobs as knobs

    enter, leave = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
    holds, watched, dicts = _holds(jit, device, loaded) if loaded is not None else _held_outside(jit, device)
    return Handle(
        weakref.ref(binary), device, cache, cache_key, binary.run, binary.function, binary.packed_metadata,
        jit.pre_run_hooks, enter.calls, leave.calls, enter, leave, holds, (cache, *watched), (cache, *dicts),
        kernel.stream_getter(),
    )  # fmt: skip


_Holds = tuple[Callable[[], bool], tuple[Any, ...], tuple[Any, ...]]
_outside: dict[tuple[int, int], tuple[Any, int, _Holds]] = {}  # (function's id, device) -> function, globals used
_MOST_OUTSIDE = 1024


def _held_outside(jit: Any, device: int) -> _Holds:
    """`_holds` for binaries outside Triton's caches, shared by all of a kernel as long as it returns True."""
    known = _outside.get((id(jit), device))
    found = None if known is None or known[0]() is not jit or known[1] != len(jit.used_global_vals) else known[2]
    if found is None or not found[0]():
        holds, watched, dicts = _holds(jit, device, None)
        _native.watch(watched)  # once, not again for each handle
        found = holds, (), dicts
        forget_oldest(_outside, _MOST_OUTSIDE - 1)
        _outside[id(jit), device] = weakref.ref(jit), len(jit.used_global_vals), found
    return found


def _holds(jit: Any, device: int, loaded: Any) -> _Holds:
    """A check that everything that determines a kernel is unchanged; the objects that it reads, and their dicts.

    `loaded` are Triton's caches of the kernel on the device; None for a binary outside them.
    """
    import triton.knobs as knobs
    from triton.runtime.jit import JITFunction

    runtime_knobs, compilation_knobs = knobs.runtime, knobs.compilation
    runtime, compilation, all_knobs = vars(runtime_knobs), vars(compilation_knobs), vars(knobs)
    own, caches = vars(jit), jit.device_caches
    # Triton calls a stages hook at each look-up: with such a hook, nothing counts as unchanged.
    runtime_then, compilation_then = None if _inspected() else dict(runtime), dict(compilation)
    used = [(name, value, scope) for (name, _), (value, scope) in jit.used_global_vals.items()]
    original, absent = kernel.originals["jit"], object()

    def holds() -> bool:
        # hot path of the Python twin: compares dictionaries that are nearly always empty
        if JITFunction.run is not original or runtime != runtime_then or compilation != compilation_then:
            return False
        # Reloading Triton's module replaces the knobs.
        if all_knobs["runtime"] is not runtime_knobs or all_knobs["compilation"] is not compilation_knobs:
            return False
        if "run" in own or (loaded is not None and own["device_caches"].get(device) is not loaded):
            return False
        # If a global changed, Triton's own launch raises the error.
        return all(scope.get(name, absent) == value for name, value, scope in used) if used else True

    scopes = [runtime, compilation, all_knobs, own, caches, *(scope for _, _, scope in used)]
    watched = (JITFunction, *{id(scope): scope for scope in scopes}.values())
    return holds, watched, tuple([one for one in watched if isinstance(one, dict)])


def compiled_for(values: Iterable[Any]) -> tuple[Any, ...]:
    """What the compiler assumes about these arguments' memory, also in tuples and descriptors.

    A hook or grid callable may change it between look-up and launch: resize a tensor, or change its memory or data.
    """
    found: list[tuple[Any, ...]] = []
    for value in values:
        kind: Any = type(value)
        if kind in PLAIN:  # most of them; the tests below are slower
            continue
        if kind not in TENSORS and isinstance(value, tuple):
            found += [compiled_for(value)]
            continue
        try:
            found += [(value.dtype, value.data_ptr() & 15 == 0, value.get_device())]
        except AttributeError:
            if is_descriptor(value):
                found += [(*compiled_for([value.base]), *value.block_shape)]
    return tuple(found)


def surroundings() -> tuple[Any, ...]:
    """Other state that a launch relies on and user code may change: the current device and Triton's knobs."""
    import triton.knobs as knobs

    return kernel.current_device(), dict(vars(knobs.runtime)), dict(vars(knobs.compilation))


# Launchers with one of these allocate at each launch; GSan exists from Triton 3.8 on.
ALLOCATES = ("global_scratch_size", "profile_scratch_size", "gsan_enabled")


def scratch(size: int, align: int, stream: int) -> Any:
    """Scratch memory for a kernel, from the user's `triton.set_allocator`; raises Triton's error without one."""
    from triton.runtime import _allocation

    return _allocation._allocator.get()(size, align, stream)


def tell_load(module: Any, function: Any, name: str, digest: str) -> None:
    """Call Triton's kernel-load hooks, for profilers: before a load, or after it, with the handles."""
    import triton.knobs as knobs

    hook = knobs.runtime.kernel_load_end_hook if module else knobs.runtime.kernel_load_start_hook
    if hook is not None:
        hook(module, function, name, {}, digest)


def launch_hooks() -> tuple[Any, Any]:
    """Triton's chains of hooks before and after each launch."""
    import triton.knobs as knobs

    return knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook


def hook_metadata(binary: Any, grid: Sequence[int], stream: int, args: Sequence[Any]) -> Any:
    """Launch metadata for hooks, computed lazily; None if Triton would create none."""
    from triton.compiler.compiler import LazyDict

    if launch_hooks()[0] is None:
        return None
    jit = binary.src.fn
    made = LazyDict({"name": binary.name, "function": binary.function, "stream": stream})
    if jit.launch_metadata is not None:
        made.add(jit.launch_metadata, (grid, binary.metadata, dict(zip(jit.arg_names, args))))
    return made


class Access(Frozen):
    """Names of the parameters through which a kernel reads and writes, found in its code."""

    read: frozenset[str]
    written: frozenset[str]


def accesses(compiled: Any) -> Access | None:
    """The parameters that a compiled kernel reads and writes; None if its TTIR does not show it (see `ttir.access`).

    Also None if a file overrides a later stage. TTIR renames arguments, so they are matched by order.
    """
    text = getattr(compiled, "asm", {}).get("ttir")
    signature = getattr(getattr(compiled, "src", None), "signature", None)
    if not isinstance(text, str) or not isinstance(signature, dict) or _is_overridden(compiled):
        return None
    names = [name for name, kind in signature.items() for _ in _memory_in(kind)]
    found = ttir.access(text)
    if found is None or found.count != len(names):
        return None
    return Access(frozenset(names[i] for i in found.read), frozenset(names[i] for i in found.written))


def _is_overridden(compiled: Any) -> bool:
    """Whether a user's file may replace a stage after TTIR."""
    from triton import knobs

    file = getattr(getattr(compiled, "metadata", None), "ir_override", None)
    return bool(knobs.compilation.override) or bool(file) and not str(file).endswith(".ttir")


def union(found: Sequence[Access]) -> Access:
    """All accesses of several binaries of one kernel."""
    return Access(frozenset().union(*(one.read for one in found)), frozenset().union(*(one.written for one in found)))


def _memory_in(kind: Any) -> Iterator[str]:
    """The pointer and descriptor types in one entry of a signature, which may be a tuple."""
    if isinstance(kind, (tuple, list)):
        for part in kind:
            yield from _memory_in(part)
    elif str(kind).startswith(("*", "tensordesc", "nvTmaDesc")):
        yield str(kind)


# Metadata that a launch uses in addition to the code.
_LAUNCHED_WITH = ("name", "shared", "num_warps", "num_ctas", "cluster_dims", "tmem_size", "launch_cooperative_grid",
                  "launch_pdl", "global_scratch_size", "profile_scratch_size")  # fmt: skip


def binary_identity(compiled: Any) -> str | None:
    """A hash of the machine code and launch parameters; None without code."""
    code = getattr(compiled, "kernel", None)
    if not isinstance(code, (bytes, str)):
        return None
    facts = [repr(getattr(compiled.metadata, name, None)) for name in _LAUNCHED_WITH]
    binary = code.encode() if isinstance(code, str) else code
    return hashlib.sha256("\n".join(facts).encode() + b"\0" + binary).hexdigest()
