"""The C extension: imported and configured only here."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

INTERFACE = 6  # as in `launch/c/module.c`; changes with what Python and C pass each other
extension: Any = None
why_not = ""
try:
    import autotuned._launch as extension
except ImportError as error:  # built without a C compiler: everything works, launches are slower
    why_not = f"the C extension is missing ({error})"
    if "the C launcher" in str(error):  # built, but without support for this Python (`launch/c/cpython.h`)
        logging.getLogger("autotuned").warning("Launches go through the Python twin: %s.", error)
else:
    if (found := getattr(extension, "INTERFACE", 0)) != INTERFACE:  # calls could even compute wrong results
        extension = None
        why_not = f"the C extension was built from other sources (interface {INTERFACE} expected, {found} found)"
        message = "Launches go through the Python twin: %s. Build it again: pip install --no-deps -e FOLDER."
        logging.getLogger("autotuned").warning(message, why_not)


def watch(objects: Iterable[Any]) -> None:
    """Make the C launcher revalidate its entries when one of these dictionaries or types changes."""
    if extension is not None:
        for one in objects:
            extension.watch(one)


def index_like(tuner: type, heuristics: type) -> None:
    """Make the C launcher's `[]` honour a replaced `__getitem__` of these classes, as inheritance in Python would."""
    if extension is not None:
        extension.index_like(tuner, heuristics)


def read_grids(reader: Callable[[Any], Any]) -> None:
    """Set the function that translates grid callables for the C launcher (`grid_program.program`)."""
    if extension is not None:
        extension.read_grids(reader)


def look_up_in(choices: type) -> None:
    """Look up keys of this subclass of dict in C; it calls `_look_up` for a missing key."""
    if extension is not None:
        extension.look_up_in(choices)
