"""Counters of one tuned function, in the manner of `functools.lru_cache`."""

from __future__ import annotations

from typing import NamedTuple


class CacheInfo(NamedTuple):
    """Counters of one tuned function in this process, in the manner of `functools.lru_cache`.

    `hits` are calls answered by the launch table, `misses` all others, `size` entries of that table, `searches`
    searches run. The last four are seconds: finding choices, searching, compiling or loading with the first launch,
    and making kernels ready to launch.
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
