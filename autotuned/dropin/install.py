"""`install()` and `uninstall()`: this package under programs that use `triton.autotune`, without a change to them."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import triton
from triton.runtime import autotuner

from autotuned import _native, env
from autotuned.dropin import bench, seeded
from autotuned.triton_compat import kernel, versions

log = logging.getLogger("autotuned")
# Where Triton's decorator is looked up: by users, by some libraries, and by torch and fla.
_HOLDERS = (triton, triton.runtime, autotuner)


class _Installed:
    """What is in place: the wrapped `run`, and what `autotune` was in each holder."""

    def __init__(self) -> None:
        self.run: Any = None
        self.active = False
        self.replacing: Any = None  # `fronted.run`, while kernels are launched by this package
        self.decorators: dict[int, Any] = {}
        self.kept: Any = None  # `kept.Kept`, while it stands in for Triton's `compile`
        self.undo_kept: Any = None


_installed = _Installed()


def install(
    replace: bool = False,
    *,
    ahead: bool = True,
    race: bool = False,
    binaries: str | os.PathLike[str] | None = None,
) -> None:
    """Give kernels of other libraries that use `triton.autotune` a memory: what was measured once is not again.

    `Autotuner.run` is wrapped once. Where one of Triton's tuners, decorated before or later, would measure, the store
    and the config files are asked first, for exactly this key and these configs; what Triton measures is kept. All
    else is Triton's: key, hooks, benchmark, launch. In modes "serve" and "strict", and while a CUDA graph is captured,
    nothing is measured. Called again, it does nothing.

    Args:
        replace: Also launch by this package's launcher: a decorator of the same signature and meaning is put in the
            place of `triton.autotune`, and a launch table in front of the `run` of kernels that it did not decorate.
            A decorator that somebody else has put there stays.
        ahead: Where Triton would measure several configs, compile them all by threads first, into Triton's own cache;
            candidates, benchmark, choice and binaries stay Triton's. `AUTOTUNED_COMPILE_WORKERS=1` turns it off too.
        race: Where Triton would measure, measure by this package's search: configs compiled side by side, raced, and
            what they write put back. A benchmark that the library gives is kept, and times each config. What a race
            chose and what Triton's benchmark chose are stored apart, and do not serve each other.
        binaries: A folder that keeps what every Triton kernel of this process compiled, and has it back at the next
            start, in another container and under another path (docs/ship-without-a-compiler.md). It holds code: only
            those who may run code as this user may be able to write it.

    Raises:
        VersionError: Triton is older than 3.6.
    """
    versions.check()
    env.configure_logging()
    if binaries is not None:
        _keep_binaries(Path(binaries).expanduser().absolute())
    _wrap_run()
    if race or ahead:
        bench.begin(race, ahead)
    if replace:
        _replace_decorators()
        _launch_for_others()


def uninstall() -> None:
    """Take back what `install` did, where it is still there; kernels decorated meanwhile keep working.

    Where somebody has replaced `Autotuner.run` or `triton.autotune` since, theirs stays, and ours does nothing any
    more: one line in the log says so.
    """
    _installed.active, _installed.replacing = False, None
    if _installed.undo_kept is not None:
        _installed.undo_kept()
        _installed.kept = _installed.undo_kept = None
    if _installed.run is not None and autotuner.Autotuner.run is _installed.run:
        autotuner.Autotuner.run = _installed.run.in_front_of
        _installed.run = None
    elif _installed.run is not None:
        log.warning("uninstall: Autotuner.run was replaced after install() (%s); theirs is left in place.",
                    _whose(autotuner.Autotuner.run))  # fmt: skip
    _restore_decorators()
    bench.end()


def _keep_binaries(folder: Path) -> None:
    from autotuned.dropin.kept import Kept
    from autotuned.triton_compat import specialization

    if _installed.kept is not None and _installed.kept.folder == folder:
        return
    if why := versions.strange_triton():
        log.warning("install: compiled kernels are not kept in %s: %s.", folder, why)
        return
    if _installed.undo_kept is not None:
        _installed.undo_kept()

    def make(original: Any) -> Any:
        _installed.kept = Kept(folder, original, lambda: _installed.kept)
        return _installed.kept

    _installed.undo_kept = specialization.stand_in_for_compile(make)


def _wrap_run() -> None:
    if _installed.active:
        return
    _installed.active = True
    if _installed.run is not None:  # under somebody's replacement, which calls it or does not
        return
    original: Any = autotuner.Autotuner.run
    if not kernel.is_tritons(original):
        log.info("install: Autotuner.run was replaced before (%s); it is called.", _whose(original))

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _installed.active:
            return original(self, *args, **kwargs)
        if _installed.replacing is not None:
            return _installed.replacing(original, self, args, kwargs)
        return seeded.run(original, self, args, kwargs)

    run.__name__, run.__qualname__, run.__doc__ = original.__name__, original.__qualname__, original.__doc__
    run.in_front_of = original  # type: ignore[attr-defined]  # how `Tuned` knows that nobody else replaced it
    _native.watch([autotuner.Autotuner])
    autotuner.Autotuner.run = run
    _installed.run = run


def _launch_for_others() -> None:
    """Launch for tuners that `autotune` was not asked for too; not where somebody else's `run` must see each launch."""
    from autotuned.dropin import fronted

    if kernel.is_tritons(_installed.run.in_front_of):
        _installed.replacing = fronted.run


def _replace_decorators() -> None:
    from autotuned.dropin.replaced import autotune

    for index, holder in enumerate(_HOLDERS):
        present = holder.autotune
        if present is autotune:
            continue
        if not kernel.is_tritons(present):
            log.warning("install: %s.autotune was replaced before (%s); theirs is left in place.",
                        holder.__name__, _whose(present))  # fmt: skip
            continue
        _installed.decorators[index] = present
        holder.autotune = autotune


def _restore_decorators() -> None:
    for index, original in list(_installed.decorators.items()):
        from autotuned.dropin.replaced import autotune

        holder = _HOLDERS[index]
        if holder.autotune is autotune:
            holder.autotune = original
        else:
            log.warning("uninstall: %s.autotune was replaced after install() (%s); theirs is left in place.",
                        holder.__name__, _whose(holder.autotune))  # fmt: skip
        del _installed.decorators[index]


def _whose(function: Any) -> str:
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', '?')}"
