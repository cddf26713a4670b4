"""What is switched on for the whole process, which each miss asks: agreements of ranks, recordings."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autotuned.agree import Agreement
    from autotuned.recording import Recorder

# Here rather than with what fills them, which most processes never import.
agreements: list[Agreement] = []  # the last one is in force
recorders: list[Recorder] = []  # likewise
_on_change: list[Callable[[], None]] = []


def on_change(callback: Callable[[], None]) -> None:
    """Call `callback` whenever one of these begins or ends, so that bound choices can be dropped."""
    _on_change.append(callback)


def tell_change() -> None:
    """Call who wants to know."""
    for callback in _on_change:
        callback()
