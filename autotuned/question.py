"""What is asked of the chooser: the decorator's options, one call that needs a config, and the time it took."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from autotuned import candidates, objects
from autotuned.immutable import Frozen
from autotuned.key import Key, KeySpec
from autotuned.look import Choice, Rung
from autotuned.target import Call, Hooks

if TYPE_CHECKING:
    from autotuned.check import Check
    from autotuned.job import Observer
    from autotuned.locks import Lock


class Options(Frozen):
    """What the decorator was given, checked.

    Attributes:
        configs: Returns the candidates before pruning; read anew on each miss, users reassign them.
        computed: The callable that was given for `configs`, if it was one.
        pruner: Returns the pruner's parts; read anew on each miss.
        restore: Names to protect, None to find out. `zero`: names zeroed before every launch.
        default: A config, a callable of the arguments returning one, or None.
        stored: Whether results are kept on disk.
        nearest: The axes on which a neighbour's choice may serve, and how far each.
        check: What configs are compared with while they are tuned.
        max_searches: How many searches one process may run for it.
    """

    configs: Callable[[], list[Any]]
    spec: KeySpec
    computed: Callable[..., Any] | None = None
    pruner: Callable[[], candidates.Pruner] = candidates.Pruner
    restore: tuple[str, ...] | None = None
    zero: tuple[str, ...] = ()
    hooks: Hooks = Hooks()
    do_bench: Callable[..., Any] | None = None
    default: Any = None
    version: Any = None
    stored: bool = True
    budget_s: float | None = None
    check: Check | None = None
    max_searches: float = math.inf
    nearest: Mapping[str, float] = MappingProxyType({})

    @property
    def timer(self) -> str:
        """The way of measuring, as the provenance of records names it."""
        return objects.name_of(self.do_bench) if self.do_bench else "race-1"


class Question(Frozen):
    """One call that needs a config, and how far one may go to answer it.

    Attributes:
        live: The candidates by identity, in order.
        mode: The mode in force when it was asked.
        must_search: Search even where a `default=` would answer (the command line's `tune`).
        force: Measure again whatever is stored.
        observer: Told of a search's progress.
        budget_s: The search stops after this many seconds, or earlier where the decorator says so; None never.
        lock: What came of asking for the key's lock, None before; where another holds it, what is measured is the
            other's to save.
        search: Whether it may come to a search at all; a call that is only prepared may forbid it.
        launches: Whether it launches anything; if not there is nothing to measure.
        narrowed: Whether another call of the key may have other candidates.
    """

    call: Call
    key: Key
    live: Mapping[str, Any]
    mode: str
    must_search: bool = False
    force: bool = False
    observer: Observer | None = None
    budget_s: float | None = None
    lock: Lock | None = None
    search: bool = True
    launches: bool = True
    narrowed: bool = False

    def is_answered_by(self, known: Choice) -> bool:
        """Whether every candidate has been measured; where a search is wanted, what crashed once is tried again."""
        timings = known.record.timings if known.record is not None and self.must_search else ()
        doubts = any(timing.status == "crashed" and timing.identity in self.live for timing in timings)
        return known.complete and not (doubts and known.rung is Rung.STORE)

    @property
    def fresh(self) -> bool:
        """Whether stored answers are ignored."""
        return self.force or self.mode == "search"


class Seconds:
    """Where the time of misses went."""

    def __init__(self) -> None:
        self.lookup = self.search = self.compile = self.bind = 0.0
