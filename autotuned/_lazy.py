"""Modules that a stored choice does not need: each is imported when something of it is first asked for."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any


class Later(ModuleType):
    """Stands for a module of this package that has not been imported; asked for a name, it asks the module.

    Not `importlib.util.LazyLoader`, whose modules two threads may fill at once before Python 3.12.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self.__name__), name)


def later(name: str) -> Any:
    """The module `autotuned.<name>`, for names that are used inside functions only.

    Starting a process whose choices are stored took 27 ms of imports with all modules, on an idle core; half of that
    was modules for searching (`tests/bench/store.py`).
    """
    return Later(f"autotuned.{name}")
