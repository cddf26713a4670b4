"""Triton's own launcher of a compiled kernel, and the function in C that it passes a launch on to."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from autotuned.triton_compat import compiled, kernel

# What Triton's launcher of a compiled kernel has; one that has more may do more than is known here.
_LAUNCHER_HAS = frozenset((
    "arg_annotations", "global_scratch_align", "global_scratch_size", "gsan_enabled", "kernel_signature", "launch",
    "launch_cooperative_grid", "launch_pdl", "num_ctas", "profile_scratch_align", "profile_scratch_size",
))  # fmt: skip


def beneath(run: Any, function: int, packed: Any, places: Sequence[str]) -> tuple[Callable[..., Any], list[Any], bool]:
    """What a launch without hooks calls, what that is given before the values, and whether these follow one by one.

    Triton's launcher of a compiled kernel is 0.8 us of Python in front of a function in C (3.6 to 3.9, Python 3.11).
    Where it does no more than pass things on, how it calls that function is looked at once, and done without it.

    Args:
        places: Names of what changes from launch to launch besides the values, in the launcher's order.
    """
    itself = run, [*places, (function,), (packed,), (None,), (None,), (None,)], True
    kind = type(run)
    if kind.__name__ != "CudaLauncher" or not kernel.is_tritons(kind.__call__):
        return itself
    if not vars(run).keys() <= _LAUNCHER_HAS:
        return itself
    if any(getattr(run, name, 0) for name in compiled.ALLOCATES):
        return itself
    seen: list[tuple[Any, ...]] = []
    probe = copy.copy(run)
    probe.launch = lambda *given: seen.append(given)
    marks, values = {place: object() for place in places}, (object(), object())
    try:
        probe(*marks.values(), function, packed, None, None, None, *values)
        (given,) = seen
    except Exception:  # a Triton that does more with them than pass them on
        return itself
    one_by_one = given[-2:] == values
    if not one_by_one and given[-1:] != (values,):
        return itself
    marked = {id(mark): place for place, mark in marks.items()}
    return run.launch, [marked.get(id(one), (one,)) for one in given[: -2 if one_by_one else -1]], one_by_one
