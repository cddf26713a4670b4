"""Which config a call gets: its key and candidates, then the places a choice comes from, in their order."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from autotuned import env, events
from autotuned._startup import later
from autotuned.errors import AllConfigsFailedError, ConfigError, PruningError
from autotuned.key import opaque
from autotuned.key.key import Key, call_part
from autotuned.resolve import active, sealing, sources
from autotuned.resolve.request import Chosen, Context, Options, Question, State
from autotuned.store import conditions, layout, records
from autotuned.store.choice import Candidates, Choice, Live, Look, Origin, Place, each
from autotuned.triton_compat import kernel
from autotuned.tunable import configs as candidates
from autotuned.tunable.call import Call, Tunable, refuse_conflicts
from autotuned.tunable.configs import Pruner
from autotuned.typed_json import Json

if TYPE_CHECKING:
    from autotuned.configfiles import lookup
    from autotuned.resolve import advice, explain, fleet, searcher
    from autotuned.resolve.explain import Explanation
    from autotuned.search import exclusions, failures
    from autotuned.space import declared
    from autotuned.store import locks
    from autotuned.tunable import readers
else:
    explain, searcher, advice = map(later, ("resolve.explain", "resolve.searcher", "resolve.advice"))
    lookup, declared, fleet = map(later, ("configfiles.lookup", "space.declared", "resolve.fleet"))
    exclusions, failures, locks, readers = map(
        later, ("search.exclusions", "search.failures", "store.locks", "tunable.readers")
    )

log = logging.getLogger("autotuned")


class Chooser:
    """Finds or makes the choice for calls of one tuned function.

    Args:
        on_configs: Told of a computed list of configs before it is used.
        on_written: Told the names of arguments found to be written.
    """

    # Made where something went wrong, or is searched for.
    _searcher = cached_property(lambda self: searcher.Searcher(self.state))
    untuned = cached_property(lambda self: advice.Untuned())

    def __init__(
        self, tunable: Tunable, options: Options,
        on_configs: Callable[[list[Any]], None], on_written: Callable[[list[str]], None],
    ) -> None:  # fmt: skip
        self.tunable = tunable
        self.state = State(tunable, options, on_written)
        self._on_configs = on_configs
        #: Arguments that decide with their exact values which configs a call may use, as far as has been seen.
        self.seen: set[str] = set()
        self._context = Context(tunable, options.version, options.trial)
        self.shipped = sources.Shipped(tunable, self._context)

    @property
    def options(self) -> Options:
        """The decorator's, as they are now."""
        return self.state.options

    # -- key and candidates --------------------------------------------------------------------------------------

    def key(self, call: Call) -> Key:
        """The key of a call in its present context."""
        return Key(self.tunable.name, self.part(call), *self._context.of(call))

    def part(self, call: Call) -> Json:
        """The call part of its key, for which no context is looked at."""
        return call_part(self.options.spec, call.arguments, call.options, self.tunable.name, opaque.spell)

    def candidates(self, call: Call) -> Live:
        """The live configs of a call, by identity and in order: what its pruner leaves, and its grid launches.

        Raises:
            PruningError: A pruner left nothing usable.
            ConfigError: A callable list did.
            ValueError: The caller passes what one of them sets.
        """
        declaration, pruner = self.options.declared, self.options.pruner()
        if declaration is not None:
            self.seen |= declaration.reads(call.arguments)
            members = declaration.members(call.arguments)
            if not declaration.is_listed(members, pruner.perf_model is not None):
                prune = partial(self._pruned, call, pruner=Pruner(pruner.early))
                live = declared.candidates(self.tunable, call, members, self.state.identity, prune)
                return self._with_default(call, live)
        left = self._pruned(call, self._listed(call), pruner)
        if pruner.early is not None:
            self._on_configs(left)
        for config in left:  # computed ones, and a pruner's own, were not known when the call was bound
            refuse_conflicts(self.tunable, call.args, call.kwargs, self.tunable.settings(config))
        return self._launching(call, self._with_default(call, Live((self.state.identity(one), one) for one in left)))

    def _with_default(self, call: Call, live: Live) -> Live:
        """With what the call has without tuning among them: nothing is chosen that loses to it."""
        live.untuned = next(iter(live), None)
        if self.options.default is not None and len(live) > 1:
            found = sources.candidate(
                self.tunable, live, lambda: self.default_for(call, live),
                lambda one: one is self.options.default or self.allows(call, one, live),
            )  # fmt: skip
            if found is not None:
                refuse_conflicts(self.tunable, call.args, call.kwargs, self.tunable.settings(found))
                live.join_untuned(self.state.identity(found), found)
        return live

    def _launching(self, call: Call, live: Live) -> Live:
        """Those that launch something, as `32 // BLOCK` blocks do for some only; all where none does."""
        if not callable(call.grid) or len(live) < 2:
            return live
        left = live.only([name for name, config in live.items() if self.tunable.launches(call, config)])
        left.whole = len(left) == len(live)
        return left or live

    def question(self, call: Call, live: Candidates, mode: str, **more: Any) -> Question:
        """What is asked for a call among its candidates."""
        narrowed = self.narrows or len(live) < len(self.options.configs())
        launches = self.tunable.launches(call, next(iter(live.values()))) if live else True
        needed = self.options.needs(self.tunable.name, live)
        return Question(call, self.key(call), live, mode, needed=needed, launches=launches, narrowed=narrowed, **more)

    def _pruned(self, call: Call, configs: list[Any], pruner: Pruner) -> list[Any]:
        named = dict(zip((parameter.name for parameter in self.tunable.parameters), call.args))
        return candidates.prune(configs, pruner, named, call.kwargs, self.tunable.name, self.seen)

    def _listed(self, call: Call) -> list[Any]:
        """The configs of a call before pruning."""
        return self.options.configs() if self.options.computed is None else self._computed(call, self.options.computed)

    @property
    def narrows(self) -> bool:
        """Whether calls of one key may have different candidates."""
        pruner = self.options.pruner()
        return not (self.options.computed is None and pruner.early is None and pruner.perf_model is None)

    def allows(self, call: Call, config: Any, live: Candidates) -> bool:
        """Whether a call may have a config that the user gave besides the list: a pin, or `default=`.

        A pruner is asked, about the list with this config in it, and so is a callable that gives the list. What a
        `perf_model` leaves out would be slow and not wrong.
        """
        early, identity = self.options.pruner().early, self.state.identity(config)
        if identity in live or (early is None and (self.options.computed is None or self.options.declared)):
            return True
        configs = [config] if self.options.declared is not None else self._listed(call)
        if identity not in map(self.state.identity, configs):
            if self.options.computed is not None:
                return False
            configs = [*configs, config]
        try:
            left = self._pruned(call, configs, Pruner(early))
        except PruningError:  # it leaves none, and says so where the candidates are asked for
            return False
        return identity in map(self.state.identity, left)

    def _computed(self, call: Call, computed: Callable[..., Any]) -> list[Any]:
        if computed is not self.options.declared:
            self.seen |= readers.read_by(computed, call.arguments)
        configs = candidates.listed(computed(**call.arguments), self.tunable.name)
        if not configs:
            raise ConfigError(
                f"`{self.tunable.name}`: configs: the callable returned none for this call; return at least one.",
                kernel=self.tunable.name,
            )
        self._on_configs(configs)
        return configs

    # -- the sources, in their order -----------------------------------------------------------------------------

    def choose(self, call: Call, pinned: Any = None, search: bool = True, mode: str | None = None) -> Chosen:
        """The config for a call.

        Args:
            call: The bound call.
            pinned: A config that the user pinned for it, or None.
            search: False forbids a search, as a graph capture does.
            mode: The mode; None for the one in force.

        Raises:
            NotTunedError: Nothing is stored and the mode, a graph capture or the caller forbids a search.
            AllConfigsFailedError, DeviceLostError: The search failed.
        """
        self.tunable.device(call)  # a kernel without a GPU fails here, with an error that says what to do
        start = time.perf_counter()
        pinned = self._allowed(call, pinned, self.state.warn_once)
        live = self.candidates(call) if pinned is None else Live()
        mode = mode or env.current_mode()
        if mode == "off" and len(live) > 1 and self.options.default is None:
            return Chosen(call, self._first_that_compiles(call, live), live)
        choice = self._without_key(call, live, mode, pinned) or self._ready(call, live, mode)
        question = self.question(call, live, mode, search=search) if choice is None else None
        self.state.lookup_s += time.perf_counter() - start
        asked = () if question is None else (question.key, question.needed)
        if question is not None:
            choice = self.answer(question)
        assert choice is not None
        # No word of a call tells what its grid left out: a later one, with another grid, is to be asked anew.
        return Chosen(call, choice if live.whole else choice.replace(lasting=False), live, *asked)

    def _allowed(self, call: Call, pinned: Any, say: Callable[..., None] | None = None) -> Any:
        """A pin, unless the pruner drops it for this call: the cache's key may be coarser than what a pruner sees."""
        if pinned is None or self.allows(call, pinned, {}):
            return pinned
        if say is not None:
            message = (
                "`%s`: expected a pin in .cache that the pruner allows, got one that it drops for key %s (%s): others "
                "are used. Name in key= what the pruner reads, or pin another config."
            )
            key = self.key(call)
            say("pin", message, key.kernel, key.digest[:12], pinned)
            events.emit("refuse", key.kernel, key.digest, 0.0, f"a pin that the pruner drops: {pinned}")
        return None

    def _without_key(self, call: Call, live: Candidates, mode: str, pinned: Any) -> Choice | None:
        """The choice of a call for which nothing is looked up."""
        if pinned is not None:
            return Choice(pinned, Origin.TABLE, where="pinned in .cache")
        if len(live) == 1:
            return Choice(next(iter(live.values())), Origin.ONLY)
        return self.default(call, live) if mode == "off" else None

    def _ready(self, call: Call, live: Live, mode: str) -> Choice | None:
        """The choice that a compiled kernel ships with, where nothing comes before it and so no key is needed.

        The toolchain's part of a key is a hash over all of Triton: a start that compiles nothing does not wait for it.
        """
        state = self.state
        if mode not in ("auto", "serve", "strict") or state.is_busy or active.agreements or not self.options.stored:
            return None
        if not self.shipped.may_be_first():
            return None
        seen = self.shipped.look(call, self.part(call), live, self.options.needs(self.tunable.name, live))
        lookup.report(self.tunable.name, mode == "strict")
        return seen.choice

    def _places(self, question: Question) -> list[Place]:
        """Where a known choice may come from, in the order in which the places are asked."""
        own: Place = (Origin.TABLE, lambda key, live: self._look_at_own(question))
        if question.fresh or not self.state.keeps(question.key):
            return [own]
        options, strict = self.options, question.mode == "strict"
        binaries = self.shipped.place(question) if self.shipped.possible else None
        asked = strict, question.must_search, options.nearest, question.needed, binaries, options.within
        return [own, *sources.places(*asked)]

    def _ending(self, question: Question) -> Origin | None:
        """What a call gets for which nothing is known: a search, an untuned config, or (None) an error."""
        if not question.launches:
            return Origin.DEFAULT
        if not self._may_search(question):
            return None if question.mode == "strict" else Origin.DEFAULT
        if question.search and not kernel.capturing() and not sealing.forbids():
            return Origin.SEARCH
        return None if self.options.default is None else Origin.DEFAULT

    def explain(self, call: Call, pinned: Any = None) -> Explanation:
        """Which place answers a call and why those before it do not; nothing is searched, launched or moved."""
        mode, name = env.current_mode(), self.tunable.name
        pinned = self._allowed(call, pinned)
        live = self.candidates(call) if pinned is None else {}
        known = self._without_key(call, live, mode, pinned)
        if known is not None:
            return explain.without_key(name, mode, known, self.label(known.config))
        question = self.question(call, live, mode)
        places, ending = self._places(question), self._ending(question)
        found = explain.of_call(question, places, ending, self.state.keeps(question.key), self.options.spec.buckets)
        return self.shipped.noted(found, question, places)

    def found(self, question: Question) -> Choice | None:
        """The choice that answers a question without a search; None where one is run. Nothing is moved or noted."""
        choice = explain.ask(self._places(question), question.key, question.live)[0]
        return choice if choice is not None and self.is_enough(choice, question) else None

    def label(self, config: Any) -> str:
        """A config in a few words, for people."""
        return candidates.label(candidates.to_json(config, self.tunable.name, opaque.spell), self.tunable.has_options)

    def answer(self, question: Question) -> Choice:
        """The choice for a question; under `autotuned.sync` the same on all ranks."""
        if active.agreements and not question.must_search and question.launches:
            choice = active.agreements[-1].choose(question, self, self.options.do_bench)
        else:
            choice = self.decide(question)
        return self.state.remember(question.key, choice)

    def decide(self, question: Question) -> Choice:
        """The choice made here: remembered, stored, shipped, default, or searched for; see `Origin`."""
        known = self.known(question)
        ending = self._ending(question)
        if env.has_store() and (known is None or not known.is_own or layout.is_unsent()):
            known = fleet.asked(self, question, known, ending)
        if known is not None and (ending is not Origin.SEARCH or self.is_enough(known, question)):
            return self.state.remember(question.key, known)
        if not question.launches:  # as with no tokens for an expert: a later call of the key is measured
            return self._for_now(question)
        if ending is not Origin.SEARCH:
            return (self._search_forbidden if self._may_search(question) else self._without_search)(question)
        with records.locked(question.key, self.state.keeps(question.key) and not active.agreements) as lock:
            # Again: another process or thread may have finished while this one waited for the lock.
            known = self.known(question)
            if known is None or not self.is_enough(known, question):
                waited = lock is locks.Lock.BUSY and self.options.default is not None and not question.must_search
                if waited or lock is locks.Lock.NESTED:  # a hook or a helper calls what is being searched
                    return self.default(question.call, question.live)
                search = fleet.searched if env.has_store() else Chooser.searched
                known = search(self, question.replace(lock=lock))
            return self.state.remember(question.key, known)

    def is_enough(self, known: Choice, question: Question) -> bool:
        """Whether a choice may be taken although some candidates have not been measured."""
        if question.is_answered_by(known) or not self._may_search(question) or sealing.forbids():
            return True
        tried = question.live.keys() <= known.tried and getattr(question.live, "is_listed", True)
        return tried and not question.must_search  # a search here ran out of time

    def without_search(self, call: Call) -> Any:
        """The config a call would get if searching were not allowed: stored, default, or the first."""
        live = self.candidates(call)
        asked = len(live) > 1 and env.current_mode() != "off"
        known = self.known(self.question(call, live, "serve")) if asked else None
        return (known or self.default(call, live)).config

    def exclude(self, call: Call, choice: Choice, error: Exception) -> None:
        """Take note that a choice cannot be launched here, so that the next source is asked from now on.

        Raises:
            Exception: `error`, if this was noted before: asking again would not end.
        """
        key = self.key(call)
        identity = self.state.identity(choice.config)
        if identity in self.state.excluded.of(key.digest):
            raise error
        self.state.excluded.add(key.digest, identity, exclusions.Reason.NOT_LAUNCHED, failures.describe(error))
        self.state.choices.pop(key, None)
        if active.agreements:
            active.agreements[-1].leave(key)
        where, why = choice.where or choice.origin.name, failures.describe(error)
        events.emit("refuse", key.kernel, key.digest, 0.0, f"{choice.config} ({where}): {why}")
        message = "`%s`: the config %s (%s) does not compile or launch here (%s); it is not used for calls like this."
        log.warning(message, key.kernel, choice.config, where, why)

    def _may_search(self, question: Question) -> bool:
        if question.must_search or question.mode == "search":
            return True
        wanted = self.options.default is None and self.state.searches < self.options.max_searches
        return question.mode == "auto" and wanted

    def known(self, question: Question) -> Choice | None:
        """This process's choice, else the stored or shipped one; None where the question asks for a new search."""
        start = time.perf_counter()
        excluded, strict = self.state.excluded_for(question.key), question.mode == "strict"
        found = sources.find(question.key, question.live, self._places(question), excluded, strict)
        self.state.lookup_s += time.perf_counter() - start
        if found is not None and found.record is not None and self.options.restore is None:
            self.state.on_written([str(name) for name in found.record.provenance.get("written", ())])
        return found

    def _look_at_own(self, question: Question) -> Look:
        choice = self.state.choices.get(question.key)
        if choice is None:
            return Look(None, "absent")
        if question.force or (question.mode == "search" and choice.origin is not Origin.SEARCH):
            return Look(None, "mode", "what is known is measured again")
        if choice.conditions is not None and (lack := conditions.lack(choice.conditions, question.needed)):
            return Look(None, "weaker conditions", f"measured {lack}")
        found = self._for_these(choice, question)
        return Look(found, "" if found else "absent", "" if found else "its config is not among those of this call")

    def _for_these(self, choice: Choice, question: Question) -> Choice | None:
        """A choice of this process among the candidates of a call: its config if it is one, else the next best."""
        record, live = choice.record, question.live
        identity = self.state.identity(choice.config)
        best = sources.best(record, live, question.needed) if record and record.timings else identity
        if best is None or best not in live:
            return None
        complete = record is None or sources.is_complete(record, live, best, question.needed)
        if live[best] is choice.config and complete == choice.complete:
            return choice
        under = choice.conditions if record is None else sources.under(record, best)
        return choice.replace(config=live[best], complete=complete, conditions=under)

    # -- answers without a search --------------------------------------------------------------------------------

    def default(self, call: Call, live: Candidates) -> Choice:
        """What a call gets that is not tuned: `default=`, else the first config."""
        said = live.said if isinstance(live, Live) else None
        return sources.default(self.tunable, said[0] if said else self.default_for(call, live), call, live)

    def default_for(self, call: Call, live: Candidates) -> Any:
        """What `default=` says for a call; None where there is none, or it is a config that this call may not use."""
        found = self.options.default
        if candidates.is_config(found):
            return found if self.allows(call, found, live) else None
        if not callable(found):
            return found
        self.seen |= readers.read_by(found, call.arguments)
        return found(**call.arguments)

    def _for_now(self, question: Question) -> Choice:
        """What runs while nothing can be measured: there is no room, or nothing to launch; nothing of it lasts."""
        untuned = self._first_that_compiles if self.options.default is None else self.default
        return untuned(question.call, question.live).replace(lasting=False)

    def _first_that_compiles(self, call: Call, live: Candidates) -> Choice:
        found = sources.first_that_compiles(self.tunable, call, each(live), self.shipped.has)
        return Choice(found, Origin.DEFAULT)

    def searched(self, question: Question) -> Choice:
        """The choice of a search, or an untuned one where there is no room for it, or nothing works but `default=`."""
        try:
            with sealing.searching(question.key):
                return self._searcher.search(question) or self._for_now(question)
        except AllConfigsFailedError as error:
            if self.options.default is None:
                raise
            key, message = question.key, "`%s`: the search for key %s failed; its default= is used, untuned. %s"
            # A handler may keep what it is given: no traceback is logged.
            self.state.warn_once("failed", message, key.kernel, key.digest[:12], str(error))
        return self.default(question.call, question.live)

    def _without_search(self, question: Question) -> Choice:
        key, lack = question.key, self._lack(question) if question.mode in ("strict", "serve") else ""
        if question.mode == "strict":
            raise explain.not_tuned(key, "mode 'strict' allows no search", lack)
        if question.mode == "serve":
            self.untuned.note(key, lambda key: lack or explain.nearest_words(key))
        if self.options.default is not None:
            return self.default(question.call, question.live)
        if question.mode == "auto":
            message = "`%s`: key %s and later ones run untuned: there were %d searches, as max_searches= allows."
            self.state.warn_once("used up", message, key.kernel, key.digest[:12], self.state.searches)
        return self._first_that_compiles(question.call, question.live)

    def _search_forbidden(self, question: Question) -> Choice:
        stored = self.known(question.replace(mode="auto", force=False))  # what mode "search" would measure again
        if stored is not None:
            return stored
        if self.options.default is None or (question.must_search and sealing.forbids()):
            raise explain.forbidden(question, self._lack(question))
        return self.default(question.call, question.live)

    def _lack(self, question: Question) -> str:
        """What the stored choice of a call that may not be searched for lacks; "" if there is none."""
        return explain.weaker(self._places(question), question.key, question.live)
