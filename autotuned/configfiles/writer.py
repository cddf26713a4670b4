"""Writes config files: adds entries to a folder's files, in an order that git can merge."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from autotuned import disk
from autotuned.configfiles import file as configfile
from autotuned.configfiles import lookup
from autotuned.configfiles.file import ConfigFile, Entry
from autotuned.errors import ConfigFileError, OutputError
from autotuned.gpu.device import Device, from_json
from autotuned.key.key import Key
from autotuned.store import locks
from autotuned.typed_json import Json

if TYPE_CHECKING:
    from autotuned.rules.rule import Rule

ATTRIBUTES = ".gitattributes"
UNION = (
    "# Two people who tune different shapes add different lines to a file: git keeps both.\n"
    "# `autotuned check` finds calls that both tuned.\n"
    "*.json merge=union\n"
    "# Compiled kernels: `autotuned merge` combines them.\n"
    "*.bin binary\n"
)

PROBE_BYTES = 4096  # what a record of a few configs takes

_ends: dict[str, configfile.Ends] = {}  # by file, as this process first found it


def ship(key: Key, entry: Entry, folder: Path) -> Path:
    """Add an entry to the config file of its kernel and device in a folder; see `ship_all`."""
    [path] = ship_all([(key, entry)], folder)
    return path


Rules: TypeAlias = "tuple[Json, Mapping[str, tuple[Rule | None, int]]]"


def ship_all(found: Iterable[tuple[Key, Entry]], folder: Path, rules: Rules | None = None) -> list[Path]:
    """Add entries to the config files of their kernels and devices in a folder; other entries stay.

    A new folder gets a `.gitattributes` with which git merges two people's additions.

    Args:
        rules: A context without its device, and its rules by name (None to remove one), each with the number of calls
            it was fitted to; rules fitted to more calls stay.

    Returns:
        The files, each `<folder>/<device slug>/<kernel>.json`.

    Raises:
        ConfigFileError: An existing file is damaged, of a newer schema or of another kernel; it is left as it is.
        OSError: It cannot be read or written.
    """
    by_path: dict[Path, list[tuple[Key, Entry]]] = {}
    for key, entry in found:
        path = path_of(key.kernel, from_json(key.context["device"]), folder)
        by_path.setdefault(path, []).append((key, entry))
    for path, some in by_path.items():
        _add(path, some, folder, rules)
    lookup.forget_files()
    return list(by_path)


def _add(path: Path, found: list[tuple[Key, Entry]], folder: Path, rules: Rules | None) -> None:
    kernel, device = found[0][0].kernel, from_json(found[0][0].context["device"])
    make_folder(path, folder)
    with locks.locked_config_file(path):
        file = shippable(path, kernel) or ConfigFile(kernel, device)
        # As this process first found it, so that a run of `tune` writes a new file in sorted order.
        file.ends = _ends.setdefault(str(path.absolute()), file.ends)
        for key, entry in found:
            context, where = configfile.split_context(key.context)
            if file.device != from_json(where):  # two names that become one slug
                text = f"config file {path}: expected {from_json(where)}, got {file.device}."
                raise ConfigFileError(text, path=str(path))
            file.add(context, _with_facts_of(file.find(key), entry))
        if rules is not None:
            for name, (rule, calls) in rules[1].items():
                file.set_rule(rules[0], name, rule, calls)
        write(file, folder)


def take_out(keys: Sequence[Key], path: Path) -> ConfigFile | None:
    """Remove the entries of a kernel's keys from a file, and the file with its last entry; returns the file, or
    None.

    Raises:
        ConfigFileError: The file is damaged, of a newer schema or of another kernel; it is left as it is.
        OSError: It cannot be read or written.
    """
    with locks.locked_config_file(path):
        file = shippable(path, keys[0].kernel)
        there = [key for key in keys if file is not None and file.find(key) is not None]
        if file is not None and there:
            for key in there:
                file.remove(key)
            if file.count or file.rules:
                write_to(path, file)
            else:
                path.unlink()
                file = None
    lookup.forget_files()
    return file


def _with_facts_of(before: Entry | None, entry: Entry) -> Entry:
    """The new entry, with what only the old one knows if the config is the same: its binaries, times and quality."""
    if before is None or before.identity != entry.identity:
        return entry
    if entry.median_us in (None, before.median_us):  # of the same measurement, or of none
        first, second = (before, entry) if entry.median_us is None else (entry, before)
        gain, quality = first.vs_default or second.vs_default, first.quality or second.quality
        entry = replace(entry, median_us=before.median_us, vs_default=gain, quality=quality)
    return entry.with_binaries((*before.binaries, *entry.binaries))


def path_of(kernel: str, device: Device, folder: Path) -> Path:
    """Path of the file of a kernel and device in a folder."""
    return folder / device.slug / configfile.file_name(kernel)


def write(file: ConfigFile, folder: Path) -> Path:
    """Write a file to its place in a folder and return the path."""
    path = path_of(file.kernel, file.device, folder)
    make_folder(path, folder)
    write_to(path, file)
    return path


def make_folder(path: Path, folder: Path) -> None:
    """Make the folder of a config file in a folder; a new one gets a `.gitattributes`."""
    if not path.parent.exists():
        # With the umask's mode: the folder will be committed and shared.
        path.parent.mkdir(parents=True, exist_ok=True)
        if not (folder / ATTRIBUTES).exists():
            disk.write_text(folder / ATTRIBUTES, UNION)


def write_to(path: Path, file: ConfigFile) -> None:
    """Write a file to any path, replacing an existing one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    disk.write_text(path, file.dump())


def shippable(path: Path, kernel: str) -> ConfigFile | None:
    """The config file at a path, if it can take entries of a kernel; None if there is no file yet.

    Raises:
        ConfigFileError: It is damaged, of a newer schema or of another kernel.
        OSError: It cannot be read.
    """
    try:
        disk.read_head(path, 0)  # an unreadable file is a system error, not a fault of its content
    except FileNotFoundError:
        return None
    except ValueError:
        pass  # not a plain file, or too large: reported below
    file, faults = lookup.read_anew(path, kernel)
    lost = configfile.grave(faults)
    if lost or file is None:
        text = f"{lost[0] if lost else path} It is left as it is: repair it, or move it away."
        raise ConfigFileError(text, path=str(path))
    return file


def refuse_unwritable(folder: Path) -> None:
    """Fail early, with OutputError, if the folder is not writable."""
    if reason := unwritable(folder):
        raise OutputError(f"nothing can be written to {folder}: {reason}", path=str(folder))


def check_all(kernel: str, folder: Path) -> None:
    """Fail early, as `shippable` does, if an existing config file of a kernel cannot be added to."""
    for path in sorted(folder.glob(f"*/{configfile.file_name(kernel)}")):
        shippable(path, kernel)


def unwritable(folder: Path) -> str:
    """Why a folder is not writable, in a few words, or "". Leaves nothing behind."""
    try:
        existing = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
        if not existing.is_dir():
            return f"{existing} is not a folder"
        probe(existing)
    except OSError as error:
        return f"{error.filename or folder}: {error.strerror or error}"
    return ""


def probe(folder: Path) -> None:
    """Write a small file in a folder, wait until the disk has it, and remove it.

    Permission bits tell little about root, network file systems and full disks, and a full disk takes empty files.

    Raises:
        OSError: The folder cannot be written; the error names it.
    """
    temporary = folder / f".autotuned-{os.urandom(8).hex()}"
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            disk.write_all(descriptor, os.urandom(PROBE_BYTES))  # random: some file systems keep zeros in no space
            _sync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        error.filename = str(folder)
        raise
    finally:
        disk.remove(temporary)


def _sync(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS):  # the file system has no fsync
            raise
