"""Events outside the hot path: reported to callbacks and counted by kernel."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from autotuned._startup import Frozen, renewed

KINDS = ("search", "compile", "load", "miss", "refuse", "swap")
log = logging.getLogger("autotuned")


class Event(Frozen):
    """A search, compilation, load, miss, refusal or swap.

    Attributes:
        kind: One of `KINDS`.
        kernel: Public name; for a kernel that is not tuned, its module and name.
        key: Digest of the key or of the loaded binary; "" if neither is known.
        seconds: Duration. A miss includes the search, compilations and loads it caused.
        reason: Origin of the choice, the measured configs, or the cause of a refusal.
    """

    kind: str
    kernel: str
    key: str = ""
    seconds: float = 0.0
    reason: str = ""


class Count(Frozen):
    """Number of events and their total seconds."""

    events: int
    seconds: float


class Handle:
    """A callback that receives events until `close()` or the end of a `with` block."""

    def __init__(self, callback: Callable[[Event], Any]) -> None:
        self._callback = callback
        self._is_said = False

    def tell(self, event: Event) -> None:
        """Call the callback; its first exception is logged, none is propagated."""
        try:
            self._callback(event)
        except Exception:
            if not self._is_said:
                self._is_said = True
                log.exception("on_event: %r raised for %r; its further errors are not logged.",
                              self._callback, event)  # fmt: skip

    def close(self) -> None:
        """Stop calling the callback."""
        global _handles
        with _lock:
            _handles = tuple(handle for handle in _handles if handle is not self)

    def __enter__(self) -> Handle:
        """Return the handle."""
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


_lock = renewed(threading.Lock())
_handles: tuple[Handle, ...] = ()
_counts: dict[tuple[str, str], list[float]] = {}  # by kernel and kind: events, seconds
_starters: list[Callable[[], None]] = []
_telling = threading.local()
is_begun = False  # whether events were ever requested


def on_event(callback: Callable[[Event], Any]) -> Handle:
    """Call a function for each search, compilation, load, miss, refusal and swap of this process.

    It runs on the thread of the event, right after it, so it should be short. Hits cause no events. Events caused by
    the callback itself are counted but not reported.

    Returns:
        A handle; its `close()` ends the calls.

    Raises:
        TypeError: `callback` is not callable.
    """
    global _handles
    if not callable(callback):
        raise TypeError(f"on_event: expected a function of one event, got {type(callback).__name__}.")
    handle = Handle(callback)
    with _lock:
        _handles = (*_handles, handle)
    begin()
    return handle


def counters() -> dict[tuple[str, str], Count]:
    """Number of events and total seconds so far, by kernel and kind.

    They only grow. Compilations are counted from the first call of this, of `on_event` or of `seal`.
    """
    begin()
    with _lock:
        return {at: Count(int(events), seconds) for at, (events, seconds) in _counts.items()}


def emit(kind: str, kernel: str, key: str = "", seconds: float = 0.0, reason: str | Callable[[], str] = "") -> None:
    """Count an event and report it; never called on a hit. A callable `reason` is called only for a report."""
    with _lock:
        count = _counts.setdefault((kernel, kind), [0, 0.0])
        count[0] += 1
        count[1] += seconds
    if not _handles or getattr(_telling, "now", False):
        return
    _telling.now = True
    try:
        event = Event(kind, kernel, key, seconds, reason if isinstance(reason, str) else reason())
        for handle in _handles:
            handle.tell(event)
    finally:
        _telling.now = False


def begin() -> None:
    """Start the functions of `when_begun`."""
    global is_begun
    is_begun = True
    while _starters:
        _starters.pop()()


def when_begun(start: Callable[[], None]) -> None:
    """Call a function once events are requested, or now if they already are."""
    if is_begun:
        start()
    else:
        _starters.append(start)
