"""The kernel of `shipped_kernel.py` with its binaries: tuned and built once per session, served without a compiler."""

from __future__ import annotations

import importlib
import os
import shutil
import sys

import fake_libcuda
import pytest
import torch

import autotuned
from autotuned.configfiles import exchange
from autotuned.offline import binaries


def fresh():
    """The kernel as imported by a new process."""
    sys.modules.pop("shipped_kernel", None)
    module = importlib.import_module("shipped_kernel")
    module.bench.calls.clear()
    return module


def call(add, n=96, s=1, offset=0):
    x, y = torch.zeros(256), torch.zeros(256)
    return add[(4,)](x[offset:], y[offset:], n, s)


def compiled_by_triton(kernel):
    """Whether a launch returned Triton's own kernel."""
    return type(kernel).__name__ == "CompiledKernel"


@pytest.fixture(scope="session")
def built_once(tmp_path_factory):
    """The folder in which the first test that needs them leaves store and files."""
    return tmp_path_factory.mktemp("shipped-binaries")


def _build(folder):
    add = fresh().add
    for n in (96, 100):
        call(add, n)
        sys.modules["shipped_kernel"].padded[(4,)](torch.zeros(128), n)
    exchange.export(folder / "tuned")
    assert binaries.build(folder / "tuned", ["shipped_kernel"], device="cpu").missing == []
    shutil.copytree(os.environ["AUTOTUNED_CACHE_DIR"], folder / "store", symlinks=True)


@pytest.fixture
def shipped(driver, built_once, tmp_path):
    """A folder with the choices and binaries for both cases; the store also has the choices."""
    if not (built_once / "store").exists():
        _build(built_once)
    else:
        shutil.copytree(built_once / "store", os.environ["AUTOTUNED_CACHE_DIR"], symlinks=True)
    shutil.copytree(built_once / "tuned", tmp_path / "tuned")
    fresh()
    return tmp_path / "tuned"


@pytest.fixture
def library(monkeypatch):
    return fake_libcuda.install(monkeypatch)


@pytest.fixture
def nothing_compiles_later(monkeypatch):
    """A function that makes every compilation, and the hash of Triton's files, raise from then on."""

    def refuse(*args, **kwargs):
        raise AssertionError("compiled")

    def begin():
        for place in ("triton.compiler.compiler.compile", "triton.compile", "triton.compiler.compile"):
            monkeypatch.setattr(place, refuse)
        monkeypatch.setattr("autotuned.triton_compat.fingerprint.of", refuse)

    return begin


@pytest.fixture
def nothing_compiles(nothing_compiles_later):
    nothing_compiles_later()


@pytest.fixture
def served(shipped, library, tmp_path, monkeypatch):
    """The kernel in a process with empty caches and the folder registered."""
    monkeypatch.setenv("AUTOTUNED_CACHE_DIR", str(tmp_path / "empty"))
    autotuned.register_configs(shipped, binaries=True)
    return fresh().add


@pytest.fixture
def second(served, nothing_compiles):
    """The same without a compiler."""
    return served
