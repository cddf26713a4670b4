"""Why a call gets its config: the places in order, and for a miss the nearest stored key."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from autotuned import env
from autotuned._startup import forget_oldest
from autotuned.configfiles import lookup
from autotuned.errors import AutotunedError, NotTunedError
from autotuned.key import memory, opaque
from autotuned.key.key import Key
from autotuned.key.nearest_key import Alike, Difference, differences, parts
from autotuned.resolve import sealing
from autotuned.resolve.request import Question
from autotuned.store import listing
from autotuned.store.choice import Candidates, Choice, Look, Origin, Place
from autotuned.store.conditions import Conditions
from autotuned.store.record import TuningRecord, look_up
from autotuned.tunable import configs
from autotuned.typed_json import Json, canonical

# Reasons by part of the context; the first that differs counts.
CONTEXT_REASONS = {
    "device": "other device",
    "triton": "other toolchain",
    "triton_key": "other toolchain",
    "ptxas": "other toolchain",
    "distributions": "other toolchain",
    "source": "other source",
    "environment": "other environment",
    "version": "other version",
    "trial": "other trial",
}
REASONS = ("hit", "absent", *dict.fromkeys(CONTEXT_REASONS.values()), "damaged", "unreadable", "newer schema",
           "config gone", "weaker conditions", "new configs", "disabled", "mode")  # fmt: skip
WORDS = {
    Origin.TABLE: "this process",
    Origin.STORE: "store",
    Origin.BINARY: "config files, with a binary",
    Origin.FILE: "config files",
    Origin.LADDER: "config files, other context",
    Origin.RULE: "config files, rule",
    Origin.NEAREST: "config files, nearest shape",
    Origin.DEFAULT: "default",
    Origin.SEARCH: "search",
    Origin.ONLY: "only config",
}


@dataclass(frozen=True)
class Step:
    """A place that was asked, whether it answered, and why."""

    place: str
    answered: bool
    why: str

    def __str__(self) -> str:
        return f"{self.place}: {'answers' if self.answered else 'no'}{f' ({self.why})' if self.why else ''}"


@dataclass(frozen=True)
class Explanation:
    """Where the choice for a call comes from, and why not from elsewhere.

    Attributes:
        key: None if none is needed (a pin, one config, mode "off").
        mode: The mode in force.
        reason: "hit", or why no known choice serves; one of `REASONS`.
        answer: The place that answers: "this process", "store", "config files, with a binary" (matched without the
            toolchain), "config files", "config files, other context", "config files, rule", "config files, nearest
            shape", "only config", "default" or "search"; "error" if the call would raise.
        config: Label of the config; None if a search or the launch decides it.
        steps: Places in the order they were asked, up to the one that answers.
        nearest: For a miss the nearest stored key; for a choice of another context or shape the key it was tuned for.
        remarks: Further facts about the key.
    """

    kernel: str
    key: Key | None
    mode: str
    reason: str
    answer: str
    config: str | None
    steps: tuple[Step, ...]
    nearest: Key | None = None
    remarks: tuple[str, ...] = ()

    @property
    def changes(self) -> tuple[Difference, ...]:
        """Parts in which the call's key (`ours`) and `nearest` (`theirs`) differ."""
        return () if self.key is None or self.nearest is None else changes(self.key, self.nearest)

    @property
    def hit(self) -> bool:
        """Whether a known choice answers."""
        return self.reason == "hit"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Show the text in IPython and Jupyter, where the fields would fill a page."""
        printer.text(str(self))

    def __str__(self) -> str:
        digest = f" key {self.key.digest[:12]}" if self.key else ""
        reason = "" if self.hit else f"{self.reason}; "  # "hit" is elsewhere the word for the launch table's answers
        lines = [f"`{self.kernel}`{digest}, mode {self.mode}: {reason}answered by {self.answer}"]
        lines += [f"  config: {self.config}"] if self.config else []
        lines += [f"  {number} {step}" for number, step in enumerate(self.steps, 1)]
        if self.key is not None:
            lines += ["key", *(f"  {path}: {canonical(value)}" for path, value in parts(self.key.to_json()))]
        if self.nearest is not None:
            lines.append(f"nearest stored key {self.nearest.digest[:12]}, stored -> now")
            lines += [f"  {change_words(change)}" for change in self.changes]
        return "\n".join([*lines, *self.remarks])

    def to_json(self) -> dict[str, Json]:
        """All fields as JSON."""
        return {
            "kernel": self.kernel,
            "digest": self.key.digest if self.key else None,
            "key": self.key.to_json() if self.key else None,
            "mode": self.mode,
            "reason": self.reason,
            "answer": self.answer,
            "config": self.config,
            "steps": [vars(step) for step in self.steps],
            "nearest": self.nearest.digest if self.nearest else None,
            "changes": changes_json(self.changes),
            "remarks": list(self.remarks),
        }


def change_words(change: Difference) -> str:
    """A changed part in one line, old -> new."""
    return f"{change.path}: {canonical(change.theirs)} -> {canonical(change.ours)}"


def changes_json(changed: Sequence[Difference]) -> list[dict[str, Json]]:
    """Changed parts as JSON."""
    return [{"path": change.path, "stored": change.theirs, "now": change.ours} for change in changed]


def stored_keys(kernel: str) -> list[Key]:
    """Keys of a kernel with a stored or shipped choice."""
    stored = [found.key for _, found in listing.all_heads(kernel, quietly=True)]
    return stored + [shipped for _, shipped, _ in lookup.shipped(kernel)]


_known: dict[str, Alike] | None = None  # by kernel, inside `reading_once`
_latest: dict[str, tuple[Any, Any, Alike]] = {}  # by kernel: heads and state of the config files, with the result


@contextmanager
def reading_once() -> Iterator[None]:
    """Read the stored keys of a kernel only once in a `with` block, for many queries."""
    global _known
    before, _known = _known, {}
    try:
        yield
    finally:
        _known = before


def nearest(key: Key) -> Key | None:
    """The nearest stored or shipped key of the kernel (`nearest_key.Alike`), or None.

    Outside `reading_once` it reads only records that changed since: an untuned program asks at each miss.
    """
    if _known is None:
        return _alike(key.kernel).nearest(key)
    if key.kernel not in _known:
        _known[key.kernel] = Alike(stored_keys(key.kernel))
    return _known[key.kernel].nearest(key)


def _alike(kernel: str) -> Alike:
    heads, shipped = listing.known_heads(kernel), lookup.state()
    known = _latest.get(kernel)
    if known is None or known[0] is not heads or known[1] != shipped:
        keys = [head.key for head in heads] + [key for _, key, _ in lookup.shipped(kernel)]
        known = _latest[kernel] = heads, lookup.state(), Alike(keys)
        forget_oldest(_latest, listing.MOST_FOLDERS)
    return known[2]


def changes(now: Key, stored: Key) -> tuple[Difference, ...]:
    """The parts in which two keys differ."""
    return tuple(differences(now.to_json(), stored.to_json()))


def ask(places: Iterable[Place], key: Key, live: Candidates) -> tuple[Choice | None, list[Step], str]:
    """Ask the places in order, without side effects: the first choice, all steps, and the first problem other than
    absence ("" if none).
    """
    steps, problem = [], ""
    for origin, look in places:
        seen = look(key, live)
        if seen.choice is not None:
            found = seen.choice
            steps.append(Step(WORDS[origin], True, f"{found.where}: {found.note}" if found.note else found.where))
            return found, steps, ""
        steps.append(Step(WORDS[origin], False, ": ".join(word for word in (seen.problem, seen.detail) if word)))
        if not problem and seen.problem not in ("", "absent"):
            problem = seen.problem
    return None, steps, problem


def reason_of(key: Key, other: Key | None) -> str:
    """Why a key misses, given the nearest stored one."""
    if other is None or canonical(other.call) != canonical(key.call):
        return "absent"
    names = {change.path.split(".")[1] for change in changes(key, other)}
    return next((reason for name, reason in CONTEXT_REASONS.items() if name in names), "absent")


def remarks(key: Key, buckets: Mapping[str, Any]) -> tuple[str, ...]:
    """What people overlook in a key."""
    without = [name for name, tensor in key.call["tensors"].items() if "shape" not in tensor]
    lines = [f"not in the key, because key= does not name it: the shape of {name}" for name in without]
    lines += [f"in the key by its bucket, launched with its true value: {name}" for name in buckets]
    return tuple(lines)


def _inside_containers(question: Question) -> Iterator[str]:
    """What people overlook of lists and the like, which are in the key only if `key=` names them."""
    for name, value in question.call.arguments.items():
        if isinstance(value, (list, dict, set)) and name not in question.key.call["values"] and memory.tensors(value):
            yield f"not in the key, because key= does not name it: sizes and dtypes of the arrays inside {name}"


def nearest_words(key: Key) -> str:
    """How a key differs from the nearest stored one, in a line."""
    other = nearest(key)
    if other is None:
        return "no key of this kernel is stored"
    differing = "; ".join(str(change) for change in changes(key, other))
    return f"the nearest stored key {other.digest[:12]} differs in {differing}"


def forbidden(question: Question, lack: str) -> AutotunedError:
    """The error of a call that needs a search where none may run: sealed, or not tuned."""
    if question.search and sealing.forbids():
        return sealing.refused_search(question.key, lack)
    captured = "a CUDA graph is being captured, which a search would break"
    return not_tuned(question.key, captured if question.search else "prepare(search=False) allows no search", lack)


def without_key(kernel: str, mode: str, known: Choice, config: str) -> Explanation:
    """Explain a call without a look-up: a pin, the only config, or mode "off"."""
    reason = "mode" if known.origin is Origin.DEFAULT else "hit"
    step = Step(WORDS[known.origin], True, known.where or (f"mode {mode} reads nothing" if reason == "mode" else ""))
    return Explanation(kernel, None, mode, reason, step.place, config, (step,))


def of_call(
    question: Question, places: Sequence[Place], ending: Origin | None, kept: bool, buckets: Mapping[str, Any]
) -> Explanation:
    """Explain a call with a key.

    Args:
        places: Places of a known choice, in order.
        ending: What follows if there is none: a search, a default, or None for an error.
        kept: Whether the key's choices are kept on disk.
    """
    key, live, mode = question.key, question.live, question.mode
    choice, steps, problem = ask(places, key, live)
    notes = (*remarks(key, buckets), *_inside_containers(question))
    record, missing = choice.record if choice is not None else None, 0
    if choice is not None and record is not None and not choice.complete:
        missing = len(live.keys() - {timing.identity for timing in record.timings})
    if record is not None and record.members:
        notes += (f"best over {len(record.members)} calls of its bucket: {_sizes(record)}",)
    if record is not None and question.unraced(record):
        notes += (_unraced(question, record),)
    if choice is not None and not (missing and ending is Origin.SEARCH):
        words, place = _label(configs.to_json(choice.config, key.kernel, opaque.spell), key), steps[-1].place
        return Explanation(key.kernel, key, mode, "hit", place, words, tuple(steps), choice.key, notes)
    if choice is not None:
        steps[-1] = Step(steps[-1].place, False, f"{missing} of {len(live)} configs are new; they are measured")
        problem = "new configs"
    if kept and env.has_store():
        when = "first" if ending in (None, Origin.SEARCH) else "in the background"
        notes += (f"the shared store is asked {when}: explain does not read it",)
    answer = "error" if ending is None else WORDS[ending]
    sealed = " and the seal" if ending is None and sealing.forbids() else ""
    steps.append(Step(answer, True, f"mode {mode}{sealed}"))
    other = None if problem == "new configs" else nearest(key)
    reason = problem or ("mode" if mode == "search" else "" if kept else "disabled") or reason_of(key, other)
    return Explanation(key.kernel, key, mode, reason, answer, None, tuple(steps), other, notes)


def _sizes(record: TuningRecord) -> str:
    calls = (", ".join(f"{name}={size}" for name, size in one["sizes"].items()) for one in record.members)
    return "; ".join(calls)


def _unraced(question: Question, record: TuningRecord) -> str:
    if question.untuned in question.unraced(record):
        return "default= was given, or changed, after this was chosen, and has not raced it: `autotuned tune` does"
    return "a budget ended before a faster config could be compared with this once more: `autotuned tune` does that"


def of_stored(stored: Key, now: Mapping[str, Json]) -> Explanation:
    """Whether a stored call would be answered in another context, without the program that makes the call.

    `now` has parts of that context; the others are taken as stored.
    """
    key = Key(stored.kernel, stored.call, {**stored.context, **now})
    unchecked = [name for name in stored.context if name not in now]
    notes = (f"not compared: {', '.join([*unchecked, 'check=', 'restore_value='])}",)
    choice, steps, problem = ask(PLACES_WITHOUT_A_PROGRAM, key, {})
    if choice is not None:
        words, place = choice.config, steps[-1].place
        return Explanation(key.kernel, key, "auto", "hit", place, words, tuple(steps), choice.key, notes)
    other = nearest(key)
    reason = problem or reason_of(key, other)
    return Explanation(key.kernel, key, "auto", reason, "search", None, tuple(steps), other, notes)


def _any_record(key: Key, live: Candidates) -> Look:
    found, seen = look_up(key)
    if found is None:
        return Look(None, seen.problem, seen.detail, seen.path)
    if found.winner is None:
        return Look(None, "absent", f"{seen.path} is of a search that was not finished")
    return Look(Choice(_label(found.winner, key), Origin.STORE, found, where=seen.path))


def _label(form: Mapping[str, Json], key: Key) -> str:
    return configs.label(form, options=key.is_of_triton)


class _Whatever(Mapping[str, Any]):
    """Stands for the live configs if there are none: has every identity, with its label as config."""

    def __init__(self, key: Key) -> None:
        self._key = key

    def __getitem__(self, identity: str) -> str:
        return _label(json.loads(identity), self._key)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


NOTHING = Conditions(())  # neither a check nor protection
# `sources.places` without live configs: any choice counts, under whatever conditions it was measured.
PLACES_WITHOUT_A_PROGRAM: Sequence[Place] = [
    (Origin.STORE, _any_record),
    (Origin.FILE, lambda key, live: lookup.look_exact(key, _Whatever(key), NOTHING)),
    (Origin.LADDER, lambda key, live: lookup.look_ladder(key, _Whatever(key), needed=NOTHING)),
]


def weaker(places: Iterable[Place], key: Key, live: Candidates) -> str:
    """Conditions that a key's stored choice lacks; "" without a choice, or if it fails for another reason."""
    looks = (look(key, live) for _, look in places)
    seen = next((seen for seen in looks if seen.problem == "weaker conditions"), None)
    return "" if seen is None else f"the stored choice{f' in {seen.path}' if seen.path else ''} was {seen.detail}"


def not_tuned(key: Key, why: str, lack: str = "") -> NotTunedError:
    """The error for a call without a choice; `lack`: conditions that its stored choice lacks, or ""."""
    found = "one that was measured under weaker conditions" if lack else "none"
    return NotTunedError(
        f"`{key.kernel}`: expected a tuned choice for key {key.digest[:12]}, found {found}, and {why}; "
        f"{lack or nearest_words(key)}. Tune it beforehand (`autotuned tune`), ship a config file, or give "
        "@autotune a default=.",
        kernel=key.kernel,
        digest=key.digest,
    )
