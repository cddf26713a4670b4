"""In front of Triton's `Autotuner._bench`: a call's first measurement starts a race, or compiles ahead."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from triton.runtime.autotuner import Autotuner

from autotuned._startup import later
from autotuned.api import triton_listener
from autotuned.dropin import own_loop, seeded, stock_tuner
from autotuned.triton_compat import kernel

if TYPE_CHECKING:
    from autotuned.dropin import ahead, raced
else:
    raced, ahead = later("dropin.raced"), later("dropin.ahead")

log = logging.getLogger("autotuned")
_NAMES = ("_bench", "prune_configs", "check_disk_cache")


class _Partly(Exception):  # noqa: N818
    """Raised if a race left configs out: once Triton's file has timings, it never measures more."""


def begin(race: bool, compile_ahead: bool, budget_s: float | None = None) -> None:
    """Race or compile ahead whenever Triton's tuners measure, unless their `_bench` was replaced by others.

    `budget_s` limits each race; None leaves the limit as it is.
    """
    if not hasattr(Autotuner._bench, "in_front_of"):
        if not kernel.is_tritons(Autotuner._bench):
            log.log(
                logging.WARNING if race else logging.INFO,
                "install: Autotuner._bench was replaced before (%s): there are no races, nothing is compiled ahead.",
                Autotuner._bench,
            )
            return
        _wrap()
    kernel.remember_originals()
    stock_tuner.racing.on |= race
    stock_tuner.racing.budget_s = budget_s or stock_tuner.racing.budget_s
    stock_tuner.compiling.on |= compile_ahead


def _wrap() -> None:
    measure: Any = Autotuner._bench
    prune: Any = Autotuner.prune_configs
    read: Any = Autotuner.check_disk_cache

    def ours(self: Any, *args: Any, config: Any, **meta: Any) -> Any:
        asked = seeded.measuring(self)
        times = asked.times(config) if asked is not None else None
        if times is not None:
            triton_listener.say_measured(self.base_fn.__name__, config)
            return list(times)
        if stock_tuner.compiling.on:
            if asked is None:
                own_loop.measuring(self, args, meta, config)
            elif asked.begins():
                ahead.compile_all(self, args, meta, asked.left(), asked.key)
        return measure(self, *args, config=config, **meta)

    def noting(self: Any, kwargs: dict[str, Any]) -> Any:
        left = prune(self, kwargs)
        is_final = getattr(self.prune_configs, "__func__", None) is noting  # no subclass's may narrow it further
        if is_final and isinstance(left, (list, tuple)):  # no generator
            if (asked := seeded.measuring(self)) is not None:
                asked.note_pruned(left)
            else:
                own_loop.begin(self, left)
        return left

    def reading(self: Any, tuning_key: Any, configs: Any, bench_fn: Callable[[], Any]) -> Any:
        def measuring() -> None:
            bench_fn()
            asked = seeded.measuring(self)
            if asked is not None and asked.race is not None and asked.race.is_partial:
                raise _Partly

        with contextlib.suppress(_Partly):
            return read(self, tuning_key, configs, measuring)
        return False

    Autotuner.check_disk_cache = in_front_of(read, reading)
    Autotuner._bench = in_front_of(measure, ours)
    Autotuner.prune_configs = in_front_of(prune, noting)


def in_front_of(original: Any, ours: Any) -> Any:
    """Let `ours` pass for the method that it replaces; `Tuned` and `end` find that by `.in_front_of`."""
    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        setattr(ours, name, getattr(original, name))
    ours.in_front_of = original
    return ours


def end() -> None:
    """Undo `begin`; methods that others have replaced since stay."""
    stock_tuner.racing.on = stock_tuner.compiling.on = False
    stock_tuner.racing.budget_s = None
    for name in _NAMES:
        original = getattr(getattr(Autotuner, name), "in_front_of", None)
        if original is not None:
            setattr(Autotuner, name, original)
