"""Config files that ship with an application: parse, validate, find a call, write in a stable order."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from autotuned import disk
from autotuned._startup import later
from autotuned.configfiles.entry import Entry as Entry
from autotuned.configfiles.entry import check_values, fields_of, load_entry
from autotuned.configfiles.entry import passed as passed
from autotuned.errors import ConfigFileError, RecordError
from autotuned.gpu.device import Device, from_json
from autotuned.key.key import Key, check_device
from autotuned.store import record
from autotuned.typed_json import Json, canonical, typed

if TYPE_CHECKING:
    from autotuned.rules import text as rules
    from autotuned.rules.rule import Rule
else:
    rules = later("rules.text")  # most files have none

SCHEMA = 2
SCHEMAS = "schema"  # folder of JSON schemas among this package's own files; holds no config files


@dataclass(frozen=True)
class Fault:
    """Something wrong in a file; that part is skipped.

    Attributes:
        line: In the file, from 1; None if unknown.
        text: What was expected, and what was found.
        harmless: Skipping it loses nothing, such as an exact duplicate of an entry left by git.
    """

    path: str
    text: str
    line: int | None = None
    harmless: bool = False

    def __str__(self) -> str:
        line = f"line {self.line}: " if self.line is not None else ""
        return f"config file {self.path}: {line}{self.text}"

    def to_json(self) -> dict[str, Json]:
        """What commands print of it."""
        return {"path": self.path, "line": self.line, "text": self.text}


def grave(faults: Iterable[Fault]) -> list[Fault]:
    """The faults that are not harmless."""
    return [fault for fault in faults if not fault.harmless]


class Ends(NamedTuple):
    """The last group of a file and the last call of each group; they stay last when entries are added.

    JSON allows no comma after the last item: if the last line could change, two people adding lines would both change
    it, and git could not merge them.
    """

    group: str | None  # canonical text of the last context
    calls: Mapping[str, str]  # canonical text of the last call, by context


NO_ENDS = Ends(None, {})


@dataclass
class Group:
    """The entries of one context, keyed by the canonical text of their calls."""

    context: Json
    entries: dict[str, Entry] = field(default_factory=dict)


class ConfigFile:
    """The choices for one kernel on one kind of device, grouped by context."""

    def __init__(self, kernel: str, device: Device) -> None:
        self.kernel = kernel
        self.device = device
        self.device_json = device.to_json()
        self._groups: dict[str, Group] = {}
        self._rules: dict[tuple[str, str], tuple[Json, Rule]] = {}  # by context as text and `Rule.name`
        self.ends = NO_ENDS
        self.indexes: dict[Any, Any] = {}  # caches of other modules, cleared by each change

    def complete(self) -> None:
        """Check entries that were not checked when the file was read (`lazy.LazyFile`)."""

    def add(self, context: Json, entry: Entry) -> None:
        """Add an entry, replacing one for the same call and context."""
        self.indexes.clear()
        self.group(canonical(context), context).entries[canonical(entry.call)] = entry

    @property
    def rules(self) -> list[tuple[Json, Rule]]:
        """The rules, each with its context, in file order."""
        return list(self._rules.values())

    def rules_of(self, rest: str) -> list[tuple[Json, Rule]]:
        """The rules for calls with this rest, each with its context, in file order."""
        if "rules" not in self.indexes:
            index: dict[str, list[tuple[Json, Rule]]] = {}
            for context, rule in self.rules:
                index.setdefault(rule.rest, []).append((context, rule))
            self.indexes["rules"] = index
        found: list[tuple[Json, Rule]] = self.indexes["rules"].get(rest, [])
        return found

    def rule(self, context: Json, name: str) -> Rule | None:
        """The rule with this name (`Rule.name`) in a context."""
        _, found = self._rules.get((canonical(context), name), (None, None))
        return found

    def add_rule(self, context: Json, rule: Rule) -> None:
        """Add a rule, replacing one for the same calls and context."""
        self.indexes.clear()
        self._rules[canonical(context), rule.name] = context, rule

    def set_rule(self, context: Json, name: str, rule: Rule | None, calls: int) -> None:
        """Replace a rule by name, or remove it with None, unless the present one was fitted to more calls."""
        gone = self.rule(context, name)
        if gone is not None and gone.calls > calls:
            return
        if rule is not None:
            self.add_rule(context, rule)
        elif gone is not None:
            self.indexes.clear()
            del self._rules[canonical(context), name]

    def remove(self, key: Key) -> None:
        """Remove the entry of a key, which must exist."""
        self.indexes.clear()
        context, _ = split_context(key.context)
        text = canonical(context)
        del self._groups[text].entries[canonical(key.call)]
        if not self._groups[text].entries:
            del self._groups[text]

    def group(self, text: str, context: Json) -> Group:
        """The group of a context, created if missing; `text` is the context's canonical form."""
        return self._groups.get(text) or self._groups.setdefault(text, Group(context))

    def keep_ends(self) -> None:
        """Keep the current last entries and the last group last when others are added."""
        calls = {name: next(reversed(group.entries)) for name, group in self._groups.items()}
        self.ends = Ends(next(reversed(self._groups), None), calls)

    def find(self, key: Key) -> Entry | None:
        """The entry for exactly this call and context."""
        context, device = split_context(key.context)
        group = self._groups.get(canonical(context))
        if group is None or device != self.device_json:
            return None
        return group.entries.get(canonical(key.call))

    def in_all_contexts(self, call: Json) -> list[tuple[Json, Entry]]:
        """The entries for a call, each with its context."""
        text = canonical(call)
        return [(group.context, group.entries[text]) for group in self._groups.values() if text in group.entries]

    def names_binary(self, digest: str) -> bool:
        """Whether an entry names this binary; with "", whether one names any."""
        if "binaries" not in self.indexes:
            self.indexes["binaries"] = {one for _, entry in self.entries() for one in entry.binaries}
        named: set[str] = self.indexes["binaries"]
        return digest in named if digest else bool(named)

    def groups(self) -> list[Group]:
        """The groups in file order."""
        return [self._groups[name] for name in _in_order(self._groups, self.ends.group)]

    def in_order(self, group: Group) -> list[Entry]:
        """The entries of a group in file order."""
        last = self.ends.calls.get(canonical(group.context))
        return [group.entries[call] for call in _in_order(group.entries, last)]

    @property
    def count(self) -> int:
        """Number of entries."""
        return sum(len(group.entries) for group in self._groups.values())

    def entries(self) -> Iterator[tuple[Key, Entry]]:
        """Every entry with its key, in file order."""
        for group in self.groups():
            for entry in self.in_order(group):
                yield self.key_of(group.context, entry), entry

    def key_of(self, context: Json, entry: Entry) -> Key:
        """The key of an entry."""
        return Key(self.kernel, entry.call, {**context, "device": self.device_json})

    def dump(self) -> str:
        """The file's text: fields and entries in a stable order, one entry a line, so that git can merge it."""
        head = {"schema": SCHEMA, "kernel": self.kernel, "device": self.device_json}
        lines = ["{", *(f" {json.dumps(name)}: {json.dumps(value)}," for name, value in head.items())]
        if self.rules:
            ordered = sorted(self.rules, key=lambda one: (canonical(one[0]), one[1].name))
            written = ["\n".join(rules.lines(rule, context)) for context, rule in ordered]
            lines += [' "rules": [', ",\n".join(written), " ],"]
        lines.append(' "groups": [')
        # Git joins changes at most three lines apart; without the blank lines, entries could merge into another group.
        groups = ",\n\n\n".join(
            _group_text(group.context, self.in_order(group)) for group in self.groups() if group.entries
        )
        return "\n".join([*lines, *([groups] if groups else []), " ]", "}"]) + "\n"


def _in_order(names: Iterable[str], last: str | None) -> list[str]:
    """Sorted, except that `last` stays last."""
    return sorted(names, key=lambda name: (name == last, name))


def _group_text(context: Json, entries: Sequence[Entry]) -> str:
    # A group's closing brackets are on its last entry's line: on a separate line they would be equal for all
    # groups, and git would confuse the ends of two groups.
    rows = ",\n".join(f"   {json.dumps(entry.to_json(), sort_keys=True, allow_nan=False)}" for entry in entries)
    return f'  {{"context": {json.dumps(context, sort_keys=True)}, "entries": [\n{rows}]}}'


def split_context(context: Json) -> tuple[dict[str, Json], Json]:
    """Split a key's context into the rest and the device, which a file names once."""
    rest = dict(context)
    device = rest.pop("device")
    return rest, device


def file_name(kernel: str) -> str:
    """The file name of a kernel: its name made safe, with a hash if it had to change."""
    return f"{disk.file_stem(kernel)}.json"


def rounded(value: float | None) -> float | None:
    """Three significant digits: readable in review, and about as precise as the measurement."""
    return None if value is None else float(f"{value:.3g}")


def entry_of(record: record.TuningRecord) -> Entry:
    """The entry for a record, which must have a winner."""
    assert record.winner is not None
    times = rounded(record.median_us), rounded(record.vs_default)
    return Entry(record.key.call, record.winner, *times, record.conditions, record.quality)


# -- reading ---------------------------------------------------------------------------------------------------------


def parse(text: str | bytes, path: str) -> ConfigFile:
    """Parse a config file's text; ConfigFileError for any fault that is not harmless."""
    file, faults = read(text, path)
    lost = grave(faults)
    if lost or file is None:
        raise ConfigFileError(str(lost[0]), path=path)
    return file


def read(text: str | bytes, path: str) -> tuple[ConfigFile | None, list[Fault]]:
    """The usable part of a config file's text, None if there is none, and its faults.

    Bad entries are skipped. A text that is not valid JSON, such as one with git's conflict markers, is read line by
    line.
    """
    try:
        text = disk.decoded(text)
        data = disk.parse_json(text)
    except ValueError as error:
        return _by_lines(text, path, error)
    try:
        return _read(data, text.splitlines(), path)
    except (ValueError, TypeError) as error:
        return None, [Fault(path, _reason(error))]


def _read(data: Any, lines: list[str], path: str) -> tuple[ConfigFile, list[Fault]]:
    # Before the other fields: a newer schema may have more of them.
    schema = typed(data, dict, "file").get("schema", SCHEMA)
    if typed(schema, int, "schema") != SCHEMA:
        remedy = "upgrade autotuned to read it" if schema > SCHEMA else "move it away and tune again"
        raise RecordError(f"expected schema {SCHEMA}, got {schema!r}; {remedy}.", where="schema")
    fields = fields_of({"rules": [], **data}, "file", {"schema", "kernel", "device", "rules", "groups"})
    reader = _Reader(empty(fields), path)
    places = iter(
        [number for number, line in enumerate(lines, 1) if line.startswith('  {"context":') and line[-1] == ","]
    )
    for r, one in enumerate(typed(fields["rules"], list, "rules")):
        reader.rule(one, f"rules[{r}]", next(places, None))
    numbers = _entry_lines(fields["groups"], lines)
    for g, group in enumerate(typed(fields["groups"], list, "groups")):
        parts = fields_of(group, f"groups[{g}]", {"context", "entries"})
        context = typed(parts["context"], dict, f"groups[{g}].context")
        if parts["entries"] == []:
            reader.fault(f"groups[{g}]: expected entries, got none: remove the group.", None, harmless=True)
        for e, entry in enumerate(typed(parts["entries"], list, f"groups[{g}].entries")):
            reader.entry(context, entry, f"groups[{g}].entries[{e}]", next(numbers))
    return reader.done()


def _entry_lines(groups: Any, lines: list[str]) -> Iterator[int | None]:
    """The line of each entry if the file has one entry a line, else endless None."""
    numbers = [number for number, line in enumerate(lines, 1) if line.lstrip().startswith('{"call":')]
    found = [group.get("entries") for group in groups if isinstance(group, dict)] if isinstance(groups, list) else []
    count = sum(len(entries) for entries in found if isinstance(entries, list))
    return iter(numbers) if len(numbers) == count else itertools.repeat(None)


class _Reader:
    def __init__(self, file: ConfigFile, path: str) -> None:
        self._file, self._path = file, path
        self._faults: list[Fault] = []
        self._context: tuple[Json, str] = (None, "")  # the latest, and its canonical text: few are different
        self._lines: dict[tuple[str, str], int | None] = {}

    def fault(self, text: str, line: int | None, harmless: bool = False) -> None:
        self._faults.append(Fault(self._path, text, line, harmless))

    def rule(self, data: Json, where: str, line: int | None) -> None:
        try:
            context, found = rules.load_rule(data, where)
            for place, config in enumerate(found.configs):
                check_values(found.call, dict(config), f"{where}.configs[{place}]")
        except (ValueError, TypeError) as error:
            self.fault(f"{_reason(error)} The rule is left out; `autotuned compress` rewrites it.", line)
            return
        if self._file.rule(context, found.name) is not None:
            self.fault(f"{where}: a second rule for the same calls. The first is left out; keep one of the two.", line)
        self._file.add_rule(context, found)

    def entry(self, context: Json, data: Json, where: str, line: int | None) -> None:
        try:
            entry = load_entry(data, where)
            call = canonical(entry.call)
            if context is not self._context[0]:
                self._context = context, canonical(context)
        except (ValueError, TypeError) as error:
            self.fault(f"{_reason(error)} The entry is left out.", line)
            return
        text = self._context[1]
        entries = self._file.group(text, context).entries
        if call in entries:  # the first is kept: after git's union merge that is the target branch's
            first, number = entries[call], self._lines[text, call]
            if first == entry:
                entries[call] = first.with_binaries((*first.binaries, *entry.binaries))
            same, before = first == entry, f" of line {number}" if number is not None else ""
            what = f"repeats the entry{before}" if same else f"a second entry for the call{before}"
            self.fault(f"{where}: {what}. It is left out; keep one of the two.", line, same)
            return
        entries[call] = entry
        self._lines[text, call] = line

    def done(self) -> tuple[ConfigFile, list[Fault]]:
        self._file.keep_ends()
        return self._file, self._faults


_MARKS = "<<<<<<<", "=======", ">>>>>>>"  # with which git marks a conflict


def _by_lines(text: str | bytes, path: str, error: Exception) -> tuple[ConfigFile | None, list[Fault]]:
    """Read a broken file line by line, as `ConfigFile.dump` writes them."""
    broken = Fault(path, _no_json(error), getattr(error, "lineno", None))
    if isinstance(text, bytes):  # it has no text
        return None, [broken]
    try:
        lines = text.splitlines()
        reader = _Reader(_headed(lines), path)
    except (ValueError, TypeError):
        return None, [broken]
    reader.fault(f"{broken.text} The lines that can be read are used; `autotuned merge` rewrites it.", broken.line)
    context: Json = None
    in_rules = False
    for number, line in enumerate(map(str.strip, lines), 1):
        if line.startswith('"rules":'):
            in_rules = True
            reader.fault(
                "rules cannot be read line by line. They are left out; `autotuned compress` rewrites them.", number
            )
        elif line.startswith('"groups":'):
            in_rules = False
        try:
            if in_rules and not line.startswith(_MARKS):
                continue
            if line.startswith('{"context":'):
                context = typed(disk.parse_json(line.removesuffix("[") + "[]}")["context"], dict, "context")
            elif line.startswith('{"call":'):
                reader.entry(typed(context, dict, "context"), disk.first_json(line), "entry", number)
            elif line.startswith(_MARKS):
                reader.fault("git's mark of a conflict.", number)
        except (ValueError, TypeError) as cause:
            context = None if line.startswith('{"context":') else context
            reader.fault(f"{_reason(cause)} The line is left out.", number)
    return reader.done()


def _no_json(error: Exception) -> str:
    """An error of reading JSON, without its line, which stands before it."""
    if (column := getattr(error, "colno", None)) is None:
        return _reason(error)
    return f"expected JSON, got an error at column {column}: {vars(error)['msg']}."


def _headed(lines: list[str]) -> ConfigFile:
    """An empty file with the header in these lines; ValueError or TypeError if there is none."""
    heads = [
        disk.parse_json(f"{{{line.strip().rstrip(',')}}}") for line in lines if line.startswith((' "s', ' "k', ' "d'))
    ]
    fields = {name: value for head in heads for name, value in head.items()}
    if len(heads) != 3 or fields.keys() != {"schema", "kernel", "device"} or fields["schema"] != SCHEMA:
        raise ValueError(f"expected schema {SCHEMA}, kernel and device, a line each, got {fields!r:.60}.")
    return empty(fields)


def empty(fields: Mapping[str, Json]) -> ConfigFile:
    """A file without entries, with the kernel and the device in these fields; RecordError if they are invalid."""
    check_device(fields["device"], "device")
    return ConfigFile(typed(fields["kernel"], str, "kernel"), from_json(fields["device"]))


def _reason(error: Exception) -> str:
    text = str(error) or type(error).__name__
    return text if text.endswith(".") else f"{text}."
