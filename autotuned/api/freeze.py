"""`freeze`: one choice of ours as Triton's own tuner with a single config, for those who make their own choice."""

from __future__ import annotations

from typing import Any

import triton
from triton.runtime.autotuner import Autotuner, Heuristics

from autotuned.api.tuned import Tuned
from autotuned.errors import DecorationError
from autotuned.triton_compat import kernel as toolchain


def freeze(kernel: Any, *args: Any, grid: Any = None, **kwargs: Any) -> Any:
    """Triton's own tuner over the same kernel, with the config chosen for these arguments as its only one.

    For `torch.compile`, which takes a tuner apart and measures its configs itself, and for whoever else wants a choice
    that never changes. It is right for calls of this key; others run with the same config.

    Args:
        kernel: A kernel under `@autotuned.autotune`, with `triton.heuristics` outside or not.
        *args: Arguments of a call, as for a launch.
        **kwargs: Those that the call gives by name.
        grid: Search now, with this grid, if nothing is stored; without it nothing is searched.

    Returns:
        A `triton.runtime.Autotuner` with one config, under the same heuristics.

    Raises:
        DecorationError: It is no tuned kernel, or has `reset_to_zero`, which Triton does not do with one config.
        NotTunedError: No choice is stored for these arguments, and no grid is given.
    """
    outside, tuned = _parts(kernel)
    if tuned.reset_to_zero:
        raise DecorationError(
            f"freeze: `{tuned.tuner.tunable.name}` has reset_to_zero={tuned.reset_to_zero}, and Triton's tuner zeroes "
            "nothing when it has one config. Zero these arguments before each launch, and decorate without it."
        )
    for layer in outside:
        for name, heuristic in layer.values.items():
            kwargs[name] = heuristic({**dict(zip(tuned.arg_names, args)), **kwargs})
    config = tuned.decided(args, kwargs, grid)
    frozen: Any = Autotuner(
        fn=tuned.fn, arg_names=list(tuned.arg_names), configs=[config], key=[], reset_to_zero=None, restore_value=None
    )
    for layer in reversed(outside):
        frozen = triton.heuristics(layer.values)(frozen)
    return frozen


def _parts(kernel: Any) -> tuple[list[Any], Tuned]:
    """The heuristics outside of the tuned kernel, outermost first, and the tuned kernel."""
    outside: list[Any] = []
    for layer in toolchain.layers(kernel):
        if isinstance(layer, Tuned):
            return outside, layer
        if not isinstance(layer, Heuristics):
            break
        outside.append(layer)
    raise DecorationError(f"freeze: expected a kernel under @autotuned.autotune, got {kernel!r:.80}.")
