"""Fixtures of tests of searches."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from autotuned.search import timers

# The host's clock for `took`: it stands still except when a test advances it. Found through `globals()`, it is not part
# of the source in a callable's key, whatever ran before.
_now_ns = 0


def _perf_counter_ns() -> int:
    return int(globals()["_now_ns"])


def _pass_us(us: float) -> None:
    globals()["_now_ns"] += round(us * 1e3)


@pytest.fixture
def took(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Let so many microseconds pass."""
    globals()["_now_ns"] = 0
    monkeypatch.setattr(timers.time, "perf_counter_ns", _perf_counter_ns)
    return _pass_us
