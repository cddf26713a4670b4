"""What tests of searches share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from autotuned.search import timers


class Clock:
    """The host's clock, which stands still but for what it is told.

    The time is in a list, whose changes are none of the source that a callable's key watches.
    """

    def __init__(self) -> None:
        self.now_ns = [0]

    def perf_counter_ns(self) -> int:
        return self.now_ns[0]


@pytest.fixture
def took(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Let so many microseconds pass."""
    clock = Clock()
    monkeypatch.setattr(timers.time, "perf_counter_ns", clock.perf_counter_ns)

    def pass_us(us: float) -> None:
        clock.now_ns[0] += round(us * 1e3)

    return pass_us
