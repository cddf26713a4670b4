"""What is in force in all of this process: agreements, recorders, the names of its tuned kernels."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotuned._startup import Protocol

if TYPE_CHECKING:
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
    """Writes calls down, see `autotuned.record`."""

    path: Path

    def begin_process(self) -> None:
        """Start what each process needs, also after a fork."""

    def note(self, tuner: Any, call: Call) -> Any:
        """Record a call that missed the launch table."""

    def watched(self, tuner: Any, ready: Any) -> Any:
        """A bound launch that records its calls."""


# Kept here, since most processes never import what fills them.
agreements: list[Agreement] = []  # the last one is in force
recorders: list[Recorder] = []  # likewise
_tuned: dict[int, tuple[weakref.ref[Any], str]] = {}  # by address, since hashing a Triton function hashes its source
_on_change: list[Callable[[], None]] = []


def on_change(callback: Callable[[], None]) -> None:
    """Call `callback` whenever one of these begins or ends, so that bound choices can be dropped."""
    _on_change.append(callback)


def tell_change() -> None:
    """Call what `on_change` registered."""
    for callback in _on_change:
        callback()


def name(jit: Any, public_name: str) -> None:
    """Name a Triton function that is tuned or replaced."""
    address = id(jit)
    _tuned[address] = weakref.ref(jit, lambda gone: _tuned.pop(address, None)), public_name


def name_of(jit: Any) -> str | None:
    """The name of a Triton function that is tuned or replaced, else None."""
    there, public_name = _tuned.get(id(jit), (None, ""))
    return public_name if there is not None and there() is jit else None


def has_names() -> bool:
    """Whether any Triton function is tuned or replaced."""
    return bool(_tuned)
