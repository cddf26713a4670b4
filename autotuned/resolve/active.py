"""What is active in the whole process, which each miss asks: agreements of ranks, and recordings."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import Protocol

    from autotuned.key.key import Key
    from autotuned.resolve.request import Question
    from autotuned.store.choice import Choice
    from autotuned.tunable.call import Call
    from autotuned.typed_json import Json
else:
    Protocol = object  # defining a protocol takes as long as importing a module


class Agreement(Protocol):
    """Ranks that choose together, as `autotuned.sync` has them."""

    def choose(self, question: Question, alone: Any, do_bench: Any) -> Choice:
        """The choice of all ranks; `alone` is the chooser of this one."""

    def leave(self, key: Key) -> None:
        """This rank goes on without the others for a key."""

    def proposals(self, mine: Mapping[str, Json]) -> Mapping[str, Json]:
        """The newer choices that any rank has found, by digest of the key."""

    def all_ready(self, agreed: Mapping[str, Json], impossible: Collection[str]) -> Collection[str]:
        """The keys, by digest, whose newer choice no rank is without."""


class Recorder(Protocol):
    """Writes calls down, as `autotuned.record` does."""

    path: Path

    def begin_process(self) -> None:
        """Start what a process, a forked child too, needs of its own."""

    def note(self, tuner: Any, call: Call) -> Any:
        """A call of a tuner that was not in its launch table."""

    def watched(self, tuner: Any, ready: Any) -> Any:
        """What is bound, made to note the calls that it launches."""


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
