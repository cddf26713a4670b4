"""`autotuned.prepare` for a whole program: a recording, or the registered files, loaded before the first request."""

from __future__ import annotations

import importlib
import sys
import threading
import weakref

import fake_libcuda
import pytest
import torch

import autotuned
from autotuned.configfiles import exchange
from autotuned.errors import RecordingError
from autotuned.offline import binaries
from autotuned.resolve import sealing


@pytest.fixture(autouse=True)
def lifted():
    yield
    autotuned.unseal()
    sealing._lifted.clear()


def fresh():
    sys.modules.pop("shipped_kernel", None)
    return importlib.import_module("shipped_kernel")


def call(add, n=96, s=1, offset=0):
    x, y = torch.zeros(256), torch.zeros(256)
    return add[(4,)](x[offset:], y[offset:], n, s)


@pytest.fixture
def recorded(driver, tmp_path, monkeypatch):
    """A recording of three calls, of which two have choices and binaries; another process begins."""
    module, out, calls = fresh(), tmp_path / "tuned", tmp_path / "calls.jsonl"
    call(module.add)
    call(module.add, 100)
    exchange.export(out)
    assert binaries.build(out, ["shipped_kernel"], device="cpu").missing == []
    with autotuned.record(calls):
        for n in (96, 100, 120):
            call(module.add, n)
    monkeypatch.setenv("AUTOTUNED_CACHE_DIR", str(tmp_path / "empty"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    return out, calls


@pytest.fixture
def library(monkeypatch):
    return fake_libcuda.install(monkeypatch)


def test_what_a_recording_needs_is_loaded_and_the_rest_is_said(recorded, library):
    out, calls = recorded
    autotuned.register_configs(out, binaries=True)
    add, told = fresh().add, []
    result = autotuned.prepare(calls, progress=lambda done, of: told.append((done, of, threading.current_thread())))
    assert [(done, of) for done, of, _ in told] == [(1, 3), (2, 3), (3, 3)]
    assert {thread for _, _, thread in told} == {threading.current_thread()}
    assert (result.loaded, result.compiled) == (2, 0)
    [missing] = result.missing
    assert missing.kernel == "app.add" and missing.call["values"] == {"n": 120} and "NotTunedError" in missing.reason
    assert [entry["reason"] is None for entry in result.to_json()["calls"]].count(True) == 2
    assert library.launches == []
    with autotuned.seal():
        call(add)
        call(add, 100)
    assert len(library.launches) == 2 and add.cache_info()[:3] == (2, 0, 2)


def test_without_binaries_it_compiles_and_under_the_seal_it_does_not(recorded, library):
    out, calls = recorded
    autotuned.register_configs(out)
    fresh()
    with autotuned.seal():
        result = autotuned.prepare(calls)
    assert result.compiled == 0 and len(result.missing) == 3
    assert sum("SealedError" in one.reason for one in result.missing) == 2
    result = autotuned.prepare(calls)
    assert (result.loaded, result.compiled, len(result.missing)) == (0, 2, 1)


def test_all_registered_files(recorded, library):
    out, _ = recorded
    autotuned.register_configs(out, binaries=True)
    sys.modules.pop("shipped_kernel", None)
    add, told = fresh().add, []
    result = autotuned.prepare(progress=lambda done, of: told.append((done, of)))
    assert result.missing == [] and result.compiled == 0
    assert result.loaded == len(library.loads) == len(told) == 4  # two special ones, two generic ones
    call(add, 96, s=2)
    assert len(library.loads) == 4 and len(library.launches) == 1


def test_files_whose_kernels_are_not_imported_or_that_have_no_binaries_are_said(recorded, library, monkeypatch):
    from autotuned.resolve import tuner

    out, _ = recorded
    autotuned.register_configs(out, binaries=True)
    monkeypatch.setattr(tuner, "_tuners", weakref.WeakValueDictionary())
    result = autotuned.prepare()
    assert {one.reason for one in result.missing} == {"its kernel has not been imported in this process"}
    assert len(result.missing) == 2
    next(out.glob("*/app.add.bin")).unlink()
    from autotuned.configfiles import lookup

    lookup.forget_files()
    fresh()
    result = autotuned.prepare()
    assert len(result.missing) == 2 and "its binaries are not there" in result.missing[0].reason


def test_what_the_driver_refuses_is_said(recorded, library):
    out, _ = recorded
    autotuned.register_configs(out, binaries=True)
    fresh()
    library.error = fake_libcuda.OUT_OF_MEMORY
    result = autotuned.prepare()
    assert result.loaded == 0 and len(result.missing) == 2
    assert all("out of memory" in one.reason for one in result.missing)


def test_no_recording_is_an_error(tmp_path):
    with pytest.raises(RecordingError):
        autotuned.prepare(tmp_path / "none.jsonl")


def test_a_callback_that_raises_ends_it(recorded, library):
    out, calls = recorded
    autotuned.register_configs(out, binaries=True)
    fresh()
    with pytest.raises(KeyboardInterrupt):
        autotuned.prepare(calls, progress=lambda done, of: (_ for _ in ()).throw(KeyboardInterrupt))
