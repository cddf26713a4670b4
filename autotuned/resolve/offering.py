"""Which configs a call may use beyond a plain list: a space's, computed ones, those a pruner keeps, `default=`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from autotuned._startup import errors, later
from autotuned.resolve.request import Options, State
from autotuned.store.choice import Candidates, Live
from autotuned.tunable import configs as candidates
from autotuned.tunable.call import Call, refuse_conflicts
from autotuned.tunable.configs import Pruner

if TYPE_CHECKING:
    from autotuned.resolve import fallback
    from autotuned.space import declared
    from autotuned.tunable import readers
    from autotuned.tunable.tunable import Tunable
else:
    fallback = later("resolve.fallback")
    declared, readers = later("space.declared"), later("tunable.readers")


class Offering:
    """Offers the candidates for calls of one tuned function whose decorator names more than a list.

    Args:
        on_configs: Called with a computed list of configs before it is used.
        seen: Receives the arguments whose exact values decide which configs a call may use.
    """

    def __init__(self, tunable: Tunable, state: State, on_configs: Callable[[list[Any]], None], seen: set[str]) -> None:
        self.tunable, self.state, self._on_configs, self.seen = tunable, state, on_configs, seen

    @property
    def options(self) -> Options:
        """The decorator's options at present."""
        return self.state.options

    def of_space(self, call: Call) -> Live | None:
        """The candidates of a declared space; None if it is small enough to be a list."""
        declaration, pruner = self.options.declared, self.options.pruner()
        assert declaration is not None
        self.seen |= declaration.reads(call.arguments)
        members = declaration.members(call.arguments)
        if declaration.is_listed(members, pruner.perf_model is not None):
            return None
        prune = partial(self._pruned, call, pruner=Pruner(pruner.early))
        live = declared.candidates(self.tunable, call, members, self.state.identity, prune)
        live.untuned = next(iter(live), None)
        return self.with_default(call, live)

    def left(self, call: Call) -> Live:
        """The configs of a computed list, and those that a pruner leaves."""
        pruner = self.options.pruner()
        left = self._pruned(call, self._listed(call), pruner)
        if pruner.early is not None:
            self._on_configs(left)
        for config in left:  # computed configs, and a pruner's own, were unknown when the call was bound
            refuse_conflicts(self.tunable, call.args, call.kwargs, self.tunable.settings(config))
        return Live((self.state.identity(one), one) for one in left)

    def with_default(self, call: Call, live: Live) -> Live:
        """Add the untuned config to the candidates, so that nothing is chosen that loses to it."""
        if self.options.default is not None and len(live) > 1:
            live = live.only(live) if live.is_listed else live  # calls share those of a list
            found = fallback.candidate(
                self.tunable, live, lambda: self.default_for(call, live),
                lambda one: one is self.options.default or self.allows(call, one, live),
            )  # fmt: skip
            if found is not None:
                refuse_conflicts(self.tunable, call.args, call.kwargs, self.tunable.settings(found))
                live.join_untuned(self.state.identity(found), found)
        return live

    def _pruned(self, call: Call, configs: list[Any], pruner: Pruner) -> list[Any]:
        named = dict(zip((parameter.name for parameter in self.tunable.parameters), call.args))
        return candidates.prune(configs, pruner, named, call.kwargs, self.tunable.name, self.seen)

    def _listed(self, call: Call) -> list[Any]:
        return self.options.configs() if self.options.computed is None else self._computed(call, self.options.computed)

    def allows(self, call: Call, config: Any, live: Candidates) -> bool:
        """Whether a call may use a config from outside the list: a pin, or `default=`.

        Asks the pruner about the list with this config in it, and a callable list whether it has it. A `perf_model`
        does not count: the configs it drops are slow, not wrong.
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
        except errors.PruningError:  # raised again when the candidates are asked for
            return False
        return identity in map(self.state.identity, left)

    def _computed(self, call: Call, computed: Callable[..., Any]) -> list[Any]:
        if computed is not self.options.declared:
            self.seen |= readers.read_by(computed, call.arguments)
        configs = candidates.listed(computed(**call.arguments), self.tunable.name)
        if not configs:
            raise errors.ConfigError(
                f"`{self.tunable.name}`: configs: the callable returned none for this call; return at least one.",
                kernel=self.tunable.name,
            )
        self._on_configs(configs)
        return configs

    def default_for(self, call: Call, live: Candidates) -> Any:
        """The result of `default=` for a call; None without one, or if the call may not use it."""
        found = self.options.default
        if candidates.is_config(found):
            return found if self.allows(call, found, live) else None
        if not callable(found):
            return found
        self.seen |= readers.read_by(found, call.arguments)
        return found(**call.arguments)
