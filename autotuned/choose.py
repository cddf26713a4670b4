"""Which config a call gets: its key and candidates, then the places a choice comes from, in their order."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any

from autotuned import candidates, env, source, state, store, toolchain, tune
from autotuned.errors import AllConfigsFailedError, ConfigError, EncodingError, NotTunedError
from autotuned.key import Key, KeySpec, call_part, differences
from autotuned.locks import Lock
from autotuned.measure import GivenTimer
from autotuned.record import Record
from autotuned.store import Choice, Rung
from autotuned.target import Call, Target, refuse_conflicts
from autotuned.values import Json, encode

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
        lock: What came of asking for the key's lock; where another holds it, what is measured is the other's to save.
    """

    call: Call
    key: Key
    live: Mapping[str, Any]
    mode: str
    must_search: bool = False
    force: bool = False
    observer: tune.Observer | None = None
    budget_s: float | None = None
    lock: Lock = Lock.HELD

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
        with store.locked(question.key, between_processes=self._is_stored(question.key)) as lock:
            # Again: another process or thread may have finished while this one waited for the lock.
            known = self._known(question)
            if known is None or not self._is_enough(known, question):
                waited = lock is Lock.BUSY and self.options.default is not None and not question.must_search
                if waited or lock is Lock.NESTED:  # a hook or a helper calls what is being searched
                    return self._default(question.call, question.live)
                known = self._search(replace(question, lock=lock))
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

    def forget(self) -> None:
        """Drop this process's choices; records on disk stay."""
        self._choices.clear()

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
        found = store.find(question.key, question.live)
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
                log.info("`%s`: %s does not compile here (%s)", self.target.name, config, tune.describe(error))
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
        is_stored = self._is_stored(key)
        known = store.resumable(key) if is_stored and not question.fresh else {}
        if not any(known[name].status == "ok" for name in known.keys() & question.live.keys()):
            known = {}  # failures alone, perhaps of a full or broken device, are tried again
        start = time.perf_counter()
        outcome = tune.Outcome()
        saved = is_stored and question.lock is not Lock.BUSY
        try:
            writer = store.journaled(key, question.fresh) if saved else nullcontext(_unsaved)
            with writer as write, self.target.trials(folder := store.scratch_folder()):
                tune.run(replace(self._job(question, known), on_timing=write), outcome)
                self.target.settle(question.call, question.live[outcome.winner or ""], folder)
        except AllConfigsFailedError:
            if self.options.default is None:
                raise
            log.exception("`%s`: the search failed; its default= is used, untuned.", key.kernel)
            return self._default(question.call, question.live)
        finally:
            result = self._finish(question, outcome, time.perf_counter() - start)
        self._announce(result, outcome)
        complete = question.live.keys() <= {timing.identity for timing in outcome.timings}  # else the budget ended it
        return Choice(question.live[outcome.winner or ""], Rung.SEARCH, result, complete)

    def _job(self, question: Question, known: Mapping[str, Any]) -> tune.Job:
        options, target, call = self.options, self.target, question.call
        forms = {name: candidates.to_json(config, target.name, _in_memory) for name, config in question.live.items()}
        timer = target.timer(target.device(call))
        if options.do_bench is not None:
            timer = GivenTimer(options.do_bench, timer.synchronize)
        budgets = [seconds for seconds in (options.budget_s, question.budget_s) if seconds is not None]
        return tune.Job(
            target, call, forms, question.live, timer, options.restore, options.zero, options.hooks, known,
            min(budgets, default=None), question.observer,
        )  # fmt: skip

    def _finish(self, question: Question, outcome: tune.Outcome, seconds: float) -> Record:
        """Count the search and store what it measured, also after Ctrl-C: it is not measured again."""
        self.searches += 1
        self.seconds.search += seconds
        self.seconds.compile += outcome.compile_s
        key = question.key
        result = self._record(key, outcome, seconds)
        before = store.read(store.record_path(key)) if result.winner is None and self._is_stored(key) else None
        if before is not None:  # what is complete stays so: the new search only adds to it
            known = {timing.identity for timing in before.timings}
            new = tuple(timing for timing in result.timings if timing.identity not in known)
            result = replace(before, timings=before.timings + new)
        if self._is_stored(key) and any(timing.status == "ok" for timing in result.timings):
            self._keep(result, question)
        return result

    def _keep(self, result: Record, question: Question) -> None:
        if question.lock is Lock.BUSY and not store.may_save(result.key):
            log.info("`%s`: another process or thread tunes the same key and saves it.", result.key.kernel)
        elif portable(*(timing.config for timing in result.timings)):
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
        failed = sum(timing.status == "failed" for timing in result.timings)
        log.info(
            "`%s`: measured %d configs (%d failed) in %.2f s; chosen %s, %.1f us, %s",
            result.key.kernel, len(result.timings), failed, result.provenance["seconds"],
            candidates.label(result.winner or {}), result.median_us, result.quality,
        )  # fmt: skip


def _unsaved(timing: Any) -> None:
    """Takes the timings of a search that is not saved."""


_OBJECT = "python object"  # with a space: no parameter can have this name
_kept: dict[int, Any] = {}  # an id is unique only while its object lives


def _in_memory(value: Any, where: str) -> Json:
    """Spelling for values that typed JSON does not know: functions by source, else this very object in memory."""
    try:
        return source.of_value(value, where)
    except EncodingError:
        _kept[id(value)] = value
        return {_OBJECT: id(value)}


def portable(*parts: Json) -> bool:
    """Whether keys or configs mean something in another process: none of their values is known by address only."""
    return not any(map(_has_object, parts))


def _has_object(data: Json) -> bool:
    if isinstance(data, dict):
        return _OBJECT in data or any(map(_has_object, data.values()))
    return isinstance(data, list) and any(map(_has_object, data))


def _nearest(key: Key) -> Key | None:
    """The stored key of the same kernel that differs in the fewest parts."""
    stored = [found.key for _, found in store.all_records(key.kernel)]
    stored += [shipped for _, shipped, _ in store.shipped(key.kernel)]
    return min(stored, key=lambda other: len(list(differences(key.to_json(), other.to_json()))), default=None)
