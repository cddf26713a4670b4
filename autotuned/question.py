"""What is asked of the chooser: the decorator's options, one call that needs a config, and the time it took."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from autotuned import candidates
from autotuned.check import Check
from autotuned.job import Hooks, Observer
from autotuned.key import Key, KeySpec
from autotuned.locks import Lock
from autotuned.target import Call


@dataclass(frozen=True)
class Options:
    """What the decorator was given, checked.

    Attributes:
        configs: Returns the candidates before pruning; read anew on each miss, users reassign them.
        computed: The callable that was given for `configs`, if it was one.
        pruner: Returns the pruner's parts; read anew on each miss.
        restore: Names to protect, None to find out. `zero`: names zeroed before every launch.
        default: A config, a callable of the arguments returning one, or None.
        stored: Whether results are kept on disk.
        check: What configs are compared with while they are tuned.
    """

    configs: Callable[[], list[Any]]
    spec: KeySpec
    computed: Callable[..., Any] | None = None
    pruner: Callable[[], candidates.Pruner] = candidates.Pruner
    restore: tuple[str, ...] | None = None
    zero: tuple[str, ...] = ()
    hooks: Hooks = field(default_factory=Hooks)
    do_bench: Callable[..., Any] | None = None
    default: Any = None
    version: Any = None
    stored: bool = True
    budget_s: float | None = None
    check: Check | None = None


@dataclass(frozen=True)
class Question:
    """One call that needs a config, and how far one may go to answer it.

    Attributes:
        live: The candidates by identity, in order.
        mode: The mode in force when it was asked.
        must_search: Search even where a `default=` would answer (the command line's `tune`).
        force: Measure again whatever is stored.
        observer: Told of a search's progress.
        budget_s: The search stops after this many seconds, or earlier where the decorator says so; None never.
        lock: What came of asking for the key's lock; where another holds it, what is measured is the other's to save.
        search: Whether it may come to a search at all; a call that is only prepared may forbid it.
    """

    call: Call
    key: Key
    live: Mapping[str, Any]
    mode: str
    must_search: bool = False
    force: bool = False
    observer: Observer | None = None
    budget_s: float | None = None
    lock: Lock = Lock.HELD
    search: bool = True

    @property
    def fresh(self) -> bool:
        """Whether stored answers are ignored."""
        return self.force or self.mode == "search"


@dataclass
class Seconds:
    """Where the time of misses went."""

    lookup: float = 0.0
    search: float = 0.0
    compile: float = 0.0
    bind: float = 0.0
