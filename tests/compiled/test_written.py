"""What version 0.2.0 wrote for a Triton kernel is read: its record, its config file, and its machine code."""

import json
import shutil
import sys
from pathlib import Path

import fake_libcuda
import pytest
import torch

import autotuned
from autotuned.binaries import file as binaryfile
from autotuned.store import layout
from autotuned.triton_compat import fingerprint
from autotuned.tunable.kernel import TunableKernel

SAMPLES = Path(__file__).parents[1] / "data" / "v0.2.0"
[BINARIES] = (SAMPLES / "kernel").glob("*/*.bin")


@pytest.fixture
def make(driver, monkeypatch):
    """The script that wrote them, beside the Triton that it pretended; nothing may be searched."""
    monkeypatch.setattr(sys, "path", [str(SAMPLES), *sys.path])
    for name in ("make", "written_kernel"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import make

    monkeypatch.setattr(TunableKernel, "toolchain", lambda self, where, folder: make.TOOLCHAIN)
    monkeypatch.setattr(TunableKernel, "environment", lambda self: {})
    with autotuned.mode("strict"):
        yield make
    for name in ("make", "written_kernel"):
        sys.modules.pop(name, None)


@pytest.fixture
def add(make):
    """The kernel as a new process imports it."""
    import written_kernel

    return written_kernel.add


def launched(add, launches):
    add[(4,)](torch.zeros(128), torch.zeros(128), 96)
    return launches[-1].arguments["BLOCK"]


def test_a_record_answers(add, launches):
    shutil.copytree(SAMPLES / "store", layout.root(), dirs_exist_ok=True)
    assert launched(add, launches) == 32


def test_a_config_file_answers(add, launches):
    autotuned.register_configs(SAMPLES / "kernel")
    assert launched(add, launches) == 32


def test_machine_code_is_launched_without_a_compiler(add, monkeypatch):
    [interface] = {one.code.interface for one in binaryfile.read(BINARIES.read_bytes(), "written.add").variants}
    if fingerprint.launch_interface() != interface:
        pytest.skip("this Triton launches in another way, so that it is refused")
    monkeypatch.setattr("triton.compiler.compiler.compile", None)
    library = fake_libcuda.install(monkeypatch)
    autotuned.register_configs(SAMPLES / "kernel", binaries=True)
    add[(4,)](torch.zeros(128), torch.zeros(128), 96)
    assert [launch.grid for launch in library.launches] == [(4, 1, 1)]
    assert library.loads == ["add"]


def test_machine_code_is_named_as_entries_name_it():
    read = binaryfile.read(BINARIES.read_bytes(), "written.add")
    [group] = json.loads(BINARIES.with_suffix(".json").read_text())["groups"]
    assert read.faults == [] and all(map(read.is_whole, read.variants))
    assert {one.digest for one in read.variants} == set(group["entries"][0]["compiled"])
