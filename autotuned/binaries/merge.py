"""Put config files together with the compiled kernels beside them."""

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
    """Put config files together; for a call that several have, the choice that was measured better is taken.

    That is: one under stronger conditions (a check, more protection) before one under weaker ones; one with times
    before one without; then the one that gains more over the config used without tuning, for that ratio holds across
    machines where times do not; then the faster one; then the first. Compiled kernels that lie beside the inputs are
    put together too: those that the entries taken name.

    Args:
        paths: Config files, or folders of them. They are never written.
        out: Where the files are written: a folder, or for one kernel on one device a file that ends in `.json`. None:
            nothing is written, and their paths are those below a folder.

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
    """The binaries beside all inputs of one kernel; what cannot be read is among the faults."""
    together, seen = BinaryFile(file.kernel), set()
    for path in inputs:
        beside = writer.path_beside(path, file.kernel)
        if beside in seen or not beside.exists():
            continue
        seen.add(beside)
        try:
            there = writer.read(beside, file.kernel)
        except BinaryError as error:
            merged.faults.append(Fault(str(beside), str(error)))
            continue
        merged.faults += [Fault(str(beside), fault) for fault in there.faults]
        for variant in there.variants:
            together.take(variant, there)
    return together
