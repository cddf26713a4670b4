"""Triton's compiled kernels: compiled elsewhere, launched without Triton's look-up, read for what they touch."""

from __future__ import annotations

import contextvars
import hashlib
import inspect
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from autotuned._startup import Frozen, later
from autotuned.key.key import is_descriptor
from autotuned.triton_compat import kernel, versions

if TYPE_CHECKING:
    from autotuned.triton_compat import ttir
else:
    ttir = later("triton_compat.ttir")  # a search needs it, and binding a kernel does not


def is_hooked(jit: Any) -> bool:
    """Whether launches of this kernel must go through Triton for now: its `run` is replaced, or hooks wait in it."""
    return kernel.is_patched() or "run" in vars(jit) or bool(jit.pre_run_hooks) or _inspected()


def _inspected() -> bool:
    from triton import knobs

    return knobs.runtime.add_stages_inspection_hook is not None


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


class Compilation(Frozen):
    """What Triton would compile for a launch: the hash that names it in Triton's cache, and what puts it there."""

    digest: str
    run: Callable[[], Any]


class _AskedError(Exception):
    """Stops a warm-up where Triton would compile; `asked` is what."""

    def __init__(self, asked: Compilation) -> None:
        super().__init__(asked.digest)
        self.asked = asked


def asked(warm_up: Callable[[], Any]) -> Compilation | None:
    """What Triton would compile for a warm-up of a kernel; None if it has that in its table.

    Arguments are bound as for the launch, and Triton's table stays as it is.

    Raises:
        Exception: What the warm-up raises before it compiles.
    """
    import triton

    class Asking(triton.AsyncCompileMode):  # type: ignore[misc]
        """Compiles nothing."""

        def submit(self, key: str, compile_: Callable[[], Any], *ends: Any) -> Any:
            raise _AskedError(Compilation(hashlib.sha256(key.encode()).hexdigest(), compile_))

    def ask() -> Compilation | None:
        with Asking(None):
            try:
                warm_up()
            except _AskedError as stopped:
                return stopped.asked
        return None

    return contextvars.Context().run(ask)  # Triton refuses a second mode within one of the user's own


def compiles_for_cache(jit: Any) -> bool:
    """Whether what Triton compiles of a function goes into its cache and is found there, with nobody asked or told."""
    from triton import knobs

    hooked = is_hooked(jit) or knobs.runtime.jit_cache_hook is not None or not kernel.is_tritons(type(jit).run)
    asked = knobs.compilation.always_compile or knobs.compilation.override or knobs.compilation.dump_ir
    return not (hooked or asked or versions.strange_triton())


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


class UnbindableError(Exception):
    """This compiled kernel cannot be launched directly; the text says why."""


class EvictedError(Exception):
    """Triton's cache has let go of this kernel since it was launched."""


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
        EvictedError: Triton's cache no longer holds it.
        UnbindableError: Triton's internals are not as known here.
    """
    from triton.compiler.compiler import CompiledKernel

    if type(compiled) is not CompiledKernel:
        raise UnbindableError(f"expected a CompiledKernel, got {type(compiled).__name__}")
    try:
        cache = jit.device_caches[device][0]
        cache_key = next((key for key, kernel in cache.items() if kernel is compiled), None)
        if cache_key is None:
            raise EvictedError(compiled)
        return _handle(jit, compiled, device, cache, cache_key, jit.device_caches[device])
    except (AttributeError, TypeError, ValueError, KeyError) as error:
        raise UnbindableError(f"{type(error).__name__}: {error}") from error


def stands(found: Handle) -> bool:
    """Whether Triton's own look-up would still find this kernel."""
    kernel = found.kernel()
    return kernel is not None and found.cache.get(found.cache_key) is kernel and found.holds()


def handle_of(jit: Any, binary: Any, device: int) -> Handle:
    """What a direct launch needs of Triton's compiled kernel, or of a binary that says itself what that is.

    Raises:
        EvictedError, UnbindableError: See `handle`.
    """
    own: Handle | None = binary.handle(jit, device) if hasattr(binary, "handle") else None
    return handle(jit, binary, device) if own is None else own


def handle_outside(jit: Any, binary: Any, device: int) -> Handle:
    """What a direct launch needs of a binary that is in none of Triton's caches: the same guards, but for those.

    Raises:
        UnbindableError: Triton's internals are not as known here.
    """
    try:
        jit.cache_key  # noqa: B018 - on the way to it Triton notes the globals that the kernel uses
        return _handle(jit, binary, device, {"": binary}, "", None)
    except (AttributeError, TypeError, ValueError, KeyError) as error:
        raise UnbindableError(f"{type(error).__name__}: {error}") from error


def _handle(jit: Any, binary: Any, device: int, cache: dict[str, Any], cache_key: str, loaded: Any) -> Handle:
    from triton import knobs

    enter, leave = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
    holds, watched = _holds(jit, device, loaded)
    return Handle(
        weakref.ref(binary), device, cache, cache_key, binary.run, binary.function, binary.packed_metadata,
        jit.pre_run_hooks, enter.calls, leave.calls, enter, leave, holds, (cache, *watched), kernel.stream_getter(),
    )  # fmt: skip


def _holds(jit: Any, device: int, loaded: Any) -> tuple[Callable[[], bool], tuple[Any, ...]]:
    """A function that says whether what decides a kernel's choice is as now, and what it looks at.

    Args:
        loaded: Triton's caches of the kernel on the device; None for a binary that is in none of them.
    """
    from triton import knobs
    from triton.runtime.jit import JITFunction

    runtime_knobs, compilation_knobs = knobs.runtime, knobs.compilation
    runtime, compilation, all_knobs = vars(runtime_knobs), vars(compilation_knobs), vars(knobs)
    own, caches = vars(jit), jit.device_caches
    # A stages hook answers anew at each of Triton's look-ups: while there is one, nothing equals what was.
    runtime_then, compilation_then = None if _inspected() else dict(runtime), dict(compilation)
    used = [(name, value, scope) for (name, _), (value, scope) in jit.used_global_vals.items()]
    original, absent = kernel.originals["jit"], object()

    def holds() -> bool:
        # hot path of the Python twin: comparisons of dictionaries that are nearly always empty
        if JITFunction.run is not original or runtime != runtime_then or compilation != compilation_then:
            return False
        # A reload of Triton's module puts other knobs in their place.
        if all_knobs["runtime"] is not runtime_knobs or all_knobs["compilation"] is not compilation_knobs:
            return False
        if "run" in own or (loaded is not None and own["device_caches"].get(device) is not loaded):
            return False
        # Triton's own launch raises its error about a changed global.
        return all(scope.get(name, absent) == value for name, value, scope in used) if used else True

    scopes = [runtime, compilation, all_knobs, own, caches, *(scope for _, _, scope in used)]
    return holds, (JITFunction, *{id(scope): scope for scope in scopes}.values())


def compiled_for(values: Iterable[Any]) -> tuple[Any, ...]:
    """What of the memory of these arguments a binary is compiled for, tuples' items and descriptors' blocks included.

    A hook or a grid callable may change it between the look-up and the launch: it may resize a tensor, give it other
    memory, or other data.
    """
    return tuple(
        _memory(value) for value in values if isinstance(value, tuple) or has_memory(value) or is_descriptor(value)
    )


def _memory(value: Any) -> tuple[Any, ...]:
    if isinstance(value, tuple):
        return compiled_for(value)
    if is_descriptor(value):
        return (*compiled_for([value.base]), *value.block_shape)
    return value.dtype, value.data_ptr() & 15 == 0, value.get_device()


def surroundings() -> tuple[Any, ...]:
    """What else a launch relies on, and code of the user's may change within it: the current device, Triton's knobs."""
    from triton import knobs

    return kernel.current_device(), dict(vars(knobs.runtime)), dict(vars(knobs.compilation))


def has_memory(value: Any) -> bool:
    """Whether it is something whose memory a launch is compiled for."""
    return all(hasattr(value, name) for name in ("dtype", "data_ptr", "get_device"))


ALLOCATES = ("global_scratch_size", "profile_scratch_size", "gsan_enabled")  # at each launch; GSan from 3.8 on


def scratch(size: int, align: int, stream: int) -> Any:
    """Memory that a kernel works in, from the allocator that was given to `triton.set_allocator`; Triton's own error
    where there is none.
    """
    from triton.runtime import _allocation

    return _allocation._allocator.get()(size, align, stream)


def tell_load(module: Any, function: Any, name: str, digest: str) -> None:
    """Tell profilers that a kernel is about to be loaded, or (with its handles) was loaded, as Triton does."""
    from triton import knobs

    hook = knobs.runtime.kernel_load_end_hook if module else knobs.runtime.kernel_load_start_hook
    if hook is not None:
        hook(module, function, name, {}, digest)


def launch_hooks() -> tuple[Any, Any]:
    """The chains of hooks that Triton calls before and after each launch."""
    from triton import knobs

    return knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook


def hook_metadata(binary: Any, grid: Sequence[int], stream: int, args: Sequence[Any]) -> Any:
    """What launch hooks are given of a launch, made when they ask; None where Triton would make nothing."""
    from triton.compiler.compiler import LazyDict

    if launch_hooks()[0] is None:
        return None
    jit = binary.src.fn
    made = LazyDict({"name": binary.name, "function": binary.function, "stream": stream})
    if jit.launch_metadata is not None:
        made.add(jit.launch_metadata, (grid, binary.metadata, dict(zip(jit.arg_names, args))))
    return made


class Access(Frozen):
    """Names of a kernel's parameters that it reads and writes through, found in its code."""

    read: frozenset[str]
    written: frozenset[str]


def accesses(compiled: Any) -> Access | None:
    """What a compiled kernel reads and writes; None where its TTIR does not tell (see `ttir.access`).

    A file that took the place of a later stage does what it does, whatever the TTIR before it says. TTIR names its
    arguments after the last variable they were assigned to, so they are matched by their order.
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
    """Whether a user's file may have taken the place of a stage after the TTIR."""
    from triton import knobs

    file = getattr(getattr(compiled, "metadata", None), "ir_override", None)
    return bool(knobs.compilation.override) or bool(file) and not str(file).endswith(".ttir")


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
