"""Functions generated for one signature, so that the hot path has no loop over arguments.

The generated source contains only parameter names, which Python has already accepted as identifiers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from types import CodeType
from typing import Any


@lru_cache(maxsize=512)
def _compiled(source: str) -> CodeType:
    return compile(source, "<written>", "exec")


def _define(source: str, scope: Mapping[str, Any]) -> Callable[..., Any]:
    space = dict(scope)
    exec(_compiled(source), space)  # noqa: S102 - names only, see the module's docstring
    function: Callable[..., Any] = space["written"]
    return function


def private_prefix(names: Iterable[str]) -> str:
    """A prefix longer than every parameter's name, so that our variables cannot shadow one."""
    return "_" * (1 + max(map(len, names), default=0))


def binder(
    names: Sequence[str], defaults: Mapping[str, Any], by_place: int | None = None, nameless: int = 0
) -> Callable[..., tuple[Any, ...]]:
    """`f(*args, **kwargs)` returning the values of `names` in order, with defaults; TypeError for anything else.

    A parameter after one with a default gets a placeholder default, as Python's grammar requires.

    Args:
        by_place: How many of `names` may be positional; None for all.
        nameless: How many are positional-only.
    """
    seen_default = False
    parameters = []
    for place, name in enumerate(names):
        seen_default = place != by_place and seen_default or name in defaults
        parameters.append(f"{name}=defaults[{name!r}]" if seen_default else name)
    if by_place is not None and by_place < len(names):
        parameters.insert(by_place, "*")
    if nameless:
        parameters.insert(nameless, "/")
    filled = {name: defaults.get(name, MISSING) for name in names}
    body = f"def written({', '.join(parameters)}):\n    return ({''.join([f'{name}, ' for name in names])})"
    return _define(body, {"defaults": filled})


class MissingArgument:
    """Stands for a missing argument without a default."""


MISSING = MissingArgument()


def full_values(names: Sequence[str], order: Sequence[str], constants: Mapping[str, Any]) -> Callable[..., Any]:
    """`f(*values of names)` returning all parameters' values in `order`, including a config's `constants`."""
    ours = private_prefix(names)
    folded = {f"{ours}{i}": constants[name] for i, name in enumerate(order) if name not in names}
    parts = [name if name in names else f"{ours}{i}" for i, name in enumerate(order)]
    return _define(f"def written({', '.join(names)}):\n    return ({''.join(f'{part}, ' for part in parts)})", folded)


PLACES = ("x", "y", "z", "stream")  # what each launch passes besides the values


def submitter(
    names: Sequence[str],
    order: Sequence[str],
    constants: Mapping[str, Any],
    function: Callable[..., Any],
    leading: Iterable[Any],
    one_by_one: bool,
) -> Callable[..., None]:
    """`f(x, y, z, stream, values)` calling `function` with `leading`, then all parameters' values in `order`.

    Args:
        leading: One of `PLACES` each, or a constant in a 1-tuple.
        one_by_one: Whether values are passed separately; else as one tuple.
    """
    ours = private_prefix([*names, *PLACES])
    scope = {f"{ours}function": function}
    passed = []
    for i, one in enumerate(leading):
        passed.append(f"{ours}{one}" if one in PLACES else f"{ours}given_{i}")
        scope.update({f"{ours}given_{i}": one[0]} if one not in PLACES else {})
    scope.update((f"{ours}{i}", constants[name]) for i, name in enumerate(order) if name not in names)
    every = "".join(f"{name if name in names else f'{ours}{i}'}, " for i, name in enumerate(order))
    passed.append(every if one_by_one else f"({every})")
    places = ", ".join(f"{ours}{place}" for place in PLACES)
    unpacked = f"    {''.join([f'{name}, ' for name in names])}= {ours}values\n" if names else ""
    return _define(f"def written({places}, {ours}values):\n{unpacked}    {ours}function({', '.join(passed)})\n", scope)


def mapping(names: Sequence[str], constants: Mapping[str, Any]) -> Callable[..., dict[str, Any]]:
    """`f(*values of names)` returning them by name in a dict, with `constants`."""
    ours = private_prefix(names)
    items = "".join([f"{name!r}: {name}, " for name in names])
    return _define(f"def written({', '.join(names)}):\n    return {{{items}**{ours}}}", {ours: constants})


def memory_test(
    names: Sequence[str],
    tensors: Mapping[str, tuple[Any, bool, int]],
    tuples: Mapping[str, Any],
    of_items: Callable[[Any], Any],
) -> Callable[[tuple[Any, ...]], bool]:
    """`f(values of names)` telling whether memory properties are unchanged, in one expression; 0.2 us per tensor.

    `tensors` have dtype, alignment and GPU index, `tuples` results of `of_items`.
    """
    ours = private_prefix(names)
    scope: dict[str, Any] = {f"{ours}of_items": of_items}
    tests = []
    for i, (name, (dtype, is_aligned, gpu)) in enumerate(tensors.items()):
        scope[f"{ours}dtype_{i}"] = dtype
        tests.append(f"{'not ' if is_aligned else ''}{name}.data_ptr() & 15")
        tests.append(f"{name}.dtype is {ours}dtype_{i} and {name}.get_device() == {gpu}")
    for i, (name, then) in enumerate(tuples.items()):
        scope[f"{ours}items_{i}"] = then
        tests.append(f"{ours}of_items({name}) == {ours}items_{i}")
    unpacked = f"    {''.join([f'{name}, ' for name in names])}= {ours}values\n" if names else ""
    return _define(f"def written({ours}values):\n{unpacked}    return {' and '.join(tests) or True}", scope)


def by_name(
    function: Callable[..., Any],
    names: Sequence[str],
    positional: Sequence[str],
    constants: Mapping[str, Any],
) -> Callable[[tuple[Any, ...], Any], Any]:
    """`f(values, grid)` calling `function` with values by name (`positional` ones by place) and `constants`."""
    ours = private_prefix([*names, *constants])
    passed = [name if name in positional else f"{name}={name}" for name in names]
    passed += [f"{name}={ours}{i}" for i, name in enumerate(constants)]  # `**` would cost 0.2 us
    unpacked = f"    {''.join([f'{name}, ' for name in names])}= {ours}values\n" if names else ""
    return _define(
        f"def written({ours}values, {ours}grid):\n{unpacked}    return {ours}function({', '.join(passed)})",
        {f"{ours}function": function, **{f"{ours}{i}": value for i, value in enumerate(constants.values())}},
    )
