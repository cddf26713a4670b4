"""A call bound to parameter names, and checks of its arguments and grid."""

from __future__ import annotations

import inspect
import operator
import sys
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from autotuned._startup import Frozen, errors, once
from autotuned.key.key import PLAIN, TENSORS, is_descriptor, is_tensor, is_tensor_type, strides_of
from autotuned.tunable.configs import plain, suggestion

if TYPE_CHECKING:
    from autotuned.tunable.configs import HasParameters

EMPTY = inspect.Parameter.empty


class Call(Frozen):
    """One call of a tuned function."""

    args: tuple[Any, ...]  # as given by the caller, like `kwargs`; pruners and hooks see this split
    kwargs: Mapping[str, Any]
    arguments: Mapping[str, Any]  # all parameters that are not tuned, by name, in order, with defaults
    options: Mapping[str, Any] = MappingProxyType({})  # launch options among the keywords, such as `num_warps`
    grid: Any = None  # as given by the caller; None for plain callables
    since = None  # set by `Tuner`: the last of `active.drops` when it began to choose

    def full(self, config: Any) -> dict[str, Any]:
        """All arguments by name with the config's values, as passed to Triton's hooks."""
        return {**self.arguments, **self.options, **config.all_kwargs()}

    @once
    def has_descriptors(self) -> bool:
        """Whether an argument is or contains a tensor descriptor."""
        values = self.arguments.values()
        kinds = {*map(type, values)} - PLAIN
        return not kinds <= TENSORS and not all(map(is_tensor_type, kinds)) and any(map(_holds_descriptor, values))

    def without_memory(self) -> Call:
        """The same call with a grid of one block, and outlines in place of tensors."""
        arguments = {
            name: value if type(value) in PLAIN else Outline(value) if type(value) in TENSORS else outlined(value)
            for name, value in self.arguments.items()
        }
        return Call((), arguments, arguments, {}, (1,))


class Outline:
    """A tensor without its memory: everything that keys and specializations depend on."""

    __slots__ = ("_address", "_gpu", "_strides", "device", "dtype", "shape")

    def __init__(self, tensor: Any) -> None:
        self.dtype, self.shape, self.device = tensor.dtype, tuple(tensor.shape), None
        try:  # torch's
            self.device = tensor.device
            self._strides, self._gpu = tuple(tensor.stride()), tensor.get_device()
            self._address = tensor.data_ptr() & 15
        except AttributeError:
            self._strides = strides_of(tensor)
            self._gpu = tensor.get_device() if hasattr(tensor, "get_device") else -1
            self._address = tensor.data_ptr() & 15 if hasattr(tensor, "data_ptr") else 0

    def stride(self, dim: int | None = None) -> Any:
        """All strides in elements, or that of one dimension."""
        return self._strides if dim is None else self._strides[dim]

    def get_device(self) -> int:
        """Index of the GPU; -1 for host memory."""
        return int(self._gpu)

    def data_ptr(self) -> int:
        """An address with the tensor's alignment."""
        return int(self._address)


def outlined(value: Any) -> Any:
    """An argument without its tensors' memory, also inside tuples and descriptors."""
    kind: Any = type(value)
    if kind in PLAIN:
        return value
    if kind in TENSORS or is_tensor_type(kind):
        return Outline(value)
    if isinstance(value, tuple):
        items = [outlined(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if is_descriptor(value):
        made = object.__new__(type(value))  # `copy` would modify the class, which C watches
        vars(made).update(vars(value), base=outlined(value.base))
        return made
    return Outline(value) if is_tensor(value) else value


def _holds_descriptor(value: Any) -> bool:
    if isinstance(value, tuple):
        return any(map(_holds_descriptor, value))
    return type(value) not in PLAIN and not is_tensor_type(type(value)) and is_descriptor(value)


class Hooks(Frozen):
    """The decorator's hooks, as in Triton: called before and after each trial, even if it raises."""

    before: Callable[..., Any] | None = None
    after: Callable[..., Any] | None = None


def bind(
    tunable: HasParameters,
    tuned: frozenset[str],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    grid: Any,
    lenient: bool = False,
) -> Call:
    """Bind a call's arguments to names; keywords that are not parameters are launch options.

    Args:
        tuned: Parameters set by configs, which are not arguments of the call.
        lenient: Allow missing arguments: a computed list of configs may set them.

    Raises:
        CallError: An argument is missing, given twice, or unexpected.
        ValueError: The caller passes an argument that configs set.
    """
    refuse_conflicts(tunable, args, kwargs, tuned)
    given = _given(tunable, args, kwargs)
    taken = tuned | tunable.filled
    free = {p.name: p.default for p in tunable.parameters if p.name not in taken}
    arguments = {name: value for name, value in {**free, **given}.items() if name in free}
    if missing := [name for name, value in arguments.items() if value is EMPTY]:
        if not lenient:
            tunables = {p.name for p in tunable.parameters if p.constexpr or not p.has_place}
            hint = " Pass it, or set it in every config." if missing[0] in tunables else ""
            expected = ", ".join(arguments)
            raise _call_error(tunable, f"argument {missing[0]!r} is missing. Expected: {expected}.{hint}")
        arguments = {name: value for name, value in arguments.items() if value is not EMPTY}
    options = {}
    if kwargs and (others := kwargs.keys() - {p.name for p in tunable.parameters}):
        # NumPy numbers become Python's, which Triton can serialize
        options = {name: plain(value) for name, value in kwargs.items() if name in others}
        kwargs = {**kwargs, **options}
    return Call(args, kwargs, arguments, options, grid)


def _given(tunable: HasParameters, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    places = [parameter.name for parameter in tunable.parameters if parameter.has_place]
    if len(args) > len(places):
        raise _call_error(tunable, f"expected at most {len(places)} positional arguments, got {len(args)}.")
    given = dict(zip(places, args))
    if not kwargs:
        return given
    names = [parameter.name for parameter in tunable.parameters if parameter.has_name]
    nameless = [parameter.name for parameter in tunable.parameters if not parameter.has_name]
    for name in kwargs:
        if name in given:
            raise _call_error(tunable, f"argument {name!r} was given twice, by position and by name.")
        if name in nameless or not tunable.allows(name):
            raise _call_error(tunable, f"got an unexpected argument {name!r} by name." + suggestion(name, names))
    return {**given, **kwargs}


def _call_error(tunable: HasParameters, message: str) -> errors.CallError:
    return errors.CallError(f"`{tunable.name}`: {message}", kernel=tunable.name)


def refuse_conflicts(
    tunable: HasParameters, args: Sequence[Any], kwargs: Mapping[str, Any], tuned: Container[str]
) -> None:
    """Refuse a call that passes parameters or launch options set by its configs.

    Raises ValueError with Triton's own text, which callers may match.
    """
    conflicts = [one.name for one in tunable.parameters[: len(args)] if one.has_place and one.name in tuned]
    if kwargs:
        conflicts += [name for name in kwargs if name in tuned]
    if conflicts:
        raise ValueError(
            f"Conflicting meta-parameters: {', '.join(conflicts)}. Make sure that you don't re-define "
            f"auto-tuned symbols. (`{tunable.name}`: its configs set them; leave them out of the call.)"
        )


def is_empty_grid(sizes_of: Callable[[], Any]) -> bool:
    """Whether a launch with these sizes has no blocks, so that its time is meaningless; False if they are invalid."""
    try:
        sizes = sizes_of()
        return isinstance(sizes, (tuple, list)) and 1 <= len(sizes) <= 3 and min(map(operator.index, sizes)) <= 0
    except Exception:  # the user's code, or not integers: the launch will raise
        return False


def refuse_grid(grid: Any, arguments: Mapping[str, Any], kernel: str, error: Exception) -> None:
    """Raise CallError if a launch failed because of its grid, since Triton's message is about its own code.

    A grid must be a tuple or list of 1 to 3 integers; a callable, which is called again, must use known names.
    """
    if _is_too_deep(error):  # a grid that launches its own kernel: calling it again at each depth would never end
        return
    meta = _Meta(arguments)
    try:
        sizes = grid(meta) if callable(grid) else grid
    except Exception:  # show the user's own error, unless it is about an unknown name
        if not (isinstance(error, KeyError) and error.args == (meta.missing,)):
            return
        raise errors.CallError(
            f"`{kernel}`: grid: expected the callable to use names of arguments and config parameters, got "
            f"{meta.missing!r:.60}." + suggestion(str(meta.missing), map(str, arguments)),
            kernel=kernel,
        ) from None
    is_grid = isinstance(sizes, (tuple, list)) and 1 <= len(sizes) <= 3
    if not is_grid or not all(hasattr(size, "__index__") for size in sizes):
        got = f"{sizes!r:.60}" + (" from the callable" if callable(grid) else "")
        raise errors.CallError(
            f"`{kernel}`: grid: expected a tuple of 1 to 3 integers, or a callable returning one, got {got}. Write "
            "kernel[(blocks,)](...).",
            kernel=kernel,
        ) from None


def _is_too_deep(error: BaseException | None) -> bool:
    """Whether a RecursionError is among its causes; `inspect` raises other errors from it."""
    seen = 0
    while error is not None and seen < sys.getrecursionlimit():
        if isinstance(error, RecursionError):
            return True
        error, seen = error.__cause__ or error.__context__, seen + 1
    return False


class _Meta(dict[str, Any]):
    """Arguments for a grid callable; `missing` is the unknown name it requested."""

    missing: Any = None

    def __missing__(self, name: Any) -> Any:
        self.missing = name
        raise KeyError(name)


class Names:
    """Checked name lists of a decorator; `restore` is None if it is to be determined."""

    def __init__(self, key: list[str] | None, zero: list[str] | None, restore: list[str] | None) -> None:
        self.key = key or []
        self.zero = zero or []
        self.restore = restore


def checked_names(label: str, given: Any, known: Sequence[str], kernel: str) -> list[str] | None:
    """The names in a decorator's list, without callables in `key`; None stays None.

    Raises DecorationError if it is not a list, ArgumentNameError if a name is not an argument.
    """
    if given is None:
        return None
    if isinstance(given, str) or not isinstance(given, Iterable):
        name = getattr(given, "__name__", "f") if callable(given) else f"{given!r:.60}"
        text = f"expected a list of argument names, got {given!r:.60}. Write {label}=[{name.replace('<lambda>', 'f')}]."
        raise errors.DecorationError(f"`{kernel}`: {label}: {text}")
    names = [name for name in given if not (label == "key" and callable(name))]
    for name in names:
        if not isinstance(name, str) or name not in known:
            raise errors.ArgumentNameError(
                f"`{kernel}`: {label} names no argument: {name!r}." + suggestion(str(name), known),
                name=str(name),
                kernel=kernel,
            )
    return names
