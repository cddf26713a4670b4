"""Checks that a config file's compiled kernels are undamaged and are the ones that its entries name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from autotuned import disk
from autotuned.binaries import file as binaryfile
from autotuned.binaries import writer
from autotuned.binaries.variant import Variant
from autotuned.configfiles.file import ConfigFile, Entry
from autotuned.errors import BinaryError
from autotuned.typed_json import canonical


def faults(path: Path, config: ConfigFile) -> Iterator[str]:
    """The faults of a config file's binaries, one line each."""
    named = {digest for _, entry in config.entries() for digest in entry.binaries}
    bin_path = writer.binaries_path(path, config.kernel)
    if not named and not bin_path.exists():
        return
    try:
        file = writer.read(bin_path, config.kernel)
    except BinaryError as error:
        yield str(error)
        return
    yield from (f"{bin_path.name}: {fault}" for fault in file.faults)
    there = {variant.digest: variant for variant in file.variants}
    if missing := named - there.keys():
        yield f"{bin_path.name} lacks binaries that entries name ({len(missing)}): autotuned export --binaries."
    if unnamed := there.keys() - named:
        yield f"{bin_path.name} has binaries that no entry names ({len(unnamed)}); they are never loaded."
    if others := sum(
        any(digest in there and _is_of_another(there[digest], entry) for digest in entry.binaries)
        for _, entry in config.entries()
    ):
        yield f"Entries edited since name binaries of another config ({others}): autotuned export --binaries."
    for variant in file.variants:
        try:
            file.code(variant)
        except BinaryError as error:
            yield f"{bin_path.name}: {error}"


def _is_of_another(variant: Variant, entry: Entry) -> bool:
    """Whether a binary's plain constants differ from the entry's config."""
    constants = variant.form.constants
    return any(
        canonical(constants[name]) != canonical(value)
        for name, value in entry.config["kwargs"].items()
        if name in constants and not isinstance(constants[name], (dict, list))
    )


def strays(paths: Iterable[Path]) -> Iterator[tuple[Path, str]]:
    """Files of binaries in these folders without a config file, each with its fault."""
    for folder in sorted({path.parent for path in paths}):
        for path in sorted(folder.glob(f"*{binaryfile.SUFFIX}")):
            if not path.with_suffix(".json").exists() and binaryfile.is_ours(disk.read_head(path, binaryfile.HEAD)):
                yield path, "expected a config file next to it, found none: it serves no call."
