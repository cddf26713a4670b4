"""Finds config files, in the order of their folders, each read once, and their choices for a call."""

from __future__ import annotations

import heapq
import importlib.resources
import itertools
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from autotuned import disk, env
from autotuned.configfiles import file as configfile
from autotuned.configfiles import lazy, nearest_shape
from autotuned.configfiles import policy as policies
from autotuned.configfiles.file import ConfigFile, Entry, Fault
from autotuned.configfiles.policy import Folder, Policy, Verdict
from autotuned.errors import ConfigFileError
from autotuned.gpu.device import from_json
from autotuned.key.key import Key
from autotuned.key.sizes import Sizes, shape_of
from autotuned.store import conditions
from autotuned.store.choice import Candidates, Choice, Look, Origin
from autotuned.store.conditions import BY_DEFAULT, Conditions
from autotuned.tunable import mismatch
from autotuned.typed_json import Json

if TYPE_CHECKING:
    from importlib.abc import Traversable  # for annotations only: it moves in Python 3.14

log = logging.getLogger("autotuned")
GROUP = "autotuned.configs"  # of entry points, and the package that holds our own files


class Read(NamedTuple):
    """The usable part of a file, and its faults."""

    file: ConfigFile | None
    faults: list[Fault]


class ShippedFile(NamedTuple):
    """A config file, with the policy and the look-up position of its folder."""

    number: int
    path: str
    file: ConfigFile
    policy: Policy

    def judge(self, key: Key, context: Json) -> Verdict | None:
        """The policy's verdict on a group's context for a key."""
        return policies.judge(key.context, {**context, "device": self.file.device_json}, self.policy)


class Offer(NamedTuple):
    """An entry for another context or shape; the lowest `rank` is best."""

    rank: tuple[Any, ...]
    verdict: Verdict
    entry: Entry
    context: Json
    held: ShippedFile
    note: str

    @property
    def key(self) -> Key:
        """The key it was tuned for."""
        return self.held.file.key_of(self.context, self.entry)

    @property
    def path(self) -> str:
        """Its file."""
        return self.held.path


_registered: list[Folder] = []
_packages: dict[str, list[Folder]] = {}  # "entry points" and "own", found once
_files: dict[tuple[str, str | None], Read] = {}  # (text of the path, kernel) -> the file, read once
_looked_at: set[str] = set()  # values of `AUTOTUNED_CONFIG_PATH`
_devices: dict[str, list[Traversable]] = {}  # text of a folder -> the folders of devices in it
_kernels: dict[tuple[str, str], list[tuple[str, ConfigFile]]] = {}  # (text of a folder, kernel) -> its files there


_generation = 0  # grows when files must be read again


# -- the folders -----------------------------------------------------------------------------------------------------


def register_configs(
    source: str | Path, policy: str | Mapping[str, Any] | None = None, *, binaries: bool = False
) -> None:
    """As `autotuned.register_configs`, without the modules that load binaries."""
    actions = policies.policy(policy)
    folder: Traversable = Path(source).expanduser()
    if not folder.is_dir():
        folder = _package_folder(str(source))
        _say_if_empty(folder, str(source))
    place = os.path.realpath(str(folder))
    others = (other for other in _registered if os.path.realpath(str(other.path)) != place)
    _registered[:] = [Folder(folder, actions, binaries), *others]
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


def _say_if_empty(folder: Traversable, name: str) -> None:
    """Warn about a package without config files: a wheel may lack the ones that a checkout has."""
    if not any(_paths_in(folder, None)):
        log.warning("there is no config file in the package %r: are they among its package data ('*/*.json')?", name)


def _say_if_missing(setting: str) -> None:
    """Warn about folders of `AUTOTUNED_CONFIG_PATH` that do not exist, once per value of it."""
    if setting not in _looked_at:
        _looked_at.add(setting)
        for folder in env.config_path():
            if not folder.is_dir():
                log.warning("AUTOTUNED_CONFIG_PATH: there is no folder %s: no config files are read from it.", folder)


def forget_files() -> None:
    """Read config files again at their next use."""
    global _generation
    _generation += 1
    for known in (_files, _devices, _kernels):
        known.clear()


def generation() -> int:
    """A number that changes when files must be read again."""
    return _generation


def state() -> tuple[Any, ...]:
    """A value that stays equal while the same folders are searched and nothing must be read again."""
    return _generation, env.config_path_setting(), *map(id, _packages.values())  # `register_configs` is a generation


def folders() -> Iterator[Folder]:
    """Folders of config files in look-up order: environment, application, entry points, this package."""
    yield from _others()
    yield from _looked_for("own", lambda: [Folder(_own(), policies.DEFAULTS, package="autotuned")])


def _own() -> Traversable:
    """This package's files; in a checkout they are in a folder next to the package."""
    try:
        return importlib.resources.files(GROUP)
    except ModuleNotFoundError:
        return Path(__file__).parent.parent.parent / "configs"


def _others() -> Iterator[Folder]:
    """All folders but this package's own."""
    for folder in env.config_path():
        yield Folder(folder, policies.DEFAULTS)
    _say_if_missing(env.config_path_setting())
    yield from _registered
    yield from _looked_for("entry points", _entry_points)


def allow_rules() -> bool:
    """Whether a registered folder's policy lets its rules serve every kernel."""
    return any(policies.RULES in folder.policy for folder in _registered)


def config_folders() -> Iterator[Traversable]:
    """The folders of `folders`."""
    return (folder.path for folder in folders())


def _looked_for(name: str, find: Callable[[], list[Folder]]) -> list[Folder]:
    if name not in _packages:
        _packages[name] = find()
    return _packages[name]


def _entry_points() -> list[Folder]:
    """Packages named by installed distributions; ones that fail to import are skipped with a warning."""
    found = []
    for point in sorted(metadata.entry_points(group=GROUP), key=lambda point: point.name):
        try:
            path = importlib.resources.files(point.value)
            found.append(Folder(path, policies.DEFAULTS, package=_whole_package(point.value)))
            _say_if_empty(found[-1].path, point.value)
        except Exception as error:  # importing it runs its code
            log.warning(
                "entry point %r of group %s: expected a package of config files, got %r (%s: %s). It is left out.",
                point.name, GROUP, point.value, type(error).__name__, error,
            )  # fmt: skip
    return found


def _whole_package(name: str) -> str:
    """A module's top-level package; "" for a namespace, which several distributions may share."""
    top = name.partition(".")[0]
    return top if getattr(sys.modules.get(top), "__file__", None) else ""


# -- reading ---------------------------------------------------------------------------------------------------------


def shipped(kernel: str | None = None, own: bool = True) -> Iterator[tuple[str, Key, Entry]]:
    """Every entry of the config files, or of one kernel's, on any device; `own` includes this package's files."""
    for folder in folders() if own else _others():
        for path in _paths_in(folder.path, kernel):
            file = read(path, kernel).file
            for key, entry in file.entries() if file else ():
                yield str(path), key, entry
            report(kernel)


def _paths_in(folder: Traversable, kernel: str | None) -> Iterator[Traversable]:
    for device in _device_folders(folder):
        if kernel is not None:
            yield device / configfile.file_name(kernel)
        elif device.name != configfile.SCHEMAS:
            yield from (file for file in _entries(device) if file.name.endswith(".json"))


def _device_folders(folder: Traversable) -> list[Traversable]:
    name = str(folder)
    if name not in _devices:
        _devices[name] = _entries(folder, of_folders=True)
    return _devices[name]


def _entries(folder: Traversable, of_folders: bool = False) -> list[Traversable]:
    """A folder's contents, or its folders, by name; empty, with one warning, if it cannot be read."""
    try:
        entries = sorted(folder.iterdir(), key=lambda entry: entry.name) if folder.is_dir() else []
        return [entry for entry in entries if entry.is_dir()] if of_folders else entries
    except OSError as error:
        env.warn_once(f"folder {folder}", "config files in %s are left out: %s.", folder, error)
        return []


def read(path: Traversable, kernel: str | None) -> Read:
    """The file at a path, read once; `report` tells its faults."""
    name = (str(path), kernel)
    if name not in _files:
        _files[name] = read_anew(path, kernel, lazy.read_lazily)
    return _files[name]


def read_anew(path: Traversable, kernel: str | None, parse: Parse = configfile.read) -> Read:
    """Read the file at a path; anything there that cannot be a config file is a fault."""
    try:
        content = disk.read_resource(path)
    except (FileNotFoundError, NotADirectoryError, KeyError):  # KeyError: missing in a zip
        return Read(None, [])
    except OSError as error:
        return Read(None, [Fault(str(path), f"{error}.")])
    except ValueError as error:
        return Read(None, [Fault(str(path), str(error).removeprefix(f"{path}: "))])
    file, faults = parse(content, str(path))
    if file is not None and configfile.file_name(file.kernel) != path.name:
        is_wanted = kernel in (None, file.kernel)
        wanted = "the kernel of its name" if is_wanted else f"kernel {kernel!r}"
        text = f"expected {wanted}, got {file.kernel!r}: files keep the names they are written under."
        return Read(None, [*faults, Fault(str(path), text)])
    return Read(file, faults)


Parse = Callable[[bytes, str], tuple[ConfigFile | None, list[Fault]]]


def report(kernel: str | None, strict: bool = False) -> None:
    """Warn once about the faults of a kernel's files read so far; with `strict`, raise ConfigFileError instead."""
    for (_, wanted), (file, faults) in list(_files.items()):
        if strict and wanted == kernel and file is not None:
            file.complete()
        for fault in configfile.grave(faults) if wanted == kernel else ():
            if strict:
                raise ConfigFileError(str(fault), path=fault.path)
            skipped = "" if file is not None else " It is skipped; tune again or repair it."
            env.warn_once(str(fault), "%s%s", fault, skipped)


# -- what they offer -------------------------------------------------------------------------------------------------


def look_exact(key: Key, candidates: Candidates, needed: Conditions = BY_DEFAULT) -> Look:
    """The choice for the same call and context."""
    seen = Look(None, "absent")
    for path, entry in _exact(key):
        config, lack = candidates.get(entry.identity), conditions.lack(entry.conditions, needed)
        if config is None:
            seen = Look(None, "config gone", mismatch.misfit(entry.config, candidates), path)  # the next may have it
        elif lack:
            seen = Look(None, "weaker conditions", f"measured {lack}", path)
        else:
            return seen.replace(choice=Choice(config, Origin.FILE, where=path, conditions=entry.conditions))
    return seen


def _exact(key: Key) -> Iterator[tuple[str, Entry]]:
    """The entries for a key, each with its file's path."""
    for folder in folders():
        path = path_of(folder.path, key)
        entry = find(path, key)
        if entry is not None:
            yield str(path), entry


def path_of(folder: Traversable, key: Key) -> Traversable:
    """Where a key's choice would be below a folder."""
    return folder / from_json(key.context["device"]).slug / configfile.file_name(key.kernel)


def find(path: Traversable, key: Key) -> Entry | None:
    """A key's entry in the file at a path, or None."""
    file = read(path, key.kernel).file
    return file.find(key) if file else None


def look_ladder(key: Key, candidates: Candidates, strict: bool = False, needed: Conditions = BY_DEFAULT) -> Look:
    """The choice for the same call in another context, if the policies allow it."""
    return _best(_ladder(key), candidates, needed, Origin.LADDER, strict)


def look_nearest(
    key: Key, candidates: Candidates, factors: nearest_shape.Factors, needed: Conditions = BY_DEFAULT
) -> Look:
    """The choice for the nearest shape, in the same context or another that the policies allow."""
    return _best(_neighbours(key, factors), candidates, needed, Origin.NEAREST, False)


def likely(key: Key, candidates: Candidates, factors: nearest_shape.Factors) -> str | None:
    """The identity of the candidate most likely to win: an entry with weaker conditions or from elsewhere."""
    offers = itertools.chain(_ladder(key), _neighbours(key, factors) if factors else ())
    elsewhere = (offer.entry.identity for offer in offers if offer.verdict.action != "refuse")
    found = itertools.chain((entry.identity for _, entry in _exact(key)), elsewhere)
    return next((identity for identity in found if identity in candidates), None)


def _best(offers: Iterable[Offer], candidates: Candidates, needed: Conditions, origin: Origin, strict: bool) -> Look:
    refused = ""
    for offer in offers:
        config = candidates.get(offer.entry.identity)
        lack = conditions.lack(offer.entry.conditions, needed)
        if config is not None and offer.verdict.serves(strict) and not lack:
            loud = offer.verdict.action == "warn" or origin is Origin.NEAREST
            choice = Choice(config, origin, where=offer.path, note=offer.note, key=offer.key, loud=loud)
            return Look(choice.replace(conditions=offer.entry.conditions))
        refused = refused or f"{offer.path}: {_why_not(offer, candidates, lack)}"
    return Look(None, "absent", refused)


def _why_not(offer: Offer, candidates: Candidates, lack: str) -> str:
    if offer.entry.identity not in candidates:
        return mismatch.misfit(offer.entry.config, candidates)
    if lack:
        return f"{offer.note}; measured {lack}"
    return f"{offer.note}; policy {offer.verdict.action!r}"


def _ladder(key: Key) -> list[Offer]:
    """Entries for the call in other contexts, best first."""
    offers = []
    for held in files_for(key):
        for context, entry in held.file.in_all_contexts(key.call):
            verdict = held.judge(key, context)
            if verdict is not None and verdict.notes:  # without notes it is the same context
                offers.append(Offer((verdict.rank, held.number), verdict, entry, context, held, verdict.words))
    return sorted(offers, key=lambda offer: offer.rank)


def _neighbours(key: Key, factors: nearest_shape.Factors) -> Iterator[Offer]:
    """Entries for other sizes in any context, best first, lazily."""
    ours = shape_of(key.call, factors)
    if not ours.sizes:
        return iter(())
    found = [
        _outwards(verdict, held, alike, ours.sizes, factors)
        for held in files_for(key)
        for alike in nearest_shape.alike(held.file, ours.rest, factors)
        if (verdict := held.judge(key, alike.context)) is not None
    ]
    return heapq.merge(*found, key=lambda offer: offer.rank)


def _outwards(
    verdict: Verdict,
    held: ShippedFile,
    alike: nearest_shape.AlikeEntries,
    ours: Sizes,
    factors: nearest_shape.Factors,
) -> Iterator[Offer]:
    for far, sizes, entry in alike.entries.around(ours, factors):
        if sizes != ours:  # the same are the ladder's
            rank = (verdict.rank, far, sizes, held.number)
            note = "; ".join([nearest_shape.words(ours, sizes, far), *verdict.notes])
            yield Offer(rank, verdict, entry, alike.context, held, note)


def files_for(key: Key) -> Iterator[ShippedFile]:
    """A kernel's files for this device and for others of its architecture."""
    ours = key.context["device"]
    for number, folder in enumerate(folders()):
        for path, file in _files_of(folder.path, key.kernel):
            if (file.device.kind, file.device.arch) == (ours["kind"], ours["arch"]):
                yield ShippedFile(number, path, file, folder.policy)


def _files_of(folder: Traversable, kernel: str) -> list[tuple[str, ConfigFile]]:
    """A kernel's files in a folder, for any device; cached, since building the paths costs more than a look-up."""
    name = (str(folder), kernel)
    if name not in _kernels:
        _kernels[name] = [(str(path), file) for path, file in with_devices(folder, kernel)]
    return _kernels[name]


def with_devices(folder: Traversable, kernel: str) -> Iterator[tuple[Traversable, ConfigFile]]:
    """The config files of a kernel in a folder, for any device, each with its path."""
    for path in _paths_in(folder, kernel):
        file = read(path, kernel).file
        if file is not None:
            yield path, file


def announce(kernel: str, choice: Choice) -> None:
    """Warn once per kernel that a choice for another context or shape is used."""
    if choice.note and choice.loud:
        env.warn_once(
            f"{choice.origin} {kernel}",
            "`%s`: served by %s, which was tuned for another %s (%s). `autotuned tune` measures it here; later ones "
            "of this kernel are logged at level info.",
            kernel, choice.where, "context" if choice.origin is Origin.LADDER else "shape", choice.note,
        )  # fmt: skip
