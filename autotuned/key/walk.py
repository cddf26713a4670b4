"""Find the tensors that a value is or contains, however deep, without running user code."""

from __future__ import annotations

import functools
import gc
import itertools
import logging
import sys
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from autotuned.key.key import is_tensor_by_attributes, is_tensor_type

LIMIT = 100_000  # opened objects per value: anything larger is a program's whole state
NEAR, FIRST = 32, 64  # on the path of a hit: opened objects, and visited items of each
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

    Arrays of objects are included along with the tensors in them. For `triton.reinterpret`, whose result cannot be
    copied, it is the tensor inside.
    """
    return [tensor for tensor in _walk(value, deque.pop, LIMIT, sys.maxsize) if tensor is not _CUT]


def is_cut(value: Any) -> bool:
    """Whether a value exceeds the limit of the walk."""
    return any(tensor is _CUT for tensor in _walk(value, deque.pop, LIMIT, sys.maxsize))


def near(value: Any, wanted: Callable[[Any], bool]) -> Any:
    """The nearest tensor for which `wanted` is true; None if there is none among the first objects."""
    found = (tensor for tensor in _walk(value, deque.popleft, NEAR, FIRST) if tensor is not _CUT)
    return next(filter(wanted, found), None)


def _walk(value: Any, take: Callable[[deque[Any]], Any], limit: int, first: int) -> Iterator[Any]:
    """Yield the tensors, and `_CUT` at the end if there may be more.

    Args:
        take: `deque.pop` for depth first, `deque.popleft` for breadth first.
        limit, first: How many objects are opened, and how many items of each are visited.
    """
    kind: Any = type(value)
    waiting = deque(() if _is_closed(kind) else (value,))
    seen = {id(value): value}  # holds objects, so that ids stay unique
    for _ in range(limit):
        if not waiting:
            return
        one = take(waiting)
        if is_array(one):
            yield one
            if not holds_objects(one):
                continue
        fresh, kind = [], type(one)
        for part in _opener(kind)(one, first):
            kind = type(part)
            if _is_closed(kind) or id(part) in seen or (kind in _SIZED and not part):
                continue
            seen[id(part)] = part
            fresh.append(part)
        waiting.extend(reversed(fresh) if take is deque.pop else fresh)
    if waiting:
        yield _CUT


@functools.lru_cache(4096)
def _is_closed(kind: type) -> bool:
    if str(kind.__module__).startswith(_CLOSED_MODULES):
        return kind.__name__ != _WRAPPER and "Descriptor" not in kind.__name__
    return issubclass(kind, _CLOSED)


# -- what is a tensor -------------------------------------------------------------------------------------------------


def is_array(one: Any) -> bool:
    """Whether the walk ends here: a tensor whose elements can be copied and written."""
    kind: Any = type(one)
    if is_tensor_type(kind):
        return is_strided(one)
    return _is_written_to(kind) and is_tensor_by_attributes(one)


@functools.lru_cache(4096)
def _is_written_to(kind: type) -> bool:
    return kind.__name__ != _WRAPPER and (hasattr(kind, "data_ptr") or hasattr(kind, "__setitem__"))


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


# -- what a value holds -----------------------------------------------------------------------------------------------


@functools.lru_cache(4096)
def _opener(kind: Any) -> Callable[[Any, int], Iterable[Any]]:
    """The function listing (at least the first) objects inside a value of a type.

    By default the garbage collector is asked, which finds attributes, slots, a partial's arguments, a method's object
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
