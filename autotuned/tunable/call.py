"""A call of what is tuned, bound to its names, which a decoration may list; and what the miss path must know of it."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from autotuned._startup import Frozen
from autotuned.errors import ArgumentNameError, CallError, DecorationError
from autotuned.gpu.device import Device
from autotuned.key.key import is_descriptor, is_tensor, strides_of
from autotuned.triton_compat import kernel
from autotuned.tunable.configs import plain, suggestion
from autotuned.typed_json import Json

if TYPE_CHECKING:
    from typing import Protocol
else:
    Protocol = object  # defining a protocol takes as long as importing a module

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

    def without_memory(self) -> Call:
        """The same call by name, with a grid of one block; of tensors nothing is kept but what decides code."""
        arguments = {name: outlined(value) for name, value in self.arguments.items()}
        return Call((), arguments, arguments, grid=(1,))


class Outline:
    """What is left of a tensor without its memory: what a kernel is compiled for, and a key is made of."""

    __slots__ = ("_address", "_gpu", "_strides", "device", "dtype", "shape")

    def __init__(self, tensor: Any) -> None:
        self.dtype, self.shape, self._strides = tensor.dtype, tuple(tensor.shape), strides_of(tensor)
        self.device = getattr(tensor, "device", None)
        self._gpu = tensor.get_device() if hasattr(tensor, "get_device") else -1
        self._address = tensor.data_ptr() & 15 if hasattr(tensor, "data_ptr") else 0

    def stride(self, dim: int | None = None) -> Any:
        """All strides in elements, or that of a dimension."""
        return self._strides if dim is None else self._strides[dim]

    def get_device(self) -> int:
        """Index of the GPU; -1 for memory of the host."""
        return int(self._gpu)

    def data_ptr(self) -> int:
        """An address that is aligned as the tensor's own, and no more."""
        return int(self._address)


def outlined(value: Any) -> Any:
    """An argument without the memory of its tensors, those in tuples and of tensor descriptors included."""
    if isinstance(value, tuple):
        items = [outlined(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if is_descriptor(value):
        made = object.__new__(type(value))  # not by `copy`, which writes into the class: C would look at it anew
        vars(made).update(vars(value), base=outlined(value.base))
        return made
    return Outline(value) if type(value) not in _PLAIN and is_tensor(value) else value


_PLAIN = (type(None), bool, int, float, str)


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
    parameters: Sequence[kernel.Parameter]
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

    @property
    def source(self) -> str:
        """Fingerprint of its code."""

    @property
    def opaque(self) -> list[tuple[str, Any]]:
        """What its code uses and the fingerprint cannot hold, as of the latest `source`."""


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


def refuse_grid(grid: Any, arguments: Mapping[str, Any], kernel: str, error: Exception) -> None:
    """After a launch that failed: say so if it was for its grid, of which Triton speaks in words of its own code.

    Args:
        arguments: All arguments by name, those that the config sets included; a callable is asked once more.
        error: What the launch raised.

    Raises:
        CallError: The grid is no tuple or list of 1 to 3 integers, or asks for a name that is not there.
    """
    meta = _Meta(arguments)
    try:
        sizes = grid(meta) if callable(grid) else grid
    except Exception:  # the user's code: its own error is the one to show, unless it asked for what is not there
        if not (isinstance(error, KeyError) and error.args == (meta.missing,)):
            return
        raise CallError(
            f"`{kernel}`: grid: expected the callable to ask for names of arguments and of what configs set, got "
            f"{meta.missing!r:.60}." + suggestion(str(meta.missing), map(str, arguments)),
            kernel=kernel,
        ) from None
    is_grid = isinstance(sizes, (tuple, list)) and 1 <= len(sizes) <= 3
    if not is_grid or not all(hasattr(size, "__index__") for size in sizes):
        got = f"{sizes!r:.60}" + (" from the callable" if callable(grid) else "")
        raise CallError(
            f"`{kernel}`: grid: expected a tuple of 1 to 3 integers, or a callable returning one, got {got}. Write "
            "kernel[(blocks,)](...).",
            kernel=kernel,
        ) from None


class _Meta(dict[str, Any]):
    """What a grid callable is given; `missing` is the name that it asked for in vain."""

    missing: Any = None

    def __missing__(self, name: Any) -> Any:
        self.missing = name
        raise KeyError(name)


class Names:
    """The checked name lists of one decoration; `restore` is None where it is to be found out."""

    def __init__(self, key: list[str] | None, zero: list[str] | None, restore: list[str] | None) -> None:
        self.key = key or []
        self.zero = zero or []
        self.restore = restore


def checked_names(label: str, given: Any, known: Sequence[str], kernel: str) -> list[str] | None:
    """The names in a list that a decoration gives, callables of `key` left out; None stays None.

    Raises:
        DecorationError: It is no list.
        ArgumentNameError: It holds a name that is no argument.
    """
    if given is None:
        return None
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise DecorationError(
            f"`{kernel}`: {label}: expected a list of argument names, got {given!r:.60}. Write {label}=[{given!r:.60}]."
        )
    names = [name for name in given if not (label == "key" and callable(name))]
    for name in names:
        if not isinstance(name, str) or name not in known:
            raise ArgumentNameError(
                f"`{kernel}`: {label} names no argument: {name!r}." + suggestion(str(name), known),
                name=str(name),
                kernel=kernel,
            )
    return names
