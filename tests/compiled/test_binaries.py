"""Compiled kernels that ship: built from config files, loaded without Triton's compiler, launched as Triton's are."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import fake_libcuda
import pytest
import torch
import triton

import autotuned
from autotuned.binaries import file as binaryfile
from autotuned.configfiles import exchange
from autotuned.offline import binaries


def fresh():
    """The kernel as a new process imports it."""
    sys.modules.pop("shipped_kernel", None)
    module = importlib.import_module("shipped_kernel")
    module.bench.calls.clear()
    return module


def call(add, n=96, s=1, offset=0):
    x, y = torch.zeros(256), torch.zeros(256)
    return add[(4,)](x[offset:], y[offset:], n, s)


@pytest.fixture
def shipped(driver, tmp_path, monkeypatch):
    """A folder with the choices for both cases, and the binaries for them."""
    add = fresh().add
    for n in (96, 100):
        call(add, n)
    out = tmp_path / "tuned"
    exchange.export(out)
    result = binaries.build(out, ["shipped_kernel"], device="cpu")
    assert result.missing == []
    return out


@pytest.fixture
def library(monkeypatch):
    return fake_libcuda.install(monkeypatch)


@pytest.fixture
def no_compiler(monkeypatch):
    """Whatever compiles raises, and so does the hash over Triton's files."""

    def refuse(*args, **kwargs):
        raise AssertionError("compiled")

    monkeypatch.setattr("triton.compiler.compiler.compile", refuse)
    monkeypatch.setattr(triton, "compile", refuse)
    monkeypatch.setattr("triton.compiler.compile", refuse)
    monkeypatch.setattr("autotuned.triton_compat.fingerprint.of", refuse)


@pytest.fixture
def served(shipped, library, tmp_path, monkeypatch):
    """The kernel in a process that begins with empty caches and the folder registered."""
    monkeypatch.setenv("AUTOTUNED_CACHE_DIR", str(tmp_path / "empty"))
    autotuned.register_configs(shipped, binaries=True)
    return fresh().add


@pytest.fixture
def second(served, no_compiler):
    """The same where nothing can be compiled."""
    return served


def test_the_file_holds_what_was_met_and_the_generic_ones(shipped):
    [path] = shipped.glob("*/*.bin")
    file = binaryfile.read(path.read_bytes(), str(path))
    forms = {tuple(type_ for _, type_ in variant.form.types) for variant in file.variants}
    pointers = ("*fp32", "*fp32")
    assert forms == {
        (*pointers, "i32", "=1", "constexpr"), (*pointers, "i32", "i32", "constexpr"),
        (*pointers, "i64", "i64", "constexpr"),
    }  # fmt: skip
    assert len(file.variants) == 4  # n = 96 is divisible by 16, n = 100 is not
    named = {
        digest for _, entry in exchange.read(next(shipped.glob("*/*.json")))[0].entries() for digest in entry.binaries
    }
    assert named == {variant.digest for variant in file.variants}


def test_the_machine_code_is_what_triton_compiles(shipped):
    [path] = shipped.glob("*/*.bin")
    file = binaryfile.read(path.read_bytes(), str(path))
    codes = {file.code(variant) for variant in file.variants}
    add = fresh().add
    assert {call(add, n).asm["cubin"] for n in (96, 100)} < codes


def test_a_second_process_compiles_nothing_and_hashes_nothing(second, library):
    for n in (96, 100, 96, 100):
        loaded = call(second, n)
        assert loaded.metadata.num_warps == 4 and loaded.asm["cubin"].startswith(b"\x7fELF")
    assert library.loads == ["add", "add"]
    assert [launch.grid for launch in library.launches] == [(4, 1, 1)] * 4
    assert second.cache_info().hits == 2 and second.cache_info().searches == 0


def test_a_call_that_nobody_foresaw_gets_the_generic_binary(second, library):
    call(second, 96, s=1, offset=1)
    call(second, 96, s=2)
    call(second, 96, s=1 << 40)
    assert len(library.launches) == 3 and len(library.loads) == 2  # narrow for the first two, wide for the last


def test_explain_names_the_place(served):
    x = torch.zeros(256)
    found = served.explain(x, x, 96, 1, grid=(4,))
    assert found.answer == "config files, with a binary", str(found)


@pytest.fixture(scope="session")
def libcuda(tmp_path_factory):
    """A folder with a library in the place of CUDA's driver."""
    folder = tmp_path_factory.mktemp("libcuda")
    source = Path(__file__).parent.parent / "support" / "fake_libcuda.c"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-O1", "-Wall", "-o", folder / "libcuda.so.1", source], check=True, timeout=60
    )
    return folder


@pytest.mark.parametrize("launcher", ["c", "python", "verify"])
def test_a_process_without_any_compiler_serves(shipped, libcuda, tmp_path, launcher):
    """No `triton.compile`, no driver of Triton's, no hash over its files, and no program on the path."""
    here, log = Path(__file__).parent, tmp_path / "log"
    environment = {
        "PATH": str(tmp_path / "nothing"), "LD_LIBRARY_PATH": str(libcuda), "FAKE_LIBCUDA_LOG": str(log),
        "PYTHONPATH": os.pathsep.join([str(here.parent / "support"), *sys.path]), "TRITON_DEFAULT_FP_FUSION": "1",
        "AUTOTUNED_CACHE_DIR": str(tmp_path / "empty"), "TRITON_CACHE_DIR": str(tmp_path / "triton"),
        "AUTOTUNED_LAUNCHER": launcher, "HOME": str(tmp_path),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, str(here / "serving.py"), str(shipped)], env=environment, capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["hits"] == 2 and json.loads(done.stdout)["searches"] == 0
    lines = [line.split() for line in log.read_text().splitlines()]
    assert [line[0] for line in lines] == ["load", "launch", "load", "launch", "launch", "launch"]
    assert [line[2] for line in lines if line[0] == "launch"] == ["4"] * 4
    assert not (tmp_path / "triton").exists()
