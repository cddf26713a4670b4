"""Configs whose grid launches nothing, left out of what one of Triton's tuners measures for one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from autotuned.tunable.call import Call
from autotuned.tunable.kernel import TunableKernel

_NOTHING: Any = object()


class LeftOut:
    """What is left out for one call of a tuner, until that is over."""

    def __init__(self, tuner: Any) -> None:
        self._tuner = tuner
        self._before: Any = _NOTHING

    def left(self, tunable: TunableKernel, call: Call, pruned: Callable[[], Sequence[Any]]) -> list[Any] | None:
        """The configs of the call that launch something; None where all do, and pruning stays as it is."""
        if all(tunable.launches(call, config) for config in self._tuner.configs):
            return None
        left = [config for config in pruned() if tunable.launches(call, config)]
        if left and not getattr(self._tuner, "prunes_once", False):  # ours asks for the list that is made here
            self._before = vars(self._tuner).get("prune_configs")
            self._tuner.prune_configs = lambda kwargs: list(left)
        return left

    def close(self) -> None:
        """Let the tuner prune as before."""
        if self._before is None:
            vars(self._tuner).pop("prune_configs", None)
        elif self._before is not _NOTHING:
            self._tuner.prune_configs = self._before
