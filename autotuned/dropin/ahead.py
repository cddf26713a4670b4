"""Compile ahead: all configs are compiled before one of Triton's tuners measures the first.

Triton's benchmark compiles each config right before measuring it. Here the first measurement waits until threads have
put all binaries into Triton's own cache. Candidates, benchmark, choice and binaries stay Triton's; anything not
compiled here, Triton compiles as usual.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from triton.runtime.autotuner import Heuristics

from autotuned import env
from autotuned.dropin.stock_tuner import without_grid
from autotuned.key.key import Key
from autotuned.key.source_text import parsed_again
from autotuned.search import failures
from autotuned.search.compiling import parallelism, threads
from autotuned.search.compiling.compile import Waiting, in_order
from autotuned.search.compiling.crew import Crew, shared_slots
from autotuned.search.compiling.pool import Wanted
from autotuned.store import layout, records
from autotuned.store.journal import Journal
from autotuned.triton_compat import cache, compiled, frontend, kernel, specialization
from autotuned.triton_compat.compiled import Compilation

log = logging.getLogger("autotuned")


def compile_all(
    tuner: Any, args: tuple[Any, ...], meta: Mapping[str, Any], configs: Sequence[Any], key: Key | None
) -> None:
    """Compile the configs that a tuner is about to measure into Triton's cache; never raises.

    Args:
        args, meta: The arguments of Triton's `_bench`; `meta` holds the keywords, including the grid.
        configs: All configs to be measured.
        key: The call's key, under which a compilation that kills the process is journaled; None for no journal.
    """
    try:
        count = parallelism.ahead() if _is_known(tuner) else 0
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
    """Whether only Triton's own code and heuristics run between a launch and the compiler."""
    *outer, jit = kernel.layers(tuner.fn)
    known = all(isinstance(layer, Heuristics) for layer in outer) and kernel.is_plain_jit(jit)
    return known and compiled.compiles_for_cache(jit)


def _compile(name: str, found: Iterable[Compilation], count: int, journal: Journal) -> None:
    wanted = [one for one in found if one.digest not in journal.crashed]
    if len(wanted) < 2 and env.local_ranks() < 2:
        return  # Triton compiles a single one just as fast; with ranks, one compilation serves all
    crew = Crew(wanted, count, shared_slots(), journal.compiling)
    with threads.brisk(), contextlib.closing(crew.start()):
        waiting = Waiting(name)
        if not crew.wait(lambda: waiting.tick(crew.done, crew.total)):
            stuck = "`%s`: compiling ahead is stuck (%d of %d compiled); Triton compiles the rest."
            log.warning(stuck, name, crew.done, crew.total)
            return
        waiting.end(crew.done, crew.total)
    journal.end() if journal.crashed else journal.erase()


def _name(tuner: Any) -> str:
    return str(getattr(tuner.base_fn, "__name__", tuner.base_fn))


# -- what Triton would compile -----------------------------------------------------------------------------------------


def _wanted(
    tuner: Any, args: tuple[Any, ...], meta: Mapping[str, Any], configs: Sequence[Any]
) -> Iterator[Compilation]:
    """The configs' binaries, each once, slowest compilation first."""
    given = without_grid(meta)
    may_change = not all(map(specialization.is_fixed, (*args, *given.values())))
    seen = set()
    for config in (one.config for one in in_order(Wanted(0, "", config) for config in configs)):
        has_hook = config.pre_hook is not None or getattr(tuner, "user_defined_pre_hook", False)
        if given.keys() & config.kwargs.keys() or (may_change and has_hook):
            continue
        one = _asked(tuner, args, {**given, **config.all_kwargs()})
        if one is not None and one.digest not in seen and not cache.holds(one.digest):
            seen.add(one.digest)
            yield one


def _asked(tuner: Any, args: tuple[Any, ...], given: Mapping[str, Any]) -> Compilation | None:
    try:
        warm_up = partial(tuner.fn.run, *args, grid=(1,), warmup=True, **given)
        return parsed_again(lambda: compiled.asked(warm_up))
    except Exception as error:  # the launch raises it again
        log.debug("compile ahead: %s", failures.describe(error))
        failures.let_go(error)
        return None
