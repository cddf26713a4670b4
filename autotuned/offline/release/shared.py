"""Lists, pulls, pushes and probes a shared store for the command line."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from autotuned import disk, env
from autotuned.binaries import merge
from autotuned.configfiles import exchange, writer
from autotuned.configfiles.file import Fault
from autotuned.errors import StoreError
from autotuned.recording import file as calls
from autotuned.recording import sending
from autotuned.remote import client
from autotuned.remote.place import (
    FILES,
    MAX_FILE_BYTES,
    MAX_RECORD_BYTES,
    RECORDINGS,
    RECORDS,
    Place,
    configured,
    digest_of,
)
from autotuned.store import layout, locks, record
from autotuned.typed_json import JsonFields

_NAME = re.compile(r"[^/\\.][^/\\]*/[^/\\.][^/\\]*\.(json|bin)")  # a device's folder, and a file in it


def opened(url: str) -> tuple[Place, client.Backend]:
    """Open a store with the key and rights from the environment.

    Raises:
        OptionError: The URL or a variable is invalid.
        StoreError: Its package is not installed, or refuses the URL or an option.
    """
    at = configured(url)
    return at, client.backend_of(at)


def existing(url: str) -> tuple[Place, client.Backend]:
    """Like `opened`, for reading: also a StoreError if its folder does not exist."""
    at, backend = opened(url)
    folder = getattr(backend, "folder", None)
    if folder is not None and not folder.is_dir():
        raise StoreError(
            f"shared store {at.words}: expected an existing folder, found none at {folder}. Check the URL; "
            "`autotuned push` creates a store."
        )
    return at, backend


@contextlib.contextmanager
def _said(at: Place) -> Iterator[None]:
    """Turn a client's errors into a StoreError without secrets."""
    try:
        yield
    except StoreError:
        raise
    except Exception as error:  # each client has its own errors
        text = f"shared store {at.words}: expected an answer, got {at.scrubbed(error)}"
        raise StoreError(text) from None


# -- listings --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def in_place(url: str, heads: bool = False) -> Iterator[None]:
    """Use a shared store's records instead of the user's own, and no config files, inside a `with` block.

    Records are copied to a temporary folder; files deleted there are then deleted from the store.

    Args:
        url: The store.
        heads: Copy only sizes and times, also of recordings: enough for `gc`.

    Raises:
        StoreError: The store cannot be read, or does not exist.
    """
    at, backend = existing(url)
    with disk.temporary_folder() as folder, env.cache_dir_set(folder), layout.copy_of(at.words):
        with _said(at):
            there = dict(_sized(at, backend) if heads else _copied(at, backend))
        yield
        with _said(at):
            for name in [name for name, path in there.items() if not path.exists()]:
                backend.remove(name)


def _sized(at: Place, backend: client.Backend) -> Iterator[tuple[str, Path]]:
    folder = layout.kernel_folder("any")
    disk.make_folder(folder)
    for name, size, age_s in (*backend.sizes(RECORDS), *backend.sizes(RECORDINGS)):
        path = folder / f"{digest_of(name)}.json"
        disk.write_text(path, "")
        os.truncate(path, size)
        os.utime(path, (time.time() - age_s,) * 2)
        yield name, path


def _copied(at: Place, backend: client.Backend) -> Iterator[tuple[str, Path]]:
    unverified = client.Client(at, backend)
    for name, data in backend.read_all(list(backend.names(RECORDS)), MAX_RECORD_BYTES):
        found = None if data is None else unverified.believed(digest_of(name), data)
        if found is not None:
            path = layout.record_path(found.key)
            disk.write_text(path, disk.text(record.dump(found)))
            yield name, path


@dataclass(frozen=True)
class Probe:
    """A shared store as `doctor` reports it.

    Attributes:
        url: The URL without secrets.
        round_trip_ms: Time of one request on an open connection; None if it failed.
        rights: "read and write", "read only" (as requested), "read, not write", or "none".
        signed: Whether records are signed.
        leases: Whether only one host of the fleet searches a key.
        problem: Why it cannot be read or written, or "".
    """

    url: str
    namespace: str
    round_trip_ms: float | None
    rights: str
    signed: bool
    leases: bool
    problem: str = ""


def probe(url: str) -> Probe:
    """Test reading, writing and deleting in a shared store; OptionError if the URL or a variable is invalid."""
    at = configured(url)
    known = at.words, at.namespace
    try:
        backend = client.backend_of(at)
        name = f"probe/{os.urandom(8).hex()}"
        backend.read(name, 100)  # opens the connection
        start = time.perf_counter()
        backend.read(name, 100)
        spent_ms = (time.perf_counter() - start) * 1e3
    except Exception as error:  # each client has its own errors
        return Probe(*known, None, "none", at.key is not None, False, _problem(at, error))
    rights, problem = "read only", ""
    if not at.read_only:
        try:
            backend.write(name, b"probe", "*")
            backend.remove(name)
            rights = "read and write"
        except Exception as error:
            rights, problem = "read, not write", _problem(at, error)
    return Probe(*known, spent_ms, rights, at.key is not None, backend.has_leases, problem)


def _problem(at: Place, error: Exception) -> str:
    """An error of a store, without the store's name, which stands before it."""
    return at.scrubbed(error).removeprefix(f"{StoreError.__name__}: shared store {at.words}: ")


# -- config files ----------------------------------------------------------------------------------------------------


@dataclass
class Moved(JsonFields):
    """The result of `pull` or `push`.

    Attributes:
        files: Changed files: paths below the folder, or names in the store.
        same: Number of unchanged files.
        faults: Skipped files, and why.
    """

    files: list[str] = field(default_factory=list)
    same: int = 0
    faults: list[Fault] = field(default_factory=list)


def pull(url: str, out: str | os.PathLike[str]) -> Moved:
    """Copy the config files, rules and binaries of a shared store into a folder.

    Existing config files and their binaries are merged with the store's, as by `merge`; other existing files stay. The
    folder is not used until the program registers it or `AUTOTUNED_CONFIG_PATH` names it.

    Args:
        url: The store.
        out: The folder.

    Raises:
        StoreError: The store cannot be read, or does not exist.
        OutputError: The folder cannot be written.
    """
    at, backend = existing(url)
    moved, folder = Moved(), Path(out)
    with disk.temporary_folder() as copy:
        with _said(at):
            for name in sorted(backend.names(FILES)):
                _fetch(at, backend, name.removeprefix(FILES), copy, moved)
        found = sorted(copy.glob("*/*.json"))
        if found:
            writer.refuse_unwritable(folder)
        for path in found:
            writer.make_folder(folder / _below(path), folder)
            with locks.locked_config_file(folder / _below(path)):
                for below, content in _joined(folder, path, moved, replace=False):
                    disk.write_bytes(folder / below, content)
                    moved.files.append(str(folder / below))
    return moved


def push(folder: str | os.PathLike[str], url: str) -> Moved:
    """Copy the config files, rules and binaries of a folder into a shared store.

    Existing config files and their binaries are merged with the folder's, as by `merge`; other files are replaced.

    Args:
        folder: Config files, as `tune --out` writes them; or a recording (`.jsonl`) for `tune --follow`, which replaces
            an earlier version of the same recording.
        url: The store.

    Raises:
        ConfigFileError: The folder has no config file.
        RecordingError: The recording has no calls.
        StoreError: The store cannot be read or written.
    """
    at, backend = opened(url)
    moved, path = Moved(), Path(folder)
    sending.refuse_reader(at)
    if path.suffix == calls.SUFFIX:
        with _said(at):
            moved.files.append(sending.put(path, at, backend))
        return moved
    for path in exchange.files_in(folder):
        if not _NAME.fullmatch(_below(path)):
            moved.faults.append(Fault(str(path), "expected DIR/DEVICE/KERNEL.json, found another place"))
            continue
        with _said(at):
            for _ in range(client.TRIES):  # merges another writer's changes and retries
                if _pushed(at, backend, path, moved):
                    break
            else:
                raise client.beaten(_below(path))
    return moved


def _pushed(at: Place, backend: client.Backend, path: Path, moved: Moved) -> bool:
    """Write one config file and its binaries to the store; False if another writer came first."""
    with disk.temporary_folder() as copy:
        names = [path.with_suffix(ending) for ending in (".json", ".bin")]
        seen = {_below(one): _fetch(at, backend, _below(one), copy, moved) for one in names}
        for below, content in _joined(copy, path, moved, replace=True):
            if backend.write(FILES + below, at.seal(FILES + below, content), seen[below]) != "written":
                return False
            moved.files.append(below)
    return True


def _below(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def _fetch(at: Place, backend: client.Backend, below: str, copy: Path, moved: Moved) -> str:
    """Copy a file of the store into a folder if it is trusted; returns its version."""
    try:
        if not (_NAME.fullmatch(below) and below.isprintable()):
            raise StoreError(f"expected the name DEVICE/FILE of a .json or .bin file, got {below!r:.100}")
        data, seen = backend.read(FILES + below, MAX_FILE_BYTES, for_update=True)
        if data is not None:
            disk.write_bytes(copy / below, at.open(FILES + below, data))
    except (StoreError, ValueError) as error:
        moved.faults.append(Fault(below, str(error)))
        return "*"
    return str(seen)


def _differ(one: Path, other: Path) -> bool:
    """Whether two files exist and differ; binaries of equal config files differ if one is damaged."""
    return one.exists() and other.exists() and disk.read_bytes(one) != disk.read_bytes(other)


def _joined(base: Path, path: Path, moved: Moved, replace: bool) -> Iterator[tuple[str, bytes]]:
    """Contents to write for a file and its binaries: binaries first, since the config file names them.

    Args:
        base: The target folder.
        path: The new file, in another folder.
        moved: Receives unchanged files and faults.
        replace: Whether the new file replaces an existing one if they cannot be merged.
    """
    there, both = base / _below(path), (path.with_suffix(".bin"), path)
    with disk.temporary_folder() as work:
        if there.exists() and any(map(_differ, (base / _below(one) for one in both), both)):
            read = [exchange.read(one) for one in (there, path)]
            if all(file is not None for file, _ in read):
                merged = merge.merge([there, path], work)
                moved.faults += merged.faults
                path = next(iter(merged.files))
            elif not replace:
                moved.faults.append(Fault(str(there), "expected a config file to merge with, found another file"))
                return
        for one in (path.with_suffix(".bin"), path):
            if not one.exists():
                continue
            content, before = disk.read_bytes(one), base / _below(one)
            if before.exists() and disk.read_bytes(before) == content:
                moved.same += 1
            else:
                yield _below(one), content
