"""Compiling configs ahead of their first launch: what they read and write, which are one binary, which cannot."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from autotuned import failures, toolchain
from autotuned.target import Call, Target


class Ahead:
    """What compiling the configs of one call has shown.

    Attributes:
        refused: Why a config does not compile, by identity; passing reasons, such as a full memory, are left out.
    """

    def __init__(self, target: Target, call: Call) -> None:
        self._target, self._call = target, call
        self._found: list[toolchain.Access | None] = []
        self._binaries: dict[Hashable, int] = {}
        self.refused: dict[str, str] = {}

    @property
    def access(self) -> toolchain.Access | None:
        """What all configs together read and write; None where one does not tell."""
        return toolchain.union(self._found)

    def skip(self) -> None:
        """Note a config that is not compiled ahead: nothing is known of all of them then."""
        self._found.append(None)

    def compile(self, index: int, identity: str, config: Any) -> int:
        """Compile and load one config.

        Returns:
            Its index, or that of an earlier one that is the same binary and has the same grid.
        """
        try:
            compiled = self._target.compile(self._call, config)
        except Exception as error:
            if not failures.is_passing(error):
                self.refused[identity] = failures.describe(error)
            raise
        if compiled is None:
            self.skip()
            return index
        self._found.append(toolchain.accesses(compiled))
        binary, grid = toolchain.binary_identity(compiled), _grid_of(self._call, config)
        return index if binary is None or grid is None else self._binaries.setdefault((binary, grid), index)


def _grid_of(call: Call, config: Any) -> tuple[Any, ...] | None:
    """The grid a config is launched with; None where it cannot be told ahead."""
    try:
        grid = call.grid(call.full(config)) if callable(call.grid) else call.grid
        return tuple(grid)
    except Exception:  # the user's own code, with arguments that heuristics may still have to add
        return None
