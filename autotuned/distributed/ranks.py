"""How ranks of a torch.distributed group exchange choices: through the group's store, without collectives."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from autotuned.errors import SyncError

log = logging.getLogger("autotuned")

MESSAGE_AFTER_S = 5.0  # log waits longer than this, as for locks
_FIRST_POLL_S, _LAST_POLL_S = 0.001, 0.05
_opened: dict[str, int] = {}  # by group: number of agreements so far; each uses its own names


class Ranks:
    """The ranks of a group, and the store they share.

    It is polled: a blocking wait would block all users of its connection and ignore our time limit.

    Args:
        store: A `torch.distributed.Store`.
        rank, size: This process's rank, and the size of the group.
        timeout_s: Longest wait for other ranks, in seconds.
        prefix: Prefix of all names in the store.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout_s: float, prefix: str) -> None:
        self.rank, self.size, self.timeout_s = rank, size, timeout_s
        self._store, self._prefix = store, prefix

    def read(self, name: str) -> str | None:
        """The text published under a name, or None."""
        key = self._key(name)
        return str(self._ask("get", key).decode()) if self._ask("check", [key]) else None

    def publish(self, name: str, text: str) -> str:
        """Publish a text unless another rank did; returns the text that all ranks read."""
        return str(self._ask("compare_set", self._key(name), "", text).decode())

    def count(self, name: str, more: int = 1) -> int:
        """Add to a shared counter; returns its value."""
        return int(self._ask("add", self._key(name), more))

    def wait(self, name: str, limit_s: float, what: str, enough: Callable[[], bool] = lambda: False) -> str | None:
        """Wait for the text under a name; None after `limit_s` seconds or once `enough` is true.

        Logs `what` it waits for after `MESSAGE_AFTER_S`.
        """
        start, pause_s, is_said = time.monotonic(), _FIRST_POLL_S, False
        while (found := self.read(name)) is None and not enough():
            waited_s = time.monotonic() - start
            if waited_s >= limit_s:
                return None
            if waited_s > MESSAGE_AFTER_S and not is_said:
                is_said = True
                log.warning("rank %d waits for %s.", self.rank, what)
            time.sleep(min(pause_s, limit_s - waited_s))
            pause_s = min(2 * pause_s, _LAST_POLL_S)
        return found

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}"

    def _ask(self, method: str, *args: Any) -> Any:
        try:
            return getattr(self._store, method)(*args)
        except RuntimeError as error:  # from torch, if the rank that holds the store has ended
            raise SyncError(
                f"sync: rank {self.rank} expected an answer from its process group's store, got "
                f"{_first_line(error)!r}. Did the rank that holds it end? Call .close() on the result of "
                "autotuned.sync to choose alone.",
                kernel="",
            ) from error


def of_group(group: Any, timeout_s: float) -> Ranks:
    """The ranks of a torch.distributed process group; None for the default group.

    Raises:
        SyncError: There is no process group, or this process is not in it.
    """
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        raise SyncError(
            "sync: expected a process group, got none. Call torch.distributed.init_process_group first.", kernel=""
        )
    try:
        rank = dist.get_rank(group)
    except ValueError as error:
        raise SyncError(
            f"sync: expected a process group that is in use, got {group!r}: {_first_line(error)}", kernel=""
        ) from error
    if rank < 0:
        raise SyncError(
            "sync: expected a group that this process belongs to, got one without it. Call sync on its ranks only.",
            kernel="",
        )
    name, store = _store_of(group)
    _opened[name] = number = _opened.get(name, 0) + 1
    return Ranks(store, rank, dist.get_world_size(group), timeout_s, f"autotuned/{name}/{number}")


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _store_of(group: Any) -> tuple[str, Any]:
    """Name and store of a group, in any version of torch."""
    from torch.distributed import distributed_c10d

    group = group or distributed_c10d._get_default_group()
    if hasattr(group, "get_group_store"):
        return str(group.group_name), group.get_group_store()
    return str(group.group_name), distributed_c10d._get_process_group_store(group)
