"""How many configs to compile at once: the user's setting, or cores, memory and ranks on this host."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

from autotuned import env

LEAST_CONFIGS = 4  # below this a pool costs more than it saves
# LLVM's memory for one module. Seen with Triton 3.9 on x86_64: 362 MB for a process that had compiled a matmul, 294 MB
# of it torch.
THREAD_BYTES = 256 << 20


def count(configs: int, all_cores: bool = False, root: Path = Path("/"), limited: bool = False) -> int:
    """Number of compile workers for `configs` configs; 0 for none.

    `AUTOTUNED_COMPILE_WORKERS` decides if set. Otherwise hosts with four or more cores leave one to the measuring
    thread, and ranks on this host share the cores.

    Args:
        configs: Number of configs to compile.
        all_cores: Count all cores: the workers take turns with those of other ranks (`crew.Turns`).
        root: Where to look for `/proc` and `/sys`.
        limited: Whether the search may go on without a slow compilation: then even one config gets a worker, since only
            that can be left behind, and several get two if there is memory, so that one does not hold up the others.

    Raises:
        ValueError: `AUTOTUNED_COMPILE_WORKERS` is not a number of 0 or more.
    """
    asked = env.compile_workers()
    if asked is not None:
        return min(asked, configs) if asked > 1 else 0
    if configs < LEAST_CONFIGS and not limited:
        return 0
    free = cores(root) // (1 if all_cores else env.local_ranks())
    least = 2 if limited else 0
    workers = min(max(free - (free >= 4), least), configs, memory_bytes(root) // THREAD_BYTES)
    return workers if workers > 1 or limited else 0


def ahead() -> int:
    """Number of threads that compile before anything is measured; 0 for none, as on one core.

    Uses all cores, since nothing else runs; ranks of this host take turns (`crew.Crew`).

    Raises:
        ValueError: `AUTOTUNED_COMPILE_WORKERS` is not a number of 0 or more.
    """
    asked = env.compile_workers()
    workers = on_this_host() if asked is None else asked
    return workers if workers > 1 else 0


def on_this_host() -> int:
    """Compilations that cores and memory of this host allow at once."""
    return min(cores(), memory_bytes() // THREAD_BYTES)


def places(root: Path = Path("/")) -> list[int]:
    """Numbers of this host's places that this process may compile at, one compilation each at a time.

    Processes have places in common if they share cores, or if memory is too short for one compilation per core.
    """
    most = max(1, memory_bytes(root) // THREAD_BYTES)
    return sorted({core % most for core in _allowed()})[: cores(root)]


def cores(root: Path = Path("/")) -> int:
    """Cores that this process may use, by affinity and cgroup quotas; at least 1."""
    return max(1, min([len(_allowed()), *(int(quota) for quota in _cpu_quotas(root))]))


def _allowed() -> Collection[int]:
    """Numbers of the cores in this process's affinity."""
    # Not there on macOS and Windows.
    return os.sched_getaffinity(0) if sys.platform == "linux" else range(os.cpu_count() or 1)


def memory_bytes(root: Path = Path("/")) -> int:
    """Free memory of this host and its cgroups; unlimited if unknown."""
    return min([sys.maxsize, *_free_memory(root)])


def _cpu_quotas(root: Path) -> Iterator[float]:
    """Cores by the quota of each cgroup."""
    for folder in _group_folders(root, "cpu"):
        quota, _, period = _text(folder / "cpu.max").partition(" ")
        if not quota:
            quota, period = _text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(period):
            yield int(quota) / int(period)


def _free_memory(root: Path) -> Iterator[int]:
    for line in _text(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            yield int(line.split()[1]) << 10
    for folder in _group_folders(root, "memory"):
        for limit, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            most, now = _text(folder / limit), _text(folder / used)
            if most.isdigit() and now.isdigit():
                yield max(0, int(most) - int(now))


def _group_folders(root: Path, controller: str) -> Iterator[Path]:
    """Folders of this process's cgroups, innermost first, version 2 and version 1."""
    seen = set()
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, names, path = (line.split(":", 2) + ["", ""])[:3]
        if names and controller not in names.split(","):
            continue
        top = root / "sys/fs/cgroup" / names
        inner = top / path.lstrip("/")
        # In a container the path may be the host's while only the group itself is mounted, at the top.
        for folder in (inner, *inner.parents):
            if folder not in seen and folder.is_relative_to(top):
                seen.add(folder)
                yield folder


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, ValueError):
        return ""
