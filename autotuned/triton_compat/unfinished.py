"""Compilations in other threads; those that outlast their search are joined by later ones that need the same binary."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from autotuned._startup import after_fork
from autotuned.triton_compat import kernel as kernels


class Compiling:
    """One compilation of a function's kernel: a call waits for it, and returns what `load` makes of the kernel.

    Args:
        jit: The function.
        kernel: Triton's kernel, or its promise of one.
        load: Called with the kernel.
    """

    def __init__(self, jit: Any, kernel: Any, load: Callable[[Any], Any]) -> None:
        self.jit, self.kernel, self._load = jit, kernel, load
        self.future: Future[Any] | None = getattr(kernel, "future", None)  # None if Triton has compiled it already
        self.device = -1  # the promise's, once the search has ended

    def __call__(self) -> Any:
        """Wait, and return what `load` makes of the kernel; raises what went wrong."""
        if self.future is not None and self.kernel.future is None:
            self.future.result()  # re-raise: after an error Triton's own `result` would fail on None
        return self._load(self.kernel.result() if hasattr(self.kernel, "result") else self.kernel)

    @property
    def running(self) -> Future[Any] | None:
        """The task of the thread that compiles it now."""
        return self.future if self.future is not None and self.future.running() else None

    def outlast(self) -> None:
        """Let later searches join this compilation if it still runs; to be called when its search ends."""
        if (running := self.running) is not None:
            self.device = kernels.current_device()
            _lasting[running] = self
            running.add_done_callback(lambda ended: _lasting.pop(ended, None))


_lasting: dict[Future[Any], Compiling] = {}


def promised(jit: Any) -> dict[str, Any]:
    """Promises of a function's kernels on the current device that outlast their searches, by Triton's keys."""
    found = [(task, one) for task, one in [*_lasting.items()] if one.jit is jit]
    device = kernels.current_device() if found else -1
    return {getattr(task, "_key", ""): one.kernel for task, one in found if one.device == device}


def _forget() -> None:
    """Nothing completes the parent's compilations in a forked child: drop their promises from Triton's table."""
    for one in _lasting.values():
        drop = getattr(one.kernel, "cleanup_compile", None)  # since Triton 3.9; before, the table holds none
        if drop is not None:
            drop(one.kernel)
    _lasting.clear()


after_fork(_forget)
