"""A launch table in front of other tuners' `run`: Triton's, and libraries' subclasses of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from autotuned.api.tuned import Decoration, Tuned
from autotuned.dropin import seeded
from autotuned.dropin.replaced import Replaced
from autotuned.search import failures
from autotuned.tunable.call import Hooks, Names
from autotuned.tunable.kernel import TunableKernel

log = logging.getLogger("autotuned")
_Run = Callable[..., Any]


class Proxy(Replaced):
    """Launches for another tuner once that has chosen; shares its lists and its `.cache`.

    Calls that the table does not know go to the other's own `run`.
    """

    def __init__(self, theirs: Any, run: _Run, memory: seeded.Memory) -> None:
        tunable = TunableKernel.of(theirs.fn)
        known = [parameter.name for parameter in tunable.parameters]
        keys = [name for name in theirs.keys if name in known]
        super().__init__(tunable, Decoration(Names(keys, [], []), theirs.configs, None, Hooks(), None), False)
        self.configs, self.keys, self._seen_keys = theirs.configs, theirs.keys, list(theirs.keys)
        self._seen = (self.configs, len(self.configs))
        self.early_config_prune, self.perf_model = theirs.early_config_prune, theirs.perf_model
        self.theirs, self.their_fn, self._run = theirs, theirs.fn, run
        self.cache = memory

    def tritons_run(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], grid: Any) -> Any:
        """The other tuner's own look-up, search and launch."""
        return self._pass_on(args, {**kwargs, "grid": grid, "warmup": False})

    def _compile_only(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], grid: Any, warmup: bool) -> Any:
        given = {} if grid is ... else {"grid": grid}
        return self._pass_on(args, {**kwargs, **given, "warmup": warmup})

    def _pass_on(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = seeded.run(self._run, self.theirs, args, kwargs)
        self.best_config = self.theirs.best_config
        return result

    def _configs_changed(self) -> None:
        Tuned._configs_changed(self)  # the other's cache stays as it is

    @staticmethod
    def _still_ours() -> bool:
        return True  # a replaced `Autotuner.run` either called this or skipped it

    def changed(self) -> None:
        """A choice in the other's cache was replaced or removed."""
        self._forget_bound()
        self.in_vain()


def launches_for(theirs: Any, run: _Run) -> Proxy | None:
    """The launcher for one of Triton's tuners, made at its first launch; None if only Triton's own `run` can launch."""
    if isinstance(theirs, Tuned) or type(getattr(theirs, "cache", None)) not in (dict, seeded.Untouched, seeded.Memory):
        return None
    memory = seeded.adopt(theirs)
    if memory.proxy is None:
        try:
            memory.proxy = Proxy(theirs, run, memory)
            memory.on_change = memory.proxy.changed
        except Exception as error:  # a foreign kernel class: never fail its launch
            log.info("%r is launched by Triton: %s", theirs.fn, failures.describe(error))
            memory.proxy = False
    return memory.proxy or None


def run(original: _Run, theirs: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Triton's `Autotuner.run` with a memory and a launch table; `original` is Triton's own."""
    # hot path: on a hit, no other Python code runs. Tuners may share their choices, and a kernel may be replaced
    try:
        proxy = theirs.cache.proxy
    except AttributeError:
        proxy = None
    proxy = proxy or launches_for(theirs, original) if proxy is not False else None
    if proxy is None or proxy.theirs is not theirs or proxy.their_fn is not theirs.fn:
        return seeded.run(original, theirs, args, kwargs)
    if proxy.configs is not theirs.configs:
        proxy.configs = theirs.configs
    result = proxy.run(*args, **kwargs)
    theirs.best_config = proxy.best_config
    return result
