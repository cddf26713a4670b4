"""What Python and the C extension pass each other has a number, so that a stale build is noticed at import."""

import hashlib
import inspect
import re
from pathlib import Path

import pytest

import autotuned
from autotuned import _native
from autotuned.launch import driver_call, launcher

FOLDER = Path(autotuned.__file__).parent
SOURCES = Path(__file__).parents[2] / "autotuned"  # what is installed holds none of C
# Did this fail? Then a stale build could still be loaded: count `INTERFACE` up in `_native.py` and
# `launch/c/module.c`, and put both numbers here.
PINNED = 6, "c11726a225eebe0b"


def passed() -> str:
    """What is passed, as far as Python's side says it."""
    sources = map(inspect.getsource, (driver_call.fields, launcher.make, launcher._role))
    texts = [(FOLDER / "_launch.pyi").read_text(), *sources]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


def test_another_interface_has_another_number():
    assert (_native.INTERFACE, passed()) == PINNED


def test_the_sources_and_the_built_extension_have_the_number():
    [there] = re.findall(r"#define INTERFACE (\d+)", (SOURCES / "launch/c/module.c").read_text())
    assert int(there) == _native.INTERFACE
    built = pytest.importorskip("autotuned._launch")
    assert built.INTERFACE == _native.INTERFACE
