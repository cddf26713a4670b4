"""Registers config files and, if their binaries are trusted, imports the modules that load binaries before a call."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotuned._startup import imported
from autotuned.configfiles import lookup
from autotuned.errors import ConfigFileError

# Modules that the first launch of a binary uses.
_NEEDED = ("binaries.serve", "launch.bound", "launch.direct", "launch.driver_call", "launch.grid_program",
           "resolve.first", "api.places")  # fmt: skip


def register_configs(
    source: str | Path, policy: str | Mapping[str, Any] | None = None, *, binaries: bool = False
) -> None:
    """Serve the config files of an application.

    The latest registration is searched first, and replaces an earlier one of the same folder. All come after
    `AUTOTUNED_CONFIG_PATH`, and before the entry-point group `autotuned.configs` and this package's own files.

    Args:
        source: A package ("mypkg.tuned", read with importlib.resources, also from a zip) or a folder.
        policy: What to do if the call matches but the context does not: one action for all axes, or actions by axis,
            such as `{"source": "warn", "triton": "refuse"}`; see docs/config-files.md. `{"rules":
            autotuned.within("5%")}` lets the files' rules serve kernels that have no `nearest=`.
        binaries: Whether the files' compiled kernels may be loaded: they are code that runs on the GPU.

    Raises:
        ConfigFileError: `source` is no package or folder, or `policy` names an unknown axis or action.
    """
    if not isinstance(source, (str, os.PathLike)) or not str(source):
        raise ConfigFileError(
            f"register_configs: expected a package such as 'mypkg.tuned', or a folder, got {type(source).__name__} "
            f"{source!r:.60}. Give its name or path.",
            path=str(source),
        )
    lookup.register_configs(source, policy=policy, binaries=binaries)
    for name in _NEEDED if binaries else ():
        imported(f"autotuned.{name}")
