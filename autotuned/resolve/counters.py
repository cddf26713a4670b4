"""Counters of a tuned function, like those of `functools.lru_cache`."""

from __future__ import annotations

from typing import NamedTuple


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
