"""What was tuned and is never used, and what is used and not tuned: choices against the calls of a recording."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from autotuned.key.key import Difference, Key
from autotuned.key.nearest_key import Alike
from autotuned.recording import file
from autotuned.recording.file import RecordedCall
from autotuned.resolve import explain
from autotuned.store import layout
from autotuned.typed_json import Json, canonical

from .. import terminal
from .stored import Stored, all_of, kernels, of_kernel

UNUSED_HEADERS = ("kernel", "call", "config", "toolchain", "source", "key")
MISSING_HEADERS = ("kernel", "call", "tuned != used, from the nearest", "calls>", "key")


@dataclass(frozen=True)
class Missing:
    """A key that was used and is not tuned.

    Attributes:
        count: How often it was called.
        nearest: The key of the kernel that is most like it, if any is known; `changes` are the parts they differ in.
    """

    key: Key
    count: int
    nearest: Key | None
    changes: Sequence[Difference]

    @property
    def words(self) -> str:
        """In what the nearest key differs, in few words."""
        if self.nearest is None:
            return "nothing of this kernel is tuned"
        return ", ".join(terminal.change_words(change) for change in self.changes)

    def to_json(self) -> dict[str, Json]:
        """What `list --missing --json` prints of it."""
        return {
            "kernel": self.key.kernel,
            "digest": self.key.digest,
            "call": self.key.call,
            "count": self.count,
            "reason": explain.reason_of(self.key, self.nearest),
            "nearest": self.nearest.digest if self.nearest else None,
            "changes": explain.changes_json(self.changes),
        }


@dataclass
class Usage:
    """The calls of a recording, and what answers them.

    Attributes:
        counts: How often each key was called.
        answers: By the digest of each key that is answered, the key of the choice that answers it.
        missing: Keys that nothing answers, those first that were called most often.
    """

    counts: dict[Key, int] = field(default_factory=dict)
    answers: dict[str, Key] = field(default_factory=dict)
    missing: list[Key] = field(default_factory=list)


def usage(recorded: Iterable[RecordedCall]) -> Usage:
    """Ask the store and the config files for each key of a recording, in the context in which it was called.

    Kernels are not imported: whether a choice is still among a kernel's configs, and `nearest=`, are left to the call.
    """
    found = Usage()
    for call in recorded:
        found.counts[call.key] = found.counts.get(call.key, 0) + call.count
    for key in sorted(found.counts, key=lambda key: -found.counts[key]):
        choice, _, _ = explain.ask(explain.PLACES_WITHOUT_A_PROGRAM, key, {})
        if choice is None:
            found.missing.append(key)
        else:
            found.answers[key.digest] = choice.key or key
    return found


def list_usage(kernel: str | None, path: Path, unused: bool, missing: bool, as_json: bool) -> None:
    """Print what `list --unused --missing` does."""
    recorded = file.read(path)
    wanted = _wanted(kernel, {call.kernel for call in recorded})
    found = usage(call for call in recorded if wanted is None or call.kernel in wanted)
    never = _unused(kernels(own=False) if wanted is None else wanted, found) if unused else None
    wanting = list(missing_of(found)) if missing else None
    if as_json:
        terminal.print_json({
            "cache": str(layout.root()),
            "calls": str(path),
            "unused": None if never is None else [stored.to_json() for stored in never],
            "missing": None if wanting is None else [one.to_json() for one in wanting],
        })  # fmt: skip
        return
    if never is not None:
        _print("tuned, not used", "all that is tuned is used", UNUSED_HEADERS, [_unused_cells(one) for one in never])
    if wanting is not None:
        rows = [_missing_cells(one) for one in wanting]
        _print("used, not tuned", "all that is used is tuned", MISSING_HEADERS, rows)


def _wanted(kernel: str | None, recorded: set[str]) -> list[str] | None:
    """The kernels that are meant, of those that are stored, shipped or recorded; None for all."""
    if kernel is None:
        return None
    return all_of({*kernels(), *recorded}, kernel)


def _unused(names: Iterable[str], found: Usage) -> list[Stored]:
    """Choices for the devices of the recording that answer none of its calls."""
    used = {key.digest for key in found.answers.values()} | found.answers.keys()
    devices = {canonical(key.context["device"]) for key in found.counts}
    return [
        stored
        for name in names
        for stored in of_kernel(name, heads=True)
        if stored.config is not None
        and canonical(stored.key.context["device"]) in devices
        and stored.key.digest not in used
    ]


def missing_of(found: Usage) -> Iterator[Missing]:
    """What was used and is not tuned, each with the nearest key that is."""
    stored = {name: Alike(explain.stored_keys(name)) for name in {key.kernel for key in found.missing}}
    for key in found.missing:
        other = stored[key.kernel].nearest(key)
        yield Missing(key, found.counts[key], other, explain.changes(key, other) if other is not None else ())


def _print(heading: str, otherwise: str, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    if rows:
        terminal.print_heading(heading)
        terminal.print_table(headers, rows, stack=(1, 1, 1))
    else:
        terminal.say(otherwise)


def _unused_cells(stored: Stored) -> list[str]:
    words = [stored.key.kernel, stored.call_words, stored.config_words, stored.toolchain]
    return [*words, stored.place, stored.digest[:12]]


def _missing_cells(one: Missing) -> list[str]:
    return [one.key.kernel, terminal.call_words(one.key.call), one.words, str(one.count), one.key.digest[:12]]
