"""Tests of `supported`: beside a torch or a Triton that is too old the message says what to install."""

import pickle
import re
import sys
from pathlib import Path

import forked
import pytest
import triton

import autotuned
from autotuned.errors import VersionError
from autotuned.triton_compat import versions

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def looked_at_anew():
    versions.check.cache_clear()
    yield
    versions.check.cache_clear()


@pytest.mark.parametrize(
    "version", ["3.6.0", "3.6", "3.10.0", "4.0.0", "3.6.0+git1234", "3.7.0.dev2026", "", "unknown", "3"]
)
def test_these_are_good_enough_or_say_nothing(version):
    assert versions.fault("triton", version) is None


@pytest.mark.parametrize("version", ["3.5.1", "2.3", "3.5.1+cpu", "3.5.0rc1"])
def test_an_older_one_is_named_with_what_to_do(version):
    text = versions.fault("triton", version)
    assert text.startswith(f"expected triton 3.6 or later, got {version} (")
    assert triton.__file__ in text
    assert text.endswith("Install it: pip install 'triton>=3.6'.")


def test_the_oldest_are_those_that_an_installer_is_told():
    wanted = dict(re.findall(r'^    "(torch|triton)>=([\d.]+)', (ROOT / "pyproject.toml").read_text(), re.MULTILINE))
    assert wanted == {name: ".".join(map(str, oldest)) for name, oldest in versions.OLDEST.items()}


def test_what_was_tried_is_what_ci_installs_and_readers_are_told():
    assert autotuned.triton_compat.versions.TRIED[0].startswith(".".join(map(str, versions.OLDEST["triton"])))
    for path in ("README.md", "docs/design.md"):
        text = (ROOT / path).read_text()
        assert [version for version in versions.TRIED if version not in text] == []
    ci = (ROOT / ".ci" / "run").read_text()
    others = re.findall(r"other_triton ([\d.]+)", ci)
    assert versions.TRIED[0] in others and set(others) < set(versions.TRIED)


def kernel(x_ptr):
    pass


def test_a_kernel_of_an_older_triton_is_refused(monkeypatch):
    made = triton.jit(kernel)
    monkeypatch.setattr(triton, "__version__", "3.5.1")
    for _ in range(2):
        with pytest.raises(VersionError, match="expected triton 3.6 or later, got 3.5.1") as caught:
            autotuned.autotune(configs=[])(made)
    assert (caught.value.distribution, caught.value.version) == ("triton", "3.5.1")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_so_is_install_which_then_changes_nothing(monkeypatch):
    before = triton.runtime.autotuner.Autotuner.run
    monkeypatch.setattr(triton, "__version__", "3.2.0")
    with pytest.raises(VersionError, match="got 3.2.0"):
        autotuned.install(replace=True)
    assert triton.runtime.autotuner.Autotuner.run is before


def test_a_plain_callable_needs_no_triton_and_works_beside_any(monkeypatch):
    monkeypatch.setattr(triton, "__version__", "3.2.0")
    tuned = autotuned.autotune(configs=[])(lambda x: x + 1)
    assert tuned(1) == 2


def test_an_older_torch_is_a_warning_once(monkeypatch, caplog):
    import torch

    monkeypatch.setattr(torch, "__version__", "2.6.0")
    for _ in range(2):
        autotuned.autotune(configs=[])(triton.jit(kernel))
    (line,) = [record.getMessage() for record in caplog.records if "2.6.0" in record.getMessage()]
    assert "expected torch 2.10 or later, got 2.6.0" in line and "pip install 'torch>=2.10'" in line


DOCTOR = """
import torch, triton
torch.__version__, triton.__version__ = "2.6.0", "3.2.0"
from autotuned.cli.main import app
app(["doctor"])
"""


def test_doctor_names_what_is_too_old():
    done = forked.run([sys.executable, "-c", DOCTOR])
    text = " ".join((done.stdout + done.stderr).split())
    assert "problem: expected torch 2.10 or later, got 2.6.0" in text
    assert "problem: expected triton 3.6 or later, got 3.2.0" in text
