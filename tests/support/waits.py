"""Waiting for what another thread or process does."""

import time
from collections.abc import Callable

import pytest


def until(reached: Callable[[], object], limit_s: float = 120.0) -> None:
    """Wait until something is reached; the test fails when it does not come."""
    end = time.monotonic() + limit_s
    while not reached():
        if time.monotonic() > end:
            pytest.fail("waited too long")
        time.sleep(0.01)
