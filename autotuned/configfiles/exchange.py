"""Moves choices between the store and config files: export, import, merge, diff."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from autotuned import disk
from autotuned.configfiles import file as configfile
from autotuned.configfiles import writer
from autotuned.configfiles.file import ConfigFile, Entry, Fault
from autotuned.errors import ConfigFileError, KernelNameError, OutputError
from autotuned.gpu.device import Device, from_json
from autotuned.key.key import Key
from autotuned.store import conditions, layout, listing, records
from autotuned.store.record import TuningRecord
from autotuned.typed_json import Json, JsonFields, canonical, portable

IMPORTED = "imported"  # in a record's provenance: the config file it came from
PathLike = str | os.PathLike[str]


# -- between the store and files -------------------------------------------------------------------------------------


def export(out: PathLike, kernels: str | Iterable[str] | None = None, there: Iterable[str] = ()) -> list[Path]:
    """Write the choices of the user's store into config files below a folder; other entries in them stay.

    Unfinished searches, and choices that only one process can read, are left out.

    Args:
        kernels: Names of kernels, or dotted suffixes of them; None for all.
        there: Kernels that need no records in the store.

    Returns:
        The config files.

    Raises:
        KernelNameError: Nothing is stored, or no kernel has such a name.
        OutputError: The folder cannot be written.
        ConfigFileError: An existing file cannot be added to.
    """
    known = listing.kernels()
    kernels = [kernels] if isinstance(kernels, str) else kernels or ()
    wanted = [name for kernel in kernels for name in listing.named({*known, *there}, kernel)] or sorted(known)
    if not wanted and not there:
        raise KernelNameError(f"nothing is stored in {layout.root()}: tune something first.", name="")
    writer.refuse_unwritable(Path(out))
    return writer.ship_all((entry for kernel in wanted for entry in _exported(kernel)), Path(out))


def _exported(kernel: str) -> Iterator[tuple[Key, Entry]]:
    for _, stored in listing.all_records(kernel):
        if stored.winner is not None and portable(stored.key.to_json(), stored.winner):
            yield stored.key, configfile.entry_of(stored)


@dataclass
class ImportResult(JsonFields):
    """How many choices were written, were there already, or gave way to a measured one.

    Attributes:
        binaries, rules: How many compiled kernels and rules the files have. They are not imported: the store holds
            measurements, not code.
    """

    written: int = 0
    same: int = 0
    kept: int = 0
    binaries: int = 0
    rules: int = 0
    faults: list[Fault] = field(default_factory=list)


def import_configs(paths: PathLike | Iterable[PathLike]) -> ImportResult:
    """Write the choices of config files into the user's store.

    Records measured here stay, since their timings are better evidence, and so do records with stronger conditions. Bad
    entries are skipped and listed as faults. Compiled kernels are not imported: programs allow them with
    `register_configs(..., binaries=True)`.

    Args:
        paths: Config files, or folders of them.

    Raises:
        ConfigFileError: There are no files.
        OSError: The store cannot be written.
    """
    result = ImportResult()
    for path, file in readable(paths, result.faults):
        result.rules += len(file.rules)
        for key, entry in file.entries():
            _import(key, entry, path, result)
            result.binaries += len(entry.binaries)
    return result


def _import(key: Key, entry: Entry, path: Path, result: ImportResult) -> None:
    there = records.read_of(key)
    if there is not None and there.timings:
        result.kept += 1
    elif there is not None and there.winner is not None and configfile.entry_of(there) == entry:
        result.same += 1
    elif there is not None and there.winner is not None and conditions.is_more(there.conditions, entry.conditions):
        result.kept += 1
    else:
        provenance = {IMPORTED: path.name, "vs_default": entry.vs_default}
        chosen = entry.config, entry.median_us, entry.quality
        if not records.keep(TuningRecord(key, *chosen, (), provenance, entry.conditions)):
            raise OSError(f"the record {layout.record_path(key)} cannot be written")
        result.written += 1


# -- between files ---------------------------------------------------------------------------------------------------


def paths_of(paths: PathLike | Iterable[PathLike]) -> list[Path]:
    """One or several paths as a list; ConfigFileError for an empty one."""
    given = [paths] if isinstance(paths, (str, os.PathLike)) or not isinstance(paths, Iterable) else list(paths)
    for path in given:
        if not isinstance(path, (str, os.PathLike)):
            got = f"{type(path).__name__} {path!r:.60}"
            raise ConfigFileError(f"expected paths of config files or of folders of them, got {got}.", path=str(path))
    found = list(map(Path, given))
    if not found:
        raise ConfigFileError("expected config files, or folders of them, got none. Give at least one path.", path="")
    return found


def files_in(paths: PathLike | Iterable[PathLike]) -> list[Path]:
    """The config files at these paths, also below folders; ConfigFileError if a path has none."""
    found: list[Path] = []
    for path in paths_of(paths):
        below = [path] if path.is_file() else sorted(path.rglob("*.json")) if path.is_dir() else []
        below = [file for file in below if file == path or file.parent.name != configfile.SCHEMAS]
        if not below:
            what = "there is no config file in it" if path.is_dir() else "there is no such file or folder"
            raise ConfigFileError(f"{path}: expected a config file, or a folder of them, and {what}.", path=str(path))
        found += below
    return found


def read(path: Path) -> tuple[ConfigFile | None, list[Fault]]:
    """The usable part of a config file, None if there is none, and its faults."""
    try:
        return configfile.read(disk.read_bytes(path), str(path))
    except OSError as error:
        return None, [Fault(str(path), f"{error.strerror or error}.")]
    except ValueError as error:
        return None, [Fault(str(path), str(error).removeprefix(f"{path}: "))]


def readable(paths: PathLike | Iterable[PathLike], faults: list[Fault]) -> Iterator[tuple[Path, ConfigFile]]:
    """The usable config files at these paths, as by `files_in`; their faults are added to a list."""
    for path in files_in(paths):
        file, found = read(path)
        faults += found
        if file is not None:
            yield path, file


Name = tuple[str, Device]  # of a config file: its kernel and its device


@dataclass(frozen=True)
class Conflict:
    """Two configs for one call in one context: the one taken and the one left."""

    key: Key
    taken: Entry
    left: Entry
    why: str

    def to_json(self) -> dict[str, Json]:
        """What `autotuned merge --json` prints of it."""
        return {
            "kernel": self.key.kernel,
            "device": self.key.context["device"],
            "call": self.key.call,
            "taken": self.taken.to_json(),
            "left": self.left.to_json(),
            "why": self.why,
        }


@dataclass
class MergeResult:
    """Merged config files by path; empty if nothing could be read."""

    files: dict[Path, ConfigFile] = field(default_factory=dict)
    conflicts: list[Conflict] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)

    @property
    def entries(self) -> int:
        """Number of choices."""
        return sum(file.count for file in self.files.values())

    def to_json(self) -> dict[str, Json]:
        """What `autotuned merge --json` prints."""
        return {
            "files": list(map(str, self.files)),
            "entries": self.entries,
            "conflicts": [conflict.to_json() for conflict in self.conflicts],
            "faults": [fault.to_json() for fault in self.faults],
        }


def merge(paths: PathLike | Iterable[PathLike], out: PathLike | None = None) -> MergeResult:
    """Merge config files without their binaries; `autotuned.merge` describes the choice and the errors."""
    inputs, merged = files_in(paths), MergeResult()
    files: dict[Name, ConfigFile] = {}
    faults: list[Fault] = []
    for _, file in readable(inputs, faults):
        for key, entry in file.entries():
            _merge(key, entry, files, merged.conflicts)
        _merge_rules(file, files)
    merged.faults = configfile.grave(faults)
    merged.files = _placed(files, Path(out or ""))
    if out is not None and files:
        _refuse_inputs(merged.files, inputs)
        for path, file in merged.files.items():
            if path == Path(out):
                writer.write_to(path, file)
            else:
                writer.write(file, Path(out))
    return merged


def _placed(files: Mapping[Name, ConfigFile], out: Path) -> dict[Path, ConfigFile]:
    if out.suffix != ".json":
        return {writer.path_of(*name, out): file for name, file in files.items()}
    if len(files) > 1:
        names = ", ".join(f"{kernel} on {device.slug}" for kernel, device in files)
        raise OutputError(
            f"{out}: a file holds one kernel on one device, and these are {names}. Name a folder.", path=str(out)
        )
    return dict(zip([out], files.values()))


def _refuse_inputs(files: Mapping[Path, ConfigFile], inputs: Iterable[Path]) -> None:
    resolved = {path.resolve() for path in inputs}
    for path, file in files.items():
        if path.resolve() in resolved:
            raise OutputError(f"{path} is an input, and inputs are never written. Name another place.", path=str(path))
        if path.exists() and not _holds(path, file):
            raise OutputError(
                f"{path} is there already. Name it as an input too, or name another place.", path=str(path)
            )
    writer.refuse_unwritable(next(iter(files)).parent)


def _holds(path: Path, file: ConfigFile) -> bool:
    try:
        return disk.read_bytes(path) == file.dump().encode()
    except ValueError:  # larger than any config file, or not a file
        return False


def _merge(key: Key, entry: Entry, files: dict[Name, ConfigFile], conflicts: list[Conflict]) -> None:
    context, device = configfile.split_context(key.context)
    name = key.kernel, from_json(device)
    file = files.setdefault(name, ConfigFile(*name))
    before = file.find(key)
    if before is not None and before.identity == entry.identity:
        both = (*before.binaries, *entry.binaries)
        before, entry = before.with_binaries(both), entry.with_binaries(both)
    if before is None or before == entry:
        file.add(context, entry)
        return
    better, why = _better(before, entry)
    if before.identity == entry.identity:  # it passed the checks of both
        checks = conditions.strongest((*before.conditions.checks, *entry.conditions.checks))
        better = replace(better, conditions=better.conditions.replace(checks=checks))
    file.add(context, better)
    if before.identity != entry.identity:
        conflicts.append(Conflict(key, better, entry if better is before else before, why))


def _merge_rules(file: ConfigFile, files: dict[Name, ConfigFile]) -> None:
    """Add rules; of two for the same calls, keep the one fitted to more calls, else the first."""
    for context, rule in file.rules:
        into = files.setdefault((file.kernel, file.device), ConfigFile(file.kernel, file.device))
        before = into.rule(context, rule.name)
        if before is None or before.calls < rule.calls:
            into.add_rule(context, rule)


def _better(first: Entry, second: Entry) -> tuple[Entry, str]:
    for one, other in ((first, second), (second, first)):
        if conditions.is_more(one.conditions, other.conditions):
            return one, "it was measured under stronger conditions"
    for why, measure in (
        ("it has times", lambda entry: entry.median_us is not None),
        ("it gains more over the default", lambda entry: entry.vs_default or 0.0),
        ("it is faster", lambda entry: -(entry.median_us or 0.0)),
        ("its quality is known", lambda entry: entry.quality is not None),
    ):
        ranks = measure(first), measure(second)
        if ranks[0] != ranks[1]:
            return (first if ranks[0] > ranks[1] else second), why
    return first, "it comes first"


@dataclass(frozen=True)
class Change:
    """A call whose entries differ between two sets of config files; None if an entry is missing."""

    key: Key
    before: Entry | None
    after: Entry | None

    @property
    def kind(self) -> str:
        """One of "added", "removed", "changed", or "compiled" if only the binaries differ."""
        if self.before is None or self.after is None:
            return "added" if self.before is None else "removed"
        return "changed" if self.before != self.after else "compiled"

    @property
    def is_of_choice(self) -> bool:
        """Whether the config differs or one entry is missing; times and conditions do not count."""
        return self.before is None or self.after is None or self.before.identity != self.after.identity

    def to_json(self) -> dict[str, Json]:
        """What `autotuned diff --json` prints of it."""
        return {
            "kind": self.kind,
            "kernel": self.key.kernel,
            "device": self.key.context["device"],
            "triton": self.key.context.get("triton"),
            "call": self.key.call,
            "before": self.before and self.before.to_json(),
            "after": self.after and self.after.to_json(),
        }


@dataclass(frozen=True)
class RuleChange(JsonFields):
    """A rule that differs between two sets of config files; `kind` is "added", "removed" or "changed"."""

    kind: str
    kernel: str
    device: Json
    context: Json
    sizes: str


@dataclass(frozen=True)
class DiffResult(JsonFields):
    """The differences between two sets of config files, in the order of the files, and the faults in them."""

    changes: list[Change]
    faults: list[Fault]
    rules: list[RuleChange] = field(default_factory=list)


def diff(before: PathLike, after: PathLike) -> DiffResult:
    """Compare two config files, or folders of them: which choices the second adds, removes or changes.

    Raises:
        ConfigFileError: There are no files.
    """
    faults: list[Fault] = []
    rules: tuple[_Rules, _Rules] = {}, {}
    old, new = (_entries(path, faults, found) for path, found in zip((before, after), rules))
    changes = [Change(key, entry, new.get(key)) for key, entry in old.items() if not _same(entry, new.get(key))]
    changes += [Change(key, None, entry) for key, entry in new.items() if key not in old]
    return DiffResult(changes, configfile.grave(faults), list(_rule_changes(*rules)))


_Rules = dict[tuple[str, str, str, str], tuple[ConfigFile, Json, Any]]  # by kernel, device, context and name


def _rule_changes(old: _Rules, new: _Rules) -> Iterator[RuleChange]:
    for name in sorted(old.keys() | new.keys()):
        before, after = old.get(name), new.get(name)
        there = before or after
        if there is not None and (before is None or after is None or before[2] != after[2]):
            file, context, rule = there
            kind = "added" if before is None else "removed" if after is None else "changed"
            yield RuleChange(kind, file.kernel, file.device_json, context, rule.words)


def _same(one: Entry, other: Entry | None) -> bool:
    return other is not None and one == other and one.binaries == other.binaries


def _entries(path: PathLike, faults: list[Fault], rules: _Rules) -> dict[Key, Entry]:
    found: dict[Key, Entry] = {}
    for _, file in readable(path, faults):
        for key, entry in file.entries():
            found.setdefault(key, entry)
        for context, rule in file.rules:
            rules.setdefault((file.kernel, file.device.slug, canonical(context), rule.name), (file, context, rule))
    return found
