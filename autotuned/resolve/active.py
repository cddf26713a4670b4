"""Process-wide state that every miss consults: agreements, recorders, and whether choices were dropped meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Protocol

    from autotuned.key.key import Key
    from autotuned.resolve.request import Question
    from autotuned.store.choice import Choice
    from autotuned.tunable.call import Call
    from autotuned.typed_json import Json

    class Agreement(Protocol):
        """Ranks that choose together, see `autotuned.sync`."""

        def choose(self, question: Question, alone: Any, do_bench: Any) -> Choice:
            """The choice of all ranks; `alone` is this rank's chooser."""

        def leave(self, key: Key) -> None:
            """Let this rank choose alone for a key."""

        def proposals(self, mine: Mapping[str, Json]) -> Mapping[str, Json]:
            """Newer choices that any rank has found, by digest."""

        def all_ready(self, agreed: Mapping[str, Json], impossible: Collection[str]) -> Collection[str]:
            """Digests of the keys whose newer choice every rank has ready."""

    class Recorder(Protocol):
        """Records calls, see `autotuned.record`."""

        path: Path

        def begin_process(self) -> None:
            """Start what each process needs, also after a fork."""

        def note(self, tuner: Any, call: Call) -> Any:
            """Record a call that missed the launch table."""

        def watched(self, tuner: Any, ready: Any) -> Any:
            """A bound launch that records its calls."""


# Kept here, since most processes never import the modules that fill them.
agreements: list[Agreement] = []  # the last one is in force
recorders: list[Recorder] = []  # likewise
# Yield choices kept outside of the store: the key that each would have there, and its config's identity.
elsewhere: list[Callable[[], Iterator[tuple[Key, str]]]] = []
drops = [object()]  # replaced by each `drop_in_flight`
_on_change: list[Callable[[], None]] = []


def drop_in_flight() -> None:
    """Let no call be bound that is choosing now: its choice may be one that was just dropped."""
    drops[:] = [object()]


def on_change(callback: Callable[[], None]) -> None:
    """Call `callback` whenever one of these begins or ends, so that bound choices can be dropped."""
    _on_change.append(callback)


def tell_change() -> None:
    """Call what `on_change` registered."""
    for callback in _on_change:
        callback()
