"""Keeping trials out of the user's data: `restore_value`, `reset_to_zero`, and what a kernel writes."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from autotuned import env
from autotuned.key import walk
from autotuned.key.key import strides_of
from autotuned.key.memory import address, bytes_in, elements, is_torch, tensors_in
from autotuned.launch import bound
from autotuned.search.failures import is_memory_error


class Snapshot:
    """The elements of one tensor, set aside; the kernel goes on seeing the caller's own memory.

    Args:
        names: Arguments that are this very tensor.
        on_host: Keep the copy in host memory.
    """

    def __init__(self, names: Iterable[str], tensor: Any, on_host: bool = False) -> None:
        self.names = list(names)
        self._view = bytes_in(elements(tensor)) if is_torch(tensor) else tensor
        self._saved = _copy_of(self._view, on_host)

    @property
    def nbytes(self) -> int:
        """Size of the copy."""
        return int(math.prod(self._view.shape) * self._view.itemsize)

    def restore(self) -> None:
        """Write the elements back through the caller's own view; bytes between them are not touched."""
        _write(self._view, self._saved)

    def changed(self) -> bool:
        """Whether any bit differs from what was set aside (NaN payloads and -0.0 included)."""
        return not _same_bits(self._view, self._saved)

    def move_to_host(self) -> None:
        """Give the device's memory back, and keep the copy in host memory."""
        if is_torch(self._saved) and self._saved.is_cuda:
            self._saved = _to_host(self._saved)


# Copies and comparisons across memories go in parts of this size, so that what they need beside the copies is small.
CHUNK_BYTES, SMALLEST_CHUNK_BYTES = 8 << 20, 64 << 10


def _copy_of(view: Any, on_host: bool) -> Any:
    if not is_torch(view):
        return view.copy()
    import torch

    with torch.inference_mode(view.is_inference()), torch.no_grad():
        if on_host:
            return _to_host(view)
        try:
            return view.clone()
        except Exception as error:
            if not is_memory_error(error):
                raise
        return _to_host(view)  # slower to restore, but the search goes on beside a full device


def _to_host(view: Any) -> Any:
    """A copy in pinned host memory, in pageable memory where that is short, made part by part."""
    message = "device memory is short: what trials may change is kept in host memory, and a search takes longer."
    env.warn_once("host copies", message)
    saved = _host_memory(view)
    _across(saved, view, CHUNK_BYTES)
    return saved


def _host_memory(view: Any) -> Any:
    import torch

    if view.is_cuda:
        with contextlib.suppress(RuntimeError):  # no more memory may be pinned
            return torch.empty(view.shape, dtype=view.dtype, pin_memory=True)
    return torch.empty(view.shape, dtype=view.dtype)


def _parts(view: Any, other: Any, limit: int) -> Iterator[tuple[Any, Any]]:
    """Two tensors of one shape, cut alike into parts of at most `limit` bytes."""
    longest = max(view.shape, default=1)
    if view.numel() * view.element_size() <= limit or longest <= 1:
        yield view, other
        return
    dim = tuple(view.shape).index(longest)
    for start, size in ((0, longest // 2), (longest // 2, longest - longest // 2)):
        yield from _parts(view.narrow(dim, start, size), other.narrow(dim, start, size), limit)


def _write(view: Any, saved: Any) -> None:
    if not is_torch(view):
        view[...] = saved
        return
    import torch

    with torch.inference_mode(view.is_inference()), torch.no_grad():
        if saved.device == view.device:
            view.copy_(saved)
            return
        _across(view, saved, CHUNK_BYTES, non_blocking=True)  # else it waits for the sleep that holds a timer's stream


def _across(to: Any, source: Any, limit: int, non_blocking: bool = False) -> None:
    """Copy between two memories in parts, which get smaller where there is no room beside them.

    A part that is not dense takes a copy of itself on the device; of one element there is none.
    """
    for part, given in _parts(to, source, limit):
        try:
            part.copy_(given, non_blocking=non_blocking)
            continue
        except Exception as error:
            if not is_memory_error(error) or part.numel() <= 1:
                raise
        _across(part, given, max(limit // 8, part.element_size()), non_blocking)


def _same_bits(view: Any, saved: Any, limit: int = CHUNK_BYTES) -> bool:
    """Whether two tensors hold the same bits; False, too, where there is no room to tell: what is restored once too
    often is right all the same.
    """
    if not is_torch(view):
        return bool(view.tobytes() == saved.tobytes())
    import torch

    at_last = limit < SMALLEST_CHUNK_BYTES  # then in host memory, which takes none of the device's for a dense part
    with torch.inference_mode(view.is_inference()), torch.no_grad():
        try:
            return all(
                _are_equal(part, kept, "cpu" if at_last else kept.device) for part, kept in _parts(view, saved, limit)
            )
        except Exception as error:
            if not is_memory_error(error):
                raise
    return False if at_last else _same_bits(view, saved, limit // 8)


def _are_equal(part: Any, kept: Any, where: Any) -> bool:
    import torch

    return bool(torch.equal(_bytes_of(part.to(where)), _bytes_of(kept.to(where))))


def _bytes_of(tensor: Any) -> Any:
    import torch

    dense = tensor.contiguous()
    # Not reshape(-1): one element counts as contiguous whatever its stride, and bytes can be seen at stride 1 only.
    return dense.as_strided((dense.numel(),), (1,), dense.storage_offset()).view(torch.uint8)


class Known(NamedTuple):
    """What is known of arguments before a search has launched anything.

    Attributes:
        restore: Names to restore in any case.
        unread: Names that are not read in a trial: put back at the end, and between trials by `renew` alone.
        quietly: Of the names to protect, those that count as written only if they are seen to be.
    """

    restore: Iterable[str] = ()
    unread: Collection[str] = ()
    quietly: Collection[str] = ()


_NOTHING_KNOWN = Known()


class Protection:
    """What one search must undo: made before its first trial, used before each, released at its end.

    Args:
        arguments: The bound arguments by name.
        restore: Names to protect, exactly as declared; None finds out by watching every tensor.
        zero: Names zeroed before each trial.
        watch: Watch every tensor also where `restore` is given; what is seen then changes nothing but `seen`.
        on_host: Keep all copies in host memory.
        also: What is known of some names.
    """

    def __init__(
        self,
        arguments: Mapping[str, Any],
        restore: Iterable[str] | None,
        zero: Iterable[str],
        watch: bool = False,
        on_host: bool = False,
        also: Known = _NOTHING_KNOWN,
    ) -> None:
        known, zero = set(also.restore), list(zero)
        declared = None if restore is None else {*restore, *known}
        self._learning = declared is None
        self._watching = watch or declared is None
        self._zeroed = [tensor for name in zero for _, tensor in tensors_in(name, arguments.get(name))]
        names = arguments if declared is None or watch else [name for name in arguments if name in declared]
        self._snapshots = _snapshots(arguments, names, on_host)
        zeroed = {s for s in self._snapshots if not set(zero).isdisjoint(s.names)}
        self._unread = {s for s in self._snapshots if set(also.unread).issuperset(s.names)} - zeroed
        self._left = zeroed | self._unread  # between trials
        self._written = [s for s in self._snapshots if (declared or known) & set(s.names)]
        self._seen = [s for s in self._written if not set(also.quietly).issuperset(s.names)]
        self._is_known = True

    def begin(self) -> None:
        """Before a config's first launch: until `learn` has seen what it wrote, nobody knows."""
        self._is_known = False

    def keep(self, name: str) -> None:
        """Restore an argument too, as far as it is watched: it counts as written."""
        for known in (self._written, self._seen):
            known += [s for s in self._snapshots if name in s.names and s not in known]

    def drop(self, name: str) -> None:
        """Restore an argument for the last time: it turned out not to be written."""
        for snapshot in [s for s in self._written if name in s.names]:
            snapshot.restore()
            self._written.remove(snapshot)
            self._seen.remove(snapshot)

    def prepare(self) -> None:
        """Give the next trial what the caller gave: tensors written and read restored, accumulators zeroed."""
        for snapshot in self._written:
            if snapshot not in self._left:
                snapshot.restore()
        bound.zero(self._zeroed)

    def renew(self) -> None:
        """Put back what nothing reads too: somebody is going to look at it."""
        for snapshot in self._written:
            if snapshot in self._unread:
                snapshot.restore()

    def learn(self) -> None:
        """After a config's first launch: note which watched tensors it wrote, so that they are restored."""
        if self._watching:
            known = set(map(id, self._seen))
            fresh = [s for s in self._snapshots if id(s) not in known and s.changed()]
            self._seen += fresh
            if self._learning:
                self._written += fresh
        self._is_known = True

    def move_to_host(self) -> None:
        """Give the device's memory back, and keep all copies in host memory."""
        for snapshot in self._snapshots:
            snapshot.move_to_host()

    def release(self) -> None:
        """Put everything back and let go of the copies; also after an exception, and more than once."""
        if not self._is_known:  # Ctrl-C, in the launch or right after it
            self.learn()
        while self._written:
            self._written[-1].restore()
            self._written.pop()  # not before: whoever meets a full device here tries again
        self.abandon()

    def abandon(self) -> None:
        """Let go of the copies and put nothing back: the device is lost."""
        self._snapshots, self._written, self._seen = [], [], []
        self._unread, self._left = set(), set()

    @property
    def written(self) -> list[str]:
        """Names of the arguments seen to be written, or declared, in order and once each."""
        return _names(self._written)

    @property
    def seen(self) -> list[str]:
        """Names of the arguments declared or seen to be written, whether they are restored or not."""
        return _names(self._seen)

    @property
    def nbytes(self) -> tuple[int, int]:
        """Bytes of all copies, and of those that were needed."""
        return sum(s.nbytes for s in self._snapshots), sum(s.nbytes for s in self._seen)


def _names(snapshots: Iterable[Snapshot]) -> list[str]:
    return list(dict.fromkeys(name for snapshot in snapshots for name in snapshot.names))


def _snapshots(arguments: Mapping[str, Any], names: Iterable[str], on_host: bool) -> list[Snapshot]:
    """One snapshot a tensor: arguments that are the same view of the same memory share it."""
    found: dict[Any, tuple[list[str], Any]] = {}
    for name in names:
        for tensor in walk.tensors(arguments[name]):
            place = (address(tensor), tuple(tensor.shape), tuple(strides_of(tensor)), tensor.dtype)
            same = place if place[0] is not None else id(tensor)
            found.setdefault(same, ([], tensor))[0].append(name)
    return [Snapshot(dict.fromkeys(shared), tensor, on_host) for shared, tensor in found.values()]


@contextlib.contextmanager
def without_gradients() -> Iterator[None]:
    """Hooks write tensors that may require grad; torch is not imported for a callable that does not use it."""
    if "torch" not in sys.modules:
        yield
        return
    import torch

    with torch.no_grad():
        yield


PATTERN = 0x5A  # in integers: neither zero nor a value that a kernel is likely to leave


def poison(tensors: Iterable[Any]) -> None:
    """Fill tensors with what no kernel should leave: NaN, a pattern for integers, True for booleans."""
    for tensor in tensors:
        value = _poison_of(str(tensor.dtype))
        if not is_torch(tensor):
            tensor[...] = value
            continue
        import torch

        with torch.inference_mode(tensor.is_inference()), torch.no_grad():
            _fill(elements(tensor), value)


def _fill(view: Any, value: float | int | bool) -> None:
    try:
        view.fill_(value)
    except NotImplementedError:  # of some dtypes, as of four bits, torch knows the name alone
        bytes_in(view).fill_(PATTERN)


def _poison_of(dtype: str) -> float | int | bool:
    if "float" in dtype or "complex" in dtype:
        return math.nan
    return True if "bool" in dtype else PATTERN
