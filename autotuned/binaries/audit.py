"""Whether the compiled kernels beside a config file are in order: all that its entries name, whole, and no more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from autotuned.binaries import writer
from autotuned.configfiles.file import ConfigFile
from autotuned.errors import BinaryError


def faults(path: Path, config: ConfigFile) -> Iterator[str]:
    """What is wrong beside a config file, each in a line."""
    named = {digest for _, entry in config.entries() for digest in entry.binaries}
    beside = writer.path_beside(path, config.kernel)
    if not named and not beside.exists():
        return
    try:
        file = writer.read(beside, config.kernel)
    except BinaryError as error:
        yield str(error)
        return
    yield from (f"{beside.name}: {fault}" for fault in file.faults)
    there = {variant.digest: variant for variant in file.variants}
    if missing := named - there.keys():
        yield f"{len(missing)} binaries that entries name are not in {beside.name}: autotuned export --binaries."
    if unnamed := there.keys() - named:
        yield f"{len(unnamed)} binaries of {beside.name} belong to no entry, and are never loaded."
    for variant in file.variants:
        try:
            file.code(variant)
        except BinaryError as error:
            yield f"{beside.name}: {error}"
