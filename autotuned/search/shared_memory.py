"""Which configs certainly need more shared memory than there is, told from compiled ones with fewer stages."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Any

from autotuned.triton_compat import compiled


class SharedMemory:
    """What configs of one call need, by what they have in common besides their stages.

    The need grows evenly with the number of stages, or not at all: so in all 12 groups of three stages of a list of 36
    attention configs, Triton 3.9 for sm_90. Two that are compiled tell the others.

    Args:
        limit_bytes: What a program may use; None where that is not known, and nothing is refused.
    """

    def __init__(self, limit_bytes: int | None) -> None:
        self._limit_bytes = limit_bytes
        self._needs: dict[Hashable, dict[int, int]] = {}
        self._guard = threading.Lock()

    def note(self, config: Any, compiled: Any) -> None:
        """Take note of what a compiled config needs."""
        need = getattr(getattr(compiled, "metadata", None), "shared", None)
        if isinstance(need, int):
            with self._guard:
                self._needs.setdefault(_group(config), {})[config.num_stages] = need

    def refuse(self, config: Any) -> None:
        """Do nothing, unless a config certainly needs too much.

        Raises:
            OutOfResources: It does; Triton's own error, which says that it was predicted.
        """
        with self._guard:
            known = sorted(self._needs.get(_group(config), {}).items())
        fewer = [(stages, need) for stages, need in known if stages < config.num_stages]
        if self._limit_bytes is None or len(fewer) < 2:
            return
        (first, less), (second, more) = fewer[0], fewer[-1]
        need = more + (more - less) * (config.num_stages - second) // (second - first)
        if more > less and need > self._limit_bytes:
            raise compiled.out_of_shared_memory(need, self._limit_bytes, f"num_stages={first} and {second}")


def _group(config: Any) -> Hashable:
    settings = {**config.all_kwargs(), "num_stages": None}
    return tuple(sorted((name, repr(value)) for name, value in settings.items()))
