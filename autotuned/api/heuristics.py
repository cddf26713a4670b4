"""`heuristics`: parameters computed from the other arguments at every launch, as in Triton but cheaper."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from autotuned import _native
from autotuned.api.pickling import Named
from autotuned.api.tuned import Decorated, Tuned
from autotuned.errors import ArgumentNameError, DecorationError
from autotuned.launch import launcher
from autotuned.triton_compat import kernel
from autotuned.tunable.configs import suggestion

if TYPE_CHECKING:
    from autotuned.api.static import Base, Grid
    from autotuned.api.static import Heuristics as TritonHeuristics
else:
    from triton.runtime.autotuner import Heuristics as TritonHeuristics

    Base = launcher.heuristics_base()

_TRITON_RUN: Any = TritonHeuristics.run


def heuristics(values: Mapping[str, Callable[[dict[str, Any]], Any]]) -> Callable[[Any], Heuristics]:
    """Compute kernel parameters from the other arguments at every launch, in the order of `values`.

    Each function gets a dict of the call's arguments by name (without defaults), including `grid`, `warmup` and the
    values computed so far. Its result is passed by keyword and overrides the caller's value. A drop-in replacement
    for `triton.heuristics`: over a tuned kernel, values are computed during the look-up in the launch table, at a
    fraction of Triton's cost; over other kernels it does what Triton does.

    Args:
        values: Parameter name -> function. The mapping stays live: a change applies from the next launch on.

    Returns:
        A decorator returning a `Heuristics`, a subclass of Triton's.

    Raises:
        DecorationError: `values` is not a mapping of functions, or the decorated object is not a kernel.
        ArgumentNameError: A name is not a parameter of the kernel.
    """
    if not isinstance(values, Mapping) or not all(map(callable, values.values())):
        raise DecorationError(
            f"heuristics: expected a dict of parameter names and functions of the arguments, got {values!r:.80}."
        )

    def decorate(fn: Any) -> Heuristics:
        if not kernel.is_kernel(fn):
            raise DecorationError(
                f"heuristics: expected a @triton.jit kernel, tuned or not, got {fn!r:.80}. A plain callable computes "
                "such values itself."
            )
        for name in values:
            if name not in fn.arg_names:
                raise ArgumentNameError(
                    f"heuristics: names no parameter: {name!r}." + suggestion(str(name), list(fn.arg_names)),
                    name=str(name),
                    kernel=getattr(fn, "__name__", ""),
                )
        return Heuristics(fn, values)

    return decorate


class Heuristics(Base, TritonHeuristics, Named):
    """A kernel with parameters computed at every launch: `.fn` is the kernel, `.values` are the functions.

    `run` is Triton's own, since torch.compile traces it and others replace it.
    """

    def __init__(self, fn: Any, values: Mapping[str, Callable[[dict[str, Any]], Any]]) -> None:
        super().__init__(fn, fn.arg_names, values)
        self._attach(launcher.uses_c())

    # torch.compile traces this one; the C launcher has its own `[]`. The extra parameter keeps Python 3.11 and later
    # from calling this one instead.
    def __getitem__(self, grid: Grid, *nothing: Any) -> Callable[..., Any]:
        return lambda *args, **kwargs: self.run(*args, grid=grid, warmup=False, **kwargs)

    def __init_subclass__(cls) -> None:
        _native.watch([cls])

    def _slow_run(self, args: tuple[Any, ...], kwargs: dict[str, Any], grid: Any, warmup: bool) -> Any:
        return self.run(*args, grid=grid, warmup=warmup, **kwargs)

    def _still_ours(self) -> bool:
        """Whether C may compute the values: `run` is Triton's own, and the kernel has a C path."""
        return type(self).run is _TRITON_RUN and type(self.fn) in (Decorated, Tuned, Heuristics)


Heuristics._native()
_native.watch([TritonHeuristics, Heuristics])
