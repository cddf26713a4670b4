"""Compile ahead for tuners whose own `run` measures in a loop over Triton's `_bench`, as FlagGems' do.

Nothing is stored for them, since their `.cache` is their own. Whether they measure all configs is seen by the second:
if it follows the first in the pruned list, that one and all after it are compiled at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from autotuned._startup import later
from autotuned.resolve import sealing

if TYPE_CHECKING:
    from autotuned.dropin import ahead
else:
    ahead = later("dropin.ahead")


class _Loop:
    """The configs that a tuner may measure, and how far it is."""

    def __init__(self, configs: list[Any]) -> None:
        self.configs = configs
        self._next: Any = None  # the config after the last one measured

    def rest(self, config: Any) -> list[Any]:
        """What to compile before this config is measured: it and those after it, if it was to be the next."""
        after = next((i for i, one in enumerate(self.configs, 1) if one is config), len(self.configs))
        if config is self._next:
            return self.configs[after - 1 :]
        self._next = self.configs[after] if after < len(self.configs) else None
        return []


_loops: WeakKeyDictionary[Any, _Loop] = WeakKeyDictionary()


def begin(tuner: Any, configs: list[Any]) -> None:
    """Note what a tuner's pruning has left."""
    with suppress(TypeError):  # a tuner without a hash
        _loops[tuner] = _Loop(configs)


def measuring(tuner: Any, args: tuple[Any, ...], meta: Mapping[str, Any], config: Any) -> None:
    """Before a config is measured: compile those of the loop that are left, once."""
    with suppress(TypeError):
        loop = _loops.get(tuner)
        rest = loop.rest(config) if loop is not None else []
        if rest and not sealing.forbids() and _loops.pop(tuner, None) is loop:
            ahead.compile_all(tuner, args, meta, rest, None)
