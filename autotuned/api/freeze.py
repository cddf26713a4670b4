"""`freeze`: turns one choice into Triton's own tuner with a single config."""

from __future__ import annotations

from typing import Any

import triton
from triton.runtime.autotuner import Autotuner, Heuristics

from autotuned.api.tuned import Tuned
from autotuned.errors import DecorationError
from autotuned.triton_compat import kernel as toolchain


def freeze(kernel: Any, *args: Any, grid: Any = None, **kwargs: Any) -> Any:
    """Return Triton's own tuner for the same kernel, with the config chosen for these arguments as its only one.

    For `torch.compile`, which unpacks a tuner and benchmarks its configs itself. The config is tuned for calls with
    this key, but other calls run with it too.

    Args:
        kernel: A kernel under `@autotuned.autotune`, also under `triton.heuristics`.
        *args: Positional arguments of a call.
        **kwargs: Its keyword arguments.
        grid: Search with this grid if nothing is stored; None never searches.

    Returns:
        A `triton.runtime.Autotuner` with one config, under the same heuristics.

    Raises:
        DecorationError: `kernel` is not tuned, or has `reset_to_zero`, which Triton ignores with one config.
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
    """The heuristics around the tuned kernel, outermost first, and the kernel."""
    outside: list[Any] = []
    for layer in toolchain.layers(kernel):
        if isinstance(layer, Tuned):
            return outside, layer
        if not isinstance(layer, Heuristics):
            break
        outside.append(layer)
    raise DecorationError(f"freeze: expected a kernel under @autotuned.autotune, got {kernel!r:.80}.")
