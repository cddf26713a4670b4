"""Waits for another thread or process."""

import time
from collections.abc import Callable

import pytest


def until(reached: Callable[[], object], limit_s: float = 120.0) -> None:
    """Wait until a condition holds; the test fails if it does not within the limit."""
    end = time.monotonic() + limit_s
    while not reached():
        if time.monotonic() > end:
            pytest.fail("waited too long")
        time.sleep(0.01)
