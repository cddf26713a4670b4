"""Where tensors lie: their memory, their GPU, and which arguments share memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from autotuned.errors import CallError
from autotuned.key import walk
from autotuned.key.key import PLAIN, is_tensor_type, strides_of


def tensors_in(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The tensors that an argument is or contains, each with the argument's name.

    An array of objects stands for the tensors in it, and is yielded itself only if it contains none.
    """
    if type(value) in PLAIN:
        return
    for tensor in [value] if _is_plain_array(value) else walk.tensors(value):
        if not walk.holds_objects(tensor) or len(walk.tensors(tensor)) == 1:
            yield name, tensor


def _is_plain_array(value: Any) -> bool:
    kind: Any = type(value)
    return is_tensor_type(kind) and walk.is_strided(value) and not walk.holds_objects(value)


def refuse_without_tensor(arguments: Mapping[str, Any], lists: Mapping[str, Iterable[str]], kernel: str) -> None:
    """Raise CallError if a listed argument neither is nor contains a tensor; None and containers of None are allowed.

    `lists` has argument names by the option that lists them.
    """
    for label, names in lists.items():
        for name in names:
            if name in arguments and (_is_none(arguments[name]) or any(tensors_in(name, arguments[name]))):
                continue
            value: Any = arguments.get(name, "what configs or heuristics set")
            raise CallError(
                f"`{kernel}`: {label} names {name!r}: expected a tensor, or an object that contains one, "
                f"got {type(value).__name__}: {value!r:.60}. Pass the tensor itself, "
                f"or remove {name!r} from {label}=.",
                kernel=kernel,
            )


def _is_none(value: Any) -> bool:
    items = value.values() if type(value) is dict else value
    return value is None or (type(value) in (tuple, list, dict) and all(item is None for item in items))


def gpu_of(value: Any) -> int | None:
    """Index of the GPU of the nearest GPU array that an argument is or contains, or None.

    Large values are searched only near their root (`walk.near`): launches ask this on every call.
    """
    if type(value) in PLAIN:
        return None
    found = value if _is_plain_array(value) else walk.near(value, lambda tensor: _gpu_index(tensor) is not None)
    return None if found is None else _gpu_index(found)


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
    """Sizes and strides reaching the same elements; a dimension whose steps fall on those of another one lengthens it.

    If steps do not divide each other an element may still appear several times, with the same bits.
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
