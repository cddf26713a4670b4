"""An entry of the launch table: config, launch function, and work before each launch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import index
from typing import TYPE_CHECKING, Any

from autotuned._startup import later
from autotuned.launch import codegen
from autotuned.tunable.call import refuse_grid

if TYPE_CHECKING:
    from autotuned.key import memory
    from autotuned.launch import driver_call
    from autotuned.tunable.tunable import Tunable
else:
    driver_call, memory = later("launch.driver_call"), later("key.memory")

Run = Callable[[tuple[Any, ...], Any], Any]


class Bound:
    """An entry of the launch table.

    Attributes:
        config: The config to launch with.
        run: Launches, given argument values and grid, prologue included.
        before: The prologue or None; part of `run`, but called separately by the C launcher.
        direct: The fields with which the C launcher calls the driver (`driver_call.fields`); if None, it calls `run`.
        fallback: Launches through Triton, without the prologue: for the C launcher, if user code changed something
            since the look-up, or if Triton's launcher must convert or refuse a value.
        again: Launches with another config if the grid is empty for this one; None if there is no other.
        twin: Creates the `driver_call.Twin` to compare the C launcher with; or None.
        use: What it was chosen for (`request.Chosen`), so that it can be replaced; or None.
    """

    __slots__ = ("again", "before", "config", "direct", "fallback", "run", "twin", "use")

    use: Any

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
        self.fallback, self.again, self.use = fallback, again, None
        self.launch_by(run, None, None)

    @property
    def device(self) -> int | None:
        """Index of the GPU of direct launches (from `driver_call.fields`); None without them."""
        return self.direct[18] if self.direct is not None else None

    def launch_by(self, run: Run, direct: tuple[Any, ...] | None, twin: Callable[[], driver_call.Twin] | None) -> None:
        """Change how it launches."""
        self.run = run if self.before is None else _both(self.before, run)
        self.direct, self.twin = direct, twin


def _both(before: Prologue, run: Run) -> Run:
    def both(values: tuple[Any, ...], grid: Any) -> Any:
        before(values)
        return run(values, grid)

    return both


class Prologue:
    """Work before each launch: zero accumulators, then call the config's hook.

    Whether an accumulator aliases an input is checked at each launch: the key does not say which tensors share memory.
    """

    def __init__(self, kernel: str, config: Any, names: Sequence[str], zeroed: Sequence[str]) -> None:
        self._kernel = kernel
        self._zeroed = zeroed
        self._full = codegen.mapping(names, config.all_kwargs())
        self._hook = config.pre_hook
        #: For the C launcher: hook, its extra arguments, indexes of zeroed arguments.
        self.parts = (config.pre_hook, config.all_kwargs(), [names.index(name) for name in zeroed if name in names])

    def __call__(self, values: tuple[Any, ...]) -> None:
        """Run it for the arguments of one launch."""
        arguments = self._full(*values)
        if self._zeroed:
            memory.refuse_aliases(arguments, self._zeroed, self._kernel)
            zero_named(arguments, self._zeroed, self._kernel)
        if self._hook is not None:
            self._hook(arguments)


def zero_named(arguments: Mapping[str, Any], names: Iterable[str], kernel: str) -> None:
    """Zero the named arguments except those that are None; CallError if one is missing or contains no tensor.

    Called by `Prologue`; on a hit in C by `zero_directly` in c/submit.h.
    """
    found = [[tensor for _, tensor in memory.tensors_in(name, arguments.get(name))] for name in names]
    if not all(found):
        memory.refuse_without_tensor(arguments, {"reset_to_zero": names}, kernel)
    zero(tensor for tensors in found for tensor in tensors)


def zero(tensors: Iterable[Any]) -> None:
    """Set tensors to zero in place, bypassing autograd."""
    for tensor in tensors:
        if memory.is_torch(tensor):
            _write_zero(tensor)
        else:
            tensor[...] = 0


def _write_zero(tensor: Any) -> None:
    if not tensor.is_inference():
        tensor.data.zero_()  # `data` has no gradient; a `no_grad` context would cost more than the launch
        return
    import torch

    with torch.inference_mode():
        tensor.zero_()


def through_triton(tunable: Tunable, names: Sequence[str], config: Any) -> Run:
    """Launch through Triton with the chosen config: always correct, but as slow as Triton."""
    kernel, constants = tunable.fn, {**config.all_kwargs(), "warmup": False}

    def launch(values: tuple[Any, ...], grid: Any) -> Any:
        arguments = dict(zip(names, values))
        try:
            # Looked up each time, since others may replace `JITFunction.run`.
            return kernel.run(grid=grid, **arguments, **constants)
        except Exception as error:
            refuse_grid(grid, {**arguments, **constants}, tunable.name, error)
            raise

    return launch


def launching(run: Run, again: Run | None) -> Run:
    """The same launch, but if its grid is empty, `again` launches another config."""
    if again is None:
        return run

    def launch(values: tuple[Any, ...], grid: Any) -> Any:
        if not callable(grid):
            launched = run(values, grid)
            return again(values, grid) if min(map(index, grid)) <= 0 else launched
        least = [1]

        def noted(meta: Any) -> Any:  # called within the launch: only there are the interpreter's tensors numbers
            sizes = grid(meta)
            least[0] = _least(sizes)
            return sizes

        launched = run(values, noted)
        return again(values, grid) if least[0] <= 0 else launched

    return launch


def _least(sizes: Any) -> int:
    try:
        return min(map(index, sizes))
    except TypeError:
        return 1  # not a grid: the launch raises


def host_call(tunable: Tunable, names: Sequence[str], config: Any) -> Run:
    """Call a plain callable with the config's values as keywords."""
    nameless = [parameter.name for parameter in tunable.parameters if not parameter.has_name]
    return codegen.by_name(tunable.fn, names, nameless, dict(config.kwargs))
