"""Merges config files and their compiled kernels."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from autotuned.binaries import writer
from autotuned.binaries.file import BinaryFile
from autotuned.configfiles import exchange
from autotuned.configfiles.exchange import MergeResult, PathLike
from autotuned.configfiles.file import ConfigFile, Fault
from autotuned.errors import BinaryError


def merge(paths: PathLike | Iterable[PathLike], out: PathLike | None = None) -> MergeResult:
    """Merge config files; for a call in several of them, keep the better measured choice.

    The order of preference: stronger conditions (a check, more protection); has times; gains more over the untuned
    config, a ratio that holds across machines where times do not; faster; first. The compiled kernels that the kept
    entries name are merged too.

    Args:
        paths: Config files, or folders of them. They are never written.
        out: A folder, or for one kernel on one device a file that ends in `.json`. None writes nothing and returns the
            paths below a folder.

    Raises:
        ConfigFileError: There are no files.
        OutputError: `out` is an input, holds something else, or cannot be written.
    """
    inputs = exchange.files_in(paths)
    merged = exchange.merge(inputs, out)
    for path, file in merged.files.items() if out is not None else ():
        if any(entry.binaries for _, entry in file.entries()):
            writer.write(path, file, _together(inputs, file, merged))
    return merged


def _together(inputs: Iterable[Path], file: ConfigFile, merged: MergeResult) -> BinaryFile:
    """The binaries of all inputs of one kernel; unreadable ones become faults."""
    together, seen = BinaryFile(file.kernel), set()
    for path in inputs:
        bin_path = writer.binaries_path(path, file.kernel)
        if bin_path in seen or not bin_path.exists():
            continue
        seen.add(bin_path)
        try:
            there = writer.read(bin_path, file.kernel)
        except BinaryError as error:
            merged.faults.append(Fault(str(bin_path), str(error)))
            continue
        merged.faults += [Fault(str(bin_path), fault) for fault in there.faults]
        for variant in there.variants:
            together.take(variant, there)
    return together
