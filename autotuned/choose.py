"""Which config a call gets: its key and candidates, then the places a choice comes from, in their order."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any

from autotuned import candidates, env, failures, state, store, toolchain, tune
from autotuned.check import Check
from autotuned.errors import AllConfigsFailedError, ConfigError, NotTunedError, OutOfMemoryError
from autotuned.in_memory import has_object as _has_object
from autotuned.in_memory import in_memory as _in_memory
from autotuned.in_memory import portable as portable
from autotuned.journal import Journal
from autotuned.key import Key, KeySpec, call_part, differences
from autotuned.measure import GivenTimer
from autotuned.record import Record
from autotuned.store import Choice, Rung
from autotuned.target import Call, Target, refuse_conflicts
from autotuned.values import Json, canonical, encode

log = logging.getLogger("autotuned")

LIMIT = 4096  # remembered choices of one kernel; more distinct problems than this must not grow memory without end


@dataclass(frozen=True)
class Options:
    """What the decorator was given, checked.

    Attributes:
        configs: Returns the candidates before pruning; read anew on each miss, users reassign them.
        computed: The callable that was given for `configs`, if it was one.
        pruner: Returns the pruner's parts; read anew on each miss.
        restore: Names to protect, None to find out. `zero`: names zeroed before every launch.
        default: A config, a callable of the arguments returning one, or None.
        stored: Whether results are kept on disk.
        check: What configs are compared with while they are tuned.
    """

    configs: Callable[[], list[Any]]
    spec: KeySpec
    computed: Callable[..., Any] | None = None
    pruner: Callable[[], candidates.Pruner] = candidates.Pruner
    restore: tuple[str, ...] | None = None
    zero: tuple[str, ...] = ()
    hooks: tune.Hooks = field(default_factory=tune.Hooks)
    do_bench: Callable[..., Any] | None = None
    default: Any = None
    version: Any = None
    stored: bool = True
    budget_s: float | None = None
    check: Check | None = None


@dataclass(frozen=True)
class Question:
    """One call that needs a config, and how far one may go to answer it.

    Attributes:
        live: The candidates by identity, in order.
        mode: The mode in force when it was asked.
        must_search: Search even where a `default=` would answer (the command line's `tune`).
        force: Measure again whatever is stored.
        observer: Told of a search's progress.
        budget_s: The search stops after this many seconds, or earlier where the decorator says so; None never.
    """

    call: Call
    key: Key
    live: Mapping[str, Any]
    mode: str
    must_search: bool = False
    force: bool = False
    observer: tune.Observer | None = None
    budget_s: float | None = None

    @property
    def fresh(self) -> bool:
        """Whether stored answers are ignored."""
        return self.force or self.mode == "search"


@dataclass
class Seconds:
    """Where the time of misses went."""

    lookup: float = 0.0
    search: float = 0.0
    compile: float = 0.0
    bind: float = 0.0


class Chooser:
    """Finds or makes the choice for calls of one tuned function.

    Args:
        on_configs: Told of a computed list of configs before it is used.
        on_written: Told the names of arguments found to be written.
    """

    def __init__(
        self,
        target: Target,
        options: Options,
        on_configs: Callable[[list[Any]], None],
        on_written: Callable[[list[str]], None],
    ) -> None:
        self.target = target
        self.options = options
        self.searches = 0
        self.seconds = Seconds()
        self._on_configs, self._on_written = on_configs, on_written
        self._choices: dict[str, Choice] = {}
        self._said: set[str] = set()
        self._unfit = failures.Unfit()
        self._memory = failures.Backoff()

    # -- key and candidates --------------------------------------------------------------------------------------

    def key(self, call: Call) -> Key:
        """The key of a call in its present context."""
        where = self.target.device(call)
        context: dict[str, Json] = {"device": where.to_json(), **self.target.toolchain(where, store.root())}
        context["environment"] = self.target.environment()
        context["source"] = self.target.source
        context["version"] = encode(self.options.version, f"version of '{self.target.name}'", _in_memory)
        part = call_part(self.options.spec, call.arguments, call.options, self.target.name, _in_memory)
        return Key(self.target.name, part, context)

    def candidates(self, call: Call) -> dict[str, Any]:
        """The live configs of a call after pruning, by identity and in order.

        Raises:
            PruningError, ConfigError: A pruner or a callable list left nothing usable.
            ValueError: The caller passes what one of them sets.
        """
        configs = self.options.configs() if self.options.computed is None else self._computed(call)
        named = dict(zip((parameter.name for parameter in self.target.parameters), call.args))
        left = candidates.prune(configs, self.options.pruner(), named, call.kwargs, self.target.name)
        for config in left:  # computed ones, and a pruner's own, were not known when the call was bound
            refuse_conflicts(self.target, call.args, call.kwargs, self.target.settings(config))
        return {candidates.identity(config, self.target.name, _in_memory): config for config in left}

    def _computed(self, call: Call) -> list[Any]:
        assert self.options.computed is not None
        configs = candidates.listed(self.options.computed(**call.arguments), self.target.name)
        if not configs:
            raise ConfigError(
                f"`{self.target.name}`: configs: the callable returned none for this call; return at least one.",
                kernel=self.target.name,
            )
        self._on_configs(configs)
        return configs

    # -- the sources, in their order -----------------------------------------------------------------------------

    def choose(self, call: Call, pinned: Any = None) -> Choice:
        """The config for a call, in the mode in force.

        Args:
            call: The bound call.
            pinned: A config that the user pinned for it, or None.

        Raises:
            NotTunedError: Nothing is stored and the mode, or a graph capture, forbids a search.
            AllConfigsFailedError, DeviceLostError: The search failed.
        """
        self.target.device(call)  # a kernel without a GPU fails here, with an error that says what to do
        if pinned is not None:
            return Choice(pinned, Rung.TABLE, origin="pinned in .cache")
        start = time.perf_counter()
        live = self.candidates(call)
        if len(live) == 1:
            return Choice(next(iter(live.values())), Rung.ONLY)
        mode = env.current_mode()
        if mode == "off":
            return self._default(call, live)
        question = Question(call, self.key(call), live, mode)
        self.seconds.lookup += time.perf_counter() - start
        return self.answer(question)

    def answer(self, question: Question) -> Choice:
        """The choice for a question: remembered, stored, shipped, default, or searched for; see `store.Rung`."""
        known = self._known(question)
        if known is not None and (self._is_enough(known, question) or toolchain.capturing()):
            return self._remember(question.key, known)
        if not self._may_search(question):
            return self._without_search(question)
        if toolchain.capturing():
            return self._while_capturing(question)
        with store.locked(question.key, between_processes=self._is_stored(question.key)):
            # Again: another process or thread may have finished while this one waited for the lock.
            known = self._known(question)
            if known is None or not self._is_enough(known, question):
                known = self._search(question)
            return self._remember(question.key, known)

    def _is_enough(self, known: Choice, question: Question) -> bool:
        """Whether a choice may be taken although some candidates have not been measured."""
        if known.complete or not self._may_search(question):
            return True
        return known.rung is Rung.SEARCH and not question.must_search  # this process's own search ran out of time

    def without_search(self, call: Call) -> Any:
        """The config a call would get if searching were not allowed: stored, default, or the first."""
        live = self.candidates(call)
        known = None
        if len(live) > 1 and env.current_mode() != "off":
            known = self._known(Question(call, self.key(call), live, "serve"))
        return (known or self._default(call, live)).config

    def refuse(self, call: Call, choice: Choice, error: Exception) -> None:
        """Take note that a choice cannot be launched here, so that the next source is asked from now on.

        Raises:
            Exception: `error`, if this was noted before: asking again would not end.
        """
        key = self.key(call)
        self._unfit.note(key.digest, candidates.identity(choice.config, self.target.name, _in_memory), error)
        self._choices.pop(key.digest, None)
        log.warning(
            "`%s`: the config %s (%s) does not compile or launch here (%s); it is not used for calls like this.",
            key.kernel, choice.config, choice.origin or choice.rung.name, failures.describe(error),
        )  # fmt: skip

    def forget(self) -> None:
        """Drop this process's choices; records on disk stay."""
        self._choices.clear()
        self._unfit.clear()

    def _may_search(self, question: Question) -> bool:
        if question.must_search or question.mode == "search":
            return True
        return question.mode == "auto" and self.options.default is None

    def _known(self, question: Question) -> Choice | None:
        """This process's choice, else the stored or shipped one; None where the question asks for a new search."""
        choice = self._choices.get(question.key.digest)
        if choice is not None and self._still_holds(choice, question):
            return choice
        return None if question.fresh else self._find(question)

    @staticmethod
    def _still_holds(choice: Choice, question: Question) -> bool:
        if question.force or (question.mode == "search" and choice.rung is not Rung.SEARCH):
            return False
        return any(config is choice.config for config in question.live.values())

    def _find(self, question: Question) -> Choice | None:
        if not self._is_stored(question.key):
            return None
        start = time.perf_counter()
        found = store.find(question.key, question.live, self._unfit.of(question.key.digest))
        self.seconds.lookup += time.perf_counter() - start
        if found is not None and found.record is not None and self.options.restore is None:
            self._on_written([str(name) for name in found.record.provenance.get("written", ())])
        return found

    def _remember(self, key: Key, choice: Choice) -> Choice:
        if choice.rung is Rung.DEFAULT:
            return choice  # the launch table holds it; another mode, or the next process, may do better
        if self._choices.get(key.digest) is not choice:
            log.info("`%s` %s: %s (%s)", key.kernel, key.digest[:12], choice.config, choice.origin or choice.rung.name)
        self._choices[key.digest] = choice
        while len(self._choices) > LIMIT:
            self._choices.pop(next(iter(self._choices)), None)
        return choice

    # -- answers without a search --------------------------------------------------------------------------------

    def _default(self, call: Call, live: Mapping[str, Any]) -> Choice:
        default = self.options.default
        if callable(default) and not candidates.is_config(default):
            default = default(**call.arguments)
        if default is None:
            default = next(iter(live.values()))
        if not candidates.is_config(default):
            raise ConfigError(
                f"`{self.target.name}`: default: expected a triton.Config, or a callable of the arguments "
                f"returning one, got {type(default).__name__}.",
                kernel=self.target.name,
            )
        known = [parameter.name for parameter in self.target.parameters]
        candidates.check_kwargs([default], self.target.name, self.target.allows, known)
        return Choice(default, Rung.DEFAULT)

    def _without_search(self, question: Question) -> Choice:
        key = question.key
        if question.mode == "strict":
            raise self._not_tuned(key, "mode 'strict' allows no search")
        if question.mode == "serve":
            self._say_once(key.digest, "`%s`: nothing is stored for key %s; mode 'serve' runs it untuned.", key)
        if self.options.default is None:
            return Choice(self._first_that_compiles(question), Rung.DEFAULT)
        return self._default(question.call, question.live)

    def _first_that_compiles(self, question: Question) -> Any:
        for config in question.live.values():
            try:
                self.target.compile(question.call, config)
            except Exception as error:
                log.info("`%s`: %s does not compile here (%s)", self.target.name, config, failures.describe(error))
            else:
                return config
        return next(iter(question.live.values()))  # its launch raises the compiler's own error

    def _while_capturing(self, question: Question) -> Choice:
        stored = self._known(replace(question, mode="auto", force=False))  # what mode "search" would measure again
        if stored is not None:
            return stored
        if self.options.default is None:
            raise self._not_tuned(question.key, "a CUDA graph is being captured, which a search would break")
        return self._default(question.call, question.live)

    def _not_tuned(self, key: Key, why: str) -> NotTunedError:
        nearest = _nearest(key)
        hint = "no key of this kernel is stored"
        if nearest is not None:
            parts = "; ".join(str(difference) for difference in differences(key.to_json(), nearest.to_json()))
            hint = f"the nearest stored key {nearest.digest[:12]} differs in {parts}"
        return NotTunedError(
            f"`{key.kernel}`: expected a tuned choice for key {key.digest[:12]}, found none, and {why}; {hint}. Tune "
            "it beforehand (`autotuned tune`), ship a config file, or give @autotune a default=.",
            kernel=key.kernel,
            digest=key.digest,
        )

    def _is_stored(self, key: Key) -> bool:
        """Whether this key's results are kept on disk; a key with values that JSON cannot write is not."""
        if self.options.stored and _has_object(key.to_json()):
            self._say_once("object", "`%s`: part of key %s has no JSON form: its choice is kept in memory only.", key)
            return False
        return self.options.stored

    def _say_once(self, about: str, message: str, key: Key) -> None:
        if about not in self._said:
            self._said.add(about)
            log.warning(message, *(key.kernel, key.digest[:12])[: message.count("%s")])

    # -- the search ----------------------------------------------------------------------------------------------

    def _search(self, question: Question) -> Choice:
        key = question.key
        state.refuse_aliases(question.call.arguments, self.options.zero, self.target.name)
        if not self._memory.is_due(key.digest):
            return self._untuned(question)
        before = store.read(store.record_path(key)) if self._is_stored(key) else None
        known = {timing.identity: timing for timing in before.timings} if before and not question.fresh else {}
        known = self._unfit.without(key.digest, known)
        journal = Journal(store.journal_path(key) if self._is_stored(key) else None)
        if question.fresh:
            journal.crashed.clear()
        start = time.perf_counter()
        outcome = tune.Outcome()
        try:
            tune.run(self._job(question, known, journal), outcome)
        except AllConfigsFailedError:
            if self.options.default is None:
                raise
            if "failed" not in self._said:
                log.exception("`%s`: the search failed; its default= is used, untuned.", key.kernel)
            self._said.add("failed")
            return self._default(question.call, question.live)
        except OutOfMemoryError as error:
            self._memory.failed(key.digest)
            self._say_once("memory", "`%s`: there is no room to tune now: it runs untuned until there is.", key)
            log.info("%s", error)
            return self._untuned(question)
        finally:
            result = self._finish(key, outcome, time.perf_counter() - start, before)
        self._announce(result, outcome)
        journal.erase()  # what crashed is in the record now
        complete = question.live.keys() <= {timing.identity for timing in outcome.timings}  # else the budget ended it
        return Choice(question.live[outcome.winner or ""], Rung.SEARCH, result, complete)

    def _untuned(self, question: Question) -> Choice:
        """What runs while there is no room for a search; nothing of it lasts."""
        if self.options.default is not None:
            return replace(self._default(question.call, question.live), lasting=False)
        return Choice(self._first_that_compiles(question), Rung.DEFAULT, lasting=False)

    def _job(self, question: Question, known: Mapping[str, Any], journal: Journal) -> tune.Job:
        options, target, call = self.options, self.target, question.call
        forms = {name: candidates.to_json(config, target.name, _in_memory) for name, config in question.live.items()}
        timer = target.timer(target.device(call))
        if options.do_bench is not None:
            timer = GivenTimer(options.do_bench, timer)
        words = None if question.fresh else target.compile_class(call)
        budgets = [seconds for seconds in (options.budget_s, question.budget_s) if seconds is not None]
        return tune.Job(
            target, call, forms, question.live, timer, options.restore, options.zero, options.hooks, known,
            min(budgets, default=None), question.observer, options.check, log.isEnabledFor(logging.DEBUG),
            (canonical(dict(question.key.context)), words) if words is not None else None, journal,
        )  # fmt: skip

    def _finish(self, key: Key, outcome: tune.Outcome, seconds: float, before: Record | None) -> Record:
        """Count the search and store what it measured, also after Ctrl-C: it is not measured again."""
        self.searches += 1
        self.seconds.search += seconds
        self.seconds.compile += outcome.compile_s
        result = self._record(key, outcome, seconds)
        if result.winner is None and before is not None:
            result = replace(before, timings=result.timings or before.timings)
        if self._is_stored(key) and any(timing.status == "ok" for timing in result.timings):
            self._keep(result)
        return result

    def _keep(self, result: Record) -> None:
        if portable(*(timing.config for timing in result.timings)):
            store.keep(result)
        else:
            self._say_once("config", "`%s`: a config has a value without JSON form; kept in memory only.", result.key)

    def _record(self, key: Key, outcome: tune.Outcome, seconds: float) -> Record:
        won = next((timing for timing in outcome.timings if timing.identity == outcome.winner), None)
        provenance = {
            "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "seconds": round(seconds, 3),
            "timer": "do_bench" if self.options.do_bench else "race-1",
            "written": list(outcome.written),
        }
        timings = tuple(outcome.timings)
        return Record(key, won.config if won else None, won.median_us if won else None, outcome.quality, timings,
                      provenance)  # fmt: skip

    def _announce(self, result: Record, outcome: tune.Outcome) -> None:
        if self.options.restore is None:
            self._on_written(outcome.written)
        for about, text in outcome.advice(result.key.kernel, self.options.restore is None):
            self._say_once(about, text, result.key)
        failed = sum(timing.status == "failed" for timing in result.timings)
        log.info(
            "`%s`: measured %d configs (%d failed) in %.2f s; chosen %s, %.1f us, %s",
            result.key.kernel, len(result.timings), failed, result.provenance["seconds"],
            candidates.label(result.winner or {}), result.median_us, result.quality,
        )  # fmt: skip


def _nearest(key: Key) -> Key | None:
    """The stored key of the same kernel that differs in the fewest parts."""
    stored = [found.key for _, found in store.all_records(key.kernel)]
    stored += [shipped for _, shipped, _ in store.shipped(key.kernel)]
    return min(stored, key=lambda other: len(list(differences(key.to_json(), other.to_json()))), default=None)
