"""A declared space of configs: parameters with their values, constraints, and configs to try first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from autotuned.errors import SpaceError
from autotuned.space import constraints
from autotuned.space.constraints import refusal
from autotuned.space.members import Members, indices, key_of
from autotuned.space.parts import Point
from autotuned.tunable.configs import OPTIONS, is_config

MOST_VALUES = 10_000  # per parameter


class Space:
    """All combinations of parameter values that constraints allow; given as `configs=`.

    `num_warps`, `num_stages`, `num_ctas` and `maxnreg` are launch options, all other names parameters of the kernel.
    Members are listed only when a call needs them.

    Args:
        parameters: Values by name: lists, ranges, `autotuned.pow2s(16, 256)`. Adjacent values are neighbours.
        where: Callables that take parameters by name and return whether a config is a member; they may also take
            arguments of the call.
        first: Configs to try first, in order, or dicts of values; skipped for calls that do not allow them.

    Raises:
        SpaceError: A parameter has no values or duplicate ones, a constraint names no parameter, or a config of `first`
            is not one of the space.
    """

    def __init__(self, parameters: Mapping[str, Iterable[Any]], *, where: Any = (), first: Iterable[Any] = ()) -> None:
        self.parameters = _checked(parameters)
        self.where = constraints.checked(where, self.parameters)
        if isinstance(first, (str, Mapping)) or not isinstance(first, Iterable):
            raise refusal("first", f"expected a list of configs, got {type(first).__name__}. Write first=[...].")
        self.first = tuple(_first(one, self.parameters) for one in first)

    def members(self, arguments: Mapping[str, Any] | None = None, options: bool = True) -> Members:
        """The members for a call.

        Args:
            arguments: The call's arguments by name, if constraints name them.
            options: Whether `num_warps` and the like are launch options; False for a plain callable.

        Raises:
            SpaceError: A constraint names something unknown, leaves nothing or raises.
        """
        return Members(self.parameters, self.where, arguments or {}, self.first, options)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}: {len(values)}" for name, values in self.parameters.items())
        return f"Space({sizes}; constraints: {len(self.where)})"


def pow2s(low: int, high: int) -> list[int]:
    """Powers of two from `low` to `high`, inclusive.

    Raises:
        SpaceError: There is none.
    """
    for bound in (low, high):
        if type(bound) is not int or bound < 1:
            raise SpaceError(f"pow2s: expected two whole numbers of 1 or more, got {bound!r:.40}.", constraint="pow2s")
    found = [1 << power for power in range((low - 1).bit_length(), high.bit_length())]
    if not found:
        raise SpaceError(
            f"pow2s: expected a range with a power of two in it, got {low} to {high}. Widen it.", constraint="pow2s"
        )
    return found


def _checked(parameters: Any) -> dict[str, Sequence[Any]]:
    if not isinstance(parameters, Mapping) or not parameters:
        raise refusal("", f"expected a dict of values by parameter name, got {parameters!r:.60}.")
    return {name: _values(name, given) for name, given in parameters.items()}


def _values(name: Any, given: Any) -> tuple[Any, ...]:
    if not isinstance(name, str) or not name.isidentifier():
        raise refusal("", f"expected names of parameters, got {name!r:.60}.")
    if isinstance(given, (str, Mapping)) or not isinstance(given, Iterable):
        text = f"expected a list or range of values, got {given!r:.60}. Write [{given!r:.60}] for one value."
        raise refusal(name, text)
    values = tuple(given)
    if not 0 < len(values) <= MOST_VALUES:
        raise refusal(name, f"expected 1 to {MOST_VALUES:,} values, got {len(values):,}.")
    keys = [key_of(value) for value in values]
    if len(set(keys)) < len(keys):
        twice = next(value for place, value in enumerate(values) if keys[place] in keys[:place])
        raise refusal(name, f"expected each value once, got {twice!r:.60} twice. Remove one.")
    return values


def _values_of(config: Any, parameters: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Values that a config sets, without launch options outside the space that are at their default."""
    usual = {**OPTIONS, "pre_hook": None}
    options = {name: getattr(config, name, default) for name, default in usual.items()}
    kept = {name: value for name, value in options.items() if name in parameters or value != usual[name]}
    return {**kept, **config.kwargs}


def _first(given: Any, parameters: Mapping[str, Sequence[Any]]) -> Point:
    """An item of `first=` as a point."""
    values = _values_of(given, parameters) if is_config(given) else given
    if not isinstance(values, Mapping) or not parameters.keys() <= values.keys():
        names = ", ".join(parameters)
        raise refusal("first", f"expected a Config or a dict with a value for each of {names}, got {given!r:.80}.")
    if unknown := [name for name in values if name not in parameters]:
        raise refusal(
            "first",
            f"expected the space's parameters alone ({', '.join(parameters)}), got {unknown[0]!s:.40} too. Add it to "
            "the parameters, or leave it out here.",
        )
    known = {name: indices(allowed) for name, allowed in parameters.items()}
    for name, places in known.items():
        if key_of(values[name]) not in places:
            raise refusal(
                "first",
                f"expected {name} among its values {list(parameters[name])!r:.80}, got {values[name]!r:.40}. Add it to "
                "them.",
            )
    return tuple(places[key_of(values[name])] for name, places in known.items())
