"""Writing binaries beside config files: the file of machine code first, then the lines that name what is in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from autotuned import disk
from autotuned.binaries import file as binaryfile
from autotuned.binaries.build import Built
from autotuned.binaries.file import BinaryFile
from autotuned.configfiles import lookup, policy, writer
from autotuned.configfiles.file import ConfigFile, Entry
from autotuned.errors import BinaryError, ConfigFileError
from autotuned.key.key import Key
from autotuned.store import layout, locks
from autotuned.typed_json import Json, canonical


def path_beside(path: Path, kernel: str) -> Path:
    """Where the binaries of a config file lie."""
    return path.with_name(binaryfile.name_of(kernel))


def read(path: Path, kernel: str) -> BinaryFile:
    """The binaries at a path as they are now; an empty file where there is none.

    Raises:
        BinaryError: It cannot be read, or is of another kernel: it is left as it is.
    """
    try:
        file = binaryfile.read(disk.read_bytes(path), str(path))
    except FileNotFoundError:
        return BinaryFile(kernel)
    except BinaryError:
        raise
    except (OSError, ValueError) as error:
        raise BinaryError(f"binaries {path}: {error}. Move the file away, or build it anew.", path=str(path)) from error
    if file.kernel != kernel:
        raise BinaryError(f"binaries {path}: expected kernel {kernel!r}, got {file.kernel!r}.", path=str(path))
    return file


def ship(path: Path, found: Mapping[tuple[str, str], Iterable[Built]]) -> int:
    """Put binaries beside a config file, and their digests into its entries; what no entry names any more goes.

    Args:
        path: Of the config file.
        found: By the canonical texts of the context and the call of their entries.

    Returns:
        Bytes of the file of binaries.

    Raises:
        ConfigFileError, BinaryError: A file that is there cannot be added to.
        OSError: It cannot be written.
    """
    with locks.locked(layout.config_file_lock_path(path)):
        config = _config(path)
        binaries = _readable(path, config)
        for (context, call), some in found.items():
            entry = config.group(context, {}).entries.get(call)
            if entry is None:  # another process has written the file since
                continue
            made = [built for built in some if built.variant is not None]
            for built in made:
                assert built.variant is not None
                binaries.add(built.variant, built.code)
            digests = [built.variant.digest for built in made if built.variant is not None]
            config.group(context, {}).entries[call] = entry.with_binaries((*entry.binaries, *digests))
        size = write(path, config, binaries)
    lookup.forget_files()
    return size


def _config(path: Path) -> ConfigFile:
    file, faults = lookup.read_anew(path, None)
    if file is None:
        raise ConfigFileError(f"expected a config file, got {faults[0] if faults else path}", path=str(path))
    return file


def _readable(path: Path, config: ConfigFile) -> BinaryFile:
    """The binaries beside a config file; what is damaged is built anew, so nothing is lost with it."""
    beside = path_beside(path, config.kernel)
    try:
        return read(beside, config.kernel)
    except BinaryError:
        return BinaryFile(config.kernel)


def write(path: Path, config: ConfigFile, binaries: BinaryFile) -> int:
    """Write a config file and its binaries; digests of what is not there go, and so does what no entry names.

    Raises:
        BinaryError: Binaries of a newer version lie there: they are left alone, and so is the config file.
        OSError: It cannot be written.

    The machine code comes first: a reader in between finds more of it than the lines name, and never less.
    """
    beside = path_beside(path, config.kernel)
    _refuse_newer(beside)
    there = frozenset(variant.digest for variant in binaries.variants)
    for group in config.groups():
        for call, entry in list(group.entries.items()):
            group.entries[call] = entry.with_binaries(there & frozenset(entry.binaries))
    named = {digest for _, entry in config.entries() for digest in entry.binaries}
    binaries.keep(named)
    content = binaries.dump() if named else b""
    if content:
        disk.write_bytes(beside, content)
    writer.write_to(path, config)
    if not content:
        disk.remove(beside)
    return len(content)


def take_out(keys: Sequence[Key], path: Path) -> None:
    """Take the entries of a kernel's keys out of a config file, and what only they name out of the binaries beside it.

    Raises:
        ConfigFileError, BinaryError: One of the two cannot be changed; where it is the binaries, they stay as they are.
        OSError: It cannot be read or written.
    """
    beside = path_beside(path, keys[0].kernel)
    _refuse_newer(beside)
    left = writer.take_out(keys, path)
    if left is None:
        disk.remove(beside)
    elif beside.exists():
        write(path, left, read(beside, left.kernel))


def _refuse_newer(path: Path) -> None:
    try:
        head = disk.read_head(path, binaryfile.HEAD)
    except FileNotFoundError:
        return
    if binaryfile.is_newer(head):
        raise BinaryError(
            f"binaries {path}: expected schema {binaryfile.SCHEMA} or older, got a newer one: it is left alone. "
            "Upgrade autotuned, or move the file away.",
            path=str(path),
        )


def matching(config: ConfigFile, context: Mapping[str, Json]) -> list[tuple[str, Mapping[str, Entry]]]:
    """The groups of a file that hold in a context, but for what only says how they were measured: text, and entries.

    Args:
        context: The parts that must be equal, "environment" and "triton" among them.
    """

    def words(theirs: Mapping[str, Json]) -> str:
        known = {name: theirs.get(name) for name in context}
        environment = policy.that_change_code(known["environment"] or {}, str(known["triton"]))
        return canonical({**known, "environment": environment})

    ours = words(context)
    return [(canonical(group.context), group.entries) for group in config.groups() if words(group.context) == ours]
