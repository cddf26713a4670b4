"""Grids of calls: told from what is none, and of recorded ones a callable's answers for every config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autotuned.errors import CallError
from autotuned.tunable.configs import suggestion
from autotuned.typed_json import Fallback, Json, canonical, encode


def describe(grid: Any, arguments: Mapping[str, Any], configs: Sequence[Mapping[str, Any]], spell: Fallback) -> Json:
    """The grid of a call as JSON: `{"sizes": [...]}`, or for a callable its answer for each config.

    Args:
        grid: As the caller gave it; None for plain callables, which have none.
        arguments: All arguments by name, those of the kernel's defaults included.
        configs: The parameters that each candidate sets. One for which the callable raises has no grid.
        spell: Spells values that typed JSON does not know.
    """
    if grid is None:
        return None
    if not callable(grid):
        return {"sizes": _sizes(grid)}
    found = {}
    for settings in configs:
        try:
            found[_spelled(settings, spell)] = _sizes(grid({**arguments, **settings}))
        except Exception:  # the user's code, asked about a config that it may never have seen
            continue
    if len({tuple(sizes) for sizes in found.values()}) == 1 and len(found) == len(configs):
        return {"every": next(iter(found.values())), "configs": list(found)}
    return {"configs": list(found), "sizes_of": list(found.values())}


def refuse(grid: Any, arguments: Mapping[str, Any], kernel: str, error: Exception) -> None:
    """After a launch that failed: say so if it was for its grid, of which Triton speaks in words of its own code.

    Args:
        arguments: All arguments by name, those that the config sets included; a callable is asked once more.
        error: What the launch raised.

    Raises:
        CallError: The grid is no tuple or list of 1 to 3 integers, or asks for a name that is not there.
    """
    meta = _Meta(arguments)
    try:
        sizes = grid(meta) if callable(grid) else grid
    except Exception:  # the user's code: its own error is the one to show, unless it asked for what is not there
        if not (isinstance(error, KeyError) and error.args == (meta.missing,)):
            return
        raise CallError(
            f"`{kernel}`: grid: expected the callable to ask for names of arguments and of what configs set, got "
            f"{meta.missing!r:.60}." + suggestion(str(meta.missing), map(str, arguments)),
            kernel=kernel,
        ) from None
    is_grid = isinstance(sizes, (tuple, list)) and 1 <= len(sizes) <= 3
    if not is_grid or not all(hasattr(size, "__index__") for size in sizes):
        got = f"{sizes!r:.60}" + (" from the callable" if callable(grid) else "")
        raise CallError(
            f"`{kernel}`: grid: expected a tuple of 1 to 3 integers, or a callable returning one, got {got}. Write "
            "kernel[(blocks,)](...).",
            kernel=kernel,
        ) from None


class _Meta(dict[str, Any]):
    """What a grid callable is given; `missing` is the name that it asked for in vain."""

    missing: Any = None

    def __missing__(self, name: Any) -> Any:
        self.missing = name
        raise KeyError(name)


def _sizes(grid: Any) -> list[int]:
    return [int(size) for size in (grid if isinstance(grid, (tuple, list)) else (grid,))]


def _spelled(settings: Mapping[str, Any], spell: Fallback) -> str:
    return canonical({name: encode(value, name, spell) for name, value in settings.items()})


class Rebuilt:
    """The grid of a recorded call, to be launched with.

    Args:
        form: What `describe` gave.
        spell: As for `describe`.
    """

    def __init__(self, form: Json, spell: Fallback) -> None:
        self._spell = spell
        self._fixed = form.get("sizes")
        every = form.get("every")
        sizes = [every] * len(form["configs"]) if every is not None else form.get("sizes_of", [])
        self._known = dict(zip(form.get("configs", ()), sizes))

    def has(self, settings: Mapping[str, Any]) -> bool:
        """Whether the grid of a config that sets these parameters is known."""
        return self._fixed is not None or _spelled(settings, self._spell) in self._known

    def for_configs(self, configs: Sequence[Mapping[str, Any]]) -> Any:
        """The sizes, or a callable that knows them for each of these configs by what they set."""
        if self._fixed is not None:
            return tuple(self._fixed)
        pairs = [(settings, tuple(self._known[_spelled(settings, self._spell)])) for settings in configs]

        def grid(meta: Mapping[str, Any]) -> Sequence[int]:
            for settings, sizes in pairs:
                if all(meta.get(name) == value for name, value in settings.items()):
                    return sizes
            raise LookupError("the grid of this config was not recorded")

        return grid
