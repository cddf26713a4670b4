"""Which torch and Triton this package runs with: beside an older one it says so, and does not fail somewhere else."""

from __future__ import annotations

import logging
import re
import sys
from functools import lru_cache

from autotuned.errors import VersionError

OLDEST = {"torch": (2, 10), "triton": (3, 6)}  # what pyproject.toml asks for; an installer may have been overruled

log = logging.getLogger("autotuned")


def fault(name: str, version: str) -> str | None:
    """What is wrong with this version of `"torch"` or `"triton"`; None if nothing is, or if it says nothing."""
    found = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if len(found) < 2 or found >= OLDEST[name]:
        return None
    oldest = ".".join(map(str, OLDEST[name]))
    where = getattr(sys.modules.get(name), "__file__", None) or "not imported"
    return f"expected {name} {oldest} or later, got {version} ({where}). Install it: pip install '{name}>={oldest}'."


@lru_cache(maxsize=1)
def check() -> None:
    """Look at what was imported, once: an older Triton is refused, an older torch is worth a warning.

    Raises:
        VersionError: Triton is older than any that this package was made for.
    """
    for name in OLDEST:
        version = str(getattr(sys.modules.get(name), "__version__", ""))
        wrong = fault(name, version)
        if wrong and name == "triton":
            raise VersionError(f"autotuned: {wrong}", distribution=name, version=version)
        if wrong:
            log.warning("autotuned: %s It goes on; this version was never tested.", wrong)
