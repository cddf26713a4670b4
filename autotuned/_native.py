"""The C extension, imported here and nowhere else, and what it is told of the process that it launches in."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

extension: Any = None
why_not = ""
try:
    import autotuned._launch as extension
except ImportError as error:  # built without a C compiler: everything works, launches cost more
    why_not = f"the C extension is not there ({error})"
    if "the C launcher" in str(error):  # it was built, and knows no such Python (`launch/c/cpython.h`)
        logging.getLogger("autotuned").warning("Launches go through the Python twin: %s.", error)


def watch(objects: Iterable[Any]) -> None:
    """Make the C launcher validate its entries again when one of these dictionaries or types changes."""
    if extension is not None:
        for one in objects:
            extension.watch(one)


def index_like(tuner: type, heuristics: type) -> None:
    """Make the C launcher's `[]` obey whoever replaces that of these classes; in Python it is inherited."""
    if extension is not None:
        extension.index_like(tuner, heuristics)


def read_grids(reader: Callable[[Any], Any]) -> None:
    """Make the C launcher ask this function, once for each grid callable, what it computes (`grid_program.program`)."""
    if extension is not None:
        extension.read_grids(reader)
