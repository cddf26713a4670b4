"""What is tuned, behind one interface: a Triton kernel, or a plain callable that takes its tunables by keyword."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Container, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from pathlib import Path
from types import FunctionType, MappingProxyType
from typing import TYPE_CHECKING, Any

from autotuned._frozen import Frozen
from autotuned._lazy import later
from autotuned.errors import CallError
from autotuned.gpu import device
from autotuned.gpu.device import Device
from autotuned.key import source
from autotuned.key.key import is_descriptor, is_tensor
from autotuned.triton_compat import fingerprint
from autotuned.triton_compat import kernel as toolchain
from autotuned.tunable.configs import plain, suggestion
from autotuned.typed_json import Json

if TYPE_CHECKING:
    from typing import Protocol

    from autotuned.recording import grids
    from autotuned.search import timers
    from autotuned.search.timers import Timer
    from autotuned.triton_compat import cache, compiled, frontend
else:
    Protocol = object  # defining a protocol takes as long as importing a module
    compiled, frontend, grids = map(later, ("triton_compat.compiled", "triton_compat.frontend", "recording.grids"))
    timers, cache = map(later, ("search.timers", "triton_compat.cache"))

EMPTY = inspect.Parameter.empty


class Call(Frozen):
    """One call of a tuned function.

    Attributes:
        args, kwargs: As the caller gave them; pruners and hooks see this split.
        arguments: Every parameter that is not tuned, by name and in order, defaults filled in.
        options: Launch options among the keywords, such as `num_warps`.
        grid: As the caller gave it; None for plain callables.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    arguments: Mapping[str, Any]
    options: Mapping[str, Any] = MappingProxyType({})
    grid: Any = None

    def full(self, config: Any) -> dict[str, Any]:
        """All arguments by name, the config's values included, as Triton's hooks get them."""
        return {**self.arguments, **self.options, **config.all_kwargs()}

    @property
    def has_descriptors(self) -> bool:
        """Whether an argument, or an item of one, is a tensor descriptor."""
        return any(map(_holds_descriptor, self.arguments.values()))


def _holds_descriptor(value: Any) -> bool:
    return any(map(_holds_descriptor, value)) if isinstance(value, tuple) else is_descriptor(value)


class Hooks(Frozen):
    """The decorator's hooks, with Triton's meaning: before and after each trial, paired also when it raises."""

    before: Callable[..., Any] | None = None
    after: Callable[..., Any] | None = None


class Tunable(Protocol):
    """What the miss path needs to know of the thing that is tuned."""

    fn: Any
    name: str
    parameters: Sequence[toolchain.Parameter]
    filled: frozenset[str]  # parameters that heuristics under the tuner fill in: no caller passes them
    compiles_ahead: bool  # whether a config can be compiled without being launched
    has_options: bool  # whether `num_warps` and the like mean something to it

    def allows(self, name: str) -> bool:
        """Whether a config may set `name`."""

    def settings(self, config: Any) -> Mapping[str, Any]:
        """What a launch with this config sets: parameters and launch options."""

    def device(self, call: Call) -> Device:
        """The device this call runs on."""

    def toolchain(self, where: Device, cache_dir: Path) -> dict[str, Json]:
        """What compiles it, as the key's context holds it."""

    def environment(self) -> dict[str, str]:
        """Environment variables that change the code."""

    def environment_changed(self) -> None:
        """Called when these are not what they were at an earlier call."""

    def launch(self, call: Call, config: Any) -> Any:
        """Run once with a config, without the hooks and the protection around it."""

    def launches(self, call: Call, config: Any) -> bool:
        """Whether a launch with this config runs anything, as far as the grid tells ahead."""

    def compile(self, call: Call, config: Any) -> Any:
        """Compile and load without launching; raises what the compiler raises. None where nothing is compiled ahead."""

    def compile_in(self, executor: Any, call: Call, config: Any) -> Callable[[], Any] | None:
        """Begin to compile, in an executor; what it returns waits, and then does what `compile` does.

        None where nothing is compiled ahead. What stands in the way before the compiler runs is raised at once.
        """

    def compile_class(self, call: Call) -> Hashable | None:
        """What decides, besides config and context, whether a config compiles; None where that is not known."""

    def trials(self, folder: Path) -> AbstractContextManager[None]:
        """Around a search: its binaries are kept in a scratch folder."""

    def settle(self, call: Call, config: Any, folder: Path) -> None:
        """At the end of a search, still inside `trials`: the winner's binary goes where the next process looks."""

    def timer(self, where: Device) -> Timer:
        """What measures it there."""

    @property
    def source(self) -> str:
        """Fingerprint of its code."""

    @property
    def opaque(self) -> list[tuple[str, Any]]:
        """What its code uses and the fingerprint cannot hold, as of the latest `source`."""


def make_timer(where: Device) -> Timer:
    """The timer for a device."""
    return timers.CudaTimer() if where.kind == "cuda" else timers.HostTimer()


def bind(
    tunable: Tunable,
    tuned: frozenset[str],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    grid: Any,
    lenient: bool = False,
) -> Call:
    """Bind a call's arguments to names; names that are no parameters are launch options.

    Args:
        tuned: Parameters that configs set; they are no arguments of the call.
        lenient: Leave out what is missing: a computed list of configs may set it.

    Raises:
        CallError: An argument is missing, given twice, or one too many.
        ValueError: The caller passes what the configs set.
    """
    refuse_conflicts(tunable, args, kwargs, tuned)
    given = _given(tunable, args, kwargs)
    arguments = {}
    for parameter in tunable.parameters:
        value = given.pop(parameter.name, parameter.default)
        if parameter.name in tuned or parameter.name in tunable.filled:
            continue
        if value is EMPTY and lenient:
            continue
        if value is EMPTY:
            free = [p.name for p in tunable.parameters if p.name not in tuned and p.name not in tunable.filled]
            raise _call_error(tunable, f"argument {parameter.name!r} is missing. Expected: {', '.join(free)}.")
        arguments[parameter.name] = value
    if given:  # options of NumPy's numbers become Python's, which Triton can write down
        given = {name: plain(value) for name, value in given.items()}
        kwargs = {**kwargs, **given}
    return Call(args, kwargs, arguments, given, grid)


def _given(tunable: Tunable, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """What the caller gave, by name."""
    places = [parameter.name for parameter in tunable.parameters if parameter.has_place]
    if len(args) > len(places):
        raise _call_error(tunable, f"expected at most {len(places)} positional arguments, got {len(args)}.")
    given = dict(zip(places, args))
    names = [parameter.name for parameter in tunable.parameters if parameter.has_name]
    nameless = [parameter.name for parameter in tunable.parameters if not parameter.has_name]
    for name in kwargs:
        if name in given:
            raise _call_error(tunable, f"argument {name!r} came twice, by position and by name.")
        if name in nameless or not tunable.allows(name):
            raise _call_error(tunable, f"got an unexpected argument {name!r} by name." + suggestion(name, names))
    return {**given, **kwargs}


def _call_error(tunable: Tunable, message: str) -> CallError:
    return CallError(f"`{tunable.name}`: {message}", kernel=tunable.name)


def refuse_conflicts(tunable: Tunable, args: Sequence[Any], kwargs: Mapping[str, Any], tuned: Container[str]) -> None:
    """Refuse a call that passes what its configs set.

    Args:
        tuned: Names of parameters and launch options.

    Raises:
        ValueError: In Triton's own words, which callers may match on.
    """
    places = [parameter.name for parameter in tunable.parameters if parameter.has_place]
    conflicts = [name for name in (*places[: len(args)], *kwargs) if name in tuned]
    if conflicts:
        raise ValueError(
            f"Conflicting meta-parameters: {', '.join(conflicts)}. Make sure that you don't re-define "
            f"auto-tuned symbols. (`{tunable.name}`: its configs set them.)"
        )


def is_empty_grid(sizes_of: Callable[[], Any]) -> bool:
    """Whether a launch has no block to run, so that its time says nothing; not where the grid is none, or raises.

    Args:
        sizes_of: Asks for the sizes of the launch.
    """
    try:
        sizes = sizes_of()
        return isinstance(sizes, (tuple, list)) and 1 <= len(sizes) <= 3 and min(map(operator.index, sizes)) <= 0
    except Exception:  # the user's code, or no integers: the launch raises what there is to say
        return False


class TunableKernel:
    """A Triton kernel, with or without `heuristics` under the tuner."""

    has_options = True

    def __init__(self, fn: Any, function: FunctionType, name: str, is_named: bool = False) -> None:
        toolchain.remember_originals()
        self.fn = fn
        self.function = function
        self.name = name
        self._is_named = is_named  # by the user: then what the function is called does not matter
        self.parameters: Sequence[toolchain.Parameter] = toolchain.parameters(function)
        self.filled = toolchain.filled(fn)
        self.interpreted = toolchain.is_interpreted(fn)
        self.compiles_ahead = not self.interpreted
        self.bindable = not self.interpreted and toolchain.is_plain_jit(fn)
        self._names = frozenset(parameter.name for parameter in self.parameters)

    @classmethod
    def of(cls, fn: Any) -> TunableKernel:
        """A kernel that another decorator than ours has, under the name of its function."""
        function: Any = source.python_function(fn)
        return cls(fn, function, source.public_name(fn))

    def allows(self, name: str) -> bool:
        """A parameter, or a compile option of a back end."""
        return name in self._names or name in toolchain.option_names()

    def settings(self, config: Any) -> Mapping[str, Any]:
        """Parameters and every option, `num_warps` and the like."""
        settings: Mapping[str, Any] = config.all_kwargs()
        return settings

    def device(self, call: Call) -> Device:
        """The current GPU, whose name, architecture and size are asked anew; the interpreter is one device."""
        return device.INTERPRETER if self.interpreted else device.cuda()

    def toolchain(self, where: Device, cache_dir: Path) -> dict[str, Json]:
        """Version of Triton, hash of all of it, version of ptxas."""
        return fingerprint.of(where.arch, cache_dir)

    def environment(self) -> dict[str, str]:
        """Triton's cache-invalidating variables."""
        return toolchain.environment()

    def environment_changed(self) -> None:
        """Trials of another environment must not measure the binaries of this one."""
        toolchain.forget_binaries(self.fn)

    @cached_property
    def _fingerprints(self) -> list[tuple[str, source.Fingerprint]]:
        found = [("", source.Fingerprint(toolchain.innermost(self.fn), nameless=self._is_named))]
        for layer in toolchain.layers(self.fn):
            heuristics = getattr(layer, "values", None) or {}
            found += [(f"{name}:", source.Fingerprint(function)) for name, function in sorted(heuristics.items())]
        return found

    @property
    def source(self) -> str:
        """Kernel, callees, used globals, and heuristics between the tuner and the kernel."""
        parts = [f"{name}{fingerprint.value()}" for name, fingerprint in self._fingerprints]
        return parts[0] if len(parts) == 1 else _joined(parts)

    @property
    def opaque(self) -> list[tuple[str, Any]]:
        """Of the kernel, its callees and its heuristics."""
        return [(f"{name}{at}", value) for name, found in self._fingerprints for at, value in found.opaque]

    def launch(self, call: Call, config: Any) -> Any:
        """Through Triton's own launch; returns what that returns."""
        try:
            return self.fn.run(*call.args, grid=call.grid, warmup=False, **call.kwargs, **self.settings(config))
        except Exception as error:
            toolchain.forget_failed_loads(self.fn)
            grids.refuse(call.grid, call.full(config), self.name, error)
            raise

    def launches(self, call: Call, config: Any) -> bool:
        """Whether its grid has a block; one that needs what only a launch knows counts as having some."""
        grid = call.grid
        return not is_empty_grid(lambda: grid(self._everything(call, config)) if callable(grid) else grid)

    def _everything(self, call: Call, config: Any) -> dict[str, Any]:
        """All that a grid callable is given: heuristics under the tuner compute some, each from those before it."""
        arguments = call.full(config)
        for layer in toolchain.layers(self.fn) if self.filled else ():
            for name, heuristic in (getattr(layer, "values", None) or {}).items():
                arguments[name] = heuristic(dict(arguments))
        return arguments

    def compile(self, call: Call, config: Any) -> Any:
        """Through Triton's warm-up; reading `.run` loads the binary, which is where it may turn out too large."""
        if self.interpreted:
            return None
        return toolchain.loaded(self._warm_up(call, config))

    def _warm_up(self, call: Call, config: Any) -> Any:
        return self.fn.run(*call.args, grid=call.grid, warmup=True, **call.kwargs, **self.settings(config))

    def compile_in(self, executor: Any, call: Call, config: Any) -> Callable[[], Any] | None:
        """Triton's warm-up, of which only the compilation is left to the executor; loaded by whoever waits."""
        if self.interpreted:
            return None
        kernel = compiled.compiling_in(executor, lambda: self._warm_up(call, config))
        return lambda: toolchain.loaded(kernel.result() if hasattr(kernel, "result") else kernel)

    def compile_class(self, call: Call) -> Hashable | None:
        """Types, alignment and classes of integers; None under heuristics, whose values may depend on anything."""
        if self.interpreted or self.filled:
            return None
        words = [_word(call.arguments.get(p.name), p.constexpr) for p in self.parameters]
        words += [_word((name, value), True) for name, value in sorted(call.options.items())]
        return None if _UNKNOWN in words else tuple(words)

    @contextmanager
    def trials(self, folder: Path) -> Iterator[None]:
        """Around a search: its binaries are kept in a scratch folder, and configs share what the front end made."""
        if self.interpreted:
            yield
            return
        with cache.trials(folder), frontend.shared(self.fn, folder):
            yield

    def settle(self, call: Call, config: Any, folder: Path) -> None:
        """Copy the winner's binary into Triton's own cache; it is loaded, so that asking for it compiles nothing."""
        if self.interpreted:
            return
        try:
            compiled = self.compile(call, config)
        except Exception:  # it won by an earlier timing; its launch says what is wrong with it here
            return
        cache.promote(compiled, folder)

    def timer(self, where: Device) -> Timer:
        """Events on the GPU; the wall clock in the interpreter."""
        return make_timer(where)


_UNKNOWN = "unknown"


def _word(value: Any, constexpr: bool) -> Hashable:
    """What Triton's specialization may tell apart of one argument; finer than it is where it has options."""
    if is_tensor(value):
        return "tensor", str(value.dtype), value.data_ptr() % 16 == 0
    if value is None or isinstance(value, (bool, str)) or (constexpr and isinstance(value, (int, float))):
        return type(value).__name__, repr(value)
    if isinstance(value, int):
        return "int", value == 1, value % 16 == 0, value.bit_length() // 32, value < 0
    if isinstance(value, float):
        return "float"
    if isinstance(value, tuple):
        words = tuple(_word(part, constexpr) for part in value)
        return _UNKNOWN if _UNKNOWN in words else words
    return _UNKNOWN


def _joined(parts: list[str]) -> str:
    import hashlib

    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
