"""Every way by which a call comes to its config, so that one test can walk them all."""

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
    """A tuned object whose next call goes this way.

    Args:
        make: `make(configs, **options)` decorates.
        call: Calls what it is given, on data that the test does not look at.
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
    return make(configs)  # as in another process: nothing of the first object is known to it


def ship(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Make config files of all records, and go on with an empty store."""
    for _, record in listing.all_records():
        writer.ship(record.key, file.entry_of(record), folder)
    patch.setenv("AUTOTUNED_CONFIG_PATH", str(folder))
    patch.setenv("AUTOTUNED_CACHE_DIR", str(folder.parent / "empty"))


def check_path(path: str, tuned: Any) -> None:
    """That the one call since `on_path` went this way."""
    info = tuned.cache_info()
    assert info.searches == (path in ("cold", "table", "cleared"))
    assert info.hits == (path == "table")


_hairs = itertools.count(0.0, 1e-12)


def quick(call: Callable[[], Any], quantiles: Sequence[float]) -> list[float]:
    """A benchmark that calls twice and finds a hair between configs: the first of the list wins."""
    call()
    call()
    return [1.0 + next(_hairs), 1.0, 1.0]
