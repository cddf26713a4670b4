"""`export`: writes the choices of the user's store as config files, optionally with compiled kernels."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotuned.configfiles import exchange
from autotuned.errors import KernelNameError
from autotuned.offline.results import BuildResult
from autotuned.typed_json import Json


@dataclass
class ExportResult:
    """The config files that `export` wrote, and their compiled kernels (None if not requested)."""

    files: list[Path]
    binaries: BuildResult | None = None

    def to_json(self) -> dict[str, Json]:
        """What `autotuned export --json` prints."""
        built = {} if self.binaries is None else {"binaries": self.binaries.to_json()}
        return {"files": list(map(str, self.files)), **built}


def export(
    out: str | os.PathLike[str],
    kernels: str | Iterable[str] | None = None,
    *,
    binaries: bool = False,
    targets: Sequence[str] | None = None,
) -> ExportResult:
    """Write the choices of the user's store into config files below a folder; other entries in them stay.

    Unfinished searches, and choices that are valid in one process only, are omitted.

    Args:
        out: The folder.
        kernels: Names of kernels, or dotted suffixes of them; None for all.
        binaries: Also compile the kernels for all entries of the folder, for the architectures in its files. Needs no
            GPU; if there are files already, the store may be empty.
        targets: Modules and files with cases, and recordings, whose calls to compile for. By default kernels are
            imported by name.

    Raises:
        KernelNameError: Nothing is stored, or no kernel has such a name.
        TargetError, RecordingError: A target cannot be loaded.
        OutputError: The folder cannot be written.
        ConfigFileError: An existing file cannot be added to.
    """
    folder = Path(out)
    try:
        files = exchange.export(folder, kernels)
    except KernelNameError:
        if not binaries or kernels or not any(folder.glob("*/*.json")):
            raise
        files = []
    if not binaries:
        return ExportResult(files)
    from autotuned.offline.binaries import build  # needs torch and triton

    return ExportResult(files, build(folder, targets or ()))
