"""What a place that is asked for a config answers: a choice, or why it has none."""

from __future__ import annotations

import enum
from typing import Any

from autotuned.immutable import Frozen
from autotuned.key import Key
from autotuned.recordfile import Record


class Rung(enum.IntEnum):
    """Where a choice came from, in the order in which the places are asked."""

    TABLE = 1  # this process's own table
    STORE = 2  # the user's records
    FILE = 3  # config files: same call, same context
    LADDER = 4  # config files: same call, another context
    NEAREST = 5  # config files: nearest shape
    DEFAULT = 6  # `default=`, or the first config where a mode says so
    SEARCH = 7  # measured now
    ONLY = 8  # the one config there is


class Choice(Frozen):
    """The config to launch with, and why it is this one.

    Attributes:
        config: The live `Config` object, its hook included.
        rung: Where it came from.
        record: The stored record, where there is one.
        complete: Whether every candidate of the call has been measured already.
        lasting: Whether later calls may use it without asking again.
        origin: The file it came from, for people.
        key: The key it was tuned for, where that is another than the call's; `note` says in what they differ.
        loud: Whether that is worth a warning.
    """

    config: Any
    rung: Rung
    record: Record | None = None
    complete: bool = True
    origin: str = ""
    lasting: bool = True
    key: Key | None = None
    note: str = ""
    loud: bool = False

    @property
    def why(self) -> str:
        """Where it came from, in a line."""
        return f"{self.origin or self.rung.name} ({self.note})" if self.note else self.origin or self.rung.name


class Look(Frozen):
    """What one place holds for a key: a choice, or in a few words why there is none.

    Attributes:
        problem: "absent", "damaged", "unreadable", "newer schema" or "config gone"; with a choice, what an earlier file
            had instead of one.
        detail: What exactly, for people. `path`: the file it is about.
    """

    choice: Choice | None = None
    problem: str = ""
    detail: str = ""
    path: str = ""
