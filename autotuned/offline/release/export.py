"""`export`: the choices of the user's store as config files, and on request the compiled kernels for them."""

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
    """What `export` wrote.

    Attributes:
        files: The config files that choices of the store were written into.
        binaries: What came of their binaries; None where none were asked for.
    """

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
    """Write the choices of the user's store into config files below a folder; what else is in them stays.

    Searches that are not finished, and choices that only one process can read, stay out.

    Args:
        kernels: Only these, by their names, or by what their names end in after a dot; None for all.
        binaries: Compile the kernels for all entries of the folder too, for the architectures that its files name. No
            GPU is needed, and where files are there already the store may be empty.
        targets: Where the calls to compile for are: modules and files with cases, and recordings. By default kernels
            are imported by their names.

    Raises:
        KernelNameError: Nothing is stored, or no kernel has such a name.
        TargetError, RecordingError: A target cannot be had.
        OutputError: The folder cannot be written.
        ConfigFileError: A file that is there cannot be added to.
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
