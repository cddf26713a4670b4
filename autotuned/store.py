"""Where choices come from and go to: the user's records on disk, then config files, in a fixed order."""

from __future__ import annotations

import enum
import importlib.resources
import logging
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotuned import configfile, disk, env, record
from autotuned.device import from_json
from autotuned.errors import ConfigFileError, RecordError
from autotuned.key import Key
from autotuned.record import Record
from autotuned.values import digest

if TYPE_CHECKING:
    from importlib.abc import Traversable  # for annotations only: it moves in Python 3.14

log = logging.getLogger("autotuned")


class Rung(enum.IntEnum):
    """Where a choice came from, in the order in which the places are asked."""

    TABLE = 1  # this process's own table
    STORE = 2  # the user's records
    FILE = 3  # config files: same call, same context
    LADDER = 4  # config files: same call, another context (not served yet)
    NEAREST = 5  # config files: nearest shape (not served yet)
    DEFAULT = 6  # `default=`, or the first config where a mode says so
    SEARCH = 7  # measured now
    ONLY = 8  # the one config there is


@dataclass(frozen=True)
class Choice:
    """The config to launch with, and why it is this one.

    Attributes:
        config: The live `Config` object, its hook included.
        rung: Where it came from.
        record: The stored record, where there is one.
        complete: Whether every candidate of the call has been measured already.
        lasting: Whether later calls may use it without asking again.
        origin: The file it came from, for people.
    """

    config: Any
    rung: Rung
    record: Record | None = None
    complete: bool = True
    origin: str = ""
    lasting: bool = True


Candidates = Mapping[str, Any]  # a config's identity -> the live Config

_registered: list[Traversable] = []
_files: dict[tuple[str, str | None], configfile.ConfigFile | None] = {}  # (text of the path, kernel) -> parsed once
_warned: set[str] = set()


def root() -> Path:
    """The folder of this schema's records."""
    return disk.cache_dir(env.cache_dir_setting())


def record_path(key: Key) -> Path:
    """The one file of a key."""
    folder = configfile.file_name(key.kernel).removesuffix(".json")
    return root() / f"v{record.SCHEMA}" / folder / f"{key.digest}.json"


def journal_path(key: Key) -> Path:
    """The journal of a key's search."""
    path = record_path(key)
    return path.parent / "journal" / path.name


@contextmanager
def locked(key: Key, between_processes: bool = True) -> Iterator[None]:
    """Hold the key's lock: one process or thread searches, the others wait (`disk.locked` says how long)."""
    path = record_path(key)
    with disk.locked(path.parent / "locks" / f"{key.digest}.lock", between_processes):
        yield


@dataclass(frozen=True)
class Look:
    """What one place holds for a key: a choice, or in a few words why there is none.

    Attributes:
        problem: "absent", "damaged", "unreadable", "newer schema" or "config gone"; with a choice, what an earlier file
            had instead of one.
        detail: What exactly, for people. `path`: the file it is about.
    """

    choice: Choice | None = None
    problem: str = ""
    detail: str = ""
    path: str = ""


def find(
    key: Key,
    candidates: Candidates,
    places: Sequence[tuple[Rung, Callable[[Key, Candidates], Look]]] | None = None,
    unfit: Collection[str] = (),
) -> Choice | None:
    """The choice for a key among the live candidates: that of the first place, by default of `PLACES`, that has one.

    A stored config that is no longer among the candidates is not served: hooks could not be re-attached to it.

    Args:
        unfit: Candidates that were found not to compile or launch here.
    """
    fit = {identity: config for identity, config in candidates.items() if identity not in unfit}
    for _, look in PLACES if places is None else places:
        seen = look(key, fit)
        if not unfit or seen.problem != "config gone":  # what was left out has been said already
            _react(seen)
        if seen.choice is not None:
            return seen.choice
    return None


def _react(seen: Look) -> None:
    """Move a damaged record aside, and say once what a user can do something about."""
    path = Path(seen.path)
    if seen.problem == "damaged":
        _damaged(path, seen.detail)
    elif seen.problem == "unreadable":
        _warn_once(seen.path, "record %s cannot be read (%s); going on without it.", path, seen.detail)
    elif seen.problem == "newer schema":
        _warn_once(seen.path, "record %s has the newer schema %s; it is left alone.", path, seen.detail)
    elif seen.problem == "config gone" and seen.path:
        _warn_once(
            f"{path} {seen.detail}",
            "config file %s: the config for this call is not among the kernel's configs any more; it is not used: %s",
            path,
            seen.detail,
        )


def _look_at_record(key: Key, candidates: Candidates) -> Look:
    path = record_path(key)
    found, seen = inspect(path)
    if found is None:
        return seen
    if found.key != key:
        return Look(None, "damaged", "it holds the record of another key", str(path))
    winner = best(found, candidates)
    if winner is None:  # without a path: a search follows, which is nothing to warn of
        return Look(None, "config gone" if found.winner else "absent", f"{path} has none of the configs of this call")
    measured = {timing.identity for timing in found.timings}
    return Look(Choice(candidates[winner], Rung.STORE, found, candidates.keys() <= measured, str(path)))


def best(found: Record, candidates: Candidates) -> str | None:
    """Identity of the record's winner; if it is no candidate any more, of the fastest measured one that is."""
    if found.winner is None:
        return None
    winner = record.Timing(found.winner).identity
    if winner in candidates:
        return winner
    usable = [t for t in found.timings if t.usable and t.identity in candidates]
    return min(usable, key=lambda timing: timing.median_us or 0.0).identity if usable else None


def read(path: Path) -> Record | None:
    """The record in a file; None if there is none, or it cannot be read, is damaged or of a newer schema."""
    found, seen = inspect(path)
    _react(seen)
    return found


def inspect(path: Path) -> tuple[Record | None, Look]:
    """The record in a file, or why there is none; nothing is moved, and nothing is said."""
    where = str(path)
    try:
        data = disk.read_json(path)
    except (FileNotFoundError, NotADirectoryError):
        if path.is_symlink():
            return None, Look(None, "damaged", "it is a link to nowhere", where)
        return None, Look(None, "absent", "", where)
    except OSError as error:
        if path.is_dir():
            return None, Look(None, "damaged", "a folder lies in its place", where)
        return None, Look(None, "unreadable", str(error), where)
    except ValueError as error:
        return None, Look(None, "damaged", str(error), where)
    if is_newer(data):
        return None, Look(None, "newer schema", str(data["schema"]), where)
    try:
        return record.load(data), Look()
    except RecordError as error:
        return None, Look(None, "damaged", str(error), where)


def is_newer(data: Any) -> bool:
    """Whether JSON was written by a later version of this package."""
    schema = data.get("schema") if isinstance(data, dict) else None
    return isinstance(schema, int) and not isinstance(schema, bool) and schema > record.SCHEMA


def _damaged(path: Path, why: str) -> None:
    moved = disk.move_aside(path)
    message = "record %s is damaged (%s); %s; the kernel is tuned again."
    if moved:
        log.warning(message, path, why.rstrip("."), f"moved to {moved}")
    else:  # it is met again at the next look
        _warn_once(str(path), message, path, why.rstrip("."), "it will be replaced")


def keep(result: Record) -> bool:
    """Write a record; where that fails, the choice lives in memory only and one warning says so.

    Returns:
        Whether it was written.
    """
    path = record_path(result.key)
    try:
        if path.exists() and is_newer(disk.read_json(path)):
            return False
    except (OSError, ValueError):
        pass  # unreadable or damaged: the write below replaces it, or fails with its own reason
    try:
        disk.write_text(path, disk.text(record.dump(result)))
    except OSError as error:
        _warn_once(
            "unwritable",
            "cannot write to the cache folder %s (%s): results are kept in memory only. Set "
            "AUTOTUNED_CACHE_DIR to a folder that can be written.",
            root(),
            error,
        )
        return False
    return True


def all_records(kernel: str | None = None, quietly: bool = False) -> Iterator[tuple[Path, Record]]:
    """Every readable record of the user's store, or of one kernel in it, by kernel and digest.

    Args:
        kernel: Its name, or None for all kernels.
        quietly: Leave damaged records where they are, and say nothing of them.
    """
    for path in _record_files(kernel):
        found = inspect(path)[0] if quietly else read(path)
        if found is not None:
            yield path, found


def unreadable(kernel: str) -> Iterator[tuple[Path, Look]]:
    """The record files of a kernel that hold no record, and why; they stay where they are."""
    for path in _record_files(kernel):
        found, seen = inspect(path)
        if found is None and seen.problem != "absent":
            yield path, seen


def _record_files(kernel: str | None) -> Iterator[Path]:
    folder = configfile.file_name(kernel).removesuffix(".json") if kernel else "*"
    paths = sorted((root() / f"v{record.SCHEMA}").glob(f"{folder}/*.json"))
    yield from (path for path in paths if not path.name.startswith("."))


def clear(kernel: str | None = None) -> int:
    """Delete the records of one kernel, or of all; returns how many."""
    count = 0
    for path, _ in list(all_records(kernel)):
        path.unlink(missing_ok=True)
        count += 1
    return count


def register_configs(source: str | Path) -> None:
    """Serve the config files of an application.

    Later registrations are asked first; all of them after `AUTOTUNED_CONFIG_PATH` and before the files that come
    with this package.

    Args:
        source: A package ("mypkg.tuned", read with importlib.resources, also from a zip) or a folder.

    Raises:
        ConfigFileError: No such package or folder.
    """
    folder: Traversable = Path(source).expanduser()
    if not folder.is_dir():
        folder = _package_folder(str(source))
    _registered.insert(0, folder)
    forget_files()


def _package_folder(name: str) -> Traversable:
    try:
        return importlib.resources.files(name)
    except (ImportError, TypeError, ValueError) as error:
        raise ConfigFileError(
            f"register_configs: expected a package or an existing folder, got {name!r} ({error}). Check that the "
            "package ships its JSON files (package data), or give the folder's path.",
            path=name,
        ) from error


def forget_files() -> None:
    """Read config files anew at their next use."""
    _files.clear()


def config_folders() -> Iterator[Traversable]:
    """Folders of config files in the order they are asked: environment, application, this package."""
    yield from env.config_path()
    yield from _registered
    yield importlib.resources.files("autotuned.configs")


def shipped(kernel: str | None = None) -> Iterator[tuple[str, Key, configfile.Entry]]:
    """Every entry of the config files, or of one kernel's, on any device: its file, its key and itself."""
    for path in _shipped_files(kernel):
        file = _file(path, kernel)
        for key, entry in file.entries() if file else ():
            yield str(path), key, entry


def _shipped_files(kernel: str | None) -> Iterator[Traversable]:
    for folder in config_folders():
        devices = [device for device in folder.iterdir() if device.is_dir()] if folder.is_dir() else []
        for device in sorted(devices, key=lambda device: device.name):
            if kernel is not None:
                yield device / configfile.file_name(kernel)
            elif device.name != "schema":  # in the packaged folder: the JSON schema of these files
                files = [file for file in device.iterdir() if file.name.endswith(".json")]
                yield from sorted(files, key=lambda file: file.name)


def ship(key: Key, entry: configfile.Entry, folder: Path) -> Path:
    """Put an entry into the config file of its kernel and device below a folder; what else is in the file stays.

    Returns:
        The file, `<folder>/<device slug>/<kernel>.json`.

    Raises:
        ConfigFileError: The file that is there is damaged, of a newer schema or of another kernel; it is left as it is.
        OSError: It cannot be read or written.
    """
    context, device = configfile.split_context(key.context)
    path = folder / from_json(device).slug / configfile.file_name(key.kernel)
    # Not beside the file: the folder is somebody's source tree, and a lock file stays where it is made.
    with disk.locked(root() / "locks" / f"{digest(str(path.absolute()))}.lock"):
        file = shippable(path, key.kernel) or configfile.ConfigFile(key.kernel, from_json(device))
        if file.device != from_json(device):  # two names that become one slug
            raise ConfigFileError(
                f"config file {path}: expected {from_json(device)}, got {file.device}.", path=str(path)
            )
        file.add(context, entry)
        path.parent.mkdir(parents=True, exist_ok=True)  # with the umask's own mode: it is to be committed and shared
        disk.write_text(path, file.dump())
    forget_files()
    return path


def shippable(path: Path, kernel: str) -> configfile.ConfigFile | None:
    """The config file at a path if entries of a kernel can be added to it; None if there is none yet.

    Raises:
        ConfigFileError: It is damaged, of a newer schema or of another kernel.
        OSError: It cannot be read.
    """
    if not path.exists():
        return None
    try:
        return _parsed(path, kernel)
    except ConfigFileError as error:
        raise ConfigFileError(f"{error} It is left as it is: repair it, or move it away.", path=str(path)) from error


def unwritable(folder: Path) -> str:
    """Why no file can be written below a folder, in a few words; "" if one can. Nothing stays behind."""
    # A real file: permission bits say little to root, on network file systems and where the disk is full.
    try:
        existing = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
        if not existing.is_dir():
            return f"{existing} is not a folder"
        probe = existing / f".autotuned-{uuid.uuid4().hex}"
        disk.write_text(probe, "")
        probe.unlink()
    except OSError as error:
        return f"{error.filename or folder}: {error.strerror or error}"
    return ""


def _look_at_files(key: Key, candidates: Candidates) -> Look:
    slug = from_json(key.context["device"]).slug
    seen = Look(None, "absent")
    for folder in config_folders():
        path = folder / slug / configfile.file_name(key.kernel)
        file = _file(path, key.kernel)
        entry = file.find(key) if file else None
        if entry is None:
            continue
        config = candidates.get(record.Timing(entry.config).identity)
        if config is not None:
            return replace(seen, choice=Choice(config, Rung.FILE, origin=str(path)))
        seen = Look(None, "config gone", str(entry.config), str(path))  # the next folder may still have an answer
    return seen


# In the order in which they are asked; `explain` walks the same list.
PLACES: tuple[tuple[Rung, Callable[[Key, Candidates], Look]], ...] = (
    (Rung.STORE, _look_at_record),
    (Rung.FILE, _look_at_files),
)


def _file(path: Traversable, kernel: str | None) -> configfile.ConfigFile | None:
    name = (str(path), kernel)
    if name not in _files:
        _files[name] = _read_file(path, kernel)
    return _files[name]


def _read_file(path: Traversable, kernel: str | None) -> configfile.ConfigFile | None:
    try:
        return _parsed(path, kernel) if path.is_file() else None
    except ConfigFileError as error:
        log.warning("%s It is skipped; tune again or repair it.", error)
    except OSError as error:
        log.warning("config file %s: %s. It is skipped.", path, error)
    return None


def _parsed(path: Traversable, kernel: str | None) -> configfile.ConfigFile:
    file = configfile.parse(path.read_bytes(), str(path))
    if configfile.file_name(file.kernel) != path.name:
        raise ConfigFileError(
            f"config file {path}: expected {f'kernel {kernel!r}' if kernel else 'the kernel of its name'}, got "
            f"{file.kernel!r}: files keep the names they are written under.",
            path=str(path),
        )
    return file


def _warn_once(about: str, message: str, *args: object) -> None:
    if about not in _warned:
        _warned.add(about)
        log.warning(message, *args)
