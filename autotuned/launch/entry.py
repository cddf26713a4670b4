"""What the launch table holds for a call: the config, how to launch it, and what must happen before each launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from autotuned._startup import later
from autotuned.launch import codegen

if TYPE_CHECKING:
    from autotuned.key import memory
    from autotuned.launch import driver_call, zeroing
else:
    driver_call, memory, zeroing = later("launch.driver_call"), later("key.memory"), later("launch.zeroing")

Run = Callable[[tuple[Any, ...], Any], Any]


class Bound:
    """What the launch table holds.

    Attributes:
        config: The config to launch with.
        run: Launches, given argument values and grid, prologue included.
        before: The prologue alone, or None; the C launcher calls it by itself.
        direct: What the C launcher needs to call the driver (`driver_call.fields`), or None: then it calls `run`.
        fallback: Launches by Triton's own look-up, without the prologue: for the C launcher, when the user's code that
            ran since the look-up has changed something, or Triton's own launcher must convert or refuse a value.
        again: Finds another config for a call whose grid launches nothing for this one; None where there is no other.
        twin: What `run` passes to the driver (`driver_call.Twin`), to be compared with what C would pass; or None.
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
            memory.refuse_aliases(arguments, self._zeroed, self._kernel)
            zeroing.zero_named(arguments, self._zeroed, self._kernel)
        if self._hook is not None:
            self._hook(arguments)
