"""Choices on their way between the store and config files: exported, imported, merged, compared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from autotuned import disk
from autotuned.configfiles import file as configfile
from autotuned.configfiles import writer
from autotuned.configfiles.file import ConfigFile, Entry, Fault
from autotuned.errors import ConfigFileError
from autotuned.gpu.device import Device, from_json
from autotuned.json_fields import is_finite
from autotuned.key import opaque
from autotuned.key.key import Key
from autotuned.store import conditions, layout, listing, records
from autotuned.store.record import TuningRecord
from autotuned.typed_json import Json

IMPORTED = "imported"  # in the provenance of a record: the config file that it is from


# -- between the store and files -------------------------------------------------------------------------------------


def export(folder: Path, kernels: Iterable[str] | None = None) -> list[Path]:
    """Write the choices of the user's store into config files below a folder; what else is in them stays.

    Args:
        kernels: Whole names; None for all.

    Returns:
        The files.

    Raises:
        ConfigFileError, OSError: As `shipping.ship_all`.
    """
    found = [entry for kernel in ([None] if kernels is None else kernels) for entry in _exported(kernel)]
    return writer.ship_all(found, folder)


def _exported(kernel: str | None) -> Iterator[tuple[Key, Entry]]:
    for _, stored in listing.all_records(kernel):
        if stored.winner is not None and opaque.portable(stored.key.to_json(), stored.winner):
            yield stored.key, entry_of(stored)


def entry_of(stored: TuningRecord) -> Entry:
    """The entry for a record, with what the record knows of the config that is used without tuning."""
    if not stored.timings:
        ratio = stored.provenance.get("vs_default")
        entry = configfile.entry_of(stored, None)
        return replace(entry, vs_default=ratio if is_finite(ratio) else None)
    default: Json = stored.provenance.get("default")
    return configfile.entry_of(stored, default if isinstance(default, dict) else stored.timings[0].config)


@dataclass
class Imported:
    """What came of an import: how many choices were written, were there already, and gave way to a measured one."""

    written: int = 0
    same: int = 0
    kept: int = 0
    faults: list[Fault] = field(default_factory=list)


def import_files(paths: Iterable[Path]) -> Imported:
    """Write the choices of config files into the user's store.

    A record that was measured here stays: its timings are better evidence than a line of a file. So does one of a file
    that was measured under stronger conditions.

    Raises:
        ConfigFileError: There are no files.
        OSError: The store cannot be written.
    """
    result = Imported()
    for path in files_in(paths):
        file, faults = read(path)
        result.faults += faults
        for key, entry in file.entries() if file is not None else ():
            _import(key, entry, path, result)
    return result


def _import(key: Key, entry: Entry, path: Path, result: Imported) -> None:
    there = records.read_of(key)
    if there is not None and there.timings:
        result.kept += 1
    elif there is not None and there.winner is not None and entry_of(there) == entry:
        result.same += 1
    elif there is not None and there.winner is not None and conditions.is_more(there.conditions, entry.conditions):
        result.kept += 1
    else:
        provenance = {IMPORTED: path.name, "vs_default": entry.vs_default}
        if not records.keep(TuningRecord(key, entry.config, entry.median_us, "ok", (), provenance, entry.conditions)):
            raise OSError(f"the record {layout.record_path(key)} cannot be written")
        result.written += 1


# -- between files ---------------------------------------------------------------------------------------------------


def files_in(paths: Iterable[Path]) -> list[Path]:
    """The config files that paths stand for: a file for itself, a folder for all below it.

    Raises:
        ConfigFileError: A path is neither, or a folder has none.
    """
    found: list[Path] = []
    for path in paths:
        below = [path] if path.is_file() else sorted(path.rglob("*.json")) if path.is_dir() else []
        below = [file for file in below if file == path or file.parent.name != configfile.SCHEMAS]
        if not below:
            what = "there is no config file in it" if path.is_dir() else "there is no such file or folder"
            raise ConfigFileError(f"{path}: expected a config file, or a folder of them, and {what}.", path=str(path))
        found += below
    return found


def read(path: Path) -> tuple[ConfigFile | None, list[Fault]]:
    """What can be used of a config file, and what is wrong with it; also where it cannot be read at all."""
    try:
        return configfile.read(disk.read_bytes(path), str(path))
    except OSError as error:
        return None, [Fault(str(path), f"{error.strerror or error}.")]
    except ValueError as error:
        return None, [Fault(str(path), str(error).removeprefix(f"{path}: "))]


Name = tuple[str, Device]  # of a config file: its kernel and its device


@dataclass(frozen=True)
class Conflict:
    """Two choices for one call in one context: which was taken, and which was not."""

    key: Key
    taken: Entry
    left: Entry
    why: str


@dataclass
class Merged:
    """Config files put together, by kernel and device."""

    files: dict[Name, ConfigFile] = field(default_factory=dict)
    conflicts: list[Conflict] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)


def merge(paths: Sequence[Path]) -> Merged:
    """Put config files together; for a call that several have, the choice that was measured better is taken.

    That is: one under stronger conditions (a check, more protection) before one under weaker ones; one with times
    before one without; then the one that gains more over the config used without tuning, for that ratio holds across
    machines where times do not; then the faster one; then the first.

    Raises:
        ConfigFileError: There are no files.
    """
    merged = Merged()
    for path in files_in(paths):
        file, faults = read(path)
        merged.faults += [fault for fault in faults if not fault.harmless]
        for key, entry in file.entries() if file is not None else ():
            _merge(key, entry, merged)
    return merged


def _merge(key: Key, entry: Entry, merged: Merged) -> None:
    context, device = configfile.split_context(key.context)
    name = key.kernel, from_json(device)
    file = merged.files.setdefault(name, ConfigFile(*name))
    before = file.find(key)
    if before is None or before == entry:
        file.add(context, entry)
        return
    better, why = _better(before, entry)
    if before.identity == entry.identity:  # it passed the checks of both
        checks = conditions.strongest((*before.conditions.checks, *entry.conditions.checks))
        better = replace(better, conditions=better.conditions.replace(checks=checks))
    file.add(context, better)
    if before.identity != entry.identity:
        merged.conflicts.append(Conflict(key, better, entry if better is before else before, why))


def _better(first: Entry, second: Entry) -> tuple[Entry, str]:
    for one, other in ((first, second), (second, first)):
        if conditions.is_more(one.conditions, other.conditions):
            return one, "it was measured under stronger conditions"
    for why, measure in (
        ("it has times", lambda entry: entry.median_us is not None),
        ("it gains more over the default", lambda entry: entry.vs_default or 0.0),
        ("it is faster", lambda entry: -(entry.median_us or 0.0)),
    ):
        ranks = measure(first), measure(second)
        if ranks[0] != ranks[1]:
            return (first if ranks[0] > ranks[1] else second), why
    return first, "it comes first"


@dataclass(frozen=True)
class Change:
    """One call in one context that two sets of config files do not have alike; None where it is not there."""

    key: Key
    before: Entry | None
    after: Entry | None

    @property
    def kind(self) -> str:
        """What happened to it: "added", "removed" or "changed"; None on one side says which."""
        return "added" if self.before is None else "removed" if self.after is None else "changed"


def diff(before: Path, after: Path) -> tuple[list[Change], list[Fault]]:
    """What differs between two config files, or folders of them, in the order of the files; and what is wrong in them.

    Raises:
        ConfigFileError: There are no files.
    """
    faults: list[Fault] = []
    old, new = (_entries(path, faults) for path in (before, after))
    changes = [Change(key, entry, new.get(key)) for key, entry in old.items() if new.get(key) != entry]
    return changes + [Change(key, None, entry) for key, entry in new.items() if key not in old], faults


def _entries(path: Path, faults: list[Fault]) -> dict[Key, Entry]:
    found: dict[Key, Entry] = {}
    for one in files_in([path]):
        file, wrong = read(one)
        faults += wrong
        for key, entry in file.entries() if file is not None else ():
            found.setdefault(key, entry)
    return found
