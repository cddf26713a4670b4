"""Where choices come from: the user's records on disk, config files, the binaries beside them, and `default=`."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotuned._startup import later
from autotuned.errors import ConfigError
from autotuned.key.key import Key
from autotuned.launch import launcher
from autotuned.resolve.request import Context, Question
from autotuned.store import conditions, layout, record, records
from autotuned.store.choice import Candidates, Choice, Live, Look, Origin, Place, untuned_of
from autotuned.store.conditions import BY_DEFAULT, Conditions
from autotuned.store.record import TuningRecord
from autotuned.tunable import configs
from autotuned.tunable.call import Call, Tunable
from autotuned.tunable.kernel import TunableKernel
from autotuned.typed_json import Json

if TYPE_CHECKING:
    from autotuned.binaries import serve
    from autotuned.configfiles import lookup, nearest_shape, shipped_rules
    from autotuned.configfiles.policy import Within
    from autotuned.key import words
    from autotuned.resolve import explain
    from autotuned.resolve.explain import Explanation
    from autotuned.search import failures, race
else:
    serve, lookup, explain = later("binaries.serve"), later("configfiles.lookup"), later("resolve.explain")
    shipped_rules = later("configfiles.shipped_rules")
    failures, race, words = later("search.failures"), later("search.race"), later("key.words")

log = logging.getLogger("autotuned")

_FROM_FILES = (Origin.BINARY, Origin.FILE, Origin.LADDER, Origin.RULE, Origin.NEAREST)


def find(
    key: Key,
    candidates: Candidates,
    places: Iterable[Place] | None = None,
    excluded: Collection[str] = (),
    strict: bool = False,
) -> Choice | None:
    """The choice for a key among the live candidates: that of the first of the places that has one.

    A stored config that is no longer among the candidates is not served: hooks could not be re-attached to it.

    Args:
        places: By default `exact_places`.
        excluded: Candidates that were found not to compile or launch here.
        strict: A fault in a config file of the kernel is an error.

    Raises:
        ConfigFileError: If `strict`, the first fault of a file that was asked.
    """
    fit = Live(candidates) if not isinstance(candidates, Live) else candidates
    fit = fit.without(excluded) if excluded else fit
    for origin, look in exact_places() if places is None else places:
        seen = look(key, fit)
        if not excluded or seen.problem != "config gone":  # what was left out has been said already
            records.react(seen)
        if origin in (Origin.BINARY, Origin.FILE, Origin.LADDER):  # where files are read
            lookup.report(key.kernel, strict)
        if seen.choice is not None:
            if origin is Origin.STORE:
                records.note_use(Path(seen.choice.where))
            elif origin is not Origin.TABLE:
                lookup.announce(key.kernel, seen.choice)
            return seen.choice
    return None


def _look_at_record(key: Key, candidates: Candidates, needed: Conditions) -> Look:
    found, seen = records.look_up(key)
    if found is None:
        return seen
    if found.winner is not None and not conditions.restore_covers(found.conditions.restore, needed.restore):
        return Look(None, "weaker conditions", f"measured {conditions.lack(found.conditions, needed)}", seen.path)
    winner = best(found, candidates, needed)
    if winner is None and best(found, candidates, needed.replace(checks=())) is not None:
        return Look(None, "weaker conditions", f"measured {conditions.lack(found.conditions, needed)}", seen.path)
    if winner is None:  # without a path: a search follows, which is nothing to warn of
        return Look(
            None, "config gone" if found.winner else "absent", f"{seen.path} has none of the configs of this call"
        )
    chosen = Choice(candidates[winner], Origin.STORE, found, where=seen.path, conditions=under(found, winner))
    return Look(chosen.replace(complete=is_complete(found, candidates, winner, needed)))


def under(found: TuningRecord, identity: str) -> Conditions:
    """What one of a record's configs was measured under."""
    timing = next((timing for timing in found.timings if timing.identity == identity), None)
    return found.conditions if timing is None else found.conditions.replace(checks=timing.passed)


def _are_more(candidates: Candidates, found: TuningRecord) -> bool:
    return isinstance(candidates, Live) and candidates.is_wider_than(found.provenance)


def is_complete(found: TuningRecord, candidates: Candidates, winner: str, needed: Conditions) -> bool:
    """Whether every candidate was measured, and none that may be better waits for this call's check."""
    if not found.timings:  # one that was taken from a config file has none: it is as good as the file
        return True
    measured = {timing.identity: timing for timing in found.timings}
    if not candidates.keys() <= measured.keys() or _are_more(candidates, found):
        return False
    if winner == record.identity_of(found.winner or {}):
        return True
    limit_us = measured[winner].median_us or 0.0
    waiting = (timing for name, timing in measured.items() if name in candidates and timing.waits_for(needed))
    return not any(timing.usable and (timing.median_us or 0.0) < limit_us for timing in waiting)


def best(found: TuningRecord, candidates: Candidates, needed: Conditions) -> str | None:
    """Identity of the record's winner if it serves; else of the fastest measured candidate that does."""
    if found.winner is None:
        return None
    winner = record.identity_of(found.winner)
    if not found.timings:
        return winner if winner in candidates and conditions.covers(found.conditions, needed) else None
    serving = {t.identity: t for t in found.timings if t.serves(needed)}
    made = dict.fromkeys(candidates)  # of a space, members that a record names come to these
    members = [name for name in serving if name not in made and name in candidates]
    samples_us = {name: serving[name].typical_us for name in [*made, *members] if name in serving}
    if winner in samples_us:
        return winner
    # By the rule that a search among these goes by.
    return race.pick(samples_us, untuned_of(candidates) or found.untuned)[0] if samples_us else None


def exact_places(needed: Conditions = BY_DEFAULT) -> tuple[Place, ...]:
    """The places that are asked where no policy and no shape is in question, in their order; see `places`."""
    return (
        (Origin.STORE, lambda key, candidates: _look_at_record(key, candidates, needed)),
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
    """The places a stored choice may come from, in the order in which they are asked; `explain` walks the same list.

    Args:
        strict: Nothing that a policy does not accept, and no nearest shape.
        exact: The same call in the same context only.
        factors: The axes on which a neighbour may serve, and how far.
        needed: What the choice must have been measured under.
        shipped: Asked for the entry of a config file that comes with a compiled kernel for the call; None where no
            kernel is compiled.
        within: What a rule may lose; None for what the policies of folders say.
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


def _a_policy_allows_rules() -> bool:
    module = sys.modules.get("autotuned.configfiles.lookup")  # who registered a folder has imported it
    return module is not None and module.allow_rules()


class Shipped:
    """The binaries for one tuned function; none for what is no compiled kernel.

    Nothing of this package's half for binaries is imported unless some folder may give code for the kernel.
    """

    def __init__(self, tunable: Tunable, context: Context) -> None:
        self._tunable, self._context = tunable, context
        self.possible = isinstance(tunable, TunableKernel) and not tunable.interpreted

    @cached_property
    def server(self) -> serve.Server:
        """Finds and loads them."""
        assert isinstance(self._tunable, TunableKernel)
        return serve.Server(self._tunable, self._context.version)

    @property
    def _offered(self) -> bool:
        """Whether some folder may give code for the kernel."""
        if not self.possible:
            return False
        module = str(getattr(getattr(self._tunable, "function", None), "__module__", ""))
        return any(folder.may_give_code(module) for folder in lookup.folders())

    def may_be_first(self) -> bool:
        """Whether nothing that comes before a config file can answer: the user's store has no record of the kernel."""
        return self.possible and not _has_records(self._tunable.name) and self._offered

    def look(self, call: Call, part: Json, live: Candidates, needed: Conditions) -> Look:
        """The choice of an entry that comes with a binary, the toolchain not asked."""
        return self.server.look(call, part, self._context.without_toolchain(call), live, needed)

    def place(self, question: Question) -> Callable[[Key, Candidates], Look]:
        """The same as one of the places that a choice may come from."""

        def look(key: Key, live: Candidates) -> Look:
            if not self._offered:
                return Look(None, "absent")
            return self.server.look(question.call, key.call, key.context, live, question.needed)

        return look

    def load(self, call: Call, choice: Choice) -> Any:
        """The binary to launch for a choice; None where the call compiles as ever.

        A choice that did not come from files is asked about only in a process that reads files anyway.
        """
        if not self._worth_asking(choice):
            return None
        if launcher.binds_directly():
            return self.server.load(call, choice.config)
        self.server.fill(call, choice.config)
        return None

    def has(self, call: Call, config: Any) -> bool:
        """Whether there is a binary for a call with a config, loaded or not."""
        return self._worth_asking(Choice(config, Origin.DEFAULT)) and self.server.find(call, config) is not None

    def why_none(self, call: Call, choice: Choice) -> str:
        """Why no binary serves a call with a choice; "" where there are none of the kernel."""
        if not (self._worth_asking(choice) and self.server.has_any(call)):
            return ""
        return self.server.why_none(call, choice.config)

    def asked(self, call: Call, choice: Choice, part: Callable[[Call], Json]) -> tuple[str, str]:
        """A call that is compiled, in words, and why no binary serves it, for the seal."""
        return words.call_words(part(call)), self.why_none(call, choice)

    def noted(self, found: Explanation, question: Question, places: Sequence[Place]) -> Explanation:
        """An explanation with a remark on the binary for what answers, where there are any for the kernel."""
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
        reads = choice.origin in _FROM_FILES or "autotuned.configfiles.lookup" in sys.modules
        return reads and self._offered


def _has_records(name: str) -> bool:
    try:
        return any(file.endswith(".json") for file in os.listdir(layout.kernel_folder(name)))
    except OSError:
        return False


def default(tunable: Tunable, found: Any, call: Call, live: Candidates) -> Choice:
    """What `default=` says for a call, else the first config.

    Raises:
        ConfigError: `default=` gave no config, or one that cannot belong to the kernel.
    """
    if found is None:
        found = next(iter(live.values()))
    _check(tunable, found)
    if len(live) and not tunable.launches(call, found):  # one that would do nothing where others would do it all
        others = (config for config in live.values() if tunable.launches(call, config))
        if (instead := next(others, None)) is not None:
            return Choice(instead, Origin.DEFAULT, lasting=False)
    return Choice(found, Origin.DEFAULT)


def candidate(tunable: Tunable, live: Live, ask: Callable[[], Any], allows: Callable[[Any], bool]) -> Any:
    """What `default=` gives, as a candidate; None where it gives none that can be, and the candidates say why.

    Args:
        live: The other candidates; they keep what was said.
        ask: Gives the config; it may raise, which is raised again where the default is all there is.
        allows: Whether the call may have it.
    """
    try:
        found = ask()
        live.said = (found,)
        if found is not None:
            _check(tunable, found)
    except Exception as error:
        live.no_default = failures.describe(error)
        return None
    if found is not None and allows(found):
        return found
    live.no_default = "the pruner drops it"
    return None


def _check(tunable: Tunable, found: Any) -> None:
    """Refuse what `default=` gave where it is no config of the kernel.

    Raises:
        ConfigError: It is none, or cannot belong to the kernel.
    """
    if not configs.is_config(found):
        raise ConfigError(
            f"`{tunable.name}`: default: expected a triton.Config, or a callable of the arguments "
            f"returning one, got {type(found).__name__}.",
            kernel=tunable.name,
        )
    configs.check([found], tunable)


def first_that_compiles(
    tunable: Tunable, call: Call, live: Iterable[Any], is_shipped: Callable[[Call, Any], bool] = lambda call, one: False
) -> Any:
    """The first config that compiles here; where none does, the first, whose launch raises the compiler's own error.

    Args:
        is_shipped: Whether a call with a config has a compiled kernel that ships, and so need not be tried.
    """
    first = None
    for config in live:
        first = config if first is None else first
        try:
            if not is_shipped(call, config):
                tunable.compile(call, config)
        except Exception as error:
            log.info("`%s`: %s does not compile here (%s)", tunable.name, config, failures.describe(error))
        else:
            return config
    return first
