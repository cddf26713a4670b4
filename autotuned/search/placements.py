"""Copies of a call's tensors at other addresses, for the final duel.

Which of two configs is faster may depend on where the tensors lie: of two that differ by less than 4%, for the gradient
of LayerNorm on an H200, each won on some copies of the same tensors and lost on others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from autotuned.key import memory
from autotuned.key.key import PLAIN
from autotuned.key.memory import is_torch
from autotuned.search.failures import is_memory_error
from autotuned.tunable.call import Call

# What all copies together may take, absolute and as a share of the device's free memory.
MOST_BYTES, MOST_SHARE = 1 << 30, 0.25
ALIGNED = 512  # bytes, as torch's allocator aligns; a copy lies as its original does relative to this


@dataclass(frozen=True)
class Placement:
    """A call on copies of its tensors; views of one storage remain views of one copy.

    Attributes:
        renew: Copies the written tensors' current content again.
    """

    call: Call
    renew: Callable[[], None]


def elsewhere(call: Call, written: Collection[str], count: int) -> Iterator[Placement]:
    """Up to `count` placements, which must be kept alive together: freed memory would be used for the next.

    None if an argument contains tensors other than plain ones of torch, of one device, or if copies would be too large.
    """
    named = _plain_tensors(call.arguments)
    tensors = [tensor for _, tensor in named]
    if not _are_together(tensors) or not _has_room(tensors, count):
        return
    for _ in range(count):
        try:
            placed = _placed(call, named, written)
        except Exception as error:
            if not is_memory_error(error):
                raise
            placed = None
        if placed is None:
            return
        yield placed


def _plain_tensors(arguments: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Tensors by argument; none if one is of a subclass, is not strided, or lies in a container."""
    found = [(name, value) for name, value in arguments.items() if type(value) not in PLAIN]
    tensors = [(name, value) for name, value in found if _is_plain(value)]
    rest = [value for _, value in found if not _is_plain(value)]
    return [] if any(map(memory.tensors, rest)) or any(map(memory.is_cut, rest)) else tensors


def _is_plain(value: Any) -> bool:
    kind = type(value)
    is_named_so = kind.__module__.startswith("torch") and kind.__name__ in ("Tensor", "Parameter")
    return is_named_so and memory.is_strided(value) and is_torch(value) and not (value.is_conj() or value.is_quantized)


def _are_together(tensors: list[Any]) -> bool:
    """Whether a copy is reached as its original is: a GPU reaches pinned host memory, and peers, but not any other."""
    return len({one.device for one in tensors}) == 1 and not any(one.is_pinned() for one in tensors if not one.is_cuda)


def _has_room(tensors: list[Any], count: int) -> bool:
    import torch

    storages = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in tensors}
    gpus = {one.device for one in tensors if one.is_cuda}
    free = [MOST_SHARE * torch.cuda.mem_get_info(gpu)[0] for gpu in gpus]
    return bool(count * sum(storages.values()) <= min([MOST_BYTES, *free]))


def _placed(call: Call, tensors: list[tuple[str, Any]], written: Collection[str]) -> Placement | None:
    import torch

    copies: dict[int, tuple[Any, Any, Any]] = {}  # by address of a storage: its bytes, their copy, where it begins
    moved: dict[int, Any] = {}  # by the original's id
    changing = {}
    for name, tensor in tensors:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in copies:
            copies[storage.data_ptr()] = _copy(torch, tensor)
        source, copy, start = copies[storage.data_ptr()]
        if start % tensor.element_size():
            return None
        place = start // tensor.element_size() + tensor.storage_offset()
        view = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        moved[id(tensor)] = view.set_(copy.untyped_storage(), place, tensor.shape, tensor.stride())
        if name in written:
            changing[storage.data_ptr()] = source, copy

    def renew() -> None:
        for source, copy in changing.values():
            copy.copy_(source)

    def there(value: Any) -> Any:
        return moved.get(id(value), value)

    arguments = {name: there(value) for name, value in call.arguments.items()}
    keywords = {name: there(value) for name, value in call.kwargs.items()}
    return Placement(Call(tuple(map(there, call.args)), keywords, arguments, call.options, call.grid), renew)


def _copy(torch: Any, tensor: Any) -> tuple[Any, Any, int]:
    """The bytes of a tensor's storage, a copy, and the byte at which that begins in its own storage."""
    storage = tensor.untyped_storage()
    source = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage, 0, (storage.nbytes(),), (1,))
    room = torch.empty(storage.nbytes() + ALIGNED, dtype=torch.uint8, device=tensor.device)
    start = (storage.data_ptr() - room.data_ptr()) % ALIGNED
    return source, room[start : start + storage.nbytes()].copy_(source), start
