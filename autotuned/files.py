"""Config files where they lie: the folders in their order, each file read once, and what they offer for a call."""

from __future__ import annotations

import bisect
import importlib.resources
import logging
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from autotuned import configfile, env, fit, nearest, policy, recordfile, records
from autotuned.configfile import ConfigFile, Entry, Fault
from autotuned.device import from_json
from autotuned.errors import ConfigFileError
from autotuned.key import Key
from autotuned.look import Choice, Look, Rung
from autotuned.policy import Policy, Verdict
from autotuned.values import canonical

if TYPE_CHECKING:
    from importlib.abc import Traversable  # for annotations only: it moves in Python 3.14

log = logging.getLogger("autotuned")
GROUP = "autotuned.configs"  # of entry points, and the package that holds our own files

Candidates = Mapping[str, Any]  # a config's identity -> the live Config


class Folder(NamedTuple):
    """A folder of config files, and what of it serves in another context."""

    path: Traversable
    policy: Policy


class Read(NamedTuple):
    """What could be read of a file, and what is wrong with the rest."""

    file: ConfigFile | None
    faults: list[Fault]


class Offer(NamedTuple):
    """An entry for another context or another shape; the least `rank` is the best."""

    rank: tuple[Any, ...]
    verdict: Verdict
    entry: Entry
    key: Key
    path: str
    note: str


_registered: list[Folder] = []
_packages: dict[str, list[Folder]] = {}  # "entry points" and "own": looked for once
_files: dict[tuple[str, str | None], Read] = {}  # (text of the path, kernel) -> read once
_devices: dict[str, list[Traversable]] = {}  # text of a folder -> the folders of devices in it


# -- the folders -----------------------------------------------------------------------------------------------------


def register_configs(source: str | Path, policy: str | Mapping[str, str] | None = None) -> None:
    """Serve the config files of an application.

    Later registrations are asked first; all of them after `AUTOTUNED_CONFIG_PATH` and before the packages that the
    entry-point group `autotuned.configs` names and the files that come with this package.

    Args:
        source: A package ("mypkg.tuned", read with importlib.resources, also from a zip) or a folder.
        policy: What of these files serves where the call is the same and the context is not: one action for all
            axes, or actions by axis, such as `{"source": "warn", "triton": "refuse"}`; docs/config-files.md has both.

    Raises:
        ConfigFileError: No such package or folder, axis or action.
    """
    actions = _policy(policy)
    folder: Traversable = Path(source).expanduser()
    if not folder.is_dir():
        folder = _package_folder(str(source))
        _say_if_empty(folder, str(source))
    _registered.insert(0, Folder(folder, actions))
    forget_files()


_policy = policy.policy


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
    """Warn of a package that ships nothing: in the checkout its files are there, and a wheel may be without them."""
    if not any(_paths_in(folder, None)):
        log.warning("there is no config file in the package %r: are they among its package data ('*/*.json')?", name)


def forget_files() -> None:
    """Read config files anew at their next use."""
    _files.clear()
    _devices.clear()


def folders() -> Iterator[Folder]:
    """Folders of config files in the order they are asked: environment, application, entry points, this package."""
    yield from _others()
    yield from _looked_for("own", lambda: [Folder(_own(), policy.DEFAULTS)])


def _own() -> Traversable:
    """This package's files; sources that run without being installed have them in the folder beside the package."""
    try:
        return importlib.resources.files(GROUP)
    except ModuleNotFoundError:
        return Path(__file__).parent.parent / "configs"


def _others() -> Iterator[Folder]:
    """The folders without that of this package."""
    for folder in env.config_path():
        yield Folder(folder, policy.DEFAULTS)
    yield from _registered
    yield from _looked_for("entry points", _entry_points)


def config_folders() -> Iterator[Traversable]:
    """The folders of `folders`."""
    return (folder.path for folder in folders())


def _looked_for(name: str, find: Callable[[], list[Folder]]) -> list[Folder]:
    if name not in _packages:
        _packages[name] = find()
    return _packages[name]


def _entry_points() -> list[Folder]:
    """The packages that installed distributions name; one that cannot be had is said once and left out."""
    found = []
    for point in sorted(metadata.entry_points(group=GROUP), key=lambda point: point.name):
        try:
            found.append(Folder(importlib.resources.files(point.value), policy.DEFAULTS))
            _say_if_empty(found[-1].path, point.value)
        except Exception as error:  # importing it runs its code
            log.warning(
                "entry point %r of group %s: expected a package of config files, got %r (%s: %s). It is left out.",
                point.name, GROUP, point.value, type(error).__name__, error,
            )  # fmt: skip
    return found


# -- reading ---------------------------------------------------------------------------------------------------------


def entries(kernel: str | None = None, own: bool = True) -> Iterator[tuple[str, Key, Entry]]:
    """Every entry of the config files, or of one kernel's, on any device: its file, its key and itself.

    Args:
        own: Those of this package's own files too.
    """
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
        elif device.name != "schema":  # in the packaged folder: the JSON schema of these files
            yield from (file for file in _entries(device) if file.name.endswith(".json"))


def _device_folders(folder: Traversable) -> list[Traversable]:
    name = str(folder)
    if name not in _devices:
        _devices[name] = [device for device in _entries(folder) if device.is_dir()]
    return _devices[name]


def _entries(folder: Traversable) -> list[Traversable]:
    """What lies in a folder, by name; one that cannot be read holds nothing, and is said once."""
    try:
        return sorted(folder.iterdir(), key=lambda entry: entry.name) if folder.is_dir() else []
    except OSError as error:
        records.warn_once(f"folder {folder}", "config files in %s are left out: %s.", folder, error)
        return []


def read(path: Traversable, kernel: str | None) -> Read:
    """The file at a path, read once; what is wrong with it waits for `report`."""
    name = (str(path), kernel)
    if name not in _files:
        _files[name] = read_anew(path, kernel)
    return _files[name]


def read_anew(path: Traversable, kernel: str | None) -> Read:
    """The file at a path as it is now."""
    try:
        if not path.is_file():
            return Read(None, [])
        file, faults = configfile.read(path.read_bytes(), str(path))
    except OSError as error:
        return Read(None, [Fault(str(path), f"{error}.")])
    if file is not None and configfile.file_name(file.kernel) != path.name:
        wanted = f"kernel {kernel!r}" if kernel else "the kernel of its name"
        text = f"expected {wanted}, got {file.kernel!r}: files keep the names they are written under."
        return Read(None, [*faults, Fault(str(path), text)])
    return Read(file, faults)


def report(kernel: str | None, strict: bool = False) -> None:
    """Say once what is wrong with the files that were read for a kernel.

    Raises:
        ConfigFileError: If `strict`, the first fault.
    """
    for (_, wanted), (file, faults) in list(_files.items()):
        for fault in faults if wanted == kernel else ():
            if fault.harmless:
                continue
            if strict:
                raise ConfigFileError(str(fault), path=fault.path)
            skipped = "" if file is not None else " It is skipped; tune again or repair it."
            records.warn_once(str(fault), "%s%s", fault, skipped)


# -- what they offer -------------------------------------------------------------------------------------------------


def look_exact(key: Key, candidates: Candidates) -> Look:
    """The choice for the same call in the same context."""
    name, slug = configfile.file_name(key.kernel), from_json(key.context["device"]).slug
    seen = Look(None, "absent")
    for folder in folders():
        path = folder.path / slug / name
        file = read(path, key.kernel).file
        entry = file.find(key) if file else None
        if entry is None:
            continue
        config = candidates.get(recordfile.Timing(entry.config).identity)
        if config is not None:
            return seen.replace(choice=Choice(config, Rung.FILE, origin=str(path)))
        seen = Look(None, "config gone", fit.misfit(entry.config, candidates), str(path))  # the next may have it
    return seen


def look_ladder(key: Key, candidates: Candidates, strict: bool = False) -> Look:
    """The choice for the same call in another context, as far as the policies of the files serve it."""
    return _best(sorted(_ladder(key), key=lambda offer: offer.rank), candidates, Rung.LADDER, strict)


def look_nearest(key: Key, candidates: Candidates, factors: nearest.Factors) -> Look:
    """The choice for the nearest shape, in the same context or one that the policies of the files serve."""
    return _best(sorted(_neighbours(key, factors), key=lambda offer: offer.rank), candidates, Rung.NEAREST, False)


def seed(key: Key, candidates: Candidates, factors: nearest.Factors) -> str | None:
    """The identity of the live config that a search should measure first: what serves elsewhere, if anything does."""
    offers = [*sorted(_ladder(key), key=lambda offer: offer.rank)]
    offers += sorted(_neighbours(key, factors), key=lambda offer: offer.rank) if factors else []
    found = (recordfile.Timing(offer.entry.config).identity for offer in offers if offer.verdict.action != "refuse")
    return next((identity for identity in found if identity in candidates), None)


def _best(offers: list[Offer], candidates: Candidates, rung: Rung, strict: bool) -> Look:
    serving = ("accept",) if strict else ("accept", "warn")
    refused = ""
    for offer in offers:
        config = candidates.get(recordfile.Timing(offer.entry.config).identity)
        if config is None:
            refused = refused or f"{offer.path}: {fit.misfit(offer.entry.config, candidates)}"
        elif offer.verdict.action not in serving:
            refused = refused or f"{offer.path}: {offer.note}; policy {offer.verdict.action!r}"
        else:
            loud = offer.verdict.action == "warn" or rung is Rung.NEAREST
            return Look(Choice(config, rung, origin=offer.path, note=offer.note, key=offer.key, loud=loud))
    return Look(None, "absent", refused)


def _ladder(key: Key) -> Iterator[Offer]:
    call = canonical(key.call)
    for number, folder, path, file in _files_for(key):
        for context, entry in file.in_all_contexts(call):
            other = file.key_of(context, entry)
            verdict = policy.judge(key.context, other.context, folder.policy)
            if verdict is not None and verdict.notes:  # without notes it is the same context
                yield Offer((verdict.rank, number), verdict, entry, other, path, verdict.words)


def _neighbours(key: Key, factors: nearest.Factors) -> Iterator[Offer]:
    ours = nearest.shape_of(key.call, factors)
    for number, folder, path, file in _files_for(key):
        for rows in _alike(file, ours.rest, factors):
            for sizes, entry in rows.around(ours.sizes):
                far = nearest.distance(ours.sizes, sizes, factors) if sizes != ours.sizes else None
                other = file.key_of(rows.context, entry)
                verdict = policy.judge(key.context, other.context, folder.policy) if far is not None else None
                if far is not None and verdict is not None:
                    note = "; ".join([nearest.words(ours.sizes, sizes, far), *verdict.notes])
                    yield Offer((verdict.rank, far, sizes, number), verdict, entry, other, path, note)


_Sizes = tuple[tuple[str, int], ...]
WINDOW = 16  # neighbours on either side that are looked at where only one size differs: the nearest may be no candidate


class Rows(NamedTuple):
    """Entries of one context that differ in sizes only, in the order of these."""

    context: Any
    sizes: list[_Sizes]
    entries: list[Entry]

    def around(self, sizes: _Sizes) -> Iterator[tuple[_Sizes, Entry]]:
        """Those that may be nearest: of ten thousand sizes on one axis a few on either side."""
        first, last = 0, len(self.sizes)
        if len(sizes) == 1:
            place = bisect.bisect_left(self.sizes, sizes)
            first, last = max(0, place - WINDOW), place + WINDOW
        return zip(self.sizes[first:last], self.entries[first:last])


def _alike(file: ConfigFile, rest: str, factors: nearest.Factors) -> list[Rows]:
    """The entries that differ in sizes of some axes only, by context; worked out once a file and set of axes."""
    axes = frozenset(factors)
    if axes not in file.indexes:
        index: dict[str, list[Rows]] = {}
        for group in file.groups():
            by_rest: dict[str, list[tuple[_Sizes, Entry]]] = {}
            for entry in group.entries.values():
                shape = nearest.shape_of(entry.call, axes)
                by_rest.setdefault(shape.rest, []).append((shape.sizes, entry))
            for text, found in by_rest.items():
                found.sort(key=lambda row: row[0])
                rows = Rows(group.context, [sizes for sizes, _ in found], [entry for _, entry in found])
                index.setdefault(text, []).append(rows)
        file.indexes[axes] = index
    alike: list[Rows] = file.indexes[axes].get(rest, [])
    return alike


def _files_for(key: Key) -> Iterator[tuple[int, Folder, str, ConfigFile]]:
    """A kernel's files for this device and for others of its architecture, with the number of their place."""
    ours = from_json(key.context["device"])
    for number, folder in enumerate(folders()):
        for path in _paths_in(folder.path, key.kernel):
            file = read(path, key.kernel).file
            if file is not None and (file.device.kind, file.device.arch) == (ours.kind, ours.arch):
                yield number, folder, str(path), file


def announce(kernel: str, choice: Choice) -> None:
    """Say once a kernel that a choice for another context, or another shape, serves."""
    if choice.note and choice.loud:
        records.warn_once(
            f"{choice.rung} {kernel}",
            "`%s`: served by %s, which was tuned for another %s (%s). `autotuned tune` measures it here; further ones "
            "of this kernel are logged at level info.",
            kernel, choice.origin, "context" if choice.rung is Rung.LADDER else "shape", choice.note,
        )  # fmt: skip
