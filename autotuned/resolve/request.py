"""The chooser's requests, the decorator's options, the context, and a process's state of a tuned function."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain
from operator import attrgetter, is_
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from autotuned import env, events
from autotuned._startup import Frozen, forget_oldest, later, once
from autotuned.key.key import Key, KeySpec
from autotuned.store import conditions, record
from autotuned.store.choice import Choice, Live, Origin
from autotuned.store.conditions import Conditions
from autotuned.triton_compat import kernel as kernels
from autotuned.tunable import configs
from autotuned.tunable.call import Call, Hooks
from autotuned.tunable.configs import Pruner
from autotuned.typed_json import Json, canonical, digest, encode, portable, why_not_portable

if TYPE_CHECKING:
    from autotuned.configfiles.policy import Within
    from autotuned.gpu.device import Device
    from autotuned.key import opaque
    from autotuned.resolve import sealing
    from autotuned.search import exclusions
    from autotuned.search.compiling.stragglers import Stragglers
    from autotuned.search.job import Observer
    from autotuned.search.safety import check as checks
    from autotuned.search.safety.check import Check
    from autotuned.space.declared import Declaration
    from autotuned.store.locks import Lock
    from autotuned.store.record import TuningRecord
    from autotuned.tunable.tunable import Tunable
else:
    checks, exclusions, opaque = later("search.safety.check"), later("search.exclusions"), later("key.opaque")
    sealing = later("resolve.sealing")

log = logging.getLogger("autotuned")
LIMIT = 4096  # remembered choices of a kernel, to bound memory


def spell(value: Any, where: str) -> Json:
    """JSON for a value that typed JSON does not know; see `opaque.spell`."""
    return opaque.spell(value, where)  # few calls have such values: the module is imported at the first


def is_budget(seconds: Any) -> bool:
    """Whether this may limit a search: a number of seconds above 0."""
    return isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and seconds > 0


class Options(Frozen):
    """The checked options of the decorator."""

    configs: Callable[[], list[Any]]  # the candidates before pruning; called at each miss, since users reassign them
    spec: KeySpec
    computed: Callable[..., Any] | None = None  # the callable given as `configs`, if any
    declared: Declaration | None = None  # the space, if it is one
    pruner: Callable[[], Pruner] = Pruner  # returns the pruner; called at each miss
    restore: tuple[str, ...] | None = None  # names to protect; None to detect them
    zero: tuple[str, ...] = ()  # names zeroed before every launch
    hooks: Hooks = Hooks()
    do_bench: Callable[..., Any] | None = None
    default: Any = None  # a config, a callable of the arguments returning one, or None
    version: Any = None
    stored: bool = True  # whether to keep results on disk
    budget_s: float | None = None
    check: Check | None = None  # what to compare results with during a search
    max_searches: float = math.inf  # number of searches allowed in a process
    nearest: Mapping[str, float] = MappingProxyType({})  # distance allowed to a neighbour's choice, by axis
    within: Within | None = None  # loss allowed for a rule; None to follow the folders' policies
    members: int = 1  # number of calls of a bucket to tune on, if known
    members_by: str = "mean"  # "mean" or "worst" over them
    objective: str = "kernel"  # measure "kernel" or "call"
    usual: str = "kernel"  # the default
    patience: float = 1.0  # share of the usual wait for calm after a noisy race, and of launches that part ties
    slow: Stragglers | None = None  # takes the compilations that a search does not wait for; None to wait for all

    @once
    def named(self) -> dict[str, Sequence[str]]:
        """Names of tensor arguments, by the option that lists them."""
        poison = self.check.poisoned if self.check is not None else ()
        lists = {"restore_value": self.restore or (), "reset_to_zero": self.zero, "poison": poison}
        return {label: names for label, names in lists.items() if names}

    @cached_property
    def timer(self) -> str:
        """Name of the timer in records' provenance."""
        return opaque.name_of(self.do_bench) if self.do_bench else OWN_TIMER

    @cached_property
    def trial(self) -> dict[str, Json]:
        """The key's `trial`: what is timed, without defaults.

        Computed once, at decoration: state that a benchmark or hook accumulates is not part of it.
        """
        return trial_part(self.do_bench, self.zero, self.hooks, self.objective if self.objective != self.usual else "")

    def needs(self, kernel: str, live: Mapping[str, Any]) -> Conditions:
        """Conditions under which a choice must have been measured to serve a call with these candidates."""
        if self.check is None:
            return self._unchecked
        restore = self._unchecked.restore
        return Conditions(restore, (checks.asked(self.check, kernel, next(iter(live), ""), restore),))

    @once
    def _unchecked(self) -> Conditions:
        return conditions.BY_DEFAULT if self.restore is None else Conditions(conditions.names(self.restore))


OWN_TIMER = "race-1"


def trial_part(do_bench: Any, zero: Sequence[str], hooks: Hooks, objective: str = "") -> dict[str, Json]:
    """A key's `trial`: what is timed and how, without defaults."""
    part: dict[str, Json] = {} if do_bench is None else {"timer": digest(opaque.bench_of(do_bench))[:16]}
    if objective:
        part["objective"] = objective
    if zero:
        part["zero"] = sorted(zero)
    for name, hook in (("pre_hook", hooks.before), ("post_hook", hooks.after)):
        if hook is not None:
            part[name] = spell(hook, name)
    return part


class Member(Frozen):
    """A call of a bucket with its candidates."""

    call: Call
    live: Mapping[str, Any]
    sizes: Mapping[str, Json]  # values of the bucketed arguments
    count: int = 0  # how often it was called, if known


class Question(Frozen):
    """A call that needs a config, and how far to go to find one."""

    call: Call
    key: Key
    live: Mapping[str, Any]  # candidates by identity, in order
    mode: str  # the mode when it was asked
    must_search: bool = False  # search even if `default=` would answer (the command line's `tune`)
    force: bool = False  # measure again even if a choice is stored
    observer: Observer | None = None  # called with a search's progress
    budget_s: float | None = None  # limit of a search in seconds, unless the decorator's is lower; None for no limit
    lock: Lock | None = None  # result of taking the key's lock: if another process holds it, that one stores
    search: bool = True  # whether a search is allowed at all
    needed: Conditions = Conditions()  # conditions under which a choice must have been measured
    launches: bool = True  # whether its grid is not empty; otherwise there is nothing to measure
    narrowed: bool = False  # whether other calls of the key may have other candidates
    again: bool = False  # repeat noisy choices, and compare those with the untuned config that never were
    members: tuple[Member, ...] = ()  # the calls to choose for, this one included, if there are several

    def is_answered_by(self, known: Choice) -> bool:
        """Whether every candidate is measured; if a search is wanted, crashed ones are tried again."""
        timings = known.record.timings if known.record is not None and self.must_search else ()
        crashed = any(timing.status == "crashed" and timing.identity in self.live for timing in timings)
        fewer = known.record is not None and self.has_more(known.record)
        return known.complete and not (crashed and known.origin is Origin.STORE or fewer or self.doubts(known.record))

    def has_more(self, record: TuningRecord) -> bool:
        """Whether it asks for more calls of its bucket than a record covers."""
        return bool(record.timings) and len(record.members) < len(self.members)

    def doubts(self, record: TuningRecord | None) -> bool:
        """Whether to measure a record again, all of it or the `unraced`."""
        return self.again and record is not None and (record.is_doubtful or bool(self.unraced(record)))

    def unraced(self, record: TuningRecord) -> set[str]:
        """Configs that the winner must still race: a later `default=`, and one that a budget left unconfirmed."""
        timings = {timing.identity: timing for timing in record.timings}
        names = {record.unconfirmed, self.untuned if self.has_default and record.untuned != self.untuned else None}
        won = record.timing_of(record.winner) if record.winner is not None else None
        return {
            name for name in names if name is not None and name in self.live and won is not None
            and name != won.identity and (name not in timings or timings[name].usable)
        }  # fmt: skip

    @property
    def has_default(self) -> bool:
        """Whether `default=` gave the untuned config."""
        said = self.live.said if isinstance(self.live, Live) else None
        return said is not None and said[0] is not None and not self.no_default

    @property
    def untuned(self) -> str | None:
        """Identity of the untuned config (`choice.Live`)."""
        return self.live.untuned if isinstance(self.live, Live) else None

    @property
    def spare(self) -> str | None:
        """The same if it is not in the user's list, else None."""
        return self.live.spare if isinstance(self.live, Live) else None

    @property
    def no_default(self) -> str:
        """Why `default=` is not a candidate; "" if it is, or was not given."""
        return self.live.no_default if isinstance(self.live, Live) else ""

    @property
    def fresh(self) -> bool:
        """Whether to ignore stored answers."""
        return self.force or self.mode == "search"


class Chosen(Frozen):
    """A call with its choice and the reason for it, so that it can be bound again."""

    call: Call
    choice: Choice
    live: Live  # the candidates; calls with the same ones share the object
    key: Key | None = None  # None if none was needed
    needed: Conditions = Conditions()  # conditions under which a choice must have been measured
    device: int | None = None  # index of the current GPU when it was bound; None before, and without a GPU


def may_be_sealed() -> bool:
    """Whether this process watches compilations, as a seal must; most processes never import `sealing`."""
    return events.is_begun or env.seal_kind() != ""


def note_tuned(jit: Any, name: str) -> None:
    """Register a Triton function that is tuned or replaced, with its public name, so that its compilations are seen."""
    kernels.name(jit, name)
    if may_be_sealed():
        sealing.watch()


events.when_begun(lambda: sealing.watch() if kernels.has_names() else None)


def is_sealed() -> bool:
    """Whether a search or a compilation is an error now."""
    return may_be_sealed() and sealing.forbids()


class RefusedError(Exception):
    """The chosen config cannot be launched for this call (`.error`)."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class Context:
    """The context part of keys for one tuned function.

    Every part is read at each `of`; the text is made only if one changed.
    """

    def __init__(self, tunable: Tunable, version: Any, trial: Mapping[str, Json] = MappingProxyType({})) -> None:
        self._tunable = tunable
        self._trial = {"trial": dict(trial)} if trial else {}
        self.version = encode(version, f"version of '{tunable.name}'", spell)  # the user's, as in keys
        self._latest: tuple[Any, dict[str, Json], str] = (None, {}, "")
        self._latest_part: tuple[Any, dict[str, Json]] = (None, {})

    def without_toolchain(self, where: Device) -> dict[str, Json]:
        """The context without the toolchain, for which Triton must be read and hashed; the same object while equal."""
        tunable = self._tunable
        source = tunable.source  # this finds the `opaque` values
        now = where, tunable.environment(), source, [id(value) for _, value in tunable.opaque]
        latest = self._latest_part  # read once: another thread may replace it
        if now != latest[0]:
            context = {"device": where.fields(), "environment": now[1], **self._rest(now[2])}
            latest = self._latest_part = now, context
        return latest[1]

    def _rest(self, source: str) -> dict[str, Json]:
        tunable = self._tunable
        rest = {"source": source, "version": self.version, **self._trial}
        if self.version is None and tunable.opaque:  # a version stands for them
            rest["process"] = {name: opaque.this_very(value) for name, value in tunable.opaque}
        return rest

    def of(self, call: Call) -> tuple[dict[str, Json], str]:
        """The context of a call, and its canonical text."""
        tunable = self._tunable
        where, source = tunable.device(call), tunable.source  # this finds the `opaque` values
        ids = [id(value) for _, value in tunable.opaque]
        now = (where, tunable.toolchain(where, record.root()), tunable.environment(), source, ids)
        latest = self._latest  # read once: another thread may replace it
        if now != latest[0]:
            if latest[0] is not None and now[2] != latest[0][2]:
                tunable.environment_changed()
            context = {"device": where.fields(), **now[1], "environment": now[2], **self._rest(now[3])}
            latest = self._latest = (now, context, canonical(context))
        return latest[1], latest[2]


def _told(given: list[Any]) -> tuple[list[Any], list[Any]] | None:
    """The names and values in configs, to compare the values by identity; makes no call for each config."""
    parts = [*map(vars, given), *map(_KWARGS, given)]
    names = [*map(len, parts), *chain.from_iterable(parts)]
    return names, [*given, *chain.from_iterable(map(dict.values, parts))]  # by `id` each would be an audit event


_KWARGS = attrgetter("kwargs")


class State:
    """What a process knows of one tuned function; shared by its chooser and searcher."""

    # Configs that turned out not to compile or launch here, by the key's digest; made at the first failure.
    excluded = cached_property(lambda self: exclusions.Exclusions())

    def __init__(self, tunable: Tunable, options: Options, on_written: Callable[[list[str]], None]) -> None:
        self.tunable, self.options, self.on_written = tunable, options, on_written
        self.searches = 0
        self.lookup_s = self.search_s = self.compile_s = self.bind_s = 0.0  # time spent in misses
        self.choices: dict[Key, Choice] = {}  # by key; another call of a key may have other candidates
        self._said: set[str] = set()
        self._lives: dict[tuple[str, ...], Live] = {}  # candidates by their identities
        self._listed: tuple[Any, Live, frozenset[str]] = (None, Live(), frozenset())

    @property
    def is_busy(self) -> bool:
        """Whether anything was chosen or refused in this process, so that keys are made anyway."""
        return bool(self.choices) or "excluded" in vars(self)

    def remember(self, key: Key, choice: Choice) -> Choice:
        """Remember a choice unless the next call, or the next process, may find a better one."""
        if choice.digest != key.digest:
            choice = choice.replace(digest=key.digest)
        if choice.origin is Origin.DEFAULT:
            return choice
        before = self.choices.get(key)
        if before is not choice and log.isEnabledFor(logging.INFO):
            log.info("`%s` %s: %s (%s)", key.kernel, key.digest[:12], choice.config, choice.why)
        if before is not None and choice.origin is Origin.SEARCH and before.config is not choice.config:
            events.emit("swap", key.kernel, key.digest, 0.0, f"{before.config} -> {choice.config}")
        self.choices[key] = choice
        forget_oldest(self.choices, LIMIT)
        return choice

    def kept(self, chosen: Chosen, device: int | None) -> Chosen | None:
        """A choice as a bound launch keeps it, without the caller's memory; None if no newer one can replace it."""
        if not self.options.stored or (chosen.key is None and chosen.choice.origin is not Origin.BINARY):
            return None
        call, live = chosen.call, self._lives.setdefault(tuple(chosen.live), chosen.live)
        if len(self._lives) > LIMIT:
            self._lives.clear()
        try:
            bare = call.without_memory() if self.tunable.has_options else Call((), {}, dict.fromkeys(call.arguments))
        except Exception:  # as for nested tensors: the bound choice stays
            return None
        return Chosen(bare, chosen.choice, live, chosen.key, chosen.needed, device)

    def forget(self) -> None:
        """Forget this process's choices; records on disk stay."""
        self.choices.clear()
        vars(self).pop("excluded", None)

    def excluded_for(self, key: Key) -> Collection[str]:
        """Configs excluded for a key."""
        return self.excluded.of(key.digest) if "excluded" in vars(self) else ()

    def identity(self, config: Any) -> str:
        """Identity of a config."""
        return configs.identity(config, self.tunable.name, spell)

    def listed(self, given: list[Any]) -> tuple[Live, frozenset[str]]:
        """The candidates in a list and the names that they set, rebuilt if the list or one of its configs changed."""
        known = self._listed  # read once: another thread may replace it
        then = known[0][1] if known[0] is not None else None
        try:
            now = _told(given)
        except Exception:  # no configs: what follows says so
            now = None
        if now is None or then is None or now[0] != then[0] or not all(map(is_, now[1], then[1])):
            live = Live((self.identity(one), one) for one in given)
            names = self.names_set_by(given)
            plain = None not in map(configs.plain_values, given)  # no hooks, and no values that may change within
            known = self._listed = ([*given], now) if plain and now is not None else None, live, names
        return known[1], known[2]

    def names_set_by(self, given: Iterable[Any]) -> frozenset[str]:
        """Parameters and options that configs set."""
        return frozenset(name for one in given for name in self.tunable.settings(one))

    def keeps(self, key: Key) -> bool:
        """Whether results of this key go to disk; not if JSON cannot express the key or the check's reference."""
        if self.options.stored and not portable(key.to_json()):
            why, what = why_not_portable(key.to_json()), (key.kernel, key.digest[:12])
            self.warn_once(f"object: {why}", "`%s`: the choice for key %s is kept in memory only: %s.", *what, why)
            return False
        checked = self.options.stored and self.options.check is not None
        if checked and not portable(self.options.needs(self.tunable.name, {}).to_json()):
            message = "`%s`: the reference of check= has no source to compare: choices are kept in memory only."
            self.warn_once("reference", message, key.kernel)
            return False
        return self.options.stored

    def warn_once(self, about: str, message: str, *args: object) -> None:
        """Warn about a topic once for this function."""
        env.warn_once(about, message, *args, said=self._said)
