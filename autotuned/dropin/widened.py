"""What one of Triton's tuners puts back while it measures: what it names, and what was asked for the key before."""

from __future__ import annotations

from typing import Any

from autotuned.key.key import Key
from autotuned.store import conditions, records
from autotuned.store.conditions import Restore
from autotuned.tunable.call import Call


class Widened:
    """The list of names of a tuner, made longer for one search; else two tuners that name others measure in turns.

    A tuner that names nothing puts nothing back, and is served by whatever others measured.
    """

    def __init__(self, tuner: Any, key: Key, call: Call, needed: Restore) -> None:
        self._named = tuner.restore_value if needed else None
        self._own = list(needed or ())
        earlier = records.read_of(key) if self._named is not None else None
        if earlier is not None and self._named is not None:
            more = conditions.union(earlier.conditions.restore, needed) or ()
            # Triton 3.6 cannot put back None.
            self._named[:] = [name for name in more if name in self._own or _can_be_put_back(call, name)]

    def end(self) -> list[str]:
        """What was put back; the tuner's list is as its user gave it again."""
        if self._named is None:
            return self._own
        put_back, self._named[:] = list(self._named), self._own
        return put_back


def _can_be_put_back(call: Call, name: str) -> bool:
    return hasattr(call.arguments.get(name), "clone")
