"""What was tuned and is never used, and what is used and not tuned: choices against the calls of a recording."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from autotuned.key.key import Difference, Key
from autotuned.key.nearest_key import Alike
from autotuned.key.words import change_words
from autotuned.offline import stored
from autotuned.offline.stored import Stored
from autotuned.recording.file import RecordedCall
from autotuned.resolve import explain
from autotuned.typed_json import Json, canonical


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
        return ", ".join(change_words(change) for change in self.changes)

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


def unused(names: Iterable[str], found: Usage) -> list[Stored]:
    """Choices for the devices of the recording that answer none of its calls."""
    used = {key.digest for key in found.answers.values()} | found.answers.keys()
    devices = {canonical(key.context["device"]) for key in found.counts}
    return [
        choice
        for name in names
        for choice in stored.of_kernel(name, heads=True)
        if choice.config is not None
        and canonical(choice.key.context["device"]) in devices
        and choice.key.digest not in used
    ]


def missing_of(found: Usage) -> Iterator[Missing]:
    """What was used and is not tuned, each with the nearest key that is."""
    known = {name: Alike(explain.stored_keys(name)) for name in {key.kernel for key in found.missing}}
    for key in found.missing:
        other = known[key.kernel].nearest(key)
        yield Missing(key, found.counts[key], other, explain.changes(key, other) if other is not None else ())
