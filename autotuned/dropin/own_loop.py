"""Compile ahead for tuners whose own `run` measures in a loop over Triton's `_bench`, as FlagGems' do.

Nothing is stored for them, since their `.cache` is their own. They seem to measure all configs if the second that they
measure follows the first in the pruned list: then it and all after it are compiled at once.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from autotuned import env
from autotuned._startup import later
from autotuned.resolve import sealing

if TYPE_CHECKING:
    from autotuned.dropin import ahead
else:
    ahead = later("dropin.ahead")


class _Loop:
    """The configs that a tuner may measure, and how far it is; weak references, since the loop may never end."""

    def __init__(self, tuner: Any, configs: Sequence[Any]) -> None:
        self.tuner = weakref.ref(tuner)
        self._configs = [weakref.ref(config) for config in configs]
        self._next: int | None = None  # the place after that of the last one measured

    def rest(self, config: Any) -> list[Any]:
        """What to compile before this config is measured: it and those after it, if it is the next in the list."""
        places = [at for at, one in enumerate(self._configs) if one() is config]
        if self._next in places:
            return [one for one in (there() for there in self._configs[self._next :]) if one is not None]
        self._next = places[0] + 1 if places else None
        return []


# Of this thread or greenlet: others may call the same tuner meanwhile. By identity, since tuners may not be hashable.
_loops: ContextVar[tuple[_Loop, ...]] = ContextVar("autotuned_loops", default=())


def begin(tuner: Any, configs: Sequence[Any]) -> None:
    """Note what a tuner's pruning has left."""
    with suppress(TypeError):  # no weak references to them
        _loops.set((_Loop(tuner, configs), *_others(tuner)))


def _others(tuner: Any) -> list[_Loop]:
    return [loop for loop in _loops.get() if (one := loop.tuner()) is not None and one is not tuner]


def measuring(tuner: Any, args: tuple[Any, ...], meta: Mapping[str, Any], config: Any) -> None:
    """Before a config is measured: compile those of the loop that are left, once; ranks compile each together."""
    loop = next((one for one in _loops.get() if one.tuner() is tuner), None)
    if loop is None or sealing.forbids():
        return
    if rest := loop.rest(config):
        _loops.set(tuple(_others(tuner)))
    if rest or env.local_ranks() > 1:
        ahead.compile_all(tuner, args, meta, rest or [config], None)
