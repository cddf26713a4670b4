"""The miss path of a tuned function: bind the arguments, choose, launch, and add the launch to the table."""

from __future__ import annotations

import atexit
import inspect
import logging
import time
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache, partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from autotuned import env, events
from autotuned._startup import errors, later, living
from autotuned.key.key import Key, is_tensor
from autotuned.launch import codegen, launcher
from autotuned.resolve import active
from autotuned.resolve.chooser import Chooser
from autotuned.resolve.request import Chosen, Member, Options, Question, RefusedError, may_be_sealed, note_tuned
from autotuned.store.choice import Choice, Origin
from autotuned.triton_compat import kernel
from autotuned.tunable import configs as candidates
from autotuned.tunable.call import Call, bind
from autotuned.tunable.kernel import TunableKernel

if TYPE_CHECKING:
    from autotuned.key import memory
    from autotuned.launch import bound, direct, verify
    from autotuned.resolve import advice, counters, first, sealing, unseen
    from autotuned.resolve.counters import CacheInfo
    from autotuned.resolve.explain import Explanation
    from autotuned.search import failures
    from autotuned.search.job import Observer
    from autotuned.triton_compat import compiled
    from autotuned.tunable.tunable import Tunable
else:
    bound, direct = map(later, ("launch.bound", "launch.direct"))
    compiled = later("triton_compat.compiled")
    failures, memory = later("search.failures"), later("key.memory")
    advice, counters, unseen = map(later, ("resolve.advice", "resolve.counters", "resolve.unseen"))
    first, sealing, verify = map(later, ("resolve.first", "resolve.sealing", "launch.verify"))

log = logging.getLogger("autotuned")
env.configure_logging()

_tuners: weakref.WeakValueDictionary[int, Tuner] = weakref.WeakValueDictionary()  # by id


def live() -> list[Tuner]:
    """The tuners of this process."""
    return living(_tuners)


def choices() -> dict[Key, str]:
    """What this process has chosen so far: the config's identity by key, without untuned configs."""
    states = [tuner.chooser.state for tuner in live()]
    return {key: state.identity(choice.config) for state in states for key, choice in list(state.choices.items())}


class Tuner:
    """Chooses and launches for one tuned function; shared by `Tuned` and `TunedFunction`.

    Args:
        on_choice: Called with each call and its choice before the launch; with `launched=False` if none follows.
        pinned: Returns the config that the user pinned for a call, or None.
        on_written: Called with the arguments that a search found to be written.
        on_table: Called with each new launch table.
    """

    def __init__(
        self,
        tunable: Tunable,
        options: Options,
        on_choice: Callable[..., None],
        pinned: Callable[[Call], Any],
        on_written: Callable[[list[str]], None],
        on_table: Callable[[launcher.Launcher], None] = lambda table: None,
    ) -> None:
        self.tunable, self.options, self._on_table = tunable, options, on_table
        self.chooser = Chooser(tunable, options, self._learn, on_written)
        self.on_choice, self._pinned = on_choice, pinned
        self.bind_failed, self.misses = False, 0
        self._compared: set[Any] = set()  # kinds of launches for which C and the Python twin agreed
        self.is_compiled = isinstance(tunable, TunableKernel) and not tunable.interpreted
        self._rebuild(self.chooser.state.listed(options.configs())[1])
        if self.is_compiled:
            note_tuned(kernel.innermost(tunable.fn), tunable.name)
        _tuners[id(self)] = self

    # -- arguments -----------------------------------------------------------------------------------------------

    def _rebuild(self, tuned: frozenset[str]) -> None:
        """Make the binder and an empty launch table for a set of tuned parameters."""
        self.tuned, self._exact = tuned, frozenset(self.chooser.seen)
        taken = tuned | self.tunable.filled
        free = [parameter for parameter in self.tunable.parameters if parameter.name not in taken]
        self.names = tuple(parameter.name for parameter in free)
        defaults = {p.name: p.default for p in free if p.default is not inspect.Parameter.empty}
        # The binder checks nothing: the miss path binds again, with error messages. Positions also count parameters
        # that are not free, so after the first of these only names are clear.
        by_place = takewhile(lambda p: p.has_place and p.name not in taken, self.tunable.parameters)
        self._places = places = len(list(by_place))
        self.order = codegen.binder(self.names, defaults, places, sum(not p.has_name for p in free))
        self.launcher = launcher.make(
            self.names,
            self.options.spec.exactly(self._exact),
            launcher.LazyDevice(self.chooser.shipped.may_be_first) if self.is_compiled else None,
            launcher.CallForm(places, defaults) if isinstance(self.tunable, TunableKernel) else None,
        )
        if launcher.verifies():
            launcher.judge_by(self.launcher, verify.Judge(self))
        self.unseen: unseen.Families | None = None  # of this table
        self._on_table(self.launcher)

    def _learn(self, configs: list[Any]) -> None:
        candidates.check(configs, self.tunable)
        tuned = self.chooser.state.names_set_by(configs)
        if not tuned <= self.tuned:
            self._rebuild(self.tuned | tuned)

    def _count_exactly(self) -> None:
        """Let calls share an entry only if they agree in everything that decided which configs they may use.

        Existing entries stay valid: values read for them were compared exactly, and others did not affect the choice.
        """
        if not self.chooser.seen <= self._exact:
            self._rebuild(self.tuned)

    def configs_changed(self) -> None:
        """Start over with a list of configs that the user reassigned or edited.

        Raises:
            ConfigError: One is not a config, or cannot be launched.
        """
        configs = self.options.configs()
        self._check_configs(configs)
        active.drop_in_flight()
        self._rebuild(self.chooser.state.listed(configs)[1])

    def _check_configs(self, configs: list[Any]) -> None:
        candidates.check(candidates.listed(configs, self.tunable.name), self.tunable)

    def call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], grid: Any, values: tuple[Any, ...] = ()) -> Call:
        """Bind a call's arguments. `values`: what `order` returned for them, if it did: then they fit.

        Raises:
            CallError: They do not fit the signature.
            ValueError: They set values that the configs set.
        """
        made = self.options.computed is not None or self.options.pruner().early is not None  # configs may set more
        if values and not made and codegen.MissingArgument not in {*map(type, values)}:
            return Call(args, kwargs, dict(zip(self.names, values)), {}, grid)
        return bind(self.tunable, self.tuned, args, kwargs, grid, lenient=made)

    def keys_changed(self, names: Sequence[str]) -> None:
        """Start over with key arguments that the user edited."""
        spec = self.options.spec.replace(names=tuple(names))
        self.options = self.chooser.state.options = self.options.replace(spec=spec)
        self.forget()
        self._rebuild(self.tuned)

    def rebound(self, values: tuple[Any, ...], grid: Any) -> Call:
        """The call with these values of `names`: by position up to the first parameter that configs set."""
        places = self._places
        return self.call(values[:places], dict(zip(self.names[places:], values[places:])), grid)

    # -- the miss ------------------------------------------------------------------------------------------------

    def miss(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], grid: Any, values: tuple[Any, ...] = ()) -> Any:
        """Handle a call that misses the launch table; returns what the launch returns. `values` as for `call`."""
        call = self.call(args, kwargs, grid, values)
        if active.recorders:
            active.recorders[-1].note(self, call)
        return self._missed(call)

    def _again(self, values: tuple[Any, ...], grid: Any) -> Any:
        """Launch a call with another config: its grid is empty for the bound one."""
        return self._missed(self.rebound(values, grid))

    def _missed(self, call: Call) -> Any:
        self.misses += 1
        start, digest = time.perf_counter(), ""
        why: str | Callable[[], str] = ""
        try:
            choice, result = self._answer(call, self._launch)
            digest, why = choice.digest, lambda: choice.why
            return result
        except Exception as error:
            why = failures.describe(error)
            raise
        finally:
            events.emit("miss", self.tunable.name, digest, time.perf_counter() - start, why)

    def prepare(self, call: Call, search: bool) -> Any:
        """Choose, compile and bind for a call, launching only the trials of a search; returns the config."""
        return self._answer(call, self._compile, search)[1]

    def _answer(self, call: Call, act: Callable[[Chosen], Any], search: bool = True) -> tuple[Choice, Any]:
        """Choose, and call `act` with the choice; returns both results."""
        self._refuse_without_tensor(call)
        while True:
            vars(call)["since"] = active.drops[-1]
            chosen = self.chooser.choose(call, self._pinned(call), search)
            choice = chosen.choice
            try:
                with self._asked(chosen):
                    return choice, act(chosen)
            except RefusedError as refused:
                self.chooser.exclude(call, choice, refused.error)
            except Exception as error:
                if not isinstance(error, errors.AutotunedError):  # these are complete
                    label = self.chooser.label(choice.config)
                    failures.note(error, f"`{self.tunable.name}`: raised with config {label} ({choice.why}).")
                raise

    def _asked(self, chosen: Chosen) -> AbstractContextManager[None]:
        """Describe the call to the seal while it is compiled."""
        if not may_be_sealed():
            return nullcontext()
        asked = partial(self.chooser.shipped.asked, chosen.call, chosen.choice, self.chooser.part)
        return sealing.asked_by(self.tunable.name, asked)

    def _refuse_without_tensor(self, call: Call) -> None:
        """Refuse a call without a tensor for an argument that a list names."""
        lists = self.options.named
        if not all(is_tensor(call.arguments.get(name)) for names in lists.values() for name in names):
            memory.refuse_without_tensor(call.arguments, lists, self.tunable.name)  # which imports `memory`

    def tune(
        self, call: Call, force: bool = False, observer: Observer | None = None, budget_s: float | None = None,
        without: Collection[str] = (), again: bool = False, members: Sequence[Member] = (), served: str | None = None,
    ) -> tuple[Question, Choice]:  # fmt: skip
        """Find or search the choice for a call without launching it, for the command line's `tune`.

        Args:
            force: Measure again even if a choice is stored.
            observer: Called with a search's progress. `budget_s`: seconds; the decorator's if that is less.
            without: Configs to leave out, as text: a recorded call has no grid for them.
            again: Measure noisy choices again.
            members: Calls of the key to choose for. `served`: identity of the config to beat.
        """
        self._refuse_without_tensor(call)
        chooser = self.chooser
        live = chooser.candidates(call)
        if without or served is not None:  # else all calls share them
            live = live.without([name for name, config in live.items() if str(config) in without])
            live.untuned = served if served in live else live.untuned
        how = {"force": force, "observer": observer, "budget_s": budget_s, "again": again, "members": tuple(members)}
        question = chooser.question(call, live, "auto", must_search=True, **how)
        return question, chooser.answer(question)

    def explain(self, call: Call) -> Explanation:
        """See `Chooser.explain`."""
        return self.chooser.explain(call, self._pinned(call))

    def _launch(self, chosen: Chosen) -> Any:
        call, choice, config = chosen.call, chosen.choice, chosen.choice.config
        self.on_choice(call, choice)
        values = tuple(call.arguments.values())
        before = self._prologue(call, config)
        if before is not None:
            before(values)
        start = time.perf_counter()
        is_plain = before is None and not call.has_descriptors
        is_first = is_plain and self.chooser.shipped.comes_first(choice)  # looked up after the grid was asked
        binary = None if is_first else self.chooser.shipped.load(call, choice)
        if is_first or (is_plain and binary is not None):
            if (launched := first.launch_bound(self, chosen, binary, start)) is not None:
                return launched
            binary = None
        memory = self._compiled_for(values)
        result = self.first_launch(call, choice, binary)
        if self._compiled_for(values) == memory:  # else the grid changed it: a later call is bound
            self.bind(chosen, before, result, start)
        return result

    def first_launch(self, call: Call, choice: Choice, binary: Any = None) -> Any:
        """Launch through Triton, or a shipped binary.

        Raises:
            RefusedError: A config measured elsewhere was refused before the kernel ran; later faults pass.
        """
        if binary is None and choice.origin not in MEASURED:
            return self.tunable.launch(call, choice.config)
        if binary is None:
            self._compiled(call, choice)
        try:
            if binary is not None:
                server = self.chooser.shipped.server
                return server.launch(*server.sized(call, choice.config), binary)
            return self.tunable.launch(call, choice.config)
        except Exception as error:
            if failures.is_refusal(error):
                raise RefusedError(error) from error
            raise

    def _compiled(self, call: Call, choice: Choice) -> Any:
        """Compile and load; RefusedError if a config measured elsewhere does not compile here."""
        try:
            return self.chooser.shipped.load(call, choice) or self.tunable.compile(call, choice.config)
        except Exception as error:
            if failures.is_passing(error) or choice.origin not in MEASURED:
                raise
            raise RefusedError(error) from error

    @property
    def _is_bindable(self) -> bool:
        return isinstance(self.tunable, TunableKernel) and self.tunable.bindable

    def _compiled_for(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """State that a direct launch relies on, and that user code may change during the first launch."""
        return (compiled.compiled_for(values), compiled.surroundings()) if self._is_bindable else ()

    def _compile(self, chosen: Chosen) -> Any:
        """Like `_launch`, without zeroing and launching."""
        call, choice, config = chosen.call, chosen.choice, chosen.choice.config
        self.on_choice(call, choice)
        if config.pre_hook is not None:  # it may affect the compilation, as by a descriptor's block shape
            config.pre_hook(call.full(config))
        start = time.perf_counter()
        result = self._compiled(call, choice)
        self.bind(chosen, self._prologue(call, config), result, start)
        return config

    def _prologue(self, call: Call, config: Any) -> bound.Prologue | None:
        """What must run before every launch of the config, or None."""
        if not self.options.zero and config.pre_hook is None:
            return None  # checked here, so that `bound` is imported after the first launch
        return bound.Prologue(self.tunable.name, config, tuple(call.arguments), self.options.zero)

    def bind(self, chosen: Chosen, before: bound.Prologue | None, result: Any, start: float) -> bool:
        """Add the launch to the table; returns whether it is there. Compiling began at `start`, a `perf_counter`."""
        launched, call = time.perf_counter(), chosen.call
        if isinstance(self.tunable, TunableKernel):
            _watch_environment()
        may_be = chosen.choice.lasting and not call.options and tuple(call.arguments) == self.names
        is_bound = may_be and call.since is active.drops[-1]
        if is_bound:
            self._count_exactly()
            is_bound = self._put(chosen, before, result)
            if call.since is not active.drops[-1]:  # by another thread just now
                self.launcher.clear()
        self.chooser.state.compile_s += launched - start
        self.chooser.state.bind_s += time.perf_counter() - launched
        return is_bound

    def _put(self, chosen: Chosen, before: bound.Prologue | None, result: Any) -> bool:
        call = chosen.call
        try:
            ready = self._bound(call, chosen.choice.config, before, result)
        except compiled.EvictedError:  # by user code within the launch: a later call is bound
            return False
        device = ready.device if ready.device is not None or not self._is_bindable else kernel.current_device()
        ready = self._used(ready, self.chooser.state.kept(chosen, device))
        values, in_c = tuple(call.arguments.values()), self.launcher.in_c
        is_bound = (in_c is not None and in_c.bind(values, ready)) or self.launcher.bind(values, ready)
        if is_bound and chosen.choice.origin is Origin.RULE:
            self.unseen = self.unseen or unseen.Families(self)
            self.unseen.add(call, ready)
        if not is_bound or in_c is None or ready.twin is None or ready.direct is None:
            return is_bound
        compared = ready.direct[4:6], device, tuple(map(type, values))  # kinds of parameters, attributes
        if compared in self._compared:
            return True
        if len(self._compared) < MOST_COMPARED:
            self._compared.add(compared)
        if wrong := ready.twin().differences(values, call.grid, in_c.passed(values, call.grid)):
            verify.turn_c_off(self, wrong)
        return not wrong

    def _used(self, ready: bound.Bound, use: Chosen | None) -> bound.Bound:
        """A launch for the table: recorded, and with the request that it was chosen for."""
        if active.recorders:
            ready = active.recorders[-1].watched(self, ready)
        ready.use = use
        return ready

    def bound_anew(self, chosen: Chosen) -> bound.Bound:
        """Bind an entry's calls to another choice: compile or load it now, without adding it to the table."""
        call, config = chosen.call, chosen.choice.config
        with self._asked(chosen):
            result = self._compiled(call, chosen.choice)
        return self._used(self._bound(call, config, self._prologue(call, config), result), chosen)

    def _bound(self, call: Call, config: Any, before: bound.Prologue | None, result: Any) -> bound.Bound:
        tunable = self.tunable
        if not isinstance(tunable, TunableKernel):
            return bound.Bound(config, bound.host_call(tunable, self.names, config), before)
        again = self._again if self.options.computed is not None or len(self.options.configs()) > 1 else None
        by_triton = bound.through_triton(tunable, self.names, config)
        if is_shipped := hasattr(result, "variant"):  # other calls may need another one
            by_triton = self.chooser.shipped.server.launching(self.rebound, config, by_triton)
        if self._is_bindable and not self.bind_failed and (is_shipped or launcher.binds_directly()):
            try:
                spec, made = self.options.spec, bound.Bound(config, by_triton, before, by_triton, again)
                memory = self.chooser.shipped.server.memory(call, config) if is_shipped else None
                return direct.direct(made, tunable, call, result, bool(spec.buckets or spec.functions), memory)
            except compiled.UnbindableError as error:
                self.bind_failed = True
                message = "`%s` cannot be launched directly (%s); Triton's own launch is used from now on."
                log.warning(message, tunable.name, error)
        return bound.Bound(config, bound.launching(by_triton, again), before)

    # -- queries -------------------------------------------------------------------------------------------------

    def cache_info(self) -> CacheInfo:
        """Counters of this function."""
        launcher, state = self.launcher, self.chooser.state
        return counters.CacheInfo(
            launcher.hits, self.misses, len(launcher), launcher.evictions, state.searches,
            state.lookup_s, state.search_s, state.compile_s, state.bind_s,
        )  # fmt: skip

    def forget(self) -> None:
        """Forget this process's choices; records on disk stay."""
        active.drop_in_flight()
        self.chooser.state.forget()
        self.launcher.clear()


MEASURED = (Origin.STORE, Origin.BINARY, Origin.FILE, Origin.LADDER, Origin.RULE, Origin.NEAREST, Origin.SEARCH)
MOST_COMPARED = 256  # kinds of launches to remember: they keep the types of arguments alive


def drop_bound() -> None:
    """Clear all launch tables: after a change of mode or environment nothing bound may answer."""
    active.drop_in_flight()
    for tuner in live():
        tuner.launcher.clear()


env.on_mode_change(drop_bound)
active.on_change(drop_bound)


@lru_cache(maxsize=1)
def _watch_environment() -> None:
    """Install the audit hook, at the first kernel."""
    env.on_code_change(drop_bound)


@atexit.register
def _summary() -> None:
    if infos := [tuner.cache_info() for tuner in live()]:
        counters.say(infos)
    if untuned := [tuner.chooser.untuned for tuner in live() if "untuned" in vars(tuner.chooser)]:
        advice.say_untuned(untuned)
