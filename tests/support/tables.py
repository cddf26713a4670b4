"""Launch tables of the Python twin, key specs for an argument `a`, and whether two values share words."""

from collections.abc import Callable
from typing import Any

import pytest

from autotuned.key.key import KeySpec, pow2
from autotuned.launch.table import PyLauncher


class Bound:
    """An entry of the table, opaque to the launcher."""


def launcher(*names: str, spec: KeySpec = KeySpec(), device: Callable[[], int] = lambda: 0) -> PyLauncher:
    return PyLauncher(names, spec, lambda: device)


def of_callable(*names: str, spec: KeySpec = KeySpec()) -> PyLauncher:
    """The table of a plain callable."""
    return PyLauncher(names, spec)


def of_kernel(*names: str) -> PyLauncher:
    """The table of a Triton kernel."""
    return PyLauncher(names, KeySpec(), lambda: lambda: 0, places=False)


def shares_words(spec: KeySpec, one: Any, other: Any, is_of_kernel: bool = False) -> bool:
    """Whether an entry bound for one value of the argument `a` is found for another."""
    table = PyLauncher(("a",), spec, lambda: lambda: 0, places=not is_of_kernel)
    assert table.bind((one,), Bound())
    return table.find((other,)) is not None


ALL = KeySpec()
LISTED = KeySpec(("a",))
NOT_LISTED = KeySpec(("b",))
CONSTEXPR = KeySpec(("b",), constexprs=frozenset({"a"}))
BUCKET = KeySpec(("a",), buckets={"a": pow2})
SPECS = {"no list": ALL, "listed": LISTED, "not listed": NOT_LISTED, "constexpr": CONSTEXPR, "bucket": BUCKET}
every_spec = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
