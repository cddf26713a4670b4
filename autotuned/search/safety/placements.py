"""Copies of a call's tensors at other addresses, for the last comparison.

Which of two configs is faster may depend on tensor addresses: of two that differ by less than 4%, for the gradient
of LayerNorm on an H200, each won on some copies of the same tensors and lost on others.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from autotuned.key import memory
from autotuned.key.key import PLAIN
from autotuned.key.memory import is_torch
from autotuned.search import failures
from autotuned.tunable.call import Call

log = logging.getLogger("autotuned")
# Limits on the memory of all copies together, absolute and as a share of the device's free memory.
MOST_BYTES, MOST_SHARE = 1 << 30, 0.25
ALIGNED = 512  # bytes, torch's alignment; a copy has its original's offset modulo this


@dataclass(frozen=True)
class Placement:
    """A call on copies of its tensors; views of one storage remain views of one copy.

    Attributes:
        renew: Copies the written tensors' current content again.
    """

    call: Call
    renew: Callable[[], None]


def elsewhere(call: Call, written: Collection[str], count: int) -> list[Placement]:
    """Up to `count` placements. Keep them alive together: freed memory would be reused for the next.

    Empty if an argument contains tensors other than plain torch ones on one device, if their storages overlap, if
    torch does not give access to one, or if copies would be too large.
    """
    named, places = _plain_tensors(call.arguments), list[Placement]()
    tensors = [tensor for _, tensor in named]
    try:
        fit = _are_together(tensors) and _are_apart(tensors) and _has_room(tensors, count)
        while fit and len(places) < count and (placed := _placed(call, named, written)) is not None:
            places.append(placed)
    except (RuntimeError, MemoryError) as error:  # full memory, a capture of another thread, or no real memory
        log.debug("no copy of the tensors for the final duel: %s", failures.describe(error))
    return places


def _plain_tensors(arguments: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Tensors by argument; none if one is of a subclass, not strided, or inside a container."""
    found = [(name, value) for name, value in arguments.items() if type(value) not in PLAIN]
    tensors = [(name, value) for name, value in found if _is_plain(value)]
    rest = [value for _, value in found if not _is_plain(value)]
    return [] if any(map(memory.tensors, rest)) or any(map(memory.is_cut, rest)) else tensors


def _is_plain(value: Any) -> bool:
    kind = type(value)
    is_named_so = kind.__module__.startswith("torch") and kind.__name__ in ("Tensor", "Parameter")
    if not (is_named_so and memory.is_strided(value) and is_torch(value)):
        return False
    more = memory.tensors(vars(value)) or (value.is_leaf and value.grad is not None)  # memory that would not be copied
    return not (more or value.is_conj() or value.is_neg() or value.is_quantized)


def _are_together(tensors: list[Any]) -> bool:
    """Whether all are on one device and none is in pinned memory, which a GPU reaches, unlike a plain copy."""
    return len({one.device for one in tensors}) == 1 and not any(one.is_pinned() for one in tensors if not one.is_cuda)


def _are_apart(tensors: list[Any]) -> bool:
    """Whether distinct storages do not overlap; two that were made from one NumPy array may."""
    spans = sorted({_span(one) for one in tensors if one.untyped_storage().nbytes()})
    return all(start + size <= after for (start, size), (after, _) in itertools.pairwise(spans))


def _span(tensor: Any) -> tuple[int, int]:
    """Address and bytes of a tensor's storage."""
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.nbytes()


def _has_room(tensors: list[Any], count: int) -> bool:
    import torch

    gpus = {one.device for one in tensors if one.is_cuda}
    free = [MOST_SHARE * torch.cuda.mem_get_info(gpu)[0] for gpu in gpus]
    return bool(count * sum(size for _, size in set(map(_span, tensors))) <= min([MOST_BYTES, *free]))


def _placed(call: Call, tensors: list[tuple[str, Any]], written: Collection[str]) -> Placement | None:
    import torch

    copies: dict[tuple[int, int], tuple[Any, Any, int]] = {}  # by span: its bytes, their copy, where it begins
    moved: dict[int, Any] = {}  # by the original's id
    changing = {}
    for name, tensor in tensors:
        span = _span(tensor)
        if span not in copies:
            copies[span] = _copy(torch, tensor)
        source, copy, start = copies[span]
        if start % tensor.element_size():
            return None
        place = start // tensor.element_size() + tensor.storage_offset()
        view = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        moved[id(tensor)] = _alike(view.set_(copy.untyped_storage(), place, tensor.shape, tensor.stride()), tensor)
        if name in written:
            changing[span] = source, copy

    def renew() -> None:
        for source, copy in changing.values():
            copy.copy_(source)

    def there(value: Any) -> Any:
        return moved.get(id(value), value)

    arguments = {name: there(value) for name, value in call.arguments.items()}
    keywords = {name: there(value) for name, value in call.kwargs.items()}
    return Placement(Call(tuple(map(there, call.args)), keywords, arguments, call.options, call.grid), renew)


def _alike(view: Any, tensor: Any) -> Any:
    """A view with the tensor's class, `requires_grad` and attributes, which callables may read."""
    made = view.as_subclass(type(tensor)).requires_grad_(tensor.requires_grad)
    vars(made).update(vars(tensor))
    return made


def _copy(torch: Any, tensor: Any) -> tuple[Any, Any, int]:
    """The bytes of a tensor's storage, a copy, and the byte of the copy's own storage at which it begins."""
    storage = tensor.untyped_storage()
    source = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage, 0, (storage.nbytes(),), (1,))
    room = torch.empty(storage.nbytes() + ALIGNED, dtype=torch.uint8, device=tensor.device)
    start = (storage.data_ptr() - room.data_ptr()) % ALIGNED
    return source, room[start : start + storage.nbytes()].copy_(source), start
