"""Config files whose entries are checked when they are asked for: a start asks for few of them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

from autotuned import disk
from autotuned.configfiles.entry import Entry, load_entry
from autotuned.configfiles.file import SCHEMA, ConfigFile, Fault, Group, empty, read, split_context
from autotuned.key.key import Key
from autotuned.typed_json import Json, canonical, typed

_CONTEXT, _ENTRY = '\n  {"context": ', '\n   {"call": '  # how a group and an entry begin in `ConfigFile.dump`
_END = "]}\n ]\n}\n"


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
        file, found = read(text, path)
        faults.extend(found)
        return file or head

    return LazyFile(head, unread, whole), faults


class LazyFile(ConfigFile):
    """A config file with unread entries until `complete` is called; `whole` reads all of it."""

    def __init__(self, head: ConfigFile, unread: Unread, whole: Callable[[], ConfigFile]) -> None:
        self._unread: Unread | None = unread
        self._whole, self._completing = whole, threading.RLock()
        super().__init__(head.kernel, head.device)

    @property
    def _groups(self) -> dict[str, Group]:
        self.complete()
        return self._read

    @_groups.setter
    def _groups(self, groups: dict[str, Group]) -> None:
        self._read = groups

    def complete(self) -> None:
        """Check the entries that were not asked for."""
        with self._completing:
            if self._unread is not None:
                whole = self._whole()
                self._read, self.ends = whole._groups, whole.ends
                self._unread = None

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
        found = self._asked(lambda unread: unread.of_call(canonical(key.call)))
        if not found:
            return super().find(key)
        wanted = canonical(context)
        exact = (entry for theirs, entry in found if device == self.device_json and canonical(theirs) == wanted)
        return next(exact, None)

    def in_all_contexts(self, call: str) -> list[tuple[Json, Entry]]:
        """The entries for a call, given as canonical text, each with its context."""
        return self._asked(lambda unread: unread.of_call(call)) or super().in_all_contexts(call)

    def names_binary(self, digest: str) -> bool:
        """Whether an entry names this binary; with "", whether one names any."""
        named: bool | None = self._asked(lambda unread: unread.names(digest))
        return super().names_binary(digest) if named is None else named


_written = json.JSONEncoder(sort_keys=True, allow_nan=False).encode  # as `dump` writes a line


class OtherLayoutError(ValueError):
    """The text is damaged, or not as this package writes it: all of it must be read."""


class Unread:
    """The text of a file as this package writes it, parsed and not checked.

    Attributes:
        head: The file's fields besides its groups.

    Raises:
        OtherLayoutError, ValueError, TypeError, KeyError, AttributeError: It is damaged or of another layout.
    """

    def __init__(self, text: str) -> None:
        self.head: dict[str, Json] = typed(disk.parse_trusting(text), dict, "file")
        read = self.head.pop("groups")
        groups = [(group["context"], group["entries"]) for group in read]
        if any(len(group) != 2 for group in read) or not text.endswith(_END):
            raise OtherLayoutError  # more fields, or a name given twice
        self._contexts = [context for context, _ in groups]
        self._entries = [(place, entry) for place, (_, entries) in enumerate(groups) for entry in entries]
        self._rows = text.split(_ENTRY)[1:]
        self._check_layout(text.split(_CONTEXT), groups)
        self._known: dict[int, Entry] = {}
        self._by_binary: dict[str, list[int]] = {}
        self._by_call: dict[str, dict[int, int]] = {}  # the entry's number, by group
        for number, (group, entry) in enumerate(self._entries):
            if self._by_call.setdefault(canonical(entry["call"]), {}).setdefault(group, number) != number:
                raise OtherLayoutError
            for digest in entry.get("compiled", ()):
                self._by_binary.setdefault(digest, []).append(number)

    def _check_layout(self, chunks: list[str], groups: list[tuple[Json, Json]]) -> None:
        """Refuse what `dump` would not write: a name given twice, which `parse_trusting` misses, or an entry not on a
        line of its own.
        """
        fields = {"schema": SCHEMA, "kernel": self.head["kernel"], "device": self.head["device"]}
        head = "\n".join(["{", *(f' "{name}": {json.dumps(value)},' for name, value in fields.items()), ' "groups": ['])
        if chunks[0] != head or self.head.keys() != fields.keys():
            raise OtherLayoutError
        for chunk, (context, entries) in zip(chunks[1:], groups, strict=True):
            begin = f'{json.dumps(typed(context, dict, "context"), sort_keys=True)}, "entries": [{_ENTRY}'
            if not chunk.startswith(begin) or chunk.count(_ENTRY) != len(typed(entries, list, "entries")):
                raise OtherLayoutError
        if len({canonical(context) for context, _ in groups}) < len(groups):
            raise OtherLayoutError

    def of_call(self, call: str) -> list[tuple[Json, Entry]]:
        """The entries for a call, given as canonical text, each with its context; ValueError if one is faulty."""
        return [(self._contexts[group], self._entry(number)) for group, number in self._by_call.get(call, {}).items()]

    def names(self, digest: str) -> bool:
        """Whether an entry names this binary, with "" any; ValueError if a faulty one does."""
        if not digest:
            return bool(self._by_binary)
        return any(digest in self._entry(number).binaries for number in self._by_binary.get(digest, ()))

    def _entry(self, number: int) -> Entry:
        if number not in self._known:
            data = self._entries[number][1]
            if not self._rows[number].startswith(_written(data)[len('{"call": ') :]):  # or a name is given twice
                raise OtherLayoutError
            self._known[number] = load_entry(data, "entry")
        return self._known[number]
