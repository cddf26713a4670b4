"""Keep trials from changing the user's data: `restore_value`, `reset_to_zero`, and detection of writes."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from autotuned import env
from autotuned.key import memory
from autotuned.key.key import strides_of
from autotuned.key.memory import address, bytes_in, elements, is_torch, tensors_in
from autotuned.launch import bound
from autotuned.search.failures import is_memory_error, suppress_memory_errors

if TYPE_CHECKING:
    from autotuned.search.compiling.compile import CompileStream
    from autotuned.search.job import Job, Outcome

Result = TypeVar("Result")
_NOTHING_YET = object()


class Snapshot:
    """A copy of a tensor's elements, on the host or its device; the kernel keeps working on the caller's memory."""

    def __init__(self, names: Iterable[str], tensor: Any, on_host: bool = False) -> None:
        self.names = list(names)
        self._view = bytes_in(elements(tensor)) if is_torch(tensor) else tensor
        self._saved = _copy_of(self._view, on_host)

    @property
    def nbytes(self) -> int:
        """Size of the copy."""
        return int(math.prod(self._view.shape) * self._view.itemsize)

    def restore(self) -> None:
        """Write the elements back through the caller's view, without touching bytes between them."""
        _write(self._view, self._saved)

    def changed(self) -> bool:
        """Whether any bit differs from the copy, NaN payloads and -0.0 included."""
        return not _same_bits(self._view, self._saved)

    def move_to_host(self) -> None:
        """Move the copy to host memory."""
        if is_torch(self._saved) and self._saved.is_cuda:
            self._saved = _to_host(self._saved)


# Part size for copies and comparisons between memories, which keeps temporaries small.
CHUNK_BYTES, SMALLEST_CHUNK_BYTES = 8 << 20, 64 << 10


def _copy_of(view: Any, on_host: bool) -> Any:
    if not is_torch(view):
        return view.copy()
    import torch

    with torch.inference_mode(view.is_inference()), torch.no_grad():
        if on_host:
            return _to_host(view)
        with suppress_memory_errors():
            return view.clone()
        return _to_host(view)  # slower to restore, but the search continues


def _to_host(view: Any) -> Any:
    """A copy in pinned host memory, pageable if that is short, made in parts."""
    message = "device memory is short: a copy of the caller's data is kept in host memory; the search is slower."
    env.warn_once("host copies", message)
    saved = _host_memory(view)
    _across(saved, view, CHUNK_BYTES)
    return saved


def _host_memory(view: Any) -> Any:
    import torch

    if view.is_cuda:
        with contextlib.suppress(RuntimeError):  # the limit on pinned memory is reached
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
        _across(view, saved, CHUNK_BYTES, non_blocking=True)  # else it waits for the timer's sleeping kernel


def _across(to: Any, source: Any, limit: int, non_blocking: bool = False) -> None:
    """Copy between two memories in parts, smaller ones if memory is short.

    A part that is not dense needs a temporary copy on the device; a single element does not.
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
    """Whether two tensors hold the same bits.

    False if memory is too short to compare them: restoring once too often is harmless.
    """
    if not is_torch(view):
        return bool(view.tobytes() == saved.tobytes())
    import torch

    at_last = limit < SMALLEST_CHUNK_BYTES  # then compare in host memory
    with torch.inference_mode(view.is_inference()), torch.no_grad(), suppress_memory_errors():
        where, pairs = "cpu" if at_last else saved.device, _parts(view, saved, limit)
        return all(torch.equal(_bytes_of(part.to(where)), _bytes_of(kept.to(where))) for part, kept in pairs)
    return False if at_last else _same_bits(view, saved, limit // 8)


def _bytes_of(tensor: Any) -> Any:
    import torch

    dense = tensor.contiguous()
    # Not reshape(-1): a single element is contiguous at any stride, and `view(uint8)` needs stride 1.
    return dense.as_strided((dense.numel(),), (1,), dense.storage_offset()).view(torch.uint8)


class KnownArguments(NamedTuple):
    """Facts about arguments that are known before the first launch."""

    restore: Iterable[str] = ()  # names to restore in any case
    unread: Collection[str] = ()  # names that trials do not read: restored at the end, and by `renew`
    quietly: Collection[str] = ()  # protected names that count as written only once seen to be


_NOTHING_KNOWN = KnownArguments()


class Protection:
    """Restores the caller's data: made before the first trial, used before each, released at the end.

    Args:
        arguments: The bound arguments by name.
        restore: Names to protect; None to detect them by watching every tensor.
        zero: Names zeroed before each trial.
        watch: Watch every tensor even if `restore` is given; this affects `seen` only.
        on_host: Keep all copies in host memory.
        also: Facts about some names.
    """

    def __init__(
        self,
        arguments: Mapping[str, Any],
        restore: Iterable[str] | None,
        zero: Iterable[str],
        watch: bool = False,
        on_host: bool = False,
        also: KnownArguments = _NOTHING_KNOWN,
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
        self._left = zeroed | self._unread  # not restored between trials
        self._written = [s for s in self._snapshots if (declared or known) & set(s.names)]
        self._seen = [s for s in self._written if not set(also.quietly).issuperset(s.names)]
        self._is_known = True

    def begin(self) -> None:
        """Prepare a config's first launch: until `learn` its writes are unknown."""
        self._is_known = False

    def keep(self, name: str) -> None:
        """Restore a watched argument too, as if it were written."""
        for known in (self._written, self._seen):
            known += [s for s in self._snapshots if name in s.names and s not in known]

    def drop(self, name: str) -> None:
        """Restore an argument for the last time: it is not written after all."""
        for snapshot in [s for s in self._written if name in s.names]:
            snapshot.restore()
            self._written.remove(snapshot)
            self._seen.remove(snapshot)

    def prepare(self) -> None:
        """Restore written tensors and zero accumulators for the next trial."""
        for snapshot in self._written:
            if snapshot not in self._left:
                snapshot.restore()
        if self._zeroed:
            bound.zero(self._zeroed)

    def renew(self) -> None:
        """Restore the arguments that trials do not read too: their content is needed now."""
        for snapshot in self._written:
            if snapshot in self._unread:
                snapshot.restore()

    def learn(self) -> None:
        """After a config's first launch: note which watched tensors it wrote."""
        if self._watching:
            known = set(map(id, self._seen))
            fresh = [s for s in self._snapshots if id(s) not in known and s.changed()]
            self._seen += fresh
            if self._learning:
                self._written += fresh
        self._is_known = True

    def move_to_host(self) -> None:
        """Move all copies to host memory."""
        for snapshot in self._snapshots:
            snapshot.move_to_host()

    def release(self) -> None:
        """Restore everything and drop the copies; safe after an exception, and more than once."""
        if not self._is_known:  # Ctrl-C, in the launch or right after it
            self.learn()
        while self._written:
            self._written[-1].restore()
            self._written.pop()  # only now: after running out of memory, `release` is called again
        self.abandon()

    def abandon(self) -> None:
        """Drop the copies without restoring: the device is lost."""
        self._snapshots, self._written, self._seen = [], [], []
        self._unread, self._left = set(), set()

    @property
    def written(self) -> list[str]:
        """Names of arguments declared or seen to be written and restored, in order."""
        return _names(self._written)

    @property
    def seen(self) -> list[str]:
        """Names of arguments declared or seen to be written, restored or not."""
        return _names(self._seen)

    @property
    def nbytes(self) -> tuple[int, int]:
        """Bytes of all copies, and of those needed."""
        return sum(s.nbytes for s in self._snapshots), sum(s.nbytes for s in self._seen)


def _names(snapshots: Iterable[Snapshot]) -> list[str]:
    return list(dict.fromkeys(name for snapshot in snapshots for name in snapshot.names))


def _snapshots(arguments: Mapping[str, Any], names: Iterable[str], on_host: bool) -> list[Snapshot]:
    """One snapshot per tensor; arguments that are the same view share it."""
    found: dict[Any, tuple[list[str], Any]] = {}
    for name in names:
        for tensor in memory.tensors(arguments[name]):
            place = (address(tensor), tuple(tensor.shape), tuple(strides_of(tensor)), tensor.dtype)
            same = place if place[0] is not None else id(tensor)
            found.setdefault(same, ([], tensor))[0].append(name)
    return [Snapshot(dict.fromkeys(shared), tensor, on_host) for shared, tensor in found.values()]


@contextlib.contextmanager
def without_gradients() -> Iterator[None]:
    """Let hooks write tensors that require grad; imports no torch by itself."""
    if "torch" not in sys.modules:
        yield
        return
    import torch

    with torch.no_grad():
        yield


# -- during a search ---------------------------------------------------------------------------------------------------


class Guard:
    """Protects the caller's data during a search, and keeps the search going when device memory is short."""

    def __init__(self, job: Job, ahead: CompileStream) -> None:
        self._job, self._ahead = job, ahead
        self.protection = Protection({}, [], [])  # replaced by `protect`
        self._made_for: object = _NOTHING_YET
        self.is_short = job.timer.is_short  # whether device memory was short

    # -- before, at and after a launch ---------------------------------------------------------------------------

    def protect(self) -> None:
        """Save the arguments that the configs compiled so far may write.

        A later config may write more; until then no trial has touched that, so it can still be saved.
        """
        access = self._ahead.access
        if access == self._made_for:
            return
        job, restore = self._job, self._job.restore
        written = () if restore is not None else self.protection.written
        self.protection.release()
        if restore is None and access is not None:
            restore = [name for name in job.call.arguments if name in access.written]
        named: set[str] = set()
        for check in (job.check, job.stricter):
            if check is not None and not isinstance(check.poison, bool):
                named |= set(check.poison)
            elif check is not None and check.poison and access is not None:
                named |= access.written - access.read
        watch = access is None and (job.watch or job.check is not None)
        self.protection = self._made(restore, watch, {*named, *written})
        self._made_for = access

    def _made(self, restore: Sequence[str] | None, watch: bool, known: Collection[str]) -> Protection:
        job = self._job
        own = set(job.call.arguments if job.named is None else job.named)
        also = KnownArguments(known, self._unread(), set(job.restore or ()) - own)
        make = partial(Protection, job.call.arguments, restore, job.zero, watch, also=also)
        with suppress_memory_errors():
            return make()
        self.is_short = True
        job.timer.free()
        return make(on_host=True)

    def _unread(self) -> Collection[str]:
        """Arguments that configs write and nothing reads under any name: their content affects no trial."""
        job, access = self._job, self._ahead.access
        if access is None or job.restore is not None or job.hooks.before is not None or job.hooks.after is not None:
            return ()
        return memory.unshared(job.call.arguments, access.written - access.read)

    def prepare(self) -> None:
        """See `Protection.prepare`."""
        self.protection.prepare()

    def with_room(self, act: Callable[[], Result]) -> Result:
        """Call `act`; if memory runs out, free what can be spared and call it again."""
        with suppress_memory_errors():
            return act()
        self.is_short = True
        self.protection.move_to_host()
        self._job.timer.free()  # last: it also releases the memory of the moved copies
        return act()

    # -- findings ------------------------------------------------------------------------------------------------

    @property
    def written(self) -> list[str]:
        """Names of the arguments known to be written, in order."""
        access = self._ahead.access
        written = {*self.protection.seen, *(access.written if access else ()), *(self._job.named or ())}
        return [name for name in self._job.call.arguments if name in written]

    def note(self, facts: Outcome) -> None:
        """Store the findings; call before `release`, which forgets them."""
        facts.written = self.protection.written
        facts.copied_bytes, facts.needed_bytes = self.protection.nbytes
        if self._job.restore is not None:
            named = {*self._job.restore, *self._job.zero}
            facts.unnamed = [name for name in self.written if name not in named]

    # -- at the end ----------------------------------------------------------------------------------------------

    def release(self, lost: bool) -> None:
        """Restore the caller's data; if the device is lost, only drop the copies."""
        if lost:
            self.protection.abandon()
        try:
            self.protection.release()
        except KeyboardInterrupt:
            self.protection.release()
            raise
        except Exception as error:
            if not is_memory_error(error):
                raise
            self._job.timer.free()
            self.protection.release()
