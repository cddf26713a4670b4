"""Where choices come from: records on disk, config files, shipped binaries, and `default=`."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotuned._startup import later, loaded, once
from autotuned.key.key import Key
from autotuned.launch import launcher
from autotuned.resolve.request import Context, Question
from autotuned.store import conditions, record
from autotuned.store.choice import Candidates, Choice, Live, Look, Origin, Place, untuned_of
from autotuned.store.conditions import BY_DEFAULT, Conditions
from autotuned.store.record import TuningRecord
from autotuned.tunable.call import Call
from autotuned.tunable.kernel import TunableKernel
from autotuned.typed_json import Json, digest

if TYPE_CHECKING:
    from autotuned.binaries import serve
    from autotuned.configfiles import lookup, nearest_shape, shipped_rules
    from autotuned.configfiles.policy import Within
    from autotuned.gpu.device import Device
    from autotuned.key import words
    from autotuned.resolve import explain
    from autotuned.resolve.explain import Explanation
    from autotuned.search import failures, race
    from autotuned.store import records
    from autotuned.tunable.tunable import Tunable
else:
    serve, lookup, explain = later("binaries.serve"), later("configfiles.lookup"), later("resolve.explain")
    shipped_rules = later("configfiles.shipped_rules")
    failures, race, words = later("search.failures"), later("search.race"), later("key.words")
    records = later("store.records")

log = logging.getLogger("autotuned")

_FROM_FILES = (Origin.BINARY, Origin.FILE, Origin.LADDER, Origin.RULE, Origin.NEAREST)


def find(
    key: Key,
    candidates: Candidates,
    places: Iterable[Place] | None = None,
    excluded: Collection[str] = (),
    strict: bool = False,
) -> Choice | None:
    """The choice of the first place that has one for a key among the candidates.

    A stored config that is not a candidate is not served: its hooks are unknown.

    Args:
        places: Default: `exact_places`.
        excluded: Candidates that do not compile or launch here.
        strict: Raise for a fault in a config file.

    Raises:
        ConfigFileError: If `strict`, the first fault.
    """
    fit = Live(candidates) if not isinstance(candidates, Live) else candidates
    fit = fit.without(excluded) if excluded else fit
    for origin, look in exact_places() if places is None else places:
        seen = look(key, fit)
        if seen.problem not in ("", "absent") and not (excluded and seen.problem == "config gone"):  # reported already
            records.react(seen)
        if origin in (Origin.BINARY, Origin.FILE, Origin.LADDER):  # these read files
            lookup.report(key.kernel, strict)
        if seen.choice is not None:
            if origin is Origin.STORE:
                record.note_use(Path(seen.choice.where))
            elif origin is not Origin.TABLE:
                lookup.announce(key.kernel, seen.choice)
            return seen.choice
    return None


def look_at_record(key: Key, candidates: Candidates, needed: Conditions, below: Path | None = None) -> Look:
    """The choice of a record, in the cache folder or another one like it."""
    found, seen = record.look_up(key, below)
    if found is None:
        return Look(None, seen.problem, seen.detail, seen.path)
    restored = found.conditions.restore
    if found.winner is not None and restored is not None and not conditions.restore_covers(restored, needed.restore):
        return Look(None, "weaker conditions", f"measured {conditions.lack(found.conditions, needed)}", seen.path)
    winner = best(found, candidates, needed)
    if winner is None and best(found, candidates, needed.replace(checks=())) is not None:
        return Look(None, "weaker conditions", f"measured {conditions.lack(found.conditions, needed)}", seen.path)
    if winner is None:  # no path, so no warning, since a search follows
        problem = "config gone" if found.winner else "absent"
        return Look(None, problem, f"{seen.path} has none of the configs of this call")
    chosen = Choice(candidates[winner], Origin.STORE, found, where=seen.path, conditions=under(found, winner))
    return Look(chosen.replace(complete=is_complete(found, candidates, winner, needed)))


def under(found: TuningRecord, identity: str) -> Conditions:
    """The conditions that one of a record's configs was measured under."""
    timing = next((timing for timing in found.timings if timing.identity == identity), None)
    return found.conditions if timing is None else found.conditions.replace(checks=timing.passed)


def ranked_lists(provenance: Mapping[str, Json]) -> list[str]:
    """Digests of lists whose search was shortened by another device's times."""
    searched: Json = provenance.get("space")
    lists = searched.get("lists") if isinstance(searched, dict) else None
    return [one for one in lists if isinstance(one, str)] if isinstance(lists, list) else []


def is_complete(found: TuningRecord, candidates: Candidates, winner: str, needed: Conditions) -> bool:
    """Whether every candidate was measured, and no faster one waits for this call's check."""
    if not found.timings:  # taken from a config file, and as good as that
        return True
    measured = {timing.identity: timing for timing in found.timings}
    are_more = isinstance(candidates, Live) and not candidates.is_listed and candidates.is_wider_than(found.provenance)
    lists = ranked_lists(found.provenance)
    if not (candidates.keys() <= measured.keys() or (lists and digest(sorted(candidates)) in lists)) or are_more:
        return False
    space: Json = found.provenance.get("space")
    if isinstance(space, dict) and space.get("unfinished"):
        return False
    if winner == record.identity_of(found.winner or {}):
        return True
    if isinstance(candidates, Live) and not candidates.is_declared_as(found.provenance):
        return False
    limit_us = measured[winner].median_us or 0.0
    waiting = (timing for name, timing in measured.items() if name in candidates and timing.waits_for(needed))
    return not any(timing.usable and (timing.median_us or 0.0) < limit_us for timing in waiting)


def best(found: TuningRecord, candidates: Candidates, needed: Conditions) -> str | None:
    """Identity of the record's winner if it serves, else of the fastest measured candidate that does."""
    if found.winner is None:
        return None
    winner = record.identity_of(found.winner)
    if not found.timings:
        return winner if winner in candidates and conditions.covers(found.conditions, needed) else None
    won = found.timing_of(found.winner)
    if winner in candidates and won is not None and won.serves(needed):
        return winner
    serving = {t.identity: t for t in found.timings if t.serves(needed)}
    made = dict.fromkeys(candidates)  # in a space, the record may name further members
    members = [name for name in serving if name not in made and name in candidates]
    samples_us = {name: serving[name].typical_us for name in [*made, *members] if name in serving}
    # Pick as a search among these would.
    return race.pick(samples_us, untuned_of(candidates) or found.untuned)[0] if samples_us else None


def exact_places(needed: Conditions = BY_DEFAULT) -> tuple[Place, ...]:
    """Places for the same call in the same context, in order; see `places`."""
    return (
        (Origin.STORE, lambda key, candidates: look_at_record(key, candidates, needed)),
        (Origin.FILE, lambda key, candidates: lookup.look_exact(key, candidates, needed)),
    )


def places(
    strict: bool,
    exact: bool,
    factors: nearest_shape.Factors,
    needed: Conditions = BY_DEFAULT,
    shipped: Callable[[Key, Candidates], Look] | None = None,
    within: Within | None = None,
) -> Iterator[Place]:
    """Places of a stored choice, in order; `explain` walks the same list.

    Args:
        strict: Only choices that a policy accepts, and no nearest shape.
        exact: Only the same call in the same context.
        factors: Axes on which a neighbour may serve, with the distance allowed.
        needed: Conditions under which the choice must have been measured.
        shipped: Looks for a config file's entry with a compiled kernel; None if nothing is compiled.
        within: Loss allowed for a rule; None to follow the folders' policies.
    """
    for place in exact_places(needed):
        if place[0] is Origin.FILE and shipped is not None and not exact:
            yield Origin.BINARY, shipped
        yield place
    if not exact:
        yield Origin.LADDER, lambda key, candidates: lookup.look_ladder(key, candidates, strict, needed)
    if not exact and (within is not None or _a_policy_allows_rules()):
        yield Origin.RULE, lambda key, candidates: shipped_rules.look_rule(key, candidates, within, needed, strict)
    if factors and not exact and not strict:
        yield Origin.NEAREST, lambda key, candidates: lookup.look_nearest(key, candidates, factors, needed)


def unserved(strict: bool, exact: bool) -> tuple[Origin, ...]:
    """Origins that these `places` leave out; another mode may have left a choice from one of them."""
    others = Origin.LADDER, Origin.RULE, Origin.NEAREST
    return (Origin.BINARY, *others) if exact else others if strict else ()


def _a_policy_allows_rules() -> bool:
    module = loaded("configfiles.lookup")  # imported if a folder is registered
    return module is not None and module.allow_rules()


class Shipped:
    """Shipped binaries of one tuned function.

    Imports nothing for binaries unless a folder may provide code for the kernel.
    """

    def __init__(self, tunable: Tunable, context: Context) -> None:
        self._tunable, self._context = tunable, context
        self._latest_offered: tuple[Any, bool] = (None, False)
        self.possible = isinstance(tunable, TunableKernel) and not tunable.interpreted

    @once
    def server(self) -> serve.Server:
        """Finds and loads them."""
        assert isinstance(self._tunable, TunableKernel)
        return serve.Server(self._tunable, self._context.version)

    @property
    def _offered(self) -> bool:
        """Whether a folder may provide code for the kernel."""
        if not self.possible:
            return False
        state, offered = self._latest_offered  # read once: another thread may replace it
        if state is None or state != lookup.state():
            module = str(getattr(getattr(self._tunable, "function", None), "__module__", ""))
            offered = any(folder.may_give_code(module) for folder in lookup.folders())
            self._latest_offered = lookup.state(), offered
        return offered

    def may_be_first(self) -> bool:
        """Whether config files come first: there are binaries, and no record of the kernel."""
        return self.possible and not record.has_any(self._tunable.name) and self._offered

    def look(self, call: Call, device: Device, part: Json, live: Candidates, needed: Conditions) -> Look:
        """The choice of an entry with a binary, matched without the toolchain; after `may_be_first`."""
        context, state = self._context.without_toolchain(device), self._latest_offered[0]
        return self.server.look(call, device, part, context, live, needed, state)

    def place(self, question: Question) -> Callable[[Key, Candidates], Look]:
        """The same as a place."""

        def look(key: Key, live: Candidates) -> Look:
            if not self._offered:
                return Look(None, "absent")
            device = self._tunable.device(question.call)
            return self.server.look(question.call, device, key.call, key.context, live, question.needed)

        return look

    def load(self, call: Call, choice: Choice) -> Any:
        """The binary for a choice; None to compile.

        For a choice that is not from files, looks only in a process that has read files anyway.
        """
        if not self._worth_asking(choice):
            return None
        if launcher.binds_directly():
            return self.server.load(call, choice.config)
        self.server.fill(call, choice.config)
        return None

    def comes_first(self, choice: Choice) -> bool:
        """Whether `load` finds a binary for the choice if nothing has changed since it was made."""
        return choice.origin is Origin.BINARY and launcher.binds_directly()

    def has(self, call: Call, config: Any) -> bool:
        """Whether there is a binary for a call with a config."""
        return self._worth_asking(Choice(config, Origin.DEFAULT)) and self.server.find(call, config) is not None

    def why_none(self, call: Call, choice: Choice) -> str:
        """Why no binary serves a call with a choice; "" if the kernel has none."""
        if not (self._worth_asking(choice) and self.server.has_any(call)):
            return ""
        return self.server.why_none(call, choice.config)

    def asked(self, call: Call, choice: Choice, part: Callable[[Call], Json]) -> tuple[str, str]:
        """For the seal: the call that is compiled, as text, and why no binary serves it."""
        return words.call_words(part(call)), self.why_none(call, choice)

    def noted(self, found: Explanation, question: Question, places: Sequence[Place]) -> Explanation:
        """An explanation with a remark on the binary of the answer, if the kernel has any."""
        if not (found.hit and self._offered and self.server.has_any(question.call)):
            return found
        choice, _, _ = explain.ask(places, question.key, question.live)
        if choice is None:
            return found
        why = self.server.why_none(question.call, choice.config)
        return replace(found, remarks=(*found.remarks, f"it compiles: {why}" if why else "a shipped binary is loaded"))

    def _worth_asking(self, choice: Choice) -> bool:
        if choice.origin is Origin.SEARCH or not self.possible:
            return False
        if choice.origin is Origin.BINARY:
            return True
        reads = choice.origin in _FROM_FILES or "autotuned.configfiles.lookup" in sys.modules
        return reads and self._offered
