"""Config files whose entries and rules are checked when they are asked for: a start asks for few of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from autotuned import disk
from autotuned.configfiles.entry import Entry, load_entry
from autotuned.configfiles.file import SCHEMA, ConfigFile, Fault, empty, read, split_context
from autotuned.key.key import Key
from autotuned.typed_json import Json, canonical, line, typed

# How the rules, the groups and an entry begin in `ConfigFile.dump`, and how rules and groups end.
_RULES, _GROUPS, _ENTRY = '\n "rules": [', '\n "groups": [', '\n   {"call": '
_END_OF_RULES, _END = "\n ],", "\n ]\n}\n"


def read_lazily(content: str | bytes, path: str) -> tuple[ConfigFile | None, list[Fault]]:
    """Like `file.read`, but an entry of a file in this package's layout is checked when it is asked for.

    All of them are checked, and their faults added to the list, once something walks over the file, or a call finds
    nothing in it: a faulty entry is named before the call that it was for is decided otherwise.
    """
    try:
        text = disk.decoded(content)
        unread = Unread(text)
        head = empty(unread.head)
    except (ValueError, TypeError, KeyError, AttributeError):
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
    _groups, _rule_places = _completed("_groups"), _completed("_rule_places")
    rules, ends = _completed("rules"), _completed("ends")

    def __init__(self, head: ConfigFile, unread: Unread, whole: Callable[[], ConfigFile]) -> None:
        self._unread: Unread | None = unread
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

    def _asked(self, ask: Callable[[Unread], Any]) -> Any:
        """What the unread entries answer; None if all must be checked."""
        unread = self._unread  # read once: another thread may complete it
        try:
            return None if unread is None else ask(unread)
        except (ValueError, TypeError, KeyError, AttributeError):
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
        return self._asked(lambda unread: unread.of_call(call)) or super().in_all_contexts(call)

    def names_binary(self, digest: str) -> bool:
        """Whether an entry names this binary; with "", whether one names any."""
        named: bool | None = self._asked(lambda unread: unread.names(digest))
        return super().names_binary(digest) if named is None else named


class OtherLayoutError(ValueError):
    """The text is damaged, or not as this package writes it: all of it must be read."""


class Unread:
    """The text of a file as this package writes it, parsed and not checked.

    Attributes:
        head: The file's fields besides its rules and groups.

    Raises:
        OtherLayoutError, ValueError, TypeError, KeyError, AttributeError: It is damaged or of another layout.
    """

    def __init__(self, text: str) -> None:
        before, begin, self._text = text.partition(_GROUPS)
        head, _, rules = before.partition(_RULES)
        self.head: dict[str, Json] = typed(disk.parse_trusting(head + begin + self._text), dict, "file")
        groups = self.head.pop("groups")
        if (rules and not _is_list(rules)) or head != _head(self.head) or not self._is_as_written(groups):
            raise OtherLayoutError
        self._contexts = [typed(group["context"], dict, "context") for group in groups]
        self._entries = [(place, entry) for place, group in enumerate(groups) for entry in group["entries"]]
        if self._text.count(_ENTRY) != len(self._entries) or len(set(map(canonical, self._contexts))) < len(groups):
            raise OtherLayoutError
        self._known: dict[int, Entry] = {}

    def _is_as_written(self, groups: Json) -> bool:
        """Whether `dump` writes this text: then no name is given twice, which `parse_trusting` misses."""
        one_line = self._text.replace(",\n\n\n  {", ", {").replace(",\n   {", ", {").replace("[\n   {", "[{")
        written = line(groups)[1:-1]
        return one_line == f"\n  {written}{_END}" and all(len(group) == 2 for group in groups)

    def of_call(self, call: Json) -> list[tuple[Json, Entry]]:
        """The entries for a call, each with its context; ValueError if one is faulty."""
        found = {}
        for number in self._numbers(f"{_ENTRY}{line(call)}, "):
            group, data = self._entries[number]
            if group in found or data["call"] != call:
                raise OtherLayoutError  # one of them is a fault
            found[group] = self._entry(number)
        return [(self._contexts[group], entry) for group, entry in found.items()]

    def names(self, digest: str) -> bool:
        """Whether an entry names this binary, with "" any; ValueError if a faulty one does."""
        if not digest:
            return '"compiled": ["' in self._text
        return any(digest in self._entry(number - 1).binaries for number in self._numbers(f'"{digest}"'))

    def _numbers(self, wanted: str) -> Iterator[int]:
        """How many entries begin before each place that has this text."""
        at = self._text.find(wanted)
        while at >= 0:
            yield self._text.count(_ENTRY, 0, at)
            at = self._text.find(wanted, at + 1)

    def _entry(self, number: int) -> Entry:
        if number not in self._known:
            self._known[number] = load_entry(self._entries[number][1], "entry")
        return self._known[number]


def _head(fields: Mapping[str, Json]) -> str:
    """How a file with these fields begins."""
    known = {"schema": SCHEMA, "kernel": fields["kernel"], "device": fields["device"]}
    lines = [f' "{name}": {json.dumps(value)},' for name, value in known.items()]
    return "\n".join(["{", *lines])


def _is_list(rules: str) -> bool:
    """Whether this is what stands between the brackets of a list of rules, and nothing else."""
    return rules.endswith(_END_OF_RULES) and bool(disk.parse_trusting(f"[{rules.removesuffix(_END_OF_RULES)}]"))
