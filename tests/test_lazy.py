"""Tests of `_lazy`."""

from __future__ import annotations

import subprocess
import sys

import pytest

from autotuned._lazy import later
from autotuned.triton_compat import ttir

CODE = """
import sys
from autotuned._lazy import later
ttir = later("triton_compat.ttir")
assert "autotuned.triton_compat.ttir" not in sys.modules
ttir.access
assert "autotuned.triton_compat.ttir" in sys.modules
"""


def test_a_module_is_imported_when_something_of_it_is_asked_for():
    subprocess.run([sys.executable, "-c", CODE], check=True, timeout=60)


def test_what_is_asked_for_is_the_modules_own_at_that_moment(monkeypatch):
    module = later("triton_compat.ttir")
    assert module.access is ttir.access
    monkeypatch.setattr(ttir, "access", len)
    assert module.access is len
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        module.nothing
