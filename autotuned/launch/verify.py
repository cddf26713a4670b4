"""`AUTOTUNED_LAUNCHER=verify`: compare each launch in C with the Python twin's before it is made."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Protocol

    from autotuned.launch.bound import Bound
    from autotuned.launch.launcher import Launcher
    from autotuned.tunable.tunable import Tunable
else:
    Protocol = object

log = logging.getLogger("autotuned")


class Launched(Protocol):
    """The owner of the compared launches: a `Tuner`."""

    tunable: Tunable
    names: tuple[str, ...]
    launcher: Launcher
    bind_failed: bool


def turn_c_off(kernel: Launched, wrong: Sequence[str]) -> None:
    """Launch a kernel through Triton from now on, because C and the Python twin disagree in the listed ways."""
    kernel.bind_failed = True
    kernel.launcher.clear()
    log.error(
        "`%s` is launched through Triton from now on: the C launcher and the Python twin disagree "
        "(%s). Please report this, with the kernel's signature.",
        kernel.tunable.name,
        "; ".join(wrong),
    )


class Judge:
    """Called by the C launcher before each launch, after hook and grid, with the arguments for the driver.

    Compares these with the twin's, and the binary with the one that Triton's look-up finds. Shipped binaries are not
    compared: they are in none of Triton's caches, and Triton would compile others.
    """

    def __init__(self, kernel: Launched) -> None:
        self._kernel = kernel

    def __call__(self, bound: Bound, values: tuple[Any, ...], grid: Any, passed: tuple[Any, ...] | None) -> bool:
        """Whether the launch may be made; if not, the kernel is launched through Triton for good."""
        if bound.twin is None or passed is None:  # Triton's launcher converts the values
            return True
        twin = bound.twin()
        wrong = twin.differences(values, grid, passed)
        kernel = twin.kernel()
        if not hasattr(kernel, "variant") and kernel is not self._looked_up(bound.config, values, passed[1]):
            wrong.append("binary: expected the one that Triton's own look-up finds, got another")
        if wrong:
            turn_c_off(self._kernel, wrong)
        return not wrong

    def _looked_up(self, config: Any, values: tuple[Any, ...], sizes: Sequence[int]) -> Any:
        run: Callable[..., Any] = self._kernel.tunable.fn.run
        arguments = dict(zip(self._kernel.names, values))
        return run(**arguments, **config.all_kwargs(), grid=tuple(sizes), warmup=True)
