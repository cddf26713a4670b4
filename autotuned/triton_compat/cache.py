"""The binaries of a search: losers in a scratch folder cleared by age, the winner in Triton's cache."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from pathlib import Path
from typing import Any

from autotuned import disk
from autotuned._startup import renewed

log = logging.getLogger("autotuned")
_thread = threading.local()  # .folder is set while this thread runs trials
_guard = renewed(threading.Lock())
_searches = 0


@contextmanager
def trials(folder: Path) -> Iterator[None]:
    """Cache this thread's compilations in a `with` block in `folder`, and reuse its binaries.

    Triton's own cache is still used by other threads, for the launcher stubs that kernels share, and for everything if
    the user has a cache manager or the folder is not writable.
    """
    if not _enter():
        yield
        return
    before = current()
    _thread.folder = folder
    try:
        yield
    finally:
        _thread.folder = before
        _leave()


def same_as(folder: Path | None) -> AbstractContextManager[None]:
    """Like `trials`, for a helper thread with another thread's `current` folder; does nothing for None."""
    return nullcontext() if folder is None else trials(folder)


def current() -> Path | None:
    """The folder for this thread's compilations; None outside `trials`."""
    return getattr(_thread, "folder", None)


def _enter() -> bool:
    from triton import knobs

    global _searches
    with _guard:
        if knobs.cache.manager_class not in (None, _manager()):
            return False
        # Assigning the knob would also set TRITON_CACHE_MANAGER for child processes.
        knobs.cache.__dict__["manager_class"] = _manager()
        _searches += 1
    return True


def _leave() -> None:
    from triton import knobs

    global _searches
    with _guard:
        _searches -= 1
        if not _searches and knobs.cache.__dict__.get("manager_class") is _manager():
            del knobs.cache.__dict__["manager_class"]


@lru_cache(maxsize=1)
def _manager() -> Any:
    from triton.runtime.cache import CacheManager, FileCacheManager

    class TrialCache(CacheManager):  # type: ignore[misc]
        """Triton's file cache with the scratch folder of this thread's trials in front."""

        def __new__(cls, key: str, override: bool = False, dump: bool = False) -> Any:
            if override or dump or current() is None:
                return FileCacheManager(key, override=override, dump=dump)
            return super().__new__(cls)

        def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
            self._key, self._scratch = key, _at(_thread.folder / key, key)

        @property
        def _home(self) -> Any:
            return FileCacheManager(self._key)  # creates its folder, so only for writing

        def get_file(self, filename: str) -> str | None:
            found: str | None = self._scratch.get_file(filename) or _home_at(self._key).get_file(filename)
            return found

        def get_group(self, filename: str) -> dict[str, str] | None:
            found: dict[str, str] | None = _home_at(self._key).get_group(filename)
            if not found and (found := self._scratch.get_group(filename)):
                disk.touch(_thread.folder / self._key)  # its age starts again
            return found

        def put(self, data: Any, filename: str, binary: bool = True) -> str:
            cache = self._home if filename.endswith(".so") else self._scratch  # all configs share a launcher stub
            try:
                return str(cache.put(data, filename, binary))
            except OSError as error:
                log.debug("scratch folder: %s; Triton's own cache is used.", error)
                return str(self._home.put(data, filename, binary))

        def put_group(self, filename: str, group: dict[str, str]) -> Any:
            return self.put(json.dumps({"child_paths": group}), f"__grp__{filename}", binary=False)

    return TrialCache


def holds(digest: str) -> bool:
    """Whether this thread's trials would find the binary with this hash in a cache."""
    from triton.runtime.cache import _base32

    key, folder = _base32(digest), current()
    found = [Path(_home_at(key).cache_dir), *([] if folder is None else [folder / key])]
    return any(name.startswith("__grp__") for place in found if place.is_dir() for name in os.listdir(place))


def lock_path(digest: str) -> Path:
    """The lock for compiling the binary with this hash; creates its folder in Triton's cache."""
    from triton.runtime.cache import FileCacheManager, _base32

    return Path(FileCacheManager(_base32(digest)).cache_dir) / "autotuned.lock"


def _at(folder: Path, key: str) -> Any:
    """Triton's file cache in any folder, which is created with its first file."""
    from triton.runtime.cache import FileCacheManager

    cache = FileCacheManager.__new__(FileCacheManager)
    cache.key, cache.cache_dir, cache.lock_path = key, str(folder), str(folder / "lock")
    return cache


def _home_at(key: str) -> Any:
    from triton import knobs

    return _at(Path(knobs.cache.dir) / key, key)


def promote(compiled: Any, folder: Path) -> None:
    """Copy a winner's binary from the scratch folder into Triton's cache; after an error it is compiled again later."""
    from triton.runtime.cache import FileCacheManager, _base32

    try:
        key = _base32(compiled.hash)
        names = sorted(os.listdir(folder / key), key=lambda name: name.startswith("__grp__"))  # groups last
        home = FileCacheManager(key)
        if all(_holds(home, name) for name in names):
            return  # it has already won for another shape; writing it again would wait for the disk
        placed: dict[str, str] = {}
        for name in names:
            if name.startswith("__grp__"):
                members = disk.read_json(folder / key / name)["child_paths"]
                home.put_group(name.removeprefix("__grp__"), {member: placed[member] for member in members})
            elif (folder / key / name).is_file():
                placed[name] = home.put(disk.read_bytes(folder / key / name), name)
    except FileNotFoundError:
        pass  # it was in Triton's cache before the search
    except (OSError, AttributeError, KeyError, TypeError, ValueError) as error:
        log.debug("the winner's binary stays in %s (%s)", folder, error)


def _holds(home: Any, name: str) -> bool:
    group = name.removeprefix("__grp__")
    return bool(home.has_file(name) if group == name else home.get_group(group))
