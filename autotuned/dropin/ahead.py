"""Compile ahead: before one of Triton's tuners measures its first config, all that it will compile are compiled.

Triton's benchmark compiles one config after the other, each right before it is measured. Here the first one that a call
measures waits until threads have put the binaries of all into Triton's own cache, where Triton finds them. Candidates,
benchmark, choice and binaries are Triton's. What is not compiled here, for whatever reason, Triton compiles as ever.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from triton.runtime.autotuner import Heuristics

from autotuned import env
from autotuned.key.key import Key
from autotuned.search import failures
from autotuned.search.compiling import parallelism, threads
from autotuned.search.compiling.compile import Wanted, in_order
from autotuned.search.compiling.crew import Crew, shared_slots
from autotuned.store import layout, records
from autotuned.store.journal import Journal
from autotuned.triton_compat import cache, compiled, frontend, kernel, specialization
from autotuned.triton_compat.compiled import Compilation

log = logging.getLogger("autotuned")
SAY_AFTER_S = 5.0  # a wait this long is worth a line at a terminal


def compile_all(
    tuner: Any, args: tuple[Any, ...], meta: Mapping[str, Any], configs: Sequence[Any], key: Key | None
) -> None:
    """Compile what a tuner is about to measure into Triton's cache; nothing is raised, and nothing else changes.

    Args:
        args, meta: As Triton's `_bench` has them: `meta` holds the keywords, the grid included.
        configs: All that will be measured.
        key: Of the call, under which is noted what ended a process while it was compiled; None to note nothing.
    """
    try:
        count = parallelism.ahead(len(configs)) if _is_known(tuner) else 0
        if count:
            journal = Journal(None if key is None else layout.ahead_journal_path(key), key)
            with frontend.shared(tuner.fn, records.scratch_folder()):
                _compile(_name(tuner), _wanted(tuner, args, meta, configs), count, journal)
    except Exception as error:
        why = failures.describe(error).splitlines()[0]
        message = "`%s`: nothing is compiled ahead (%s): Triton compiles as it measures."
        env.warn_once(f"ahead {why}", message, _name(tuner), why)
        failures.let_go(error)


def _is_known(tuner: Any) -> bool:
    """Whether all that a launch runs on its way to the compiler is Triton's own, or heuristics."""
    *outer, jit = kernel.layers(tuner.fn)
    known = all(isinstance(layer, Heuristics) for layer in outer) and kernel.is_plain_jit(jit)
    return known and compiled.compiles_for_cache(jit)


def _compile(name: str, found: Iterable[Compilation], count: int, journal: Journal) -> None:
    wanted = [one for one in found if one.digest not in journal.crashed]
    if len(wanted) < 2 and env.local_ranks() < 2:
        return  # Triton compiles one as soon; of ranks, one is enough
    crew = Crew(wanted, min(count, len(wanted)), shared_slots(), journal.compiling)
    with threads.brisk(), contextlib.closing(crew.start()):
        progress = _Progress(name, crew)
        if not crew.wait(progress.tick):
            log.warning("`%s`: compiling ahead does not get on (%s); Triton goes on.", name, progress)
            return
        progress.end()
    journal.end() if journal.crashed else journal.erase()


def _name(tuner: Any) -> str:
    return str(getattr(tuner.base_fn, "__name__", tuner.base_fn))


# -- what Triton would compile -----------------------------------------------------------------------------------------


def _wanted(
    tuner: Any, args: tuple[Any, ...], meta: Mapping[str, Any], configs: Sequence[Any]
) -> Iterator[Compilation]:
    """The binaries of the configs, each once, those that take longest first."""
    given = {name: value for name, value in meta.items() if name not in ("grid", "warmup")}
    may_change = not all(map(specialization.is_fixed, (*args, *given.values())))
    seen = set()
    for config in (one.config for one in in_order(Wanted(0, "", config) for config in configs)):
        if given.keys() & config.kwargs.keys() or (may_change and _has_hook(tuner, config)):
            continue
        one = _asked(tuner, args, {**given, **config.all_kwargs()})
        if one is not None and one.digest not in seen and not cache.holds(one.digest):
            seen.add(one.digest)
            yield one


def _asked(tuner: Any, args: tuple[Any, ...], given: Mapping[str, Any]) -> Compilation | None:
    try:
        return compiled.asked(partial(tuner.fn.run, *args, grid=(1,), warmup=True, **given))
    except Exception as error:  # the launch raises it again
        log.debug("compile ahead: %s", failures.describe(error))
        failures.let_go(error)
        return None


def _has_hook(tuner: Any, config: Any) -> bool:
    return config.pre_hook is not None or getattr(tuner, "user_defined_pre_hook", False)


# -- progress ----------------------------------------------------------------------------------------------------------


class _Progress:
    """Says how far it is: at a terminal one line a kernel, in the log (level info) again and again."""

    def __init__(self, name: str, crew: Crew) -> None:
        self._name, self._crew = name, crew
        self._begun_s = time.monotonic()
        self._next_s = self._begun_s + SAY_AFTER_S
        self._said = False

    def __str__(self) -> str:
        return f"{self._crew.done} of {self._crew.total} compiled"

    def tick(self) -> None:
        """Say it, if it is time."""
        if time.monotonic() >= self._next_s:
            self._next_s += SAY_AFTER_S
            is_shown = not self._said and _at_a_terminal()
            self._said = True
            level = logging.WARNING if is_shown else logging.INFO
            log.log(level, "`%s`: compiling its configs, %s.", self._name, self)

    def end(self) -> None:
        """All is compiled."""
        log.info("`%s`: %s ahead in %.1f s.", self._name, self, time.monotonic() - self._begun_s)


def _at_a_terminal() -> bool:
    try:
        return os.isatty(2)
    except OSError:  # standard error is closed
        return False
