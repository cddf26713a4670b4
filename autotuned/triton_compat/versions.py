"""The supported versions of torch and Triton, and messages for others."""

from __future__ import annotations

import logging
import sys
from functools import lru_cache

from autotuned._startup import errors

OLDEST = {"torch": (2, 10), "triton": (3, 6)}  # as in pyproject.toml, which an installation can ignore
TRIED = ("3.6.0", "3.7.0", "3.7.1", "3.8.0", "3.9.0")  # versions of Triton that the tests were run with

log = logging.getLogger("autotuned")


def fault(name: str, version: str) -> str | None:
    """A message if this version of "torch" or "triton" is too old; None if it is not, or unknown."""
    found = _minor(version)
    if len(found) < 2 or found >= OLDEST[name]:
        return None
    oldest = ".".join(map(str, OLDEST[name]))
    where = getattr(sys.modules.get(name), "__file__", None) or "not imported"
    return f"expected {name} {oldest} or later, got {version} ({where}). Install it: pip install '{name}>={oldest}'."


@lru_cache(maxsize=1)
def check() -> None:
    """Check the imported versions, once: VersionError if Triton is too old, a warning if torch is."""
    for name in OLDEST:
        version = str(getattr(sys.modules.get(name), "__version__", ""))
        wrong = fault(name, version)
        if wrong and name == "triton":
            raise errors.VersionError(f"autotuned: {wrong}", distribution=name, version=version)
        if wrong:
            log.warning("autotuned: %s Continuing; this version was never tested.", wrong)


def strange_triton() -> str | None:
    """Why Triton's internals must not be used; None if its minor version was tested.

    Launches and everything else that needs internals then go through Triton: a wrong guess could give wrong results.
    """
    triton = sys.modules.get("triton")
    return None if triton is None else strange(getattr(triton, "__version__", ""))


@lru_cache(maxsize=1)
def strange(version: str) -> str | None:
    """Why this version's internals must not be used, logged once; None if its minor version was tested."""
    if _minor(version) in map(_minor, TRIED):
        return None
    why = f"Triton {version or 'without a version'} was never tested, only {TRIED[0]} to {TRIED[-1]}"
    log.warning("autotuned: %s. Kernels are still tuned and stored, and launched through Triton.", why)
    return why


def _minor(version: str) -> tuple[int, ...]:
    # Without `re`: compiling a pattern would take 0.1 ms at process start.
    words = "".join(letter if letter in "0123456789" else " " for letter in version).split()
    return tuple(map(int, words[:2]))
