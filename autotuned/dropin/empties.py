"""Keeps Triton's tuners from measuring configs whose grid launches nothing for a call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from autotuned.tunable.call import Call
from autotuned.tunable.kernel import TunableKernel

_NOTHING: Any = object()


class LeftOut:
    """The configs left out for one call of a tuner, until the call ends."""

    def __init__(self, tuner: Any) -> None:
        self._tuner = tuner
        self._before: Any = _NOTHING

    def left(self, tunable: TunableKernel, call: Call, pruned: Callable[[], Sequence[Any]]) -> list[Any] | None:
        """The call's configs that launch something; None if all do, and pruning stays as it is."""
        if all(tunable.launches(call, config) for config in self._tuner.configs):
            return None
        left = [config for config in pruned() if tunable.launches(call, config)]
        if left and not getattr(self._tuner, "prunes_once", False):  # our tuner uses the returned list
            self._before = vars(self._tuner).get("prune_configs")
            self._tuner.prune_configs = lambda kwargs: list(left)
        return left

    def close(self) -> None:
        """Restore the tuner's own pruning."""
        if self._before is None:
            vars(self._tuner).pop("prune_configs", None)
        elif self._before is not _NOTHING:
            self._tuner.prune_configs = self._before
