"""Counters of a tuned function, like those of `functools.lru_cache`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

log = logging.getLogger("autotuned")


class CacheInfo(NamedTuple):
    """Counters of a tuned function in this process, like those of `functools.lru_cache`.

    `hits`: calls answered by the launch table; `misses`: all others; `size`: entries in the table; `searches`: searches
    run. The last four are seconds: finding choices, searching, compiling or loading with the first launch, and binding.
    """

    hits: int
    misses: int
    size: int
    evictions: int
    searches: int
    lookup_s: float
    search_s: float
    compile_s: float
    bind_s: float


def say(infos: Sequence[CacheInfo]) -> None:
    """Log the counters of all functions together, if there was a miss."""
    if any(info.misses for info in infos):
        names = "hits", "misses", "searches", "lookup_s", "search_s", "compile_s", "bind_s"
        message = "%d hits, %d misses, %d searches; seconds: look-up %.2f, search %.2f, compile %.2f, bind %.3f"
        log.info(message, *(sum(getattr(info, name) for info in infos) for name in names))
