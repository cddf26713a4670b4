"""A choice made ready to launch: compiled kernel, config, and a plan for the arguments."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from autotuned._lazy import later
from autotuned.launch import codegen, launcher
from autotuned.recording import grids
from autotuned.triton_compat import compiled as compiledkernel
from autotuned.tunable.kernel import Tunable, is_empty_grid

if TYPE_CHECKING:
    from autotuned.key import tensors
    from autotuned.launch import driver_call
    from autotuned.search import snapshots
else:
    driver_call, tensors, snapshots = later("launch.driver_call"), later("key.tensors"), later("search.snapshots")

Run = Callable[[tuple[Any, ...], Any], Any]


class Bound:
    """What the launch table holds.

    Attributes:
        config: The config to launch with.
        run: Launches, given argument values and grid, prologue included.
        before: The prologue alone, or None; the C launcher calls it by itself.
        direct: What the C launcher needs to call the driver (`driver.fields`), or None: then it calls `run`.
        fallback: Launches by Triton's own look-up, without the prologue: for the C launcher, when the user's code that
            ran since the look-up has changed something, or Triton's own launcher must convert or refuse a value.
        again: Finds another config for a call whose grid launches nothing for this one; None where there is no other.
        twin: What `run` passes to the driver, to be compared with what the C launcher would (`driver.Twin`), or None.
    """

    __slots__ = ("again", "before", "config", "direct", "fallback", "run", "twin")

    def __init__(
        self,
        config: Any,
        run: Run,
        before: Prologue | None = None,
        fallback: Run | None = None,
        again: Run | None = None,
    ) -> None:
        self.config = config
        self.before = before
        self.fallback, self.again = fallback, again
        self.launch_by(run, None, None)

    def launch_by(self, run: Run, direct: tuple[Any, ...] | None, twin: driver_call.Twin | None) -> None:
        """Launch so from now on."""
        self.run = run if self.before is None else _both(self.before, run)
        self.direct, self.twin = direct, twin


def _both(before: Prologue, run: Run) -> Run:
    def both(values: tuple[Any, ...], grid: Any) -> Any:
        before(values)
        return run(values, grid)

    return both


class Prologue:
    """What must happen before every launch: accumulators zeroed, then the config's hook.

    Whether an accumulator aliases an input is asked at every launch: which tensors share memory is in no key.
    """

    def __init__(self, kernel: str, config: Any, names: Sequence[str], zeroed: Sequence[str]) -> None:
        self._kernel = kernel
        self._zeroed = zeroed
        self._full = codegen.mapping(names, config.all_kwargs())
        self._hook = config.pre_hook
        #: The same for the C launcher: hook, what it is given besides the arguments, indexes of what is zeroed.
        self.parts = (config.pre_hook, config.all_kwargs(), [names.index(name) for name in zeroed if name in names])

    def __call__(self, values: tuple[Any, ...]) -> None:
        """Do it for the arguments of one launch."""
        arguments = self._full(*values)
        if self._zeroed:
            tensors.refuse_aliases(arguments, self._zeroed, self._kernel)
            snapshots.zero_named(arguments, self._zeroed, self._kernel)
        if self._hook is not None:
            self._hook(arguments)


def through_triton(tunable: Tunable, names: Sequence[str], config: Any) -> Run:
    """Launch by Triton's own look-up with the chosen config: always right, and as slow as Triton."""
    kernel = tunable.fn

    def launch(**arguments: Any) -> Any:
        try:
            return kernel.run(**arguments)  # looked up at each launch: others replace `JITFunction.run` at any time
        except Exception as error:
            grids.refuse(arguments.pop("grid"), arguments, tunable.name, error)
            raise

    return codegen.by_name(launch, names, (), {**config.all_kwargs(), "warmup": False}, takes_grid=True)


def launching(run: Run, again: Run | None) -> Run:
    """The same launch, of which another config takes the place where its grid launches nothing."""
    if again is None:
        return run

    def launch(values: tuple[Any, ...], grid: Any) -> Any:
        seen: list[Any] = []

        def noted(meta: Any) -> Any:
            seen[:] = [grid(meta)]
            return seen[0]

        launched = run(values, noted if callable(grid) else grid)
        sizes = seen[0] if seen else grid
        return again(values, grid) if is_empty_grid(lambda: sizes) else launched

    return launch


def host_call(tunable: Tunable, names: Sequence[str], config: Any) -> Run:
    """Call a plain callable with the config's values as keywords."""
    nameless = [parameter.name for parameter in tunable.parameters if not parameter.has_name]
    return codegen.by_name(tunable.fn, names, nameless, dict(config.kwargs))


def direct(
    tunable: Tunable,
    names: Sequence[str],
    values: tuple[Any, ...],
    config: Any,
    before: Prologue | None,
    compiled: Any,
    device: int,
    asks: bool,
    again: Run | None,
) -> Bound:
    """Launch the compiled kernel itself, and through Triton whenever its guards say that something changed.

    Args:
        asks: Whether code of the user's runs within the look-up: buckets, key callables.
        again: Finds another config for a call whose grid launches nothing for this one, if there is one.

    Raises:
        EvictedError: Triton's cache no longer holds it.
        UnbindableError: This kernel cannot be launched this way.
    """
    order = [parameter.name for parameter in tunable.parameters]
    constants, is_hooked = _constants(tunable, names, config), before is not None or asks
    fallback, memory = through_triton(tunable, names, config), compiledkernel.memory_test(names, values)

    def plan(kernel: Any) -> tuple[Run, tuple[Any, ...] | None, driver_call.Twin | None]:
        found = compiledkernel.handle(tunable.fn, kernel, device)
        launcher.watch(found.watched)
        parts = before.parts if before else (None, {}, ())
        straight = compiledkernel.direct_launch(
            found, names, order, constants, memory, is_hooked, otherwise, fallback, again
        )
        fields = driver_call.fields(found, names, constants, parts)
        if fields is None:
            return straight, None, None
        return straight, fields, driver_call.Twin(found, names, codegen.mapping(names, constants))

    def otherwise(values: tuple[Any, ...], grid: Any) -> Any:
        launched = fallback(values, grid)
        if not compiledkernel.is_hooked(tunable.fn):
            # A knob or an evicted kernel: from now on what Triton has just chosen.
            with contextlib.suppress(compiledkernel.EvictedError, compiledkernel.UnbindableError):
                made.launch_by(*plan(launched))
        return launched

    made = Bound(config, fallback, before, fallback, again)
    made.launch_by(*plan(compiled))
    return made


def _constants(tunable: Tunable, names: Sequence[str], config: Any) -> Mapping[str, Any]:
    """Values of the parameters that are tuned; one that this config leaves out keeps the kernel's default."""
    values = config.all_kwargs()
    return {
        parameter.name: values.get(parameter.name, parameter.default)
        for parameter in tunable.parameters
        if parameter.name not in names
    }
