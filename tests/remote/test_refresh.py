"""`autotuned.refresh` and `autotuned.follow` where another host of the fleet has tuned what this one calls."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from newer import store_choice

import autotuned
from autotuned.offline import follow as following
from autotuned.store import records

WORK = """
from autotuned import Config, autotune

def bench(call, quantiles):
    call()
    return [float(ran[-1])] * 3

ran = []

@autotune([Config({"ms": ms}) for ms in (4, 1, 6)], key=["n"], do_bench=bench, default=Config({"ms": 4}))
def work(n, ms):
    ran.append(ms)
    return ms
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module whose function runs with ms=4 until it is tuned."""
    (tmp_path / "shared_work.py").write_text(WORK)
    monkeypatch.syspath_prepend(tmp_path)
    import shared_work

    yield shared_work
    del sys.modules["shared_work"]


@pytest.fixture
def on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Be on a host: a cache folder."""
    return lambda host: monkeypatch.setenv("AUTOTUNED_CACHE_DIR", str(tmp_path / host))


def elsewhere(on: Callable[[str], None], url: str, tuned: Any, ms: int, *args: Any) -> None:
    """Another host has found a config, and sent it; this one is `here` again."""
    on("there")
    with autotuned.connect(url, wait_s=10.0) as connection:
        key = store_choice(tuned, next(config for config in tuned.configs if config.kwargs["ms"] == ms), *args)
        connection.client.keep(records.read_of(key), again=True)
        connection.client.flush(10.0)
    on("here")


def test_a_choice_of_another_host_is_swapped_in_at_the_next_refresh(
    redis_url: str, module: ModuleType, on: Callable[[str], None]
) -> None:
    on("here")
    work = module.work
    with autotuned.connect(redis_url, wait_s=10.0):
        assert [work(1), work(2)] == [4, 4]
        assert autotuned.refresh().swaps == []
    for ms in (6, 1):  # and a better one later, which takes the place of what is kept here
        elsewhere(on, redis_url, work, ms, 1)
        with autotuned.connect(redis_url, wait_s=10.0):
            found = autotuned.refresh()
            assert [(swap.after, swap.launches, swap.refused) for swap in found.swaps] == [(f"ms={ms}", 1, "")]
            assert [work(1), work(2)] == [ms, 4] and work.cache_info().searches == 0
            assert autotuned.refresh().swaps == []


def test_a_companion_does_not_search_what_another_host_has(
    redis_url: str, module: ModuleType, on: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on("here")
    monkeypatch.setattr(following, "POLL_S", 0.01)
    monkeypatch.setattr(following, "TELL_S", 0.0)
    with autotuned.record(tmp_path / "calls.jsonl"):
        module.work(1), module.work(2)
    elsewhere(on, redis_url, module.work, 1, 2)
    module.ran.clear()
    stop = threading.Event()
    tell = lambda status: stop.set() if status.calls and not status.waiting else None
    with autotuned.connect(redis_url, wait_s=10.0):
        status = autotuned.follow(tmp_path / "calls.jsonl", stop=stop, progress=tell, isolate=False)
    assert (status.chosen, status.measured, status.problems) == (2, 1, [])
    assert module.work.cache_info().searches == 1
