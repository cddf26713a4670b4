"""Config files whose entries and rules are checked on first use: a starting process uses few of them."""

from __future__ import annotations

import bisect
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from autotuned import disk
from autotuned.configfiles.entry import Entry, load_entry
from autotuned.configfiles.file import SCHEMA, ConfigFile, Fault, empty, read, split_context
from autotuned.key.key import Key
from autotuned.typed_json import Json, canonical, has_names_once, line, typed

# How the rules, the groups and an entry begin in `ConfigFile.dump`, and how rules and groups end.
_RULES, _GROUPS, _ENTRY = '\n "rules": [', '\n "groups": [', '\n   {"call": '
_END_OF_RULES, _END = "\n ],", "\n ]\n}\n"
_FAULTS = (ValueError, TypeError, KeyError, AttributeError)  # raised by a faulty text that is not read as a whole
_CONTEXT, _ENTRIES, _NEXT_GROUP = '  {"context": ', ', "entries": [', ",\n\n\n"  # parts of a group, and between two


def read_lazily(content: str | bytes, path: str) -> tuple[ConfigFile | None, list[Fault]]:
    """Like `file.read`, but checks the entries of a file in this package's layout on first use.

    All entries are checked, and their faults added to the list, once something iterates over the file or a call finds
    nothing in it: so a faulty entry is reported before its call gets another choice.
    """
    try:
        text = disk.decoded(content)
        unread = UnreadText(text)
        head = empty(unread.head)
    except _FAULTS:
        return read(content, path)
    faults: list[Fault] = []

    def whole() -> ConfigFile:
        file, faults[:] = read(text, path)
        return file or head

    return LazyFile(head, unread, whole), faults


def _completed(name: str) -> Any:
    """An attribute of the whole file."""

    def get(self: LazyFile) -> Any:
        self.complete()
        return self._parts[name]

    def put(self: LazyFile, value: Any) -> None:
        self._parts[name] = value

    return property(get, put)


class LazyFile(ConfigFile):
    """A config file with unread entries and rules until `complete` is called; `whole` reads all of it."""

    # Read, or set, once the whole file is.
    _groups, _rules, ends = _completed("_groups"), _completed("_rules"), _completed("ends")

    def __init__(self, head: ConfigFile, unread: UnreadText, whole: Callable[[], ConfigFile]) -> None:
        self._unread: UnreadText | None = unread
        self._whole = whole
        self._parts: dict[str, Any] = {}
        super().__init__(head.kernel, head.device)

    def complete(self) -> None:
        """Check what was not asked for.

        Without a lock, which a forked child could not take if a thread held it: two threads may read the same.
        """
        if self._unread is not None:
            whole = self._whole()
            parts = {name: getattr(whole, name) for name in self._parts}
            if self._unread is not None:
                self._parts, self._unread = parts, None

    def _asked(self, ask: Callable[[UnreadText], Any]) -> Any:
        """The answer of the unread text; None if all entries must be checked."""
        unread = self._unread  # read once: another thread may complete it
        try:
            return None if unread is None else ask(unread)
        except _FAULTS:
            return None

    def find(self, key: Key) -> Entry | None:
        """The entry for exactly this call and context."""
        context, device = split_context(key.context)
        found = self._asked(lambda unread: unread.of_call(key.call))
        if not found:
            return super().find(key)
        wanted = canonical(context)
        exact = (entry for theirs, entry in found if device == self.device_json and canonical(theirs) == wanted)
        return next(exact, None)

    def in_all_contexts(self, call: Json) -> list[tuple[Json, Entry]]:
        """The entries for a call, each with its context."""
        unread, found = self._unread, None  # read once: another thread may complete it
        try:  # like `_asked`, without its two extra calls
            found = None if unread is None else unread.of_call(call)
        except _FAULTS:
            pass
        return found or super().in_all_contexts(call)

    def names_binary(self, digest: str) -> bool:
        """Whether an entry names this binary; with "", whether one names any."""
        named: bool | None = self._asked(lambda unread: unread.names(digest))
        return super().names_binary(digest) if named is None else named


class OtherLayoutError(ValueError):
    """The text is damaged, or not as this package writes it: all of it must be read."""


class UnreadText:
    """The text of a file as this package writes it; the line of an entry is parsed on first use.

    Attributes:
        head: The file's fields besides its rules and groups.

    Raises:
        OtherLayoutError, ValueError, TypeError, KeyError, AttributeError: It is damaged or of another layout.
    """

    def __init__(self, text: str) -> None:
        before, begin, self._text = text.partition(_GROUPS)
        head, _, rules = before.partition(_RULES)
        self.head: dict[str, Json] = typed(disk.parse_trusting(f"{head}{begin}{_END}"), dict, "file")
        del self.head["groups"]
        if (rules and not _is_list(rules)) or head != _head(self.head) or not self._text.endswith(_END):
            raise OtherLayoutError
        self._ends: list[int] = []  # where each group ends in the text
        self._contexts = [self._context_of(group) for group in self._text.removesuffix(_END).split(_NEXT_GROUP)]
        if len(set(map(canonical, self._contexts))) < len(self._contexts):
            raise OtherLayoutError
        self._known: dict[int, Entry] = {}

    def _context_of(self, group: str) -> Json:
        """The context of a group, whose text must have a line for the context and one for each entry."""
        before = self._ends[-1] + len(_NEXT_GROUP) if self._ends else 0
        self._ends.append(before + len(group))
        head, _, entries = group.partition(_ENTRIES)
        begin, written = ("\n" + _CONTEXT if not before else _CONTEXT), head.partition(_CONTEXT)[2]
        context = typed(disk.parse_trusting(written), dict, "context")
        lines = entries.count("\n")
        is_as_written = head == begin + written and written == line(context) and entries.endswith("}]}")
        if not is_as_written or not 0 < lines == entries.count(_ENTRY) == entries.count(f"}},{_ENTRY}") + 1:
            raise OtherLayoutError
        _parsed(entries[entries.rindex("\n") + 1 :])  # nothing but the list's end follows it
        return context

    def of_call(self, call: Json) -> list[tuple[Json, Entry]]:
        """The entries for a call, each with its context; ValueError if one is faulty."""
        found: dict[int, Entry] = {}
        wanted = f"{_ENTRY}{line(call)}, "
        for at in self._places(wanted):
            group = bisect.bisect(self._ends, at)
            if group in found:
                raise OtherLayoutError  # one of them is a fault
            found[group] = self._known.get(at + 1) or self._entry_of(call, at, at + len(wanted))
        return [(self._contexts[group], entry) for group, entry in found.items()]

    def names(self, digest: str) -> bool:
        """Whether an entry names this binary, with "" any; ValueError if a faulty one does."""
        if not digest:
            return '"compiled": ["' in self._text
        lines = (self._text.rindex("\n", 0, at) + 1 for at in self._places(f'"{digest}"'))
        return any(digest in self._entry(at).binaries for at in lines)

    def _places(self, wanted: str) -> Iterator[int]:
        """The positions of a text."""
        at = self._text.find(wanted)
        while at >= 0:
            yield at
            at = self._text.find(wanted, at + 1)

    def _entry(self, at: int) -> Entry:
        """The entry whose line begins here."""
        if at not in self._known:
            self._known[at] = load_entry(_parsed(self._text[at : self._text.index("\n", at)]), "entry")
        return self._known[at]

    def _entry_of(self, call: Json, at: int, after: int) -> Entry:
        """The entry of a call whose line begins here with the call's text: only what follows is parsed."""
        fields = _parsed("{" + self._text[after : self._text.index("\n", at + 1)])
        if "call" in fields:  # twice, then
            raise OtherLayoutError
        entry = self._known[at + 1] = load_entry({"call": call, **fields}, "entry", True)
        return entry


def _parsed(entry: str) -> Json:
    """The JSON on the line of an entry."""
    written = entry.removeprefix("   ").removesuffix(",").removesuffix("]}")
    fields = disk.parse_trusting(written)
    config = fields["config"]
    objects = [fields, config, config["kwargs"], fields["conditions"]]  # most have no others, and name no call
    return fields if has_names_once(written, objects) else disk.parse_json(written)


def _head(fields: Mapping[str, Json]) -> str:
    """How a file with these fields begins."""
    known = {"schema": SCHEMA, "kernel": fields["kernel"], "device": fields["device"]}
    lines = [f' "{name}": {json.dumps(value)},' for name, value in known.items()]
    return "\n".join(["{", *lines])


def _is_list(rules: str) -> bool:
    """Whether a text is the rest of a list of rules after its opening bracket, and nothing more."""
    return rules.endswith(_END_OF_RULES) and bool(disk.parse_trusting(f"[{rules.removesuffix(_END_OF_RULES)}]"))
