"""Where choices come from and go to: the user's records on disk, then config files, in a fixed order."""

from __future__ import annotations

import importlib.resources
import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotuned import disk, env, record, records
from autotuned.device import from_json
from autotuned.errors import ConfigFileError
from autotuned.key import Key
from autotuned.later import later
from autotuned.look import Choice as Choice
from autotuned.look import Look as Look
from autotuned.look import Rung as Rung
from autotuned.record import Record
from autotuned.values import digest

if TYPE_CHECKING:
    from importlib.abc import Traversable  # for annotations only: it moves in Python 3.14

    from autotuned import configfile, locks
else:
    configfile, locks = later("configfile"), later("locks")

log = logging.getLogger("autotuned")

# The user's records are asked for here too: the rest of the package knows one store.
BLOCK = records.BLOCK
all_heads = records.all_heads
all_records = records.all_records
clear = records.clear
damaged = records.damaged
inspect = records.inspect
is_newer = records.is_newer
journal_path = records.journal_path
logged = records.logged
keep = records.keep
kernels = records.kernels
locked = records.locked
may_save = records.may_save
note_use = records.note_use
react = records.react
read = records.read
record_path = records.record_path
resumable = records.resumable
root = records.root
scratch_folder = records.scratch_folder
unreadable = records.unreadable
warn_once = records.warn_once


Candidates = Mapping[str, Any]  # a config's identity -> the live Config

_registered: list[Traversable] = []
_files: dict[tuple[str, str | None], configfile.ConfigFile | None] = {}  # (text of the path, kernel) -> parsed once


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
    for rung, look in PLACES if places is None else places:
        seen = look(key, fit)
        if not unfit or seen.problem != "config gone":  # what was left out has been said already
            react(seen)
        if seen.choice is not None:
            if rung is Rung.STORE:
                note_use(Path(seen.choice.origin))
            return seen.choice
    return None


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
    with locks.locked(root() / "locks" / f"{digest(str(path.absolute()))}.lock"):
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
        probe = existing / f".autotuned-{os.urandom(8).hex()}"
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
            return seen.replace(choice=Choice(config, Rung.FILE, origin=str(path)))
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
