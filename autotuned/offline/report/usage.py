"""Compares choices with the calls of a recording: tuned but unused, and used but not tuned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from autotuned.key.key import Key
from autotuned.key.nearest_key import Alike, Difference
from autotuned.key.words import change_words
from autotuned.offline.report import stored
from autotuned.offline.report.needed import Needed
from autotuned.offline.report.stored import Stored
from autotuned.recording.file import RecordedCall
from autotuned.resolve import explain
from autotuned.typed_json import Json


@dataclass(frozen=True)
class Missing:
    """A key that was called `count` times but is not tuned, and the kernel's nearest stored key, if any."""

    key: Key
    count: int
    nearest: Key | None
    changes: Sequence[Difference]

    @property
    def words(self) -> str:
        """The differences to the nearest key, in few words."""
        if self.nearest is None:
            return "nothing of this kernel is tuned"
        return ", ".join(change_words(change) for change in self.changes)

    def to_json(self) -> dict[str, Json]:
        """The key as `list --missing --json` prints it."""
        return {
            "kernel": self.key.kernel,
            "digest": self.key.digest,
            "call": self.key.call,
            "count": self.count,
            "reason": explain.reason_of(self.key, self.nearest),
            "nearest": self.nearest.digest if self.nearest else None,
            "changes": explain.changes_json(self.changes),
        }


class Usage:
    """The calls of a recording, and the choices in store and config files that answer them.

    They are looked up in the context in which they were recorded. Kernels are not imported, so calls that `nearest=`
    serves count as missing, and changed lists of configs are not considered.

    Attributes:
        recorded: Distinct calls; several that differ in alignment or grid may share a key.
        tuned: The calls that have an answer.
        counts: How often each key was called, most frequent first.
        answers: Digest of an answered key -> key of the choice that answers it.
    """

    def __init__(self, recorded: Iterable[RecordedCall]) -> None:
        self.recorded = list(recorded)
        counts: Counter[Key] = Counter()
        for call in self.recorded:
            counts[call.key] += call.count
        self.counts = dict(counts.most_common())
        asked = ((key, explain.ask(explain.PLACES_WITHOUT_A_PROGRAM, key, {})[0]) for key in self.counts)
        self.answers = {key.digest: choice.key or key for key, choice in asked if choice is not None}
        self.tuned = [call for call in self.recorded if call.key.digest in self.answers]

    @cached_property
    def missing(self) -> list[Missing]:
        """Keys that were called but are not tuned, each with the nearest tuned key."""
        keys = [key for key in self.counts if key.digest not in self.answers]
        known = {name: Alike(explain.stored_keys(name)) for name in {key.kernel for key in keys}}
        nearest = [(key, known[key.kernel].nearest(key)) for key in keys]
        return [Missing(key, self.counts[key], one, explain.changes(key, one) if one else ()) for key, one in nearest]

    def unused(self, names: Iterable[str]) -> list[Stored]:
        """Choices of kernels that no recorded call may need, as `prune` decides: by file, the store's together."""
        needed = Needed(self.counts)
        found: list[Stored] = []
        for name in names:
            choices = [choice for choice in stored.of_kernel(name, heads=True) if choice.config is not None]
            keys: dict[str, list[Key]] = {}
            for choice in choices:
                keys.setdefault(choice.source, []).append(choice.key)
            is_needed = {source: needed.by(name, there) for source, there in keys.items()}
            found += (choice for choice in choices if not is_needed[choice.source](choice.key))
        return found

    @property
    def calls(self) -> int:
        """Total number of calls."""
        return sum(call.count for call in self.recorded)

    @property
    def tuned_calls(self) -> int:
        """Number of calls with an answer."""
        return sum(call.count for call in self.tuned)

    @property
    def share(self) -> float:
        """Share of calls with an answer."""
        return self.tuned_calls / self.calls if self.calls else 0.0

    def to_json(self) -> dict[str, Json]:
        """The coverage as `report --json` prints it."""
        return {
            "distinct": len(self.recorded),
            "tuned": len(self.tuned),
            "calls": self.calls,
            "tuned_calls": self.tuned_calls,
            "missing": [one.to_json() for one in self.missing],
        }
