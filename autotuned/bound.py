"""A choice made ready to launch: compiled kernel, config, and a plan for the arguments."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from autotuned import codegen, state, toolchain
from autotuned.target import Target

log = logging.getLogger("autotuned")
Run = Callable[[tuple[Any, ...], Any], Any]


class Bound:
    """What the launch table holds: the config, and a function of argument values and grid that launches."""

    __slots__ = ("config", "run")

    def __init__(self, config: Any, run: Run) -> None:
        self.config = config
        self.run = run


def prologue(
    target: Target, config: Any, names: Sequence[str], zeroed: Sequence[str]
) -> Callable[[tuple[Any, ...]], None] | None:
    """What must happen before every launch: accumulators zeroed, then the config's hook; None if nothing.

    Whether an accumulator aliases an input is asked at every launch: which tensors share memory is in no key.
    """
    if not zeroed and config.pre_hook is None:
        return None
    full = codegen.mapping(names, config.all_kwargs())
    hook = config.pre_hook

    def before(values: tuple[Any, ...]) -> None:
        arguments = full(*values)
        if zeroed:
            state.refuse_aliases(arguments, zeroed, target.name)
            state.zero_named(arguments, zeroed)
        if hook is not None:
            hook(arguments)

    return before


def through_triton(target: Target, names: Sequence[str], config: Any) -> Run:
    """Launch by Triton's own look-up with the chosen config: always right, and as slow as Triton."""
    kernel = target.fn

    def launch(**arguments: Any) -> Any:
        return kernel.run(**arguments)  # looked up at each launch: others replace `JITFunction.run` at any time

    call = codegen.by_name(launch, names, (), {**config.all_kwargs(), "warmup": False})
    return lambda values, grid: call(values, grid=grid)


def host_call(target: Target, names: Sequence[str], config: Any) -> Run:
    """Call a plain callable with the config's values as keywords."""
    nameless = [parameter.name for parameter in target.parameters if not parameter.has_name]
    call = codegen.by_name(target.fn, names, nameless, dict(config.kwargs))
    return lambda values, grid: call(values)


def direct(target: Target, names: Sequence[str], config: Any, compiled: Any, device: int) -> Run:
    """Launch the compiled kernel itself, and through Triton whenever its guards say that something changed.

    Raises:
        UnbindableError: This kernel cannot be launched this way.
    """
    order = [parameter.name for parameter in target.parameters]
    constants = _constants(target, names, config)
    launch = toolchain.direct_launch(target.fn, compiled, device)
    del compiled  # not kept alive here
    full = codegen.full_values(names, order, constants)
    meta = codegen.mapping(names, constants)
    fallback = through_triton(target, names, config)

    def run(values: tuple[Any, ...], grid: Any) -> Any:
        nonlocal launch
        if callable(grid):
            grid = grid(meta(*values))
        launched = launch(grid, full(*values))
        if launched is not None:
            return launched
        launched = fallback(values, grid)
        if not toolchain.is_hooked(target.fn):  # a knob or an evicted kernel: from now on what Triton has just chosen
            with contextlib.suppress(toolchain.UnbindableError):
                launch = toolchain.direct_launch(target.fn, launched, device)
        return launched

    return run


def _constants(target: Target, names: Sequence[str], config: Any) -> Mapping[str, Any]:
    """Values of the parameters that are tuned; one that this config leaves out keeps the kernel's default."""
    values = config.all_kwargs()
    return {
        parameter.name: values.get(parameter.name, parameter.default)
        for parameter in target.parameters
        if parameter.name not in names
    }


def with_prologue(run: Run, before: Callable[..., None] | None) -> Run:
    """The same launch with its prologue in front."""
    if before is None:
        return run

    def both(values: tuple[Any, ...], grid: Any) -> Any:
        before(values)
        return run(values, grid)

    return both
