"""Installing in a program that does not know of it: `install()` runs right after the program has imported Triton."""

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
    """Call `install` after Triton's first import, as `AUTOTUNED_INSTALL` says; Triton is not imported for it.

    A program without Triton pays nothing, and one that sets `TRITON_INTERPRET` first is not overtaken.
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
        install(replace=kind == "replace")
    except Exception:  # the program must start, with or without us
        log.exception("autotuned run: nothing is installed in this process")


class _Finder(importlib.abc.MetaPathFinder):
    """Finds Triton as everybody else does, and has its loader tell when it is done."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def find_spec(self, name: str, path: Sequence[str] | None, tunable: ModuleType | None = None) -> Any:
        """Triton's spec with our loader around its own; None for any other module."""
        if name != "triton":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, tunable)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._kind)
        return spec


class _Loader(importlib.abc.Loader):
    """The loader it is given, and `install` after it."""

    def __init__(self, loader: Any, kind: str) -> None:
        self._loader, self._kind = loader, kind

    def create_module(self, spec: Any) -> Any:
        """As the loader does."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Run the module, then install; from then on the module names its own loader."""
        spec: Any = module.__spec__
        spec.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        _install(self._kind)
