"""Launches a compiled kernel without Triton's look-up, and through Triton once its guards fail."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from operator import index, is_
from typing import TYPE_CHECKING, Any

from autotuned import _native
from autotuned._startup import Frozen, later
from autotuned.key.key import PLAIN
from autotuned.launch import bound, codegen
from autotuned.launch.bound import Bound, Run
from autotuned.triton_compat import compiled, kernel
from autotuned.tunable.call import Call

if TYPE_CHECKING:
    from autotuned.launch import driver_call
    from autotuned.triton_compat import launcher
    from autotuned.tunable.tunable import Tunable
else:
    driver_call, launcher = later("launch.driver_call"), later("triton_compat.launcher")


class Filled(Frozen):
    """A kernel's parameters: those with values, all of them in order, and the values of tuned ones."""

    names: Sequence[str]
    order: Sequence[str]
    constants: Mapping[str, Any]


def direct(
    made: Bound, tunable: Tunable, call: Call, binary: Any, asks: bool, known: tuple[Any, ...] | None = None
) -> Bound:
    """Make `made` launch the compiled kernel directly, and through Triton, as before, whenever its guards fail.

    `asks`: whether the look-up runs user code, such as buckets and key callables. `known`: the call's
    `compiled.compiled_for` when the kernel was chosen, if the caller has it. Raises EvictedError or UnbindableError if
    the kernel cannot be launched directly.
    """
    arguments, before, device = call.arguments, made.before, kernel.current_device()
    names, described = tuple(arguments), call.has_descriptors
    constants, is_hooked = _constants(tunable, names, made.config), before is not None or asks
    fallback, memory = made.fallback, memory_test(names, tuple(arguments.values()), known)
    assert fallback is not None

    def plan(launched: Any) -> tuple[Run, tuple[Any, ...] | None, Callable[[], driver_call.Twin] | None]:
        found = compiled.handle_of(tunable.fn, launched, device)
        _native.watch(found.watched)
        parts = before.parts if before else (None, {}, ())
        fields = driver_call.fields(found, names, constants, parts)
        run: list[Run] = []

        def make_twin() -> driver_call.Twin:
            # Not generated code, since it runs once per kind of launch.
            return driver_call.Twin(found, names, lambda *values: {**dict(zip(names, values)), **constants})

        twin = None if fields is None else make_twin

        def first(values: tuple[Any, ...], grid: Any) -> Any:
            # Made at the first call, which is rare with the C launcher. Copies of `made` keep calling this one.
            if not run:
                filled = Filled(names, [parameter.name for parameter in tunable.parameters], constants)
                run.append(direct_launch(found, filled, memory(), is_hooked, made, otherwise))
            if made.direct is fields and made.twin is twin:  # nothing else was planned meanwhile
                made.launch_by(run[0], fields, twin)
            return run[0](values, grid)

        # The twin's words do not include the blocks of descriptors.
        return looked_up(found, made, renew) if described else first, fields, twin

    def renew(launched: Any) -> None:
        if not compiled.is_hooked(tunable.fn):
            # A knob changed or the kernel was evicted: use what Triton has just chosen.
            with contextlib.suppress(compiled.EvictedError, compiled.UnbindableError):
                made.launch_by(*plan(launched))

    def otherwise(values: tuple[Any, ...], grid: Any) -> Any:
        launched = fallback(values, grid)
        renew(launched)
        return launched

    made.launch_by(*plan(binary))
    return made


def looked_up(found: compiled.Handle, made: Bound, renew: Callable[[Any], None]) -> Run:
    """Launch through Triton; call `renew` with the launched kernel once Triton would no longer find `found`."""
    assert made.fallback is not None
    by_triton = bound.launching(made.fallback, made.again)

    def launch(values: tuple[Any, ...], grid: Any) -> Any:
        launched = by_triton(values, grid)
        if not compiled.stands(found):
            renew(launched)
        return launched

    return launch


def _constants(tunable: Tunable, names: Sequence[str], config: Any) -> Mapping[str, Any]:
    """Values of tuned parameters; those missing in this config keep the kernel's default."""
    tuned = {p.name: p.default for p in tunable.parameters if p.name not in names}
    return {name: value for name, value in {**tuned, **config.all_kwargs()}.items() if name in tuned}


def memory_test(
    names: Sequence[str], values: tuple[Any, ...], known: tuple[Any, ...] | None = None
) -> Callable[[], Callable[[tuple[Any, ...]], bool]]:
    """Makes a test whether other values have the same `compiled.compiled_for`, without keeping these alive.

    `known`: that of these values, if the caller has it. The test is generated, since the Python twin runs it on the hot
    path for callable grids.
    """
    of = compiled.compiled_for
    others = [(name, type(one)) for name, one in zip(names, values) if type(one) not in PLAIN]
    every = of(values) if known is None else known
    apart = None if len(every) == len(others) else [of([one]) for one in values if type(one) not in PLAIN]

    def make() -> Callable[[tuple[Any, ...]], bool]:
        each = [(one,) for one in every] if apart is None else apart  # empty for one without memory
        kept = [(name, issubclass(kind, tuple), memory) for (name, kind), memory in zip(others, each)]
        tensors = {name: memory[0] for name, is_tuple, memory in kept if memory and not is_tuple}
        tuples = {name: memory[0] for name, is_tuple, memory in kept if is_tuple}
        return codegen.memory_test(names, tensors, tuples, of)

    return make


def direct_launch(
    found: compiled.Handle,
    filled: Filled,
    memory_holds: Callable[[tuple[Any, ...]], bool],
    is_hooked: bool,
    made: Bound,
    otherwise: Run,
) -> Run:
    """A function of values and grid that launches a loaded kernel without a look-up, and returns it.

    Args:
        found: The kernel.
        memory_holds: Whether the values' memory still matches what the kernel was compiled for.
        is_hooked: Whether user code runs between look-up and launch.
        made: Provides `fallback`, called if user code changed the call, and `again`, called if the grid is empty.
        otherwise: Called if anything else changed (see `docs/launcher.md`), with a callable grid's result.
    """
    names, order, constants = filled.names, filled.order, filled.constants
    fallback, again = made.fallback, made.again
    assert fallback is not None
    in_cache, cache_key, alive, holds = found.cache.get, found.cache_key, found.kernel, found.holds
    pre_run, entering, leaving, enter, leave = found.pre_run, found.entering, found.leaving, found.enter, found.leave
    run, function, packed, stream_of, device = found.run, found.function, found.packed, found.stream_of, found.device
    current_device = kernel.current_device_getter()
    full, meta = codegen.full_values(names, order, constants), codegen.mapping(names, constants)
    submit = codegen.submitter(names, order, constants, *launcher.beneath(run, function, packed, codegen.PLACES))

    def launch(values: tuple[Any, ...], grid: Any) -> Any:
        # hot path
        has_run, given = is_hooked, grid
        if callable(grid):
            arguments, has_run = meta(*values), True
            grid = grid(arguments)
            if not all(map(is_, map(arguments.get, names), values)):  # the callable replaced arguments
                return fallback(values, given)
        sizes = len(grid)
        x, y, z = grid[0], grid[1] if sizes > 1 else 1, grid[2] if sizes > 2 else 1
        if not type(x) is type(y) is type(z) is int:
            x, y, z = grid = index(x), index(y), index(z)
            has_run = True
        if has_run and (not memory_holds(values) or current_device() != device):
            return fallback(values, grid)
        loaded: Any = in_cache(cache_key)
        if loaded is None or loaded is not alive() or pre_run or not holds():
            return otherwise(values, grid)
        if x < 0 or y < 0 or z < 0:  # Triton would silently launch nothing
            raise ValueError(f"grid: expected sizes of 0 or more, got {(x, y, z)[: min(sizes, 3)]}")
        if not (x and y and z) and again is not None:
            return again(values, given)
        stream = stream_of(device)
        if entering or leaving:
            every = full(*values)
            metadata = loaded.launch_metadata(grid, stream, *every)
            run(x, y, z, stream, function, packed, metadata, enter, leave, *every)
        else:
            submit(x, y, z, stream, values)
        return loaded

    return launch
