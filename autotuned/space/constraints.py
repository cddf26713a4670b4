"""Constraints of a space: callables that take its parameters and the call's arguments by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from autotuned._startup import Frozen
from autotuned.errors import SpaceError, described


def refusal(where: str, text: str) -> SpaceError:
    """The error for a declared space; `where`: the part at fault, or ""."""
    return SpaceError(f"Space: {where}{': ' if where else ''}{text}", constraint=where)


class Constraint(Frozen):
    """A constraint as given."""

    function: Callable[..., Any]  # returns whether a config is a member
    label: str  # its name in messages: position in `where=` and parameters
    needs: tuple[str, ...]  # required names
    takes: tuple[str, ...]  # optional names
    rest: bool  # whether it takes all other names as keywords

    def bound(self, parameters: Sequence[str], arguments: Mapping[str, Any]) -> BoundConstraint:
        """The constraint for one call.

        Raises:
            SpaceError: It requires an unknown name.
        """
        known = {*parameters, *arguments}
        if unknown := [name for name in self.needs if name not in known]:
            raise SpaceError(
                f"{self.label}: expected parameters of the space or arguments of the call, got {unknown[0]!r}, which "
                f"is neither. Parameters are: {', '.join(parameters)}. Arguments are: "
                f"{', '.join(arguments) or 'none'}.",
                constraint=self.label,
            )
        named = [name for name in (*self.needs, *self.takes) if name in known]
        names = [*named, *(name for name in (*parameters, *arguments) if self.rest and name not in named)]
        fixed = {name: arguments[name] for name in names if name not in parameters}
        return BoundConstraint(self.function, self.label, tuple(n for n in parameters if n in names), fixed)


class BoundConstraint(Frozen):
    """A constraint for one call: it reads the parameters `names` and the call's arguments `fixed`."""

    function: Callable[..., Any]
    label: str
    names: tuple[str, ...]
    fixed: Mapping[str, Any]

    def holds(self, values: Sequence[Any]) -> bool:
        """Whether these values of `names` are allowed.

        Raises:
            SpaceError: The constraint raises.
        """
        given = dict(zip(self.names, values))
        try:
            return bool(self.function(**given, **self.fixed))
        except Exception as error:
            shown = ", ".join(f"{name}={value!r:.40}" for name, value in given.items())
            raise SpaceError(
                f"{self.label}: expected true or false, got {described(error)} for {shown}. Make it "
                "answer for every combination of values.",
                constraint=self.label,
            ) from error


def checked(where: Any, parameters: Iterable[str]) -> tuple[Constraint, ...]:
    """`where=` as constraints.

    Raises:
        SpaceError: One is not callable, or reads no parameter of the space.
    """
    given = (where,) if callable(where) else where
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise refusal("where", f"expected callables of parameter names, got {given!r:.60}.")
    return tuple(_checked(function, f"where[{place}]", list(parameters)) for place, function in enumerate(given))


def _checked(function: Any, place: str, parameters: list[str]) -> Constraint:
    if not callable(function):
        hint = f"Write lambda {parameters[0] if parameters else 'x'}: ..."
        raise refusal(place, f"expected a callable of parameter names, got {function!r:.60}. {hint}")
    kinds = inspect.Parameter
    found = [p for p in _signature(function, place) if p.kind is not kinds.VAR_POSITIONAL]
    if unnamed := [p.name for p in found if p.kind is kinds.POSITIONAL_ONLY]:
        raise refusal(
            place, f"expected parameters that can be given by name, got {unnamed[0]!r} before a '/'. Remove the '/'."
        )
    rest = any(p.kind is kinds.VAR_KEYWORD for p in found)
    named = [p for p in found if p.kind is not kinds.VAR_KEYWORD]
    label = f"{place} ({getattr(function, '__name__', 'callable').strip('<>')} of {', '.join(p.name for p in named)})"
    if not rest and not {p.name for p in named} & set(parameters):
        text = "expected a callable that names a parameter of the space, got one that names none. Parameters are"
        raise refusal(label, f"{text}: {', '.join(parameters)}.")
    needs = tuple(p.name for p in named if p.default is kinds.empty)
    return Constraint(function, label, needs, tuple(p.name for p in named if p.name not in needs), rest)


def _signature(function: Callable[..., Any], place: str) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        text = f"expected a callable with a signature, got {function!r:.60}. Wrap it in a lambda of parameter names."
        raise refusal(place, text) from None
