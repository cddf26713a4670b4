"""Which config a call gets: make its key and candidates, then ask the origins in order."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any

from autotuned import env, events
from autotuned._startup import errors, later
from autotuned.key.key import Key, call_part
from autotuned.resolve import active, sources
from autotuned.resolve.request import Chosen, Context, Options, Question, State, is_sealed, may_be_sealed, spell
from autotuned.store import conditions
from autotuned.store.choice import Candidates, Choice, Live, Look, Origin, Place, each
from autotuned.triton_compat import kernel
from autotuned.tunable import configs as candidates
from autotuned.tunable.call import Call, refuse_conflicts
from autotuned.typed_json import Json

if TYPE_CHECKING:
    from autotuned.configfiles import lookup
    from autotuned.gpu.device import Device
    from autotuned.resolve import advice, explain, fallback, fleet, offering, sealing, searcher
    from autotuned.resolve.explain import Explanation
    from autotuned.search import exclusions, failures
    from autotuned.store import layout, locks, records
    from autotuned.tunable.tunable import Tunable
else:
    advice, explain, fleet = map(later, ("resolve.advice", "resolve.explain", "resolve.fleet"))
    fallback, offering = later("resolve.fallback"), later("resolve.offering")
    sealing, searcher, lookup = map(later, ("resolve.sealing", "resolve.searcher", "configfiles.lookup"))
    exclusions, failures = later("search.exclusions"), later("search.failures")
    layout, locks, records = later("store.layout"), later("store.locks"), later("store.records")

log = logging.getLogger("autotuned")


class Chooser:
    """Finds or makes the choice for calls of one tuned function.

    Args:
        on_configs: Called with a computed list of configs before it is used.
        on_written: Called with the arguments found to be written.
    """

    # Made when first needed.
    _offering = cached_property(lambda self: offering.Offering(self.tunable, self.state, self._on_configs, self.seen))
    _searcher = cached_property(lambda self: searcher.Searcher(self.state))
    untuned = cached_property(lambda self: advice.Untuned())

    def __init__(
        self, tunable: Tunable, options: Options,
        on_configs: Callable[[list[Any]], None], on_written: Callable[[list[str]], None],
    ) -> None:  # fmt: skip
        self.tunable, self.state, self._on_configs = tunable, State(tunable, options, on_written), on_configs
        #: Arguments whose exact values were seen to decide which configs a call may use.
        self.seen: set[str] = set()
        self._context = Context(tunable, options.version, options.trial)
        self.shipped = sources.Shipped(tunable, self._context)

    # -- key and candidates --------------------------------------------------------------------------------------

    def key(self, call: Call) -> Key:
        """Key of a call in the present context."""
        return Key(self.tunable.name, self.part(call), *self._context.of(call))

    def part(self, call: Call) -> Json:
        """Call part of the key; needs no context."""
        return call_part(self.state.options.spec, call.arguments, call.options, self.tunable.name, spell)

    @property
    def options(self) -> Options:
        """The decorator's options at present."""
        return self.state.options

    @property
    def narrows(self) -> bool:
        """Whether calls with the same key may have different candidates."""
        pruner = self.options.pruner()
        return not (self.options.computed is None and pruner.early is None and pruner.perf_model is None)

    def candidates(self, call: Call) -> Live:
        """Live configs of a call by identity, in order: those that the pruner keeps and the grid launches.

        Raises:
            PruningError: A pruner left none.
            ConfigError: A callable list returned none.
            ValueError: The caller passes what a config sets.
        """
        if self.options.declared is not None and (live := self._offering.of_space(call)) is not None:
            return live
        return self._launching(call, self._unlaunched(call))

    def _unlaunched(self, call: Call) -> Live:
        """The candidates, including those whose grid is empty."""
        if self.narrows:
            live = self._offering.left(call)
        else:
            live, names = self.state.listed(self.options.configs())
            refuse_conflicts(self.tunable, call.args, call.kwargs, names)
        live.untuned = next(iter(live), None)
        return live if self.options.default is None else self._offering.with_default(call, live)

    def _launching(self, call: Call, live: Live) -> Live:
        """Those with a grid that is not empty (`32 // BLOCK` blocks may be none); all if every grid is empty."""
        if not callable(call.grid) or len(live) < 2:
            return live
        names = [name for name, config in live.items() if self.tunable.launches(call, config)]
        if len(names) == len(live) or not names:
            return live
        left = live.only(names)
        left.whole = False
        return left

    def question(self, call: Call, live: Candidates, mode: str, **more: Any) -> Question:
        """The question for a call."""
        narrowed = self.narrows or len(live) < len(self.options.configs())
        launches = self.tunable.launches(call, next(iter(live.values()))) if live else True
        needed = self.options.needs(self.tunable.name, live)
        return Question(call, self.key(call), live, mode, needed=needed, launches=launches, narrowed=narrowed, **more)

    # -- origins, in order ---------------------------------------------------------------------------------------

    def choose(self, call: Call, pinned: Any = None, search: bool = True, mode: str | None = None) -> Chosen:
        """The config for a call.

        Args:
            pinned: The config pinned for it, or None.
            search: Whether a search may run; False during a graph capture.
            mode: Default: the mode in force.

        Raises:
            NotTunedError: Nothing is stored, and the mode, a graph capture or the caller forbids a search.
            AllConfigsFailedError, DeviceLostError: The search failed.
        """
        where = self.tunable.device(call)  # without a GPU this raises an error that says what to do
        start = time.perf_counter()
        pinned = self.allowed(call, pinned)
        mode = mode or env.current_mode()
        live, choice = self._ready_first(call, mode, where) if pinned is None else (Live(), None)
        if mode == "off" and len(live) > 1 and self.options.default is None:
            return Chosen(call, self.first_that_compiles(call, live), live)
        choice = choice or self._without_key(call, live, mode, pinned)
        question = self.question(call, live, mode, search=search) if choice is None else None
        self.state.lookup_s += time.perf_counter() - start
        asked: tuple[Any, ...] = ()
        if question is not None:
            choice, asked = self.answer(question), (question.key, question.needed)
        assert choice is not None
        # A signature does not say which configs have an empty grid, so do not bind such a choice.
        return Chosen(call, choice if live.whole else choice.replace(lasting=False), live, *asked)

    def allowed(self, call: Call, pinned: Any, warns: bool = True) -> Any:
        """The pin, or None if the pruner drops it for this call: the cache's key may be coarser than the pruner."""
        if pinned is None or self._offering.allows(call, pinned, {}):
            return pinned
        if warns:
            key, message = self.key(call), "`%s`: expected a pin in .cache that the pruner allows, got one that it "
            message += "drops for key %s (%s): others are used. Name in key= what the pruner reads, or pin another."
            self.state.warn_once("pin", message, key.kernel, key.digest[:12], pinned)
            events.emit("refuse", key.kernel, key.digest, 0.0, f"a pin that the pruner drops: {pinned}")
        return None

    def _without_key(self, call: Call, live: Candidates, mode: str, pinned: Any) -> Choice | None:
        """The choice if no look-up is needed."""
        if pinned is not None:
            return Choice(pinned, Origin.TABLE, where="pinned in .cache")
        if len(live) == 1:
            return Choice(next(iter(live.values())), Origin.ONLY)
        return self.default(call, live) if mode == "off" else None

    def _ready_first(self, call: Call, mode: str, where: Device) -> tuple[Live, Choice | None]:
        """The candidates, and the `_ready` choice among them.

        A callable grid is evaluated for that choice only: the others do not matter then, and evaluating it runs
        the user's code for each.
        """
        if not callable(call.grid) or self.options.declared is not None or self.options.check is not None:
            live = self.candidates(call)
            return live, self._ready(call, live, mode, where) if len(live) > 1 else None
        every = self._unlaunched(call)
        choice = self._ready(call, every, mode, where) if len(every) > 1 else None
        if choice is not None and self.shipped.server.has_blocks(call, choice.config):
            return every, choice
        live = self._launching(call, every)
        return live, self._ready(call, live, mode, where) if 1 < len(live) < len(every) else None

    def _ready(self, call: Call, live: Live, mode: str, where: Device) -> Choice | None:
        """A choice shipped with a compiled kernel, if no other origin comes first; needs no key.

        So a start without compilations does not wait for the toolchain's hash, which reads all of Triton.
        """
        state, options = self.state, self.options
        if mode not in ("auto", "serve", "strict") or state.is_busy or active.agreements or not options.stored:
            return None
        if not self.shipped.may_be_first():
            return None
        seen = self.shipped.look(call, where, self.part(call), live, options.needs(self.tunable.name, live))
        lookup.report(self.tunable.name, mode == "strict")
        return seen.choice

    def _places(self, question: Question) -> Iterator[Place]:
        """Origins of a known choice, in order."""
        yield Origin.TABLE, lambda key, live: self._look_at_own(question)
        if question.fresh or not self.state.keeps(question.key):
            return
        options, strict = self.options, question.mode == "strict"
        binaries = self.shipped.place(question) if self.shipped.possible else None
        asked = strict, question.must_search, options.nearest, question.needed, binaries, options.within
        yield from sources.places(*asked)

    def _ending(self, question: Question) -> Origin | None:
        """Where the choice comes from if none is known: a search, an untuned config, or None for an error."""
        if not question.launches:
            return Origin.DEFAULT
        if not self._may_search(question):
            return None if question.mode == "strict" else Origin.DEFAULT
        if question.search and not kernel.capturing() and not is_sealed():
            return Origin.SEARCH
        return None if self.options.default is None else Origin.DEFAULT

    def explain(self, call: Call, pinned: Any = None) -> Explanation:
        """Which origin answers a call and why earlier ones do not; without searching, launching or moving files."""
        mode, pinned = env.current_mode(), self.allowed(call, pinned, warns=False)
        live = self.candidates(call) if pinned is None else {}
        if (known := self._without_key(call, live, mode, pinned)) is not None:
            return explain.without_key(self.tunable.name, mode, known, self.label(known.config))
        question = self.question(call, live, mode)
        places, ending = list(self._places(question)), self._ending(question)
        found = explain.of_call(question, places, ending, self.state.keeps(question.key), self.options.spec.buckets)
        return self.shipped.noted(found, question, places)

    def found(self, question: Question) -> Choice | None:
        """The choice for a question if no search is needed; has no side effects."""
        choice = explain.ask(self._places(question), question.key, question.live)[0]
        return choice if choice is not None and self.is_enough(choice, question) else None

    def label(self, config: Any) -> str:
        """Short label of a config."""
        return candidates.label(candidates.to_json(config, self.tunable.name, spell), self.tunable.has_options)

    def answer(self, question: Question) -> Choice:
        """The choice for a question; under `autotuned.sync` the same on all ranks."""
        if active.agreements and not question.must_search and question.launches:
            choice = active.agreements[-1].choose(question, self, self.options.do_bench)
        else:
            choice = self.decide(question)
        return self.state.remember(question.key, choice)

    def decide(self, question: Question) -> Choice:
        """This process's choice: remembered, stored, shipped, default or searched; see `Origin`."""
        known = self.known(question)
        asks = env.has_store() and (known is None or not known.is_own or layout.is_unsent())
        if known is not None and not asks and self.is_enough(known, question):
            return self.state.remember(question.key, known)
        ending = self._ending(question)
        if asks:
            known = fleet.asked(self, question, known, ending)
        if known is not None and (ending is not Origin.SEARCH or self.is_enough(known, question)):
            return self.state.remember(question.key, known)
        if not question.launches:  # an empty grid, as without tokens for an expert: measure at a later call
            return self._for_now(question)
        if ending is not Origin.SEARCH:
            return (fallback.search_forbidden if self._may_search(question) else fallback.untuned)(self, question)
        alone = not self.state.keeps(question.key) or bool(active.agreements)
        with records.locked(question.key, self.tunable.device(question.call), not alone) as lock:
            # Again: another process or thread may have finished meanwhile.
            known = self.known(question)
            if known is None or not self.is_enough(known, question):
                waited = lock is locks.Lock.BUSY and self.options.default is not None and not question.must_search
                if waited or lock is locks.Lock.NESTED:  # a hook calls the kernel being searched
                    return self.default(question.call, question.live)
                search = fleet.searched if env.has_store() else Chooser.searched
                known = search(self, question.replace(lock=lock))
            return self.state.remember(question.key, known)

    def is_enough(self, known: Choice, question: Question) -> bool:
        """Whether to use a choice although some candidates are not measured."""
        if question.is_answered_by(known) or not self._may_search(question) or is_sealed():
            return True
        tried = question.live.keys() <= known.tried and getattr(question.live, "is_listed", True)
        return tried and not question.must_search  # a search in this process ran out of time

    def without_search(self, call: Call) -> Any:
        """The config that a call would get without searching: stored, default, or the first."""
        live = self.candidates(call)
        asked = len(live) > 1 and env.current_mode() != "off"
        known = self.known(self.question(call, live, "serve")) if asked else None
        return (known or self.default(call, live)).config

    def exclude(self, call: Call, choice: Choice, error: Exception) -> None:
        """Exclude a choice that cannot be launched here, so that the next origin is asked.

        Raises:
            Exception: `error`, if it is excluded already: asking again would loop.
        """
        key = self.key(call)
        identity = self.state.identity(choice.config)
        if identity in self.state.excluded.of(key.digest):
            raise error
        why = failures.describe(error)
        self.state.excluded.add(key.digest, identity, exclusions.Reason.NOT_LAUNCHED, why)
        self.state.choices.pop(key, None)
        if active.agreements:
            active.agreements[-1].leave(key)
        where = choice.where or choice.origin.name
        events.emit("refuse", key.kernel, key.digest, 0.0, f"{choice.config} ({where}): {why}")
        message = "`%s`: the config %s (%s) does not compile or launch here (%s); it is not used for calls like this."
        log.warning(message, key.kernel, choice.config, where, why)

    def _may_search(self, question: Question) -> bool:
        if question.must_search or question.mode == "search":
            return True
        wanted = self.options.default is None and self.state.searches < self.options.max_searches
        return question.mode == "auto" and wanted

    def known(self, question: Question) -> Choice | None:
        """The known choice: of this process, stored or shipped; None if the question asks for a new search."""
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
            return Look(None, "mode", "known choices are measured again")
        if choice.origin in sources.unserved(question.mode == "strict", question.must_search):
            return Look(None, "absent", "what it knows is for another call or context, and is looked up again")
        if choice.conditions is not None and (lack := conditions.lack(choice.conditions, question.needed)):
            return Look(None, "weaker conditions", f"measured {lack}")
        found = self._for_these(choice, question)
        return Look(found, "" if found else "absent", "" if found else "its config is not among those of this call")

    def _for_these(self, choice: Choice, question: Question) -> Choice | None:
        """A remembered choice for the candidates of this call: its config, else the next best."""
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
        """The untuned choice: `default=`, else the first config."""
        said = live.said if isinstance(live, Live) else None
        return fallback.default(self.tunable, said[0] if said else self._offering.default_for(call, live), call, live)

    def _for_now(self, question: Question) -> Choice:
        """An untuned choice that is not kept: memory is short, or the grid is empty."""
        untuned = self.first_that_compiles if self.options.default is None else self.default
        return untuned(question.call, question.live).replace(lasting=False)

    def first_that_compiles(self, call: Call, live: Candidates) -> Choice:
        """The first config that is shipped or compiles."""
        found = fallback.first_that_compiles(self.tunable, call, each(live), self.shipped.has)
        return Choice(found, Origin.DEFAULT)

    def searched(self, question: Question) -> Choice:
        """The choice of a search; an untuned one if memory is short, or all but `default=` fail."""
        try:
            with sealing.searching(question.key) if may_be_sealed() else nullcontext():
                return self._searcher.search(question) or self._for_now(question)
        except errors.AllConfigsFailedError as error:
            if self.options.default is None:
                raise
            key, message = question.key, "`%s`: the search for key %s failed; its default= is used, untuned. %s"
            # As text: a log handler may keep its arguments.
            self.state.warn_once("failed", message, key.kernel, key.digest[:12], str(error))
        return self.default(question.call, question.live)

    def lack(self, question: Question) -> str:
        """Conditions that a call's stored choice lacks, or ""."""
        return explain.weaker(self._places(question), question.key, question.live)
