"""Configs that compile much longer than the others of their search, which then goes on without them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from typing import Any

from autotuned.search import failures

# Of five configs of fla's RMSNorm, four compile within 2.8 s, and one takes 11.4 s (two cores, Triton 3.9).
SHARE = 0.25  # of the configs, and always one, may be left
PATIENCE, LEAST_S = 0.5, 1.0  # wait for the next binary this share of the time so far, and at least so long


class Stragglers:
    """Decides when one search goes on, and keeps the compilations that it did not wait for.

    These run to their end, and their binaries stay in Triton's cache.
    """

    def __init__(self) -> None:
        self._ready, self._any_compiled = 0, False
        self._begun_s = self._latest_s = time.monotonic()
        self._left: dict[str, Future[Any]] = {}
        self._mendable: set[str] = set()

    def __len__(self) -> int:
        """Number of compilations left."""
        return len(self._left)

    @property
    def identities(self) -> list[str]:
        """The configs left."""
        return [*self._left]

    @property
    def are_compiling(self) -> bool:
        """Whether one of these compilations has not ended."""
        return not all(compilation.done() for compilation in self._left.values())

    def begin(self) -> None:
        """Begin to wait."""
        self._begun_s = self._latest_s = time.monotonic()

    def note(self, has_compiled: bool) -> None:
        """Note that a config has compiled, or failed."""
        self._ready, self._latest_s = self._ready + 1, time.monotonic()
        self._any_compiled |= has_compiled

    def leave(
        self, compiling: Mapping[str, Future[Any]], overdue: bool = False, mendable: Collection[str] = ()
    ) -> bool:
        """Whether the search goes on without the configs that are compiling, by identity: then keep them.

        Args:
            compiling: All that are compiling.
            overdue: Whether an earlier search went on without them: then this one need not wait.
            mendable: Those that may run although they do not compile ahead, since a hook precedes their launch.
        """
        if not self._any_compiled or len(compiling) > max(1, SHARE * (self._ready + len(compiling))):
            return False
        took_s, waited_s = self._latest_s - self._begun_s, time.monotonic() - self._latest_s
        if overdue or waited_s > max(LEAST_S, PATIENCE * took_s):
            self._left.update(compiling)
            self._mendable.update(mendable)
        return bool(self._left)

    def then(self, action: Callable[[Mapping[str, str]], None]) -> None:
        """Call `action` once all have ended, in the thread that compiled the last, or now.

        It gets the configs that do not compile, and why, without passing reasons.
        """
        for compilation in self._left.values():
            if not compilation.done():
                compilation.add_done_callback(lambda _: self.then(action))
                return
        action({identity: failures.describe(error) for identity, error in self._failed()})

    def _failed(self) -> Iterator[tuple[str, Exception]]:
        for identity, compilation in self._left.items():
            error = None if compilation.cancelled() else compilation.exception()
            if isinstance(error, Exception) and not failures.is_passing(error):
                failures.let_go(error)
                if identity not in self._mendable:
                    yield identity, error
