"""Removes compiled kernels that no entry of their config file names."""

from __future__ import annotations

from pathlib import Path

from autotuned import disk
from autotuned.binaries import audit, writer
from autotuned.configfiles import exchange
from autotuned.errors import BinaryError
from autotuned.store import locks
from autotuned.store.gc import Freed


def run(folder: Path) -> Freed:
    """Remove compiled kernels that no entry names; config files and unreadable files stay.

    Args:
        folder: Folder of config files.

    Returns:
        How many compiled kernels were removed and kept; files of them without a config file count as leftovers.

    Raises:
        ConfigFileError: There are no config files.
        OSError: A file cannot be written.
    """
    freed, files = Freed(), exchange.files_in(folder)
    for path in files:
        with locks.locked_config_file(path):
            _of_file(path, freed)
    for path, _ in audit.strays(files):
        freed.bytes += path.stat().st_size
        freed.leftovers += disk.remove(path)
    return freed


def _of_file(path: Path, freed: Freed) -> None:
    config, faults = exchange.read(path)
    bin_path = path.with_suffix(".bin") if config is None else writer.binaries_path(path, config.kernel)
    if config is None or not bin_path.exists() or any(not fault.harmless for fault in faults):
        return  # the damaged part may name more
    try:
        file = writer.read(bin_path, config.kernel)
    except BinaryError:
        return
    before, size = len(file.variants), bin_path.stat().st_size
    file.keep({digest for _, entry in config.entries() for digest in entry.binaries})
    if not file.variants:
        disk.remove(bin_path)
    elif len(file.variants) < before:
        disk.write_bytes(bin_path, file.dump())
    left = bin_path.stat().st_size if file.variants else 0
    freed.records += before - len(file.variants)
    freed.bytes += size - left
    freed.kept_records += len(file.variants)
    freed.kept_bytes += left
