"""Keeping trials out of the user's data: `restore_value`, `reset_to_zero`, and what a kernel writes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from autotuned.key import is_tensor, strides_of


def tensors_in(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The tensors of one argument with the argument's name: itself, or those inside a tuple or descriptor."""
    if is_tensor(value):
        yield name, value
    elif isinstance(value, tuple):
        for item in value:
            yield from tensors_in(name, item)
    elif hasattr(value, "base") and hasattr(value, "block_shape"):
        yield from tensors_in(name, value.base)


class Snapshot:
    """The elements of one tensor, set aside; the kernel goes on seeing the caller's own memory."""

    def __init__(self, name: str, tensor: Any) -> None:
        self.name = name
        self._view = _elements(tensor)
        self._saved = _copy_of(self._view)

    def restore(self) -> None:
        """Write the elements back through the caller's own view; bytes between them are not touched."""
        _write(self._view, self._saved)

    def changed(self) -> bool:
        """Whether any bit differs from what was set aside (NaN payloads and -0.0 included)."""
        return not _same_bits(self._view, self._saved)


def _is_torch(tensor: Any) -> bool:
    return type(tensor.dtype).__module__ == "torch"


def _elements(tensor: Any) -> Any:
    """A view of the same memory in which no element appears twice.

    An expanded tensor (stride 0) is cut to one element a repeated dimension. Where elements overlap otherwise, the
    whole span they lie in is taken: restoring an element twice from two copies could mix old and new bytes.
    """
    if not _is_torch(tensor):
        return tensor
    view = tensor.data  # its own version counter: restoring must not upset autograd's saved tensors
    for dim, stride in enumerate(view.stride()):
        if stride == 0 and view.shape[dim] > 1:
            view = view.narrow(dim, 0, 1)
    if view.numel() and _overlaps_itself(tuple(view.shape), tuple(view.stride())):
        span = 1 + sum((size - 1) * stride for size, stride in zip(view.shape, view.stride()))
        view = view.as_strided((span,), (1,), view.storage_offset())
    return view


def _overlaps_itself(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    reach = 0
    for stride, size in sorted(zip(strides, shape)):
        if size == 1:
            continue
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def _copy_of(view: Any) -> Any:
    if not _is_torch(view):
        return view.copy()
    import torch

    with torch.inference_mode(view.is_inference()), torch.no_grad():
        try:
            return view.clone()
        except torch.OutOfMemoryError:
            return view.cpu()  # slower to restore, but the search goes on beside a full device


def _write(view: Any, saved: Any) -> None:
    if not _is_torch(view):
        view[...] = saved
        return
    import torch

    with torch.inference_mode(view.is_inference()), torch.no_grad():
        view.copy_(saved)


def _same_bits(view: Any, saved: Any) -> bool:
    if not _is_torch(view):
        return bool(view.tobytes() == saved.tobytes())
    import torch

    with torch.inference_mode(view.is_inference()), torch.no_grad():
        return bool(torch.equal(_bytes_of(view.to(saved.device)), _bytes_of(saved)))


def _bytes_of(tensor: Any) -> Any:
    import torch

    dense = tensor.contiguous()
    # Not reshape(-1): one element counts as contiguous whatever its stride, and bytes can be seen at stride 1 only.
    return dense.as_strided((dense.numel(),), (1,), dense.storage_offset()).view(torch.uint8)


class Protection:
    """What one search must undo: made before its first trial, used before each, released at its end.

    Args:
        arguments: The bound arguments by name.
        restore: Names to protect, exactly as declared; None finds out by watching every tensor.
        zero: Names zeroed before each trial.
    """

    def __init__(self, arguments: Mapping[str, Any], restore: Iterable[str] | None, zero: Iterable[str]) -> None:
        self._watching = restore is None
        names = list(arguments) if restore is None else list(restore)
        self._zeroed = [tensor for name in zero for _, tensor in tensors_in(name, arguments.get(name))]
        pairs = [pair for name in names for pair in tensors_in(name, arguments.get(name))]
        self._snapshots = [Snapshot(name, tensor) for name, tensor in pairs]
        self._written = [] if self._watching else list(self._snapshots)

    def prepare(self) -> None:
        """Give the next trial what the caller gave: written tensors restored, accumulators zeroed."""
        for snapshot in self._written:
            snapshot.restore()
        zero(self._zeroed)

    def learn(self) -> None:
        """After a config's first launch: note which watched tensors it wrote, so that they are restored."""
        if self._watching:
            known = set(map(id, self._written))
            self._written += [s for s in self._snapshots if id(s) not in known and s.changed()]

    def release(self) -> None:
        """Put everything back and let go of the copies; also after an exception, and more than once."""
        for snapshot in self._written:
            snapshot.restore()
        self._snapshots = self._written = []

    @property
    def written(self) -> list[str]:
        """Names of the arguments seen to be written, or declared, in order and once each."""
        return list(dict.fromkeys(snapshot.name for snapshot in self._written))


def zero(tensors: Iterable[Any]) -> None:
    """Set tensors to zero in place, outside autograd's sight."""
    for tensor in tensors:
        if _is_torch(tensor):
            _write_zero(tensor)
        else:
            tensor[...] = 0


def _write_zero(tensor: Any) -> None:
    if not tensor.is_inference():
        tensor.data.zero_()  # `data` has no gradient: no context is needed, which costs more than the launch
        return
    import torch

    with torch.inference_mode():
        tensor.zero_()


def zero_named(arguments: Mapping[str, Any], names: Iterable[str]) -> None:
    """Zero the named arguments; None and absent ones are skipped."""
    zero(tensor for name in names for _, tensor in tensors_in(name, arguments.get(name)))


def refuse_aliases(arguments: Mapping[str, Any], zeroed: Iterable[str], kernel: str) -> None:
    """Refuse to zero an argument that shares memory with one that is not zeroed.

    Raises:
        ValueError: Names the two.
    """
    pair = aliases(arguments, zeroed)
    if pair is not None:
        raise ValueError(
            f"`{kernel}`: reset_to_zero names {pair[0]!r}, which shares memory with argument {pair[1]!r} in this call: "
            "zeroing it would destroy that input. Pass a separate tensor."
        )


def aliases(arguments: Mapping[str, Any], zeroed: Iterable[str]) -> tuple[str, str] | None:
    """A name among `zeroed` and an argument outside it that share memory, or None."""
    spans = [
        (name, *span)
        for name, value in arguments.items()
        for _, tensor in tensors_in(name, value)
        if (span := _span(tensor))
    ]
    for name, start, end in spans:
        for other, other_start, other_end in spans:
            if name in zeroed and other not in zeroed and start < other_end and other_start < end:
                return name, other
    return None


def _span(tensor: Any) -> tuple[int, int] | None:
    """First byte and one past the last byte of a tensor's memory; None where it has none to speak of."""
    start = _address(tensor)
    if start is None or 0 in tuple(tensor.shape):
        return None
    steps = [(size - 1) * stride for size, stride in zip(tensor.shape, strides_of(tensor))]
    low, high = sum(min(step, 0) for step in steps), 1 + sum(max(step, 0) for step in steps)
    return start + low * tensor.itemsize, start + high * tensor.itemsize


def _address(tensor: Any) -> int | None:
    if hasattr(tensor, "data_ptr"):
        return int(tensor.data_ptr())
    interface = getattr(tensor, "__array_interface__", None) or getattr(tensor, "__cuda_array_interface__", None)
    return int(interface["data"][0]) if interface else None
