"""What of a call is a tensor, and its layout: sizes, and strides by their pattern."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from autotuned.typed_json import is_numpy_scalar


def is_tensor(value: Any) -> bool:
    """Whether a value has dtype, shape and strides: a torch tensor, a NumPy or CuPy array, but no NumPy scalar.

    A named tuple with such fields is a tuple, to Triton its items; and a class such as `numpy.float32` is no instance.
    """
    kind: Any = type(value)  # to mypy a class is not Hashable
    if is_tensor_type(kind) or is_tensor_by_attributes(value):
        return True
    if _says_all(kind) or issubclass(kind, (tuple, type)):
        return False
    has_layout = hasattr(value, "shape") and (hasattr(value, "stride") or hasattr(value, "strides"))
    return has_layout and hasattr(value, "dtype") and not is_numpy_scalar(value)


def is_tensor_by_attributes(value: Any) -> bool:
    """Whether a value has what its class lacks of a tensor as attributes of its own; no property is called."""
    kind: Any = type(value)
    if not kind.__dictoffset__ or issubclass(kind, (tuple, type)):
        return False
    try:
        own = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return False
    return all(any(name in own for name in names) for names in _lacking(kind)) and not is_numpy_scalar(value)


@lru_cache(4096)
def _lacking(kind: type) -> list[tuple[str, ...]]:
    """What a class lacks of a tensor's attributes, each under the names that it may have."""
    layout: tuple[tuple[str, ...], ...] = (("dtype",), ("shape",), ("stride", "strides"))
    return [names for names in layout if not any(hasattr(kind, name) for name in names)]


@lru_cache(4096)
def _says_all(kind: type) -> bool:
    """Whether a value has what its class and its own attributes say, and nobody else is asked for an attribute."""
    getter: object = kind.__getattribute__
    return getter is object.__getattribute__ and not hasattr(kind, "__getattr__")


@lru_cache(256)
def is_tensor_type(kind: type) -> bool:
    """Whether all values of a type are tensors: 0.1 us against 0.8 for a look at the value (tests/bench/key.py)."""
    has_layout = hasattr(kind, "shape") and (hasattr(kind, "stride") or hasattr(kind, "strides"))
    is_scalar = any(base.__module__ == "numpy" and base.__qualname__ == "generic" for base in kind.__mro__)
    return has_layout and hasattr(kind, "dtype") and not is_scalar and not issubclass(kind, tuple)


def strides_of(tensor: Any) -> tuple[int, ...]:
    """Strides in elements; array libraries that count bytes are converted."""
    stride = getattr(tensor, "stride", None)
    if stride is not None:
        return tuple(stride())
    return tuple(step // tensor.itemsize for step in tensor.strides)


def sizes_of(tensor: Any, bucket: Callable[[int], Any] = int) -> tuple[int, ...]:
    """A tensor's sizes; of a nested one, which has none, rank and sizes of each tensor in it."""
    if not getattr(tensor, "is_nested", False):
        return tuple(int(bucket(int(size))) for size in tensor.shape)
    return tuple(number for inner in tensor.unbind() for number in (inner.dim(), *sizes_of(inner, bucket)))


def stride_pattern(shape: Sequence[int], strides: Sequence[int]) -> str:
    """One character a dimension: '0' broadcast, '1' dense, '*' any other stride.

    The stride of a dimension of size 1, and every stride of an empty tensor, moves nothing and differs between
    libraries; such a dimension counts as it would in a contiguous tensor of that shape, so that a batch of one and
    a batch of many share a pattern.

    A launch table's words must tell apart whatever this does: `stride_pattern` in launch/c/signature.h and
    `_layout_words` in launch/table.py change with it.
    """
    empty = 0 in shape
    pattern = []
    for dim, (size, stride) in enumerate(zip(shape, strides)):
        if size == 1 or empty:
            stride = math.prod(max(following, 1) for following in shape[dim + 1 :])
        pattern.append(str(stride) if stride in (0, 1) else "*")
    return "".join(pattern)


def is_descriptor(value: Any) -> bool:
    """Whether a value is one of Triton's tensor descriptors: a tensor as `base`, and the shape of a block of it."""
    is_one = hasattr(value, "base") and hasattr(value, "block_shape") and hasattr(value, "strides")
    return is_one and not isinstance(value, (tuple, type))


def dtypes_in(path: str, value: Any) -> Iterator[tuple[str, str]]:
    """Dtypes in an argument: of a tensor, of a descriptor's tensor, and of the members of a tuple."""
    if is_tensor(value) or (hasattr(value, "dtype") and not isinstance(value, (tuple, type))):
        yield path, str(value.dtype)
    elif hasattr(value, "base") and hasattr(value, "block_shape"):
        yield path, str(value.base.dtype)
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from dtypes_in(f"{path}[{index}]", item)
