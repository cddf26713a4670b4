"""A store for Triton's own tuner: puts stored choices into its cache before it measures, and stores its results."""

from __future__ import annotations

import logging
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from types import FrameType
from typing import TYPE_CHECKING, Any

from autotuned import _native, env, events
from autotuned._startup import later, living, renewed
from autotuned.api.choices import Choices
from autotuned.dropin.empties import LeftOut
from autotuned.dropin.stock_tuner import Seed, attribute, compiling, keeping, seed_of, timing_of
from autotuned.dropin.widened import Widened
from autotuned.errors import AutotunedError, NotTunedError
from autotuned.key.key import Key
from autotuned.resolve import active, sealing
from autotuned.search import failures
from autotuned.store import layout
from autotuned.triton_compat import fingerprint, kernel

if TYPE_CHECKING:
    from autotuned.dropin import kept_choices, order, raced
    from autotuned.store.choice import Choice
else:
    order, raced, kept_choices = later("dropin.order"), later("dropin.raced"), later("dropin.kept_choices")

log = logging.getLogger("autotuned")


class _Call:
    """A call of one of Triton's tuners, with which the cache computes keys, and the choice found for it."""

    __slots__ = ("args", "asked", "kwargs", "tuner")

    def __init__(self, tuner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.tuner, self.args, self.kwargs = tuner, args, kwargs
        self.asked: MissedCall | None = None  # once its key was missed

    def end(self) -> MissedCall | None:
        """Let go of the arguments, since tasks that a hook started hold a copy of the context; returns `asked`."""
        asked = self.asked
        self.tuner = self.asked = None
        self.args, self.kwargs = (), {}
        return asked


# Not by thread: greenlets that switch in a hook take turns on one.
_current: ContextVar[_Call | None] = ContextVar("autotuned_call", default=None)


class MissedCall:
    """One call whose key was not in its tuner's cache; `missed` is that key until a store has it."""

    def __init__(self, call: _Call) -> None:
        self.tuner, self.args, self.kwargs = call.tuner, call.args, call.kwargs
        self.missed: Any = None
        self.key: Key | None = None
        self.pruned: list[Any] | None = None
        self.passing = False
        self._widened: Widened | None = None
        self.race: raced.Race | None = None
        self._begun = False
        self._to_keep: Key | None = None
        self._left_out = LeftOut(self.tuner)

    def look_up(self, memory: Memory, own: Any) -> bool:
        """Whether the tuner's cache now has its key, stored or as a stopgap; NotTunedError in mode "strict"."""
        since, mode, seed = active.drops[-1], env.current_mode(), seed_of(self.tuner)
        if seed is not None and not self.kwargs.get("warmup") and not self._launches(seed):
            self.missed, self.passing, self._seed = own, True, seed  # not measured, and dropped after the call
            memory.note(own, seed.first_that_compiles(seed.call(self.args, self.kwargs), self.left()))
            return True
        if getattr(self.tuner, "prunes_once", False) and len(self.left()) == 1:  # nothing to measure, as in Triton 3.8
            memory.note(own, self.left()[0])
            return True
        if seed is None or mode == "off":
            return False
        self._before = attribute(self.tuner, "configs_timings")
        self.missed, self._seed = own, seed  # from here on `fail` reads both
        try:
            self._call = seed.call(self.args, self.kwargs)
            found, until = self._known(mode)
        except (AutotunedError, OSError) as error:
            why = failures.describe(error)
            log.warning("`%s`: no choice is looked up or stored (%s); Triton tunes it.", seed.tunable.name, why)
            self.missed, found, until = None, None, ""
        if found is None and (found := self._unmeasured(mode)) is None:
            if self.missed is not None and self.key is not None:
                self._widened = Widened(self.tuner, self.key, self._call, self._seed.needed.restore)
                if self._seed.races and not self.kwargs.get("warmup"):
                    self.race = raced.Race(self.tuner, self._seed, self.key, self._call, self.left)
            return False
        if not self.passing:
            memory.stop_gap(own, found, until)
        memory.note(own, found)
        self.passing |= since is not active.drops[-1]  # the mode may have ended meanwhile
        self.missed = own if self.passing else None
        if self.key is not None and compiling.on:
            order.expect(self.key.digest)
        return True

    def _end(self, memory: Memory) -> list[str]:
        """End what was measured; returns the names restored meanwhile."""
        if self.race is not None:
            self.race.renew_later(memory, self.missed)
        return self._widened.end() if self._widened is not None else list(self._seed.needed.restore or ())

    def _known(self, mode: str) -> tuple[Any, str]:
        """The stored config, and the mode that ends it: "search", which ignores what is stored, or "" for any other.

        Where nothing may be measured, the best of a race that left configs out serves for now.
        """
        choice = self._kept(mode)
        if choice is None or not choice.complete:
            self.key = self._seed.key(self.tuner.keys, self.tuner.configs, self._call)
            choice = self._stored(mode) or choice
        if choice is None or choice.complete:
            return (choice.config, "search") if choice is not None else (None, "")
        if _may_measure(mode):
            return None, ""
        if self.key is not None:
            self._seed.say(self.key, choice)
        self.passing = kernel.capturing()
        return choice.config, ""

    def _kept(self, mode: str) -> Choice | None:
        """The choice in the folder of `--binaries`; if it has none, it gets one when the call ends."""
        if not keeping or mode == "search":
            return None
        self._to_keep = self._seed.key_of_kept(self.tuner.keys, self.tuner.configs, self._call)
        if self._to_keep is None or not kept_choices.are_there():
            return None
        return kept_choices.find(self._to_keep, self._seed.identities(self.left()), self._seed.needed)

    def _stored(self, mode: str) -> Choice | None:
        if self.key is None or mode == "search" or not self._seed.is_known(self.key):
            return None
        return self._seed.found(self.key, self._seed.identities(self.left()), partly=True)

    def _launches(self, seed: Seed) -> bool:
        """Whether any config launches something for this call; the others are left out of its list."""
        left = self._left_out.left(seed.tunable, seed.call(self.args, self.kwargs), self.left)
        if left:
            self.pruned = left
        return left is None or bool(left)

    def left(self) -> list[Any]:
        """The call's configs after Triton's own pruning."""
        if self.pruned is None:
            self.pruned = list(self.tuner.prune_configs(self.kwargs))
        return self.pruned

    def note_pruned(self, left: Sequence[Any]) -> None:
        """Remember the result of Triton's own pruning."""
        if self.pruned is None:
            self.pruned = list(left)

    def times(self, config: Any) -> list[float] | None:
        """A race's times for a config; None if Triton measures."""
        return None if self.race is None else self.race.times(config)

    def begins(self) -> bool:
        """Whether Triton now measures its first config for this call."""
        begins, self._begun = not self._begun and not (self.race is not None and self.race.is_run), True
        return begins

    def _unmeasured(self, mode: str) -> Any:
        """The config to launch if nothing may be measured: during stream capture, and in modes that forbid it."""
        name, capturing = self._seed.tunable.name, kernel.capturing()
        if mode == "strict":
            why = "a CUDA graph is being captured" if capturing else "mode 'strict' allows no search"
            raise NotTunedError(
                f"`{name}`: expected a stored choice, found none, and {why}. Run once without it.",
                kernel=name, digest=self.key.digest if self.key else "",
            )  # fmt: skip
        if not capturing and mode != "serve":
            if self.key is not None and sealing.forbids():
                raise sealing.refused_search(self.key, "")
            return None
        self._seed.warn_once(
            "`%s`: nothing is stored for this call and nothing may be measured now (a CUDA graph is being captured, or "
            "mode 'serve'): the first config that compiles runs, untuned."
        )
        self.passing = capturing  # measure at the next call outside of a capture
        return self._seed.first_that_compiles(self._call, self.left())

    def finish(self, memory: Memory, launched: Any) -> None:
        """Store Triton's measurements for this call, and record the launched kernel."""
        self._left_out.close()
        if self.key is not None and compiling.on and not self.passing:
            order.note(self.key.digest, launched)
        timings = attribute(self.tuner, "configs_timings")
        if self.passing:
            memory.drop(self.missed)
        elif self.missed is not None:
            restore = self._end(memory)
            is_raced = self.race is not None and self.race.is_run  # then it is said and stored
            is_measured = timings is not self._before and not is_raced
            if is_measured and self.key is not None:
                seconds = attribute(self.tuner, "bench_time") or 0.0
                events.emit("search", self.key.kernel, self.key.digest, seconds, f"{len(timings or ())} configs")
            if is_measured and memory.has(self.missed):
                self._keep(memory, timings, restore)
        if self.key is not None and self._to_keep is not None and not self.passing:
            kept_choices.keep(self.key, self._to_keep)

    def fail(self, memory: Memory) -> None:
        """Drop a choice none of whose configs ran, or Triton would launch it again and again."""
        self._left_out.close()
        if self.missed is None:
            return
        self._end(memory)
        timings = attribute(self.tuner, "configs_timings")
        if self.passing or (timings is not self._before and timings and not any(map(_ran, timings.values()))):
            memory.drop(self.missed)

    def _keep(self, memory: Memory, timings: Mapping[Any, Any], restore: Sequence[str]) -> None:
        if self.key is None or self.kwargs.get("warmup"):  # Triton timed a warm-up, which launches nothing
            return
        try:
            seconds = attribute(self.tuner, "bench_time")
            self._seed.keep(self.key, timings, memory.get(self.missed), seconds, restore)
        except AutotunedError as error:
            name, why = self._seed.tunable.name, failures.describe(error)
            log.warning("`%s`: its choice is not stored (%s); the next process tunes again.", name, why)


def measuring(tuner: Any) -> MissedCall | None:
    """The tuner's current call, if its key was in no cache."""
    call = _current.get()
    return call.asked if call is not None and call.tuner is tuner else None


def pruned_once(tuner: Any, prune: Callable[[], list[Any]]) -> list[Any]:
    """The pruned configs of the tuner's current call, computed once."""
    asked = measuring(tuner)
    if asked is None:
        return prune()
    if asked.pruned is None:
        asked.pruned = prune()
    return asked.pruned


def _may_measure(mode: str) -> bool:
    return mode not in ("serve", "strict") and not kernel.capturing() and not sealing.forbids()


def _ran(times: Any) -> bool:
    return timing_of({}, times).status == "ok"


class Memory(Choices):
    """Triton's `.cache` of one tuner; asks the store before it reports a missing key.

    Args:
        cache: Its content so far.
        on_change: Called when a choice is replaced or removed, since bound launches must not outlive it.
    """

    __slots__ = ("__weakref__", "_gaps", "_gone", "on_change", "origin", "proxy")

    def __init__(self, cache: Mapping[Any, Any], on_change: Callable[[], None]) -> None:
        super().__init__(cache)
        self.on_change, self.origin = on_change, cache
        self.proxy: Any = None  # the launcher for the tuner, or False if there can be none
        self._gaps: dict[Any, tuple[Any, str]] = {}  # by key: a `stop_gap`, and until when it lasts
        self._gone: dict[Any, Any] = {}  # dropped configs, for `__missing__`

    def __contains__(self, key: Any) -> bool:
        return super().__contains__(key) or self._look_up(key)  # the twin of `choices_contain` in `launch/c/front.h`

    def _look_up(self, key: Any) -> bool:
        call = _current.get()
        if call is None or call.asked is not None or call.tuner is None:
            return False
        if call.tuner.cache is not self or _is_a_hook(sys._getframe(1)):
            return False
        call.asked = MissedCall(call)
        return call.asked.look_up(self, key)

    def has(self, key: Any) -> bool:
        """Whether it holds a key, without asking the store."""
        return super().__contains__(key)

    def note(self, key: Any, config: Any) -> None:
        """Add a choice that nothing is bound to yet."""
        super().__setitem__(key, config)

    def drop(self, key: Any) -> None:
        """Remove a choice that must not last."""
        if (config := self.get(key)) is not None:  # asks no store
            self._gone[key] = config
        super().pop(key, None)

    def renew(self, key: Any, config: Any) -> None:
        """Let the next call choose again, if this is still the key's config."""
        if self.has(key) and self.get(key) is config:
            self.drop(key)
            self.on_change()

    def __missing__(self, key: Any) -> Any:
        """The config of a call that found its key just before another thread dropped it."""
        call = _current.get()
        if call is None or getattr(call.tuner, "cache", None) is not self:
            raise KeyError(key)
        return self._gone[key]

    def stop_gap(self, key: Any, config: Any, until: str) -> None:
        """Keep a config that is noted for a key only until the mode changes, to `until` if that is not ""."""
        self._gaps[key] = config, until
        _stopgaps[id(self)] = self

    def end_stop_gaps(self, mode: str) -> None:
        """Drop the stop-gaps that end when this mode begins."""
        over = {key: config for key, (config, until) in [*self._gaps.items()] if until in ("", mode)}
        for key, config in over.items():
            self._gaps.pop(key, None)
            self.renew(key, config)

    def __setitem__(self, key: Any, config: Any) -> None:
        replaced = super().get(key, config)
        super().__setitem__(key, config)
        if replaced is not config:
            self.on_change()

    def _forget(self, *keys: Any) -> None:
        self.on_change()


class Untouched(Memory):
    """The `.cache` of a tuner made since `install()`, until its first launch makes it a `Memory`."""

    __slots__ = ()


_stopgaps: weakref.WeakValueDictionary[int, Memory] = weakref.WeakValueDictionary()  # those that have any, by id


def _end_stop_gaps() -> None:
    active.drop_in_flight()
    mode = env.current_mode()
    for memory in living(_stopgaps):
        memory.end_stop_gaps(mode)


env.on_mode_change(_end_stop_gaps)
sealing.on_lifted.append(_end_stop_gaps)
_native.look_up_in(Memory)
_adopting = renewed(threading.Lock())
# By the id of the dictionary that each replaced: tuners that shared it go on sharing.
_adopted: weakref.WeakValueDictionary[int, Memory] = weakref.WeakValueDictionary()


def begin(tuner: Any) -> None:
    """Give a new tuner the cache that it will keep, since programs may hold it, or share it among tuners."""
    if type(getattr(tuner, "cache", None)) is dict and not tuner.cache:
        tuner.cache = Untouched({}, _nothing)


def _nothing() -> None:
    """Stand in for `on_change` where no launch is bound."""


def adopt(tuner: Any) -> Memory:
    """Give one of Triton's tuners a cache that asks the store."""
    seed_of(tuner)  # names its kernel, so that its compilations are seen even if nothing is ever looked up
    with _adopting:
        if type(tuner.cache) is not Memory:
            if not (keeping and kept_choices.are_there()):
                fingerprint.begin(layout.root())
            tuner.cache = _memory(tuner.cache)
        memory: Memory = tuner.cache
        return memory


def _memory(cache: Any) -> Memory:
    if type(cache) is Untouched:
        cache.__class__ = Memory  # type: ignore[assignment]
        return cache
    memory = _adopted.get(id(cache))
    if memory is None or memory.origin is not cache:
        memory = _adopted[id(cache)] = Memory(cache, _nothing)
    return memory


def run(original: Callable[..., Any], tuner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Triton's `Autotuner.run` with a store: look up before measuring, store the results.

    Key, pruning, hooks, benchmark and launch stay Triton's.
    """
    # hot path of Triton's own tuners: makes no key, only `__contains__` above is asked
    memory = getattr(tuner, "cache", None)
    if type(memory) is not Memory:
        if type(memory) not in (dict, Untouched):  # a foreign class, or `Tuned`, which has its own store
            return original(tuner, *args, **kwargs)
        memory = adopt(tuner)
    outer, call = _current.get(), _Call(tuner, args, kwargs)
    try:
        _current.set(call)
        result = original(tuner, *args, **kwargs)
    except BaseException:
        if call.asked is not None:
            call.asked.fail(memory)
        raise
    finally:
        _current.set(outer)
        asked = call.end()
    if asked is not None:
        asked.finish(memory, result)
    return result


def _is_a_hook(frame: FrameType | None) -> bool:
    """Whether a hook, or what a hook started, asks instead of Triton's `run`, maybe for the key of another call."""
    if frame is not None and frame.f_code is Memory.__contains__.__code__:
        frame = frame.f_back
    if frame is None or kernel.is_tritons_code(frame.f_code):
        return False
    while frame is not None and frame.f_code is not run.__code__:
        if kernel.is_tritons_code(frame.f_code):
            return True
        frame = frame.f_back
    return frame is None


def known(tuner: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | Mapping[str, Any]) -> Any:
    """The config of a `Replaced` for a call, from its cache or the store; None if it would be measured."""
    own = tuner.key_of(args, kwargs)
    if (config := tuner.cache.get(own)) is not None:
        return config
    seed, nargs = seed_of(tuner), tuner.nargs
    tuner.nargs = dict(zip(tuner.arg_names, args))
    try:
        if seed is None or env.current_mode() in ("off", "search"):
            return None
        key = seed.key(tuner.keys, tuner.configs, seed.call(args, kwargs))
        if key is None or not seed.is_known(key):
            return None
        live = seed.identities(tuner.prune_configs(dict(kwargs)))
        choice = seed.found(key, live, partly=not _may_measure(env.current_mode()))
        return None if choice is None else choice.config
    finally:
        tuner.nargs = nargs
