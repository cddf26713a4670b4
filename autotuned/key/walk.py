"""The tensors that a value is or holds, in containers and attributes however deep: one walk that runs no user code."""

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

LIMIT = 100_000  # objects of one value that are opened: what is larger is a program's whole state, and no argument
NEAR, FIRST = 32, 64  # where a hit has to wait: so many objects are opened, and of each so many items looked at
# What these reach is the program and not the argument: globals, all of logging, every kernel's cache.
_CLOSED = (
    type(None), bool, int, float, complex, str, bytes, bytearray, range, slice, type, types.ModuleType, types.CodeType,
    types.FrameType, types.TracebackType, logging.Logger, logging.Handler,
)  # fmt: skip
_CLOSED_MODULES = ("autotuned.", "triton.")
_SIZED = (dict, list, tuple, set, frozenset, deque, OrderedDict)
_WRAPPER = "TensorWrapper"  # what `triton.reinterpret` makes
_CUT = object()


def tensors(value: Any) -> list[Any]:
    """Each tensor that a value is or holds, once, in the order of its containers.

    An array of objects is given, and the tensors in it. What `triton.reinterpret` makes has a dtype of Triton's, and
    cannot be copied: the tensor within it is given.
    """
    return [tensor for tensor in _walk(value, deque.pop, LIMIT, sys.maxsize) if tensor is not _CUT]


def is_cut(value: Any) -> bool:
    """Whether a value holds more than is walked."""
    return any(tensor is _CUT for tensor in _walk(value, deque.pop, LIMIT, sys.maxsize))


def near(value: Any, wanted: Callable[[Any], bool]) -> Any:
    """The nearest tensor of which `wanted` is true; None if the first objects that the value reaches have none."""
    found = (tensor for tensor in _walk(value, deque.popleft, NEAR, FIRST) if tensor is not _CUT)
    return next(filter(wanted, found), None)


def _walk(value: Any, take: Callable[[deque[Any]], Any], limit: int, first: int) -> Iterator[Any]:
    """The tensors found, and `_CUT` at the end if there may be more.

    Args:
        take: `deque.pop` goes into what was found last, `deque.popleft` takes near ones before those deep within.
        limit: How many objects are opened, and `first`, how many items of each are looked at.
    """
    kind: Any = type(value)
    waiting = deque(() if _is_closed(kind) else (value,))
    seen = {id(value): value}  # held: an id is unique only while its object lives
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
    """Whether a tensor has elements, at strides in memory; sparse, nested, lazy and meta ones of torch's have not."""
    layout = getattr(tensor, "layout", None)
    if layout is None:
        return True
    if getattr(tensor, "is_nested", False) or type(tensor).__name__.startswith("Uninitialized"):
        return False
    return str(layout) == "torch.strided" and not getattr(tensor, "is_meta", False)


def holds_objects(tensor: Any) -> bool:
    """Whether a tensor is an array of Python objects, some of which may be tensors."""
    return bool(getattr(getattr(tensor, "dtype", None), "hasobject", False))


# -- what a value holds -----------------------------------------------------------------------------------------------


@functools.lru_cache(4096)
def _opener(kind: Any) -> Callable[[Any, int], Iterable[Any]]:
    """What gives the objects that a value of a type holds, `first` of them at least.

    Where there is no rule, of C or of Python, the garbage collector is asked: attributes, slots, a partial's arguments,
    a method's object, what an iterator has left. That calls no property, `__getattr__` or `__iter__`.
    """
    if is_tensor_type(kind):
        return _of_tensor
    if kind.__name__ == _WRAPPER:
        return lambda one, first: (one.base,)
    return next((parts for holder, parts in _OPENERS if issubclass(kind, holder)), _of_any)


def _of_any(one: Any, first: int) -> list[Any]:
    return gc.get_referents(one)[:first]


def _of_tensor(tensor: Any, first: int) -> list[Any]:
    """What an array of objects holds, and what a tensor without strides is made of."""
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
    """The items of a container in order, by the base class's own iteration, and what else a derived class holds."""

    def parts(one: Any, first: int) -> list[Any]:
        items = list(itertools.islice(iterate(one), first))
        return items if type(one) in _ORDERED else items + gc.get_referents(one)[:first]

    return parts


_ORDERED = (dict, list, tuple, deque)


def _pairs(one: dict[Any, Any]) -> Iterable[Any]:
    return (part for pair in dict.items(one) for part in pair)


def _of_function(one: Any, first: int) -> list[Any]:
    """What a function closes over, its defaults and its attributes; not its globals."""
    return [one.__closure__, one.__defaults__, one.__kwdefaults__, one.__dict__]


def _of_reference(one: Any, first: int) -> list[Any]:
    return [weakref.ref.__call__(one)]


def _of_proxy(one: Any, first: int) -> list[Any]:
    try:
        return [one.__reduce_ex__.__self__]  # a method of what it stands for
    except ReferenceError:
        return []


_OPENERS: tuple[tuple[Any, Callable[[Any, int], Iterable[Any]]], ...] = (
    (dict, _items(_pairs)),
    (list, _items(list.__iter__)),
    (tuple, _items(tuple.__iter__)),
    (deque, _items(deque.__iter__)),
    (types.FunctionType, _of_function),
    (weakref.ReferenceType, _of_reference),
    (weakref.ProxyTypes, _of_proxy),
)
