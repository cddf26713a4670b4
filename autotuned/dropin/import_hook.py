"""Installs in a program that does not know of it: `install()` runs right after the program imports Triton."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import logging
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from autotuned import env

log = logging.getLogger("autotuned")


def when_triton_is_imported() -> None:
    """Call `install` after Triton's first import, as `AUTOTUNED_INSTALL` says, without importing Triton.

    Programs without Triton pay nothing, and others may still set `TRITON_INTERPRET` before they import it.
    """
    kind = env.install_kind()
    if not kind:
        return
    if "triton" in sys.modules:
        _install(kind)
    else:
        sys.meta_path.insert(0, _Finder(kind))


def _install(kind: str) -> None:
    from autotuned.dropin.install import install

    try:
        replace, race = kind.startswith("replace"), kind.endswith("race")
        budget_s = env.race_budget_s() if race else None
        install(replace, race=race, budget_s=budget_s, binaries=env.kept_binaries())
    except Exception:  # the program must start, with or without us
        log.exception("autotuned run: nothing is installed in this process")


class _Finder(importlib.abc.MetaPathFinder):
    """Finds Triton as usual, and makes its loader call `install` when done.

    It stays until then: programs may look Triton up without importing it, as torch 2.13 for CUDA does.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        if name != "triton":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        loader: Any = spec and spec.loader
        if loader is not None:
            run = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                del loader.exec_module  # restore the loader
                run(module)
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                    _install(self._kind)

            loader.exec_module = exec_module
        return spec
