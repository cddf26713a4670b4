"""Finds the tensors in values at any depth, without running user code; their memory, GPU and aliases."""

from __future__ import annotations

import gc
import itertools
import logging
import sys
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from autotuned.errors import CallError
from autotuned.key.key import PLAIN, by_class, is_tensor_by_attributes, is_tensor_type, strides_of

LIMIT = 100_000  # objects to open per value: a larger one reaches a program's whole state
NEAR, FIRST = 32, 64  # limits for a hit: objects to open, and items of each to visit
# Not opened, since they reach the whole program: globals, all of logging, every kernel's cache.
_CLOSED = (
    type(None), bool, int, float, complex, str, bytes, bytearray, range, slice, type, types.ModuleType, types.CodeType,
    types.FrameType, types.TracebackType, logging.Logger, logging.Handler,
)  # fmt: skip
_CLOSED_MODULES = ("autotuned.", "triton.")
_SIZED = (dict, list, tuple, set, frozenset, deque, OrderedDict)
_WRAPPER = "TensorWrapper"  # made by `triton.reinterpret`
_CUT = object()


def tensors(value: Any) -> list[Any]:
    """Each tensor that a value is or contains, once, in container order.

    Includes arrays of objects and the tensors in them. A result of `triton.reinterpret`, which cannot be copied, gives
    the tensor inside.
    """
    return [tensor for tensor in _walk(value, deque.pop, LIMIT, sys.maxsize) if tensor is not _CUT]


def is_cut(value: Any) -> bool:
    """Whether a value exceeds the limit of the walk."""
    return any(tensor is _CUT for tensor in _walk(value, deque.pop, LIMIT, sys.maxsize))


def _walk(value: Any, take: Callable[[deque[Any]], Any], limit: int, first: int) -> Iterator[Any]:
    """Yield the tensors, and `_CUT` at the end if there may be more.

    Args:
        take: `deque.pop` for depth first, `deque.popleft` for breadth first.
        limit, first: How many objects are opened, and how many items of each are visited.
    """
    kind = _kind(type(value))
    waiting = deque(() if kind.is_closed else ((value, kind),))
    seen = {id(value): value}  # keeps objects alive, so that ids stay unique
    for _ in range(limit):
        if not waiting:
            return
        one, kind = take(waiting)
        if is_strided(one) if kind.is_tensor else kind.is_written_to and is_tensor_by_attributes(one):
            yield one
            if not holds_objects(one):
                continue
        fresh = []
        for part in kind.parts(one, first):
            kind = _kind(type(part))
            if kind.is_closed or id(part) in seen or (kind.has_size and not part):
                continue
            seen[id(part)] = part
            fresh.append((part, kind))
        waiting.extend(reversed(fresh) if take is deque.pop else fresh)
    if waiting:
        yield _CUT


class _Kind(NamedTuple):
    """How the walk treats a class: whether it ends there, and `parts(value, first)`: at least the first parts."""

    is_closed: bool
    is_tensor: bool
    is_written_to: bool  # it can be written to: a tensor if instance attributes supply those that the class lacks
    has_size: bool
    parts: Callable[[Any, int], Iterable[Any]]


@by_class
def _kind(kind: Any) -> _Kind:
    is_written_to = kind.__name__ != _WRAPPER and (hasattr(kind, "data_ptr") or hasattr(kind, "__setitem__"))
    return _Kind(_is_closed(kind), is_tensor_type(kind), is_written_to, kind in _SIZED, _opener(kind))


def _is_closed(kind: type) -> bool:
    if str(kind.__module__).startswith(_CLOSED_MODULES):
        return kind.__name__ != _WRAPPER and "Descriptor" not in kind.__name__
    return issubclass(kind, _CLOSED)


# -- which values are tensors -----------------------------------------------------------------------------------------


def is_strided(tensor: Any) -> bool:
    """Whether a tensor has elements at strides in memory; not torch's sparse, nested, lazy and meta tensors."""
    layout = getattr(tensor, "layout", None)
    if layout is None:
        return True
    if getattr(tensor, "is_nested", False) or type(tensor).__name__.startswith("Uninitialized"):
        return False
    return str(layout) == "torch.strided" and not getattr(tensor, "is_meta", False)


def holds_objects(tensor: Any) -> bool:
    """Whether a tensor is an array of Python objects."""
    return bool(getattr(getattr(tensor, "dtype", None), "hasobject", False))


# -- tensors inside a value -------------------------------------------------------------------------------------------


def _opener(kind: Any) -> Callable[[Any, int], Iterable[Any]]:
    """The function that lists the objects inside a value of a type, or at least the first.

    By default the garbage collector lists them: it finds attributes, slots, a partial's arguments, a method's object
    and an iterator's rest without calling properties, `__getattr__` or `__iter__`.
    """
    if is_tensor_type(kind):
        return _of_tensor
    if kind.__name__ == _WRAPPER:
        return lambda one, first: (one.base,)
    return next((parts for holder, parts in _OPENERS if issubclass(kind, holder)), _of_any)


def _of_any(one: Any, first: int) -> list[Any]:
    return gc.get_referents(one)[:first]


def _of_tensor(tensor: Any, first: int) -> list[Any]:
    """Items of an array of objects, or components of a tensor without strides."""
    if holds_objects(tensor):
        items: list[Any] = tensor.reshape(-1).tolist()
        return items[:first]
    if getattr(tensor, "is_nested", False):
        return [tensor.values()]
    return [getattr(tensor, name)() for name in _MADE_OF.get(str(getattr(tensor, "layout", "")), ())]


_COLUMNS, _ROWS = ("ccol_indices", "row_indices", "values"), ("crow_indices", "col_indices", "values")
_MADE_OF = {
    "torch.sparse_coo": ("_indices", "_values"),
    "torch.sparse_csr": _ROWS, "torch.sparse_bsr": _ROWS, "torch.sparse_csc": _COLUMNS, "torch.sparse_bsc": _COLUMNS,
}  # fmt: skip


def _items(iterate: Callable[[Any], Iterable[Any]]) -> Callable[[Any, int], list[Any]]:
    """Items of a container in order, by the base class's own iteration, plus attributes of a subclass."""

    def parts(one: Any, first: int) -> list[Any]:
        items = list(itertools.islice(iterate(one), first))
        return items if type(one) in _ORDERED else items + gc.get_referents(one)[:first]

    return parts


_ORDERED = (dict, list, tuple, deque)


def _pairs(one: dict[Any, Any]) -> Iterable[Any]:
    return (part for pair in dict.items(one) for part in pair)


def _of_function(one: Any, first: int) -> list[Any]:
    """A function's closure, defaults and attributes, but not its globals."""
    return [one.__closure__, one.__defaults__, one.__kwdefaults__, one.__dict__]


def _of_proxy(one: Any, first: int) -> list[Any]:
    try:
        return [one.__reduce_ex__.__self__]  # a method of its referent
    except ReferenceError:
        return []


_OPENERS: tuple[tuple[Any, Callable[[Any, int], Iterable[Any]]], ...] = (
    (dict, _items(_pairs)),
    (list, _items(list.__iter__)),
    (tuple, _items(tuple.__iter__)),
    (deque, _items(deque.__iter__)),
    (types.FunctionType, _of_function),
    (weakref.ReferenceType, lambda one, first: [weakref.ref.__call__(one)]),
    (weakref.ProxyTypes, _of_proxy),
)


# -- arguments --------------------------------------------------------------------------------------------------------


def tensors_in(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The tensors that an argument is or contains, each with the argument's name.

    For an array of objects these are the tensors in it; if there is none, the array itself.
    """
    if type(value) in PLAIN:
        return
    for tensor in [value] if _is_plain_array(value) else tensors(value):
        if not holds_objects(tensor) or len(tensors(tensor)) == 1:
            yield name, tensor


def is_traced(value: Any) -> bool:
    """Whether an argument is, or holds near its root, a torch tensor without memory: meta, fake, or inside vmap."""
    if type(value) in PLAIN:
        return False
    return _lacks_memory(value) or any(map(_lacks_memory, _walk(value, deque.popleft, NEAR, FIRST)))


def _lacks_memory(value: Any) -> bool:
    if not is_tensor_type(type(value)) or not hasattr(value, "untyped_storage"):
        return False
    if not is_strided(value):
        return bool(value.is_meta)
    try:
        return bool(value.untyped_storage().device.type == "meta")
    except (NotImplementedError, RuntimeError):  # vmap's, and those of other function transforms
        return True


def _is_plain_array(value: Any) -> bool:
    kind: Any = type(value)
    return is_tensor_type(kind) and is_strided(value) and not holds_objects(value)


def refuse_without_tensor(arguments: Mapping[str, Any], lists: Mapping[str, Iterable[str]], kernel: str) -> None:
    """Raise CallError if a listed argument neither is nor contains a tensor; None and containers of None are allowed.

    `lists` maps options to the argument names that they list.
    """
    for label, names in lists.items():
        for name in names:
            if name in arguments and (_is_none(arguments[name]) or any(tensors_in(name, arguments[name]))):
                continue
            value: Any = arguments.get(name)
            known = f"{type(value).__name__}: {value!r:.60}"
            raise CallError(
                f"`{kernel}`: {label} names {name!r}: expected a tensor, or an object that contains one, "
                f"got {known if name in arguments else 'a value that a config or heuristic sets'}. "
                f"Pass the tensor itself, or remove {name!r} from {label}=.",
                kernel=kernel,
            )


def _is_none(value: Any) -> bool:
    items = value.values() if type(value) is dict else value
    return value is None or (type(value) in (tuple, list, dict) and all(item is None for item in items))


def gpu_of(value: Any) -> int | None:
    """Index of the GPU of the nearest GPU array that an argument is or contains, or None."""
    if type(value) in PLAIN:
        return None
    return _gpu_index(value) if _is_plain_array(value) else gpu_within(value)


def gpu_within(value: Any) -> int | None:
    """Like `gpu_of`, for an argument that is not itself a plain array.

    Large values are searched only near their root, breadth first, since every launch does this.
    """
    for array in _walk(value, deque.popleft, NEAR, FIRST):
        if array is not _CUT and (index := _gpu_index(array)) is not None:
            return index
    return None


def _gpu_index(array: Any) -> int | None:
    if hasattr(array, "is_cuda"):
        return int(array.get_device()) if array.is_cuda else None
    if hasattr(array, "__cuda_array_interface__"):
        return int(getattr(getattr(array, "device", None), "id", 0))
    return None


def is_torch(tensor: Any) -> bool:
    """Whether it is a torch tensor, without importing torch."""
    return type(tensor.dtype).__module__ == "torch"


def elements(tensor: Any) -> Any:
    """A view of a tensor's memory that contains each element once and nothing else.

    Expanded dimensions (stride 0) are cut to size 1; overlapping dimensions are merged.
    """
    view = _unconjugated(tensor.data)  # a separate version counter: restoring must not upset autograd
    for dim, stride in enumerate(view.stride()):
        if stride == 0 and view.shape[dim] > 1:
            view = view.narrow(dim, 0, 1)
    if view.numel() and _overlaps_itself(tuple(view.shape), tuple(view.stride())):
        view = view.as_strided(*_merged(view.shape, view.stride()), view.storage_offset())
    return view


def _unconjugated(view: Any) -> Any:
    """The memory as a kernel sees it, without torch's lazy conjugation or negation.

    Quantized tensors become their integers: torch crashes when copying a byte view of them.
    """
    if not (view.is_conj() or view.is_neg() or view.is_quantized):
        return view
    import torch

    dtype = {1: torch.uint8, 4: torch.int32}[view.itemsize] if view.is_quantized else view.dtype
    plain = torch.empty(0, dtype=dtype, device=view.device)
    return plain.set_(view.untyped_storage(), view.storage_offset(), view.shape, view.stride())


def _overlaps_itself(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    reach = 0
    for stride, size in sorted(zip(strides, shape)):
        if size == 1:
            continue
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def _merged(shape: Iterable[int], strides: Iterable[int]) -> tuple[list[int], list[int]]:
    """Sizes and strides that reach the same elements; overlapping dimensions merge if one stride divides the other.

    Otherwise an element may still appear several times, with the same bits.
    """
    merged: list[tuple[int, int]] = []
    for stride, size in sorted(zip(strides, shape)):
        step, count = merged[-1] if merged else (0, 0)
        if step and stride % step == 0 and stride <= step * count:
            merged[-1] = step, count + (size - 1) * (stride // step)
        elif size > 1:
            merged.append((stride, size))
    return [count for _, count in merged], [step for step, _ in merged]


def bytes_in(view: Any) -> Any:
    """A byte view if elements are one byte: torch copies those bit by bit, unlike some one-byte dtypes."""
    import torch

    return view.view(torch.uint8) if view.itemsize == 1 else view


def refuse_aliases(arguments: Mapping[str, Any], zeroed: Collection[str], kernel: str) -> None:
    """Raise ValueError if an argument to be zeroed shares memory with one that is not."""
    pair = aliases(arguments, zeroed)
    if pair is not None:
        raise ValueError(
            f"`{kernel}`: reset_to_zero names {pair[0]!r}, which shares memory with argument {pair[1]!r} in this call: "
            "zeroing it would destroy that input. Pass a separate tensor."
        )


def aliases(arguments: Mapping[str, Any], zeroed: Collection[str]) -> tuple[str, str] | None:
    """A name in `zeroed` and an argument outside it that share memory, or None."""
    return next(_shared(arguments, zeroed), None)


def unshared(arguments: Mapping[str, Any], names: Collection[str]) -> set[str]:
    """Those of `names` that share no memory with other arguments."""
    return set(names) - {name for name, _ in _shared(arguments, names)}


def _shared(arguments: Mapping[str, Any], names: Collection[str]) -> Iterator[tuple[str, str]]:
    spans = [
        (name, *span)
        for name, value in arguments.items()
        for _, tensor in tensors_in(name, value)
        if (span := _span(tensor))
    ]
    for name, start, end in spans:
        for other, other_start, other_end in spans:
            if name in names and other not in names and start < other_end and other_start < end:
                yield name, other


def _span(tensor: Any) -> tuple[int, int] | None:
    """First byte and one past the last byte of a tensor's memory; None if it has none."""
    start = address(tensor)
    if start is None or 0 in tuple(tensor.shape):
        return None
    steps = [(size - 1) * stride for size, stride in zip(tensor.shape, strides_of(tensor))]
    low, high = sum(min(step, 0) for step in steps), 1 + sum(max(step, 0) for step in steps)
    return start + low * tensor.itemsize, start + high * tensor.itemsize


def address(tensor: Any) -> int | None:
    """Address of the first element; None if unknown."""
    if hasattr(tensor, "data_ptr"):
        return int(tensor.data_ptr())
    interface = getattr(tensor, "__array_interface__", None) or getattr(tensor, "__cuda_array_interface__", None)
    return int(interface["data"][0]) if interface else None
