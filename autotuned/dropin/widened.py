"""The arguments that one search of Triton's tuner restores: those it lists, and those of the key's stored record."""

from __future__ import annotations

from typing import Any

from autotuned.key.key import Key
from autotuned.store import conditions, records
from autotuned.store.conditions import Restore
from autotuned.tunable.call import Call


class Widened:
    """Extends a tuner's `restore_value` for one search; otherwise tuners with different lists would alternate searches.

    A tuner without a list restores nothing, and any stored choice serves it.
    """

    def __init__(self, tuner: Any, key: Key, call: Call, needed: Restore) -> None:
        self._named = tuner.restore_value if needed else None
        self._own = list(needed or ())
        earlier = records.read_of(key) if self._named is not None else None
        if earlier is not None and self._named is not None:
            more = conditions.union(earlier.conditions.restore, needed) or ()
            # Triton 3.6 cannot restore None.
            self._named[:] = [n for n in more if n in self._own or hasattr(call.arguments.get(n), "clone")]

    def end(self) -> list[str]:
        """Restore the user's list; returns the names that were restored around trials."""
        if self._named is None:
            return self._own
        put_back, self._named[:] = list(self._named), self._own
        return put_back
