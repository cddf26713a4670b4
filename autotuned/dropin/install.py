"""`install()` and `uninstall()`: this package under unchanged programs that use `triton.autotune`."""

from __future__ import annotations

import inspect
import logging
import os
from pathlib import Path
from typing import Any

import triton
from triton.runtime import autotuner

from autotuned import _native, env
from autotuned.dropin import bench, early, seeded, stock_tuner
from autotuned.launch import launcher
from autotuned.resolve.request import is_budget
from autotuned.triton_compat import kernel, versions

log = logging.getLogger("autotuned")
# Where users, libraries, torch and fla look up Triton's decorator.
_HOLDERS = (triton, triton.runtime, autotuner)


class _Installed:
    """The installed state: the wrapped `run` and `__init__`, and the original `autotune` of each holder."""

    def __init__(self) -> None:
        self.run: Any = None  # has `.active`, and `.replacing`: `fronted.run` while this package launches, else None
        self.init: Any = None
        self.decorators: dict[Any, Any] = {}  # by holder
        self.undo_kept: Any = None


_installed = _Installed()


def install(
    replace: bool = False,
    *,
    ahead: bool = True,
    race: bool = False,
    budget_s: float | None = None,
    binaries: str | os.PathLike[str] | None = None,
) -> None:
    """Store the choices of kernels that use `triton.autotune`, so that nothing is measured twice.

    Wraps `Autotuner.run` once. Before one of Triton's tuners measures, whenever it was decorated, the store and the
    config files are asked for exactly this key and these configs; what Triton measures is stored. Key, hooks, benchmark
    and launch stay Triton's. In modes "serve" and "strict", and during CUDA graph capture, nothing is measured. Calling
    it again does nothing.

    Args:
        replace: Also launch with this package's launcher: replaces `triton.autotune` by a decorator with the same
            signature and meaning, and puts a launch table in front of other kernels' `run`. A decorator that others
            have put there stays.
        ahead: Before Triton measures several configs, compile them all with threads into Triton's own cache;
            candidates, benchmark, choice and binaries stay Triton's. `AUTOTUNED_COMPILE_WORKERS=1` turns it off too.
        race: Measure with this package's search instead: configs compile in parallel, race, and have their writes
            restored. A library's own benchmark is kept and times each config. Choices of races and of Triton's
            benchmark are stored apart.
        budget_s: Limit of each race in seconds, as of `@autotune`'s searches: configs that take longer to compile are
            left out, and measured by the next process; infinity: wait for all. None: as an earlier `install` said,
            else wait for all but the few that compile much longer than the others, which a later call measures.
        binaries: A folder that keeps everything Triton compiles in this process, and the choices, for the next
            start, also in another container and under another path (docs/ship-without-a-compiler.md). It holds code:
            only those who may run code as this user may have write access.

    Raises:
        VersionError: Triton is older than 3.6.
        ValueError: `budget_s` is no number above 0, or given without `race`.
    """
    versions.check()
    if budget_s is not None and not (is_budget(budget_s) and race):
        raise ValueError(f"install: budget_s: expected seconds above 0, and race=True, got {budget_s!r}, race={race}.")
    env.configure_logging()
    if binaries is not None:
        _keep_binaries(Path(binaries).expanduser().absolute())
    _wrap_run()
    _wrap_init()
    if ahead:
        early.begin()
    if race or ahead:
        bench.begin(race, ahead, budget_s)
    if replace:
        _replace_decorators()
        _launch_for_others()


def uninstall() -> None:
    """Undo `install` where it is still in place; kernels decorated meanwhile keep working.

    If others have since replaced `Autotuner.run` or `triton.autotune`, theirs stays, ours becomes a no-op, and
    the log says so.
    """
    if _installed.undo_kept is not None:
        _installed.undo_kept()
        _installed.undo_kept = None
    if (run := _installed.run) is not None:
        run.active, run.replacing = False, None
        if autotuner.Autotuner.run is run:
            autotuner.Autotuner.run, _installed.run = run.in_front_of, None
        else:
            log.warning("uninstall: Autotuner.run was replaced after install() (%s); theirs is left in place.",
                        _whose(autotuner.Autotuner.run))  # fmt: skip
    if autotuner.Autotuner.__init__ is _installed.init:
        autotuner.Autotuner.__init__ = _installed.init.in_front_of
    _restore_decorators()
    bench.end()


def _keep_binaries(folder: Path) -> None:
    from autotuned.dropin import kept

    if stock_tuner.keeping == [folder]:
        return
    if why := versions.strange_triton():
        log.warning("install: compiled kernels are not kept in %s: %s.", folder, why)
        return
    if _installed.undo_kept is not None:
        _installed.undo_kept()
    _installed.undo_kept = kept.begin(folder)


def _wrap_run() -> None:
    if _installed.run is not None:  # maybe under a replacement by others, which may or may not call it
        _installed.run.active = True
        return
    original: Any = autotuner.Autotuner.run
    if not kernel.is_tritons(original):
        log.info("install: Autotuner.run was replaced before (%s); it is called.", _whose(original))
    _native.watch([autotuner.Autotuner])
    autotuner.Autotuner.run = _installed.run = _front(original)


def _wrap_init() -> None:
    """Give each new tuner the `.cache` that it will keep."""
    original: Any = autotuner.Autotuner.__init__
    if original is _installed.init:
        return

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        original(self, *args, **kwargs)
        if _installed.run is not None and _installed.run.active:
            seeded.begin(self)

    ours: Any = bench.in_front_of(original, __init__)
    ours.__wrapped__, ours.__signature__ = original, inspect.signature(original)
    autotuner.Autotuner.__init__ = _installed.init = ours


def _front(original: Any) -> Any:
    """The replacement for `Autotuner.run`: in C if that is Triton's own, else the Python twin."""

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not front.active:
            return original(self, *args, **kwargs)
        if front.replacing is not None:
            return front.replacing(original, self, args, kwargs)
        return seeded.run(original, self, args, kwargs)

    run.__qualname__ = original.__qualname__  # in error messages
    front: Any = run
    if kernel.is_tritons(original) and launcher.uses_c():
        front = _native.extension.Front(original, run)
        front.__wrapped__ = run
    front.active, front.replacing = True, None
    return bench.in_front_of(original, front)


def _launch_for_others() -> None:
    """Launch for tuners not made by `autotune` too, unless another `run` must see each launch."""
    from autotuned.dropin import fronted

    if kernel.is_tritons(_installed.run.in_front_of):
        _installed.run.replacing = fronted.run


def _replace_decorators() -> None:
    from autotuned.dropin.replaced import autotune

    for holder in _HOLDERS:
        present = holder.autotune
        if present is autotune:
            continue
        if not kernel.is_tritons(present):
            log.warning("install: %s.autotune was replaced before (%s); theirs is left in place.",
                        holder.__name__, _whose(present))  # fmt: skip
            continue
        _installed.decorators[holder] = present
        holder.autotune = autotune


def _restore_decorators() -> None:
    for holder, original in list(_installed.decorators.items()):
        from autotuned.dropin.replaced import autotune

        if holder.autotune is autotune:
            holder.autotune = original
        else:
            log.warning("uninstall: %s.autotune was replaced after install() (%s); theirs is left in place.",
                        holder.__name__, _whose(holder.autotune))  # fmt: skip
        del _installed.decorators[holder]


def _whose(function: Any) -> str:
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', '?')}"
