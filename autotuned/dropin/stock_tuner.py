"""One of Triton's tuners as the store sees it: its kernel, its calls' keys, and choices found and stored."""

from __future__ import annotations

import functools
import inspect
import logging
import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from autotuned import env
from autotuned.errors import AutotunedError, EncodingError
from autotuned.key import opaque
from autotuned.key.key import Key, dtypes_in, is_tensor
from autotuned.remote import connection
from autotuned.resolve import fallback, sources
from autotuned.resolve.request import OWN_TIMER, Context, note_tuned, trial_part
from autotuned.search import benchmark, failures
from autotuned.store import conditions
from autotuned.store.choice import Choice, Place
from autotuned.store.conditions import Conditions
from autotuned.store.record import Timing, TuningRecord
from autotuned.triton_compat import fingerprint, kernel
from autotuned.tunable import configs as candidates
from autotuned.tunable.call import Call, Hooks
from autotuned.tunable.kernel import TunableKernel
from autotuned.typed_json import Json, digest, encode, portable, why_not_portable

log = logging.getLogger("autotuned")
TIMER = "triton"


class _Switch:
    """Whether a feature of `bench.begin` is on; `budget_s` limits each race."""

    on = False
    budget_s: float | None = None


racing = _Switch()  # our search measures for tuners with Triton's benchmark
compiling = _Switch()  # compile ahead of measurements and launches
keeping: list[Path] = []  # the folder of `--binaries`, if there is one
_FUNCTIONS = ("do_bench", "before", "after")  # of `kernel.Measuring`
_FAILED = "Triton counted it as failed"


def _keyed(make: Callable[..., Key | None]) -> Callable[..., Key | None]:
    """Turn any exception while a key is computed into an EncodingError: Triton would not inspect these values."""

    @functools.wraps(make)
    def key(*args: Any) -> Key | None:
        try:
            return make(*args)
        except (AutotunedError, OSError):
            raise
        except Exception as error:
            raise EncodingError(failures.describe(error)) from None

    return key


class Seed:
    """The kernel identity of one of Triton's tuners, and the keys of its calls."""

    def __init__(self, tuner: Any) -> None:
        self.fn, how = tuner.fn, kernel.measuring_of(tuner)
        self.tunable = TunableKernel.of(self.fn)
        if not self.tunable.interpreted:
            note_tuned(kernel.innermost(tuner.fn), self.tunable.name)
        self._defaults = {
            p.name: p.default for p in self.tunable.parameters if p.default is not inspect.Parameter.empty
        }
        self._names, self._made_for = (how.zero, how.restore), [_weak(getattr(how, name)) for name in _FUNCTIONS]
        trial = trial_part(how.do_bench, how.zero, Hooks(how.before, how.after))
        self.needed = Conditions(conditions.names(how.restore))
        self._context = Context(self.tunable, None, trial)
        self._warned: set[str] = set()
        self.has_left: set[str] = set()  # digests of keys whose race went on without configs that compile long
        self._can_race = _has_tritons_bench(tuner)

    def holds(self, tuner: Any) -> bool:
        """Whether the tuner's kernel, benchmark, hooks and lists are those that it was made for."""
        how = kernel.measuring_of(tuner)
        same = all(made() is getattr(how, name) for made, name in zip(self._made_for, _FUNCTIONS))
        return same and tuner.fn is self.fn and (how.zero, how.restore) == self._names

    @property
    def races(self) -> bool:
        """Whether its configs race; choices of races and of Triton's benchmark have different keys."""
        return racing.on and self._can_race

    def call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
        """The call with arguments in the kernel's order and defaults filled in."""
        names = [parameter.name for parameter in self.tunable.parameters]
        given = {**self._defaults, **dict(zip(names, args)), **kwargs}
        arguments = {name: given[name] for name in names if name in given}
        return Call(args, kwargs, arguments, {}, kwargs.get("grid"))

    @_keyed
    def key(self, keys: Sequence[str], configs: Sequence[Any], call: Call) -> Key | None:
        """The call's key with Triton's parts, the declared names and dtypes; None if a value has no JSON form.

        Values are by name and typed, so that 1 and True differ and a missing argument equals its default. The list of
        configs is in it, since two tuners may share a kernel.

        Raises:
            EncodingError: The key cannot be computed.
        """
        key = Key(self.tunable.name, self._part(keys, configs, call), *self._context.of(call))
        if portable(key.to_json()):
            return key
        why = why_not_portable(key.to_json())
        self.warn_once("`%s`: its choices are kept in memory only: %s.", f"memory: {why}", why)
        return None

    @_keyed
    def key_of_kept(self, keys: Sequence[str], configs: Sequence[Any], call: Call) -> Key | None:
        """The same with the launch interface instead of the toolchain, as kept binaries are matched."""
        if not fingerprint.launch_interface():
            return None
        context = {
            **self._context.without_toolchain(self.tunable.device(call)),
            "interface": fingerprint.launch_interface(),
        }
        key = Key(self.tunable.name, self._part(keys, configs, call), context)
        return key if portable(key.to_json()) else None

    def _part(self, keys: Sequence[str], configs: Sequence[Any], call: Call) -> dict[str, Json]:
        where = f"`{self.tunable.name}`"
        values = {at: encode(call.arguments[at], where, _spell) for at in keys if at in call.arguments}
        dtypes: dict[str, Json] = {
            path: {"dtype": dtype, "strides": ""}
            for argument, value in call.arguments.items()
            for path, dtype in dtypes_in(argument, value)
        }
        timer = OWN_TIMER if self.races else TIMER
        tuner: dict[str, Json] = {"name": timer, "configs": digest(sorted(self.identities(configs)))}
        return {"tensors": dtypes, "values": values, "none": [], "tuner": tuner}

    def identities(self, configs: Sequence[Any]) -> dict[str, Any]:
        """Live configs by identity; of equal ones, the first."""
        found: dict[str, Any] = {}
        for config in configs:
            found.setdefault(candidates.identity(config, self.tunable.name, opaque.spell), config)
        return found

    def label(self, config: Any) -> str:
        """A config in a few words."""
        return candidates.label(candidates.to_json(config, self.tunable.name, opaque.spell))

    def found(self, key: Key, live: Mapping[str, Any], partly: bool = False) -> Choice | None:
        """The stored choice among these configs, if all of them were measured or `partly` suffices; else None."""
        choice = sources.find(key, live, self.places())
        if choice is None or not (choice.complete or partly):
            return None
        if choice.complete:
            self.say(key, choice)
        return choice

    def say(self, key: Key, choice: Choice) -> None:
        """Log where a choice comes from."""
        log.info("`%s` %s: %s (%s)", key.kernel, key.digest[:12], choice.config, choice.where)

    def places(self) -> Sequence[Place]:
        """Where a stored choice may come from, in order: another shape or context must not change a program's."""
        return sources.exact_places(self.needed)

    def is_known(self, key: Key) -> bool:
        """Whether anything is stored for a key; needs no pruned list of configs.

        Waits for a shared store, since the alternative is a measurement.
        """
        if any(look(key, {}).problem != "absent" for _, look in self.places()):
            return True
        store = connection.store()
        return store is not None and store.find(key)

    def keep(
        self, key: Key, timings: Mapping[Any, Any], chosen: Any, seconds: float | None, restore: Sequence[str] = ()
    ) -> None:
        """Store what Triton measured, if one of the configs ran; `restore` are the names restored around trials."""
        name = self.tunable.name
        made = [timing_of(candidates.to_json(config, name, opaque.spell), times) for config, times in timings.items()]
        self._say_wrong_times(made)
        winner = candidates.to_json(chosen, name, opaque.spell)
        kept = TuningRecord(key, winner, None, "ok", tuple(made), _provenance(seconds))
        won = kept.timing_of(winner)
        if won is None or won.median_us is None:
            return
        if not portable(*(timing.config for timing in made)):
            self.warn_once("`%s`: a config has a value or a pre_hook without JSON form; kept in memory only.", "config")
            return
        ran = [timing.typical_us for timing in made if timing.usable]
        quality = "unresolved" if benchmark.is_one_answer(ran) else "ok"
        if quality == "unresolved":
            message = "`%s`: expected do_bench to tell configs apart, got %g ms for each; Triton takes the first."
            self.warn_once(message, "one answer", ran[0][0] / 1e3)
        under = Conditions(conditions.names(restore))
        connection.keep(kept.replace(median_us=won.median_us, quality=quality, conditions=under))

    def _say_wrong_times(self, made: Sequence[Timing]) -> None:
        """Warn about benchmark results that are not times; infinite ones are Triton's mark of a failure."""
        wrong = next((timing for timing in made if timing.error not in (None, _FAILED)), None)
        if wrong is not None:
            message = "`%s`: do_bench for %s: %s The config is not stored as one that ran."
            self.warn_once(message, "times", candidates.label(wrong.config), wrong.error)

    def first_that_compiles(self, call: Call, configs: Sequence[Any]) -> Any:
        """The first config that compiles and loads, else the first: its launch reports the error."""
        plain = Call(call.args, without_grid(call.kwargs), call.arguments, {}, call.grid)
        return fallback.first_that_compiles(self.tunable, plain, configs)

    def warn_once(self, message: str, about: str = "untuned", *more: Any) -> None:
        """Warn once about this kernel."""
        env.warn_once(about, message, self.tunable.name, *more, said=self._warned)


def _has_tritons_bench(tuner: Any) -> bool:
    """Whether a tuner times configs with Triton's `_bench`, or with our class's check around it."""
    bench = type(tuner)._bench
    own = kernel.is_tritons(getattr(bench, "in_front_of", bench)) or getattr(tuner, "prunes_once", False)
    return own and getattr(tuner._bench, "__func__", None) is bench


def attribute(tuner: Any, name: str) -> Any:
    """What Triton's `run` has set on a tuner, or None; no property of our classes.

    Reading `__dict__` of one of Triton's makes Python look up all its attributes more slowly from then on.
    """
    return vars(tuner).get(name) if hasattr(type(tuner), name) else getattr(tuner, name, None)


def _spell(value: Any, where: str) -> Json:
    """As in a tuned kernel's key, except tensors: Triton's own key tells two of one shape apart."""
    return opaque.this_very(value) if is_tensor(value) else opaque.spell(value, where)


def without_grid(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords of Triton's `run` that are the kernel's: all but `grid` and `warmup`."""
    return {name: value for name, value in kwargs.items() if name not in ("grid", "warmup")}


def timing_of(form: Mapping[str, Json], times: Any) -> Timing:
    """A timing from Triton's median, 20th and 80th percentile in ms, or one time; infinite for a failure."""
    try:
        found_us = benchmark.microseconds(times)
    except ValueError as error:
        infinite = all(time == math.inf for time in (times if isinstance(times, (list, tuple)) and times else [times]))
        return Timing(form, status="failed", error=_FAILED if infinite else str(error))
    median, low, high = found_us if len(found_us) == 3 else found_us[:1] * 3
    return Timing(form, median, low, high, 1)


def _provenance(seconds: float | None) -> dict[str, Json]:
    date = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return {"date": date, "seconds": None if seconds is None else round(seconds, 3), "timer": TIMER, "written": []}


def _weak(value: Any) -> Callable[[], Any]:
    """A reference that keeps nothing alive, since a hook may refer to its tuner."""
    if value is None:
        return lambda: None
    try:
        return weakref.ref(value)
    except TypeError:
        return object  # never the same


_seeds: weakref.WeakKeyDictionary[Any, Seed | None] = weakref.WeakKeyDictionary()


def seed_of(tuner: Any) -> Seed | None:
    """The seed of one of Triton's tuners; None, with a log line, if its kernel cannot have one."""
    try:
        seed = _seeds.get(tuner)
        if tuner not in _seeds or (seed is not None and not seed.holds(tuner)):
            seed = _seeds[tuner] = Seed(tuner)
        return seed
    except Exception as error:  # a foreign class of kernel or tuner: never fail its launch
        log.info("no choices are stored for %r: %s", tuner.fn, failures.describe(error))
        with suppress(Exception):  # a tuner without a hash, or with one that fails
            _seeds[tuner] = None
        return None
