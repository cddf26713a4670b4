"""What a test finds afterwards: records, the config of a choice, and what an error or the log says."""

import logging
from typing import Any

import pytest

from autotuned.store import listing
from autotuned.store.choice import Choice
from autotuned.store.record import TuningRecord


def records() -> list[TuningRecord]:
    """All that are stored."""
    return [record for _, record in listing.all_records()]


def config_of(choice: Choice | None) -> Any:
    """The config that the store has chosen, if it has."""
    return choice and choice.config


def says(caught: pytest.ExceptionInfo[BaseException], *parts: str) -> None:
    """Assert that the message of what was raised has all these parts."""
    for part in parts:
        assert part in str(caught.value), part


def lines(caplog: pytest.LogCaptureFixture, level: int = logging.WARNING) -> list[str]:
    """What was said at this level or above."""
    return [record.getMessage() for record in caplog.records if record.levelno >= level]
