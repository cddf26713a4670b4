"""What is switched on for the whole process, which each miss asks: agreements of ranks, recordings, compile workers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from autotuned.distributed.agreement import Agreement
    from autotuned.recording.recorder import Recorder


class Compilers(Protocol):
    """Processes that compile configs of kernels for this one, as `autotuned tune` has them."""

    def compile(
        self, kernel: str, parts: tuple[Any, ...], folder: Path | None, begun: Callable[[], None]
    ) -> str | None:
        """Compile; the hash of the binary in Triton's cache, "" where that failed, None where nothing was tried."""

    def missed(self, kernel: str) -> None:
        """What was compiled there was not found here."""


# Here rather than with what fills them, which most processes never import.
agreements: list[Agreement] = []  # the last one is in force
recorders: list[Recorder] = []  # likewise
compilers: list[Compilers] = []  # likewise
_on_change: list[Callable[[], None]] = []


def on_change(callback: Callable[[], None]) -> None:
    """Call `callback` whenever one of these begins or ends, so that bound choices can be dropped."""
    _on_change.append(callback)


def tell_change() -> None:
    """Call who wants to know."""
    for callback in _on_change:
        callback()
