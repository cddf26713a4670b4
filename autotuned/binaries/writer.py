"""Writes config files with their binaries: machine code first, then the entries that name it."""

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
from autotuned.store import locks
from autotuned.typed_json import Json, canonical


def binaries_path(path: Path, kernel: str) -> Path:
    """Path of a config file's binaries."""
    return path.with_name(binaryfile.name_of(kernel))


def read(path: Path, kernel: str) -> BinaryFile:
    """Read the binaries at a path, or an empty file; BinaryError if it cannot be read or is of another kernel."""
    try:
        file = binaryfile.read(disk.read_bytes(path), str(path))
    except FileNotFoundError:
        return BinaryFile(kernel)
    except BinaryError:
        raise
    except (OSError, ValueError) as error:
        raise BinaryError(f"binaries {path}: {error}. Move the file away, or rebuild it.", path=str(path)) from error
    if file.kernel != kernel:
        raise BinaryError(f"binaries {path}: expected kernel {kernel!r}, got {file.kernel!r}.", path=str(path))
    return file


def ship(path: Path, found: Mapping[tuple[str, str], Iterable[Built]]) -> int:
    """Add a config file's binaries, and their digests to its entries; drops binaries that no entry names.

    Args:
        path: The config file.
        found: Binaries by the canonical texts of their entry's context and call.

    Returns:
        Bytes of the file of binaries.

    Raises:
        ConfigFileError, BinaryError: An existing file cannot be added to.
        OSError: It cannot be written.
    """
    with locks.locked_config_file(path):
        config = _config(path)
        binaries = _readable(path, config)
        for (context, call), some in found.items():
            entry = config.group(context, {}).entries.get(call)
            if entry is None:  # another process has written the file since
                continue
            digests = list(entry.binaries)
            for built in some:
                if built.variant is not None:
                    binaries.add(built.variant, built.code)
                    digests.append(built.variant.digest)
            config.group(context, {}).entries[call] = entry.with_binaries(digests)
        size = write(path, config, binaries)
    lookup.forget_files()
    return size


def _config(path: Path) -> ConfigFile:
    file, faults = lookup.read_anew(path, None)
    if file is None:
        raise ConfigFileError(f"expected a config file, got {faults[0] if faults else path}", path=str(path))
    return file


def _readable(path: Path, config: ConfigFile) -> BinaryFile:
    """A config file's binaries; a damaged file counts as empty, since it can be rebuilt.

    One that the system does not let us read may be intact: its BinaryError is raised.
    """
    bin_path = binaries_path(path, config.kernel)
    try:
        return read(bin_path, config.kernel)
    except BinaryError as error:
        if isinstance(error.__cause__, OSError):
            raise
        return BinaryFile(config.kernel)


def write(path: Path, config: ConfigFile, binaries: BinaryFile) -> int:
    """Write a config file and its binaries, dropping missing digests and unnamed binaries.

    The machine code is written first, so that a concurrent reader never misses a named binary.

    Raises:
        BinaryError: A newer version wrote the binaries; both files are left alone.
        OSError: It cannot be written.
    """
    bin_path = binaries_path(path, config.kernel)
    _refuse_newer(bin_path)
    there = frozenset(variant.digest for variant in binaries.variants)
    for group in config.groups():
        for call, entry in list(group.entries.items()):
            group.entries[call] = entry.with_binaries(there & frozenset(entry.binaries))
    named = {digest for _, entry in config.entries() for digest in entry.binaries}
    binaries.keep(named)
    content = binaries.dump() if named else b""
    if content:
        disk.write_bytes(bin_path, content)
    writer.write_to(path, config)
    if not content:
        disk.remove(bin_path)
    return len(content)


def take_out(keys: Sequence[Key], path: Path) -> None:
    """Remove a kernel's keys from a config file, and binaries that no other entry names.

    Raises:
        ConfigFileError, BinaryError: One of the two cannot be changed; binaries of a newer version stay with their
            file.
        OSError: It cannot be read or written.
    """
    bin_path = binaries_path(path, keys[0].kernel)
    with locks.locked_config_file(path):  # otherwise concurrent additions would be lost
        _refuse_newer(bin_path)
        left = writer.take_out(keys, path)
        if left is None:
            disk.remove(bin_path)
        elif bin_path.exists():
            write(path, left, read(bin_path, left.kernel))


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
    """The groups of a file, as canonical text and entries, whose context equals the given parts of one."""

    def words(theirs: Mapping[str, Json]) -> str:
        known = {name: theirs.get(name) for name in context}
        environment = policy.that_change_code(known["environment"] or {}, str(known["triton"]))
        return canonical({**known, "environment": environment})

    ours = words(context)
    return [(canonical(group.context), group.entries) for group in config.groups() if words(group.context) == ours]
