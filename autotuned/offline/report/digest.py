"""One digest of all choices, equal on two machines, ranks or runs exactly if the choices are equal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from autotuned.configfiles import exchange
from autotuned.configfiles.exchange import PathLike
from autotuned.configfiles.file import grave
from autotuned.errors import ConfigFileError
from autotuned.offline.report import stored
from autotuned.resolve import active, tuner
from autotuned.store import listing
from autotuned.store.record import identity_of
from autotuned.typed_json import digest


def choices_digest(kernel: str | None = None, *, paths: PathLike | Iterable[PathLike] | None = None) -> str:
    """A digest of kernels, keys and configs, in 64 hex digits; times and origins are not part of it.

    If a key has several choices, the one that a call would get enters: from this process, then the folder of
    `--binaries`, then the user's store, then the config files in their order, including this package's. Unfinished
    searches and untuned configs are ignored.

    Args:
        kernel: Only kernels with this name, or this dotted suffix.
        paths: Use only these config files, or folders of them.

    Raises:
        KernelNameError: No kernel has this name.
        ConfigFileError: There are no files, or one cannot be read.
    """
    found: dict[str, tuple[str, str]] = {}
    for name, key, config in _of_process_and_disk() if paths is None else _of_files(paths):
        found.setdefault(key, (name, config))
    names = {name for name, _ in found.values()}
    wanted = names if kernel is None else {*listing.named(names, kernel)}
    return digest(sorted([key, config] for key, (name, config) in found.items() if name in wanted))


def _of_process_and_disk() -> Iterator[tuple[str, str, str]]:
    """Kernel, digest of the key and identity of the config, in look-up order."""
    for key, identity in tuner.choices().items():
        yield key.kernel, key.digest, identity
    for choices in active.elsewhere:
        yield from ((key.kernel, key.digest, identity) for key, identity in choices())
    for path, record in listing.all_heads(quietly=True):
        if record.winner is not None and record.key.digest == Path(path).stem:
            yield record.key.kernel, record.key.digest, identity_of(record.winner)
    for _, key, entry in stored.shipped():
        yield key.kernel, key.digest, entry.identity


def _of_files(paths: PathLike | Iterable[PathLike]) -> Iterator[tuple[str, str, str]]:
    for path in exchange.files_in(paths):
        file, faults = exchange.read(path)
        if lost := grave(faults):
            raise ConfigFileError(str(lost[0]), path=str(path))
        for key, entry in file.entries() if file is not None else ():
            yield key.kernel, key.digest, entry.identity
