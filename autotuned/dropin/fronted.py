"""A launch table in front of the `run` of other tuners: of Triton's, and of a library's subclass of Triton's class."""

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


class Beside(Replaced):
    """What launches for another tuner once that has chosen: it has the other's lists and its `.cache`, no others.

    Whatever the table does not answer is the other's own `run`, behind whatever its class does before.
    """

    def __init__(self, theirs: Any, run: _Run, memory: seeded.Memory) -> None:
        tunable = TunableKernel.of(theirs.fn)
        known = [parameter.name for parameter in tunable.parameters]
        keys = [name for name in theirs.keys if name in known]
        super().__init__(tunable, Decoration(Names(keys, [], []), theirs.configs, None, Hooks(), None), False)
        self.configs, self.keys, self._seen_keys = theirs.configs, theirs.keys, list(theirs.keys)
        self._seen = (self.configs, len(self.configs))
        self.early_config_prune, self.perf_model = theirs.early_config_prune, theirs.perf_model
        self._theirs, self._run = theirs, run
        self.cache = memory

    def tritons_run(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], grid: Any) -> Any:
        """The other's own look-up, search and launch."""
        return self._pass_on(args, {**kwargs, "grid": grid, "warmup": False})

    def _compile_only(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], grid: Any, warmup: bool) -> Any:
        given = {} if grid is ... else {"grid": grid}
        return self._pass_on(args, {**kwargs, **given, "warmup": warmup})

    def _pass_on(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = seeded.run(self._run, self._theirs, args, kwargs)
        self.best_config = self._theirs.best_config
        return result

    def _configs_changed(self) -> None:
        Tuned._configs_changed(self)  # what is in the other's cache stays there

    @staticmethod
    def _still_ours() -> bool:
        return True  # who replaced `Autotuner.run` has called this, or it is not called

    def changed(self) -> None:
        """A choice in the other's cache was replaced or removed."""
        self._forget_bound()
        self.in_vain()

    def _leave(self) -> None:
        self.cache.beside = False


def launches_for(theirs: Any, run: _Run) -> Beside | None:
    """What launches for one of Triton's tuners, made at its first launch; None where only its own `run` can.

    Args:
        theirs: The tuner.
        run: Triton's own `run`.
    """
    if isinstance(theirs, Tuned) or type(theirs.cache) not in (dict, seeded.Memory):
        return None
    memory = seeded.adopt(theirs)
    if memory.beside is None:
        try:
            memory.beside = Beside(theirs, run, memory)
            memory.on_change = memory.beside.changed
        except Exception as error:  # somebody's own kernel class: their launch must not fail for our sake
            log.info("%r is launched by Triton: %s", theirs.fn, failures.describe(error))
            memory.beside = False
    return memory.beside or None


def run(original: _Run, theirs: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Triton's `Autotuner.run` with a memory and a launch table; `original` is Triton's own."""
    # On the path of every launch: on a hit no other Python is called than this.
    try:
        beside = theirs.cache.beside
    except AttributeError:
        beside = None
    beside = beside or launches_for(theirs, original) if beside is not False else None
    if beside is None:
        return seeded.run(original, theirs, args, kwargs)
    if beside.configs is not theirs.configs:
        beside.configs = theirs.configs
    result = beside.run(*args, **kwargs)
    theirs.best_config = beside.best_config
    return result
