"""Results to assert on: records, the config of a choice, messages of errors and of the log."""

import logging
from typing import Any

import pytest

from autotuned.store import listing
from autotuned.store.choice import Choice
from autotuned.store.record import TuningRecord


def records() -> list[TuningRecord]:
    """All stored records."""
    return [record for _, record in listing.all_records()]


def config_of(choice: Choice | None) -> Any:
    """The config of a choice, if there is one."""
    return choice and choice.config


def says(caught: pytest.ExceptionInfo[BaseException], *parts: str) -> None:
    """Assert that the message of an exception has all these parts."""
    for part in parts:
        assert part in str(caught.value), part


def lines(caplog: pytest.LogCaptureFixture, level: int = logging.WARNING) -> list[str]:
    """Log messages at this level or above."""
    return [record.getMessage() for record in caplog.records if record.levelno >= level]
