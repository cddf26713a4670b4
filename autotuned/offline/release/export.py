"""`export`: writes the choices of the user's store as config files, optionally with compiled kernels."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotuned.configfiles import exchange
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
            GPU, and nothing in the store for kernels that have a file already.
        targets: Modules and files with cases, and recordings, whose calls to compile for. By default kernels are
            imported by name.

    Raises:
        KernelNameError: Nothing is stored, or no kernel has such a name.
        TargetError, RecordingError: A target cannot be loaded.
        OutputError: The folder cannot be written.
        ConfigFileError: An existing file cannot be added to.
    """
    folder = Path(out)
    files = exchange.export(folder, kernels, _kernels_in(folder) if binaries else ())
    if not binaries:
        return ExportResult(files)
    from autotuned.offline.binaries import build  # needs torch and triton

    return ExportResult(files, build(folder, targets or ()))


def _kernels_in(folder: Path) -> set[str]:
    """The kernels that have a file in a folder; an unreadable one counts by its name."""
    read = ((path, exchange.read(path)[0]) for path in folder.glob("*/*.json"))
    return {path.stem if config is None else config.kernel for path, config in read}
