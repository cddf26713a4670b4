"""All ways in which a call gets its config, for tests over all of them."""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from autotuned.configfiles import file, writer
from autotuned.store import listing

PATHS = ["cold", "table", "disk", "cleared", "file", "default", "off", "single"]


def on_path(
    path: str,
    make: Callable[..., Any],
    configs: Sequence[Any],
    call: Callable[[Any], Any],
    patch: pytest.MonkeyPatch,
    folder: Path,
) -> Any:
    """A tuned object whose next call takes this path.

    Args:
        make: `make(configs, **options)` decorates.
        call: Calls the object, with data that the test does not use.
    """
    if path == "single":
        return make(configs[-1:])
    if path == "default":
        return make(configs, default=configs[-1])
    if path == "off":
        patch.setenv("AUTOTUNED_MODE", "off")
    tuned = make(configs)
    if path in ("cold", "off"):
        return tuned
    call(tuned)
    assert tuned.cache_info().searches == 1
    if path == "table":
        return tuned
    if path == "cleared":
        tuned.cache_clear()
        return tuned
    if path == "file":
        ship(folder / "shipped", patch)
    return make(configs)  # as in another process: it knows nothing of the first object


def ship(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Write all records into config files, and continue with an empty store."""
    for _, record in listing.all_records():
        writer.ship(record.key, file.entry_of(record), folder)
    patch.setenv("AUTOTUNED_CONFIG_PATH", str(folder))
    patch.setenv("AUTOTUNED_CACHE_DIR", str(folder.parent / "empty"))


def check_path(path: str, tuned: Any) -> None:
    """Assert that the one call since `on_path` took this path."""
    info = tuned.cache_info()
    assert info.searches == (path in ("cold", "table", "cleared"))
    assert info.hits == (path == "table")


_hairs = itertools.count(0.0, 1e-12)


def quick(call: Callable[[], Any], quantiles: Sequence[float]) -> list[float]:
    """A benchmark that calls twice and returns nearly equal times: the first of the list wins."""
    call()
    call()
    return [1.0 + next(_hairs), 1.0, 1.0]
