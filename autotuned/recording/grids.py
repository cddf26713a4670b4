"""Grids of recorded calls: of a callable, its result for every config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autotuned.typed_json import Fallback, Json, canonical, encode


def describe(grid: Any, arguments: Mapping[str, Any], configs: Sequence[Mapping[str, Any]], spell: Fallback) -> Json:
    """The grid of a call as JSON: `{"sizes": [...]}`, or a callable's result for each config; None without a grid.

    Args:
        arguments: All arguments by name, with the kernel's defaults.
        configs: The parameters that each candidate sets. If the callable raises for one, it has no grid.
        spell: Encodes values that typed JSON does not know.
    """
    if grid is None:
        return None
    if not callable(grid):
        return {"sizes": _sizes(grid)}
    found = {}
    for settings in configs:
        try:
            found[_spelled(settings, spell)] = _sizes(grid({**arguments, **settings}))
        except Exception:  # user code may not expect this config
            continue
    if len({tuple(sizes) for sizes in found.values()}) == 1 and len(found) == len(configs):
        return {"every": next(iter(found.values())), "configs": list(found)}
    return {"configs": list(found), "sizes_of": list(found.values())}


def settings(tunable: Any, config: Any) -> dict[str, Any]:
    """The parameters of a kernel that a config sets, by which `describe` and `Rebuilt` find its grid."""
    names = {parameter.name for parameter in tunable.parameters}
    return {name: value for name, value in tunable.settings(config).items() if name in names}


def _sizes(grid: Any) -> list[int]:
    return [int(size) for size in (grid if isinstance(grid, (tuple, list)) else (grid,))]


def _spelled(settings: Mapping[str, Any], spell: Fallback) -> str:
    return canonical({name: encode(value, name, spell) for name, value in settings.items()})


class Rebuilt:
    """The grid of a recorded call, for launching."""

    def __init__(self, form: Json, spell: Fallback) -> None:
        self._spell = spell
        self._fixed = form.get("sizes")
        every = form.get("every")
        sizes = [every] * len(form["configs"]) if every is not None else form.get("sizes_of", [])
        self._known = dict(zip(form.get("configs", ()), sizes))

    def has(self, settings: Mapping[str, Any]) -> bool:
        """Whether the grid is known for these parameters."""
        return self._fixed is not None or _spelled(settings, self._spell) in self._known

    def for_configs(self, configs: Sequence[Mapping[str, Any]]) -> Any:
        """The sizes, or a callable that returns them for each of these configs."""
        if self._fixed is not None:
            return tuple(self._fixed)
        pairs = [(settings, tuple(self._known[_spelled(settings, self._spell)])) for settings in configs]

        def grid(meta: Mapping[str, Any]) -> Sequence[int]:
            for settings, sizes in pairs:
                if all(meta.get(name) == value for name, value in settings.items()):
                    return sizes
            raise LookupError("the grid of this config was not recorded")

        return grid
