"""Environment, devices and toolchain of a running process: what changes is noticed, also by bound calls."""

import ctypes
import os
import sys

import pytest
import torch
import triton
import triton.language as tl
from triton import Config

from autotuned import autotune, env
from autotuned.store import listing
from autotuned.triton_compat import fingerprint, kernel

VARIABLES = ["DISABLE_LLVM_OPT", "TRITON_DEFAULT_FP_FUSION", "TRITON_F32_DEFAULT", "USE_IR_LOC", "LLVM_ENABLE_TIMING",
             "MLIR_ENABLE_TIMING", "NVPTX_ENABLE_DUMP", "AMDGCN_USE_BUFFER_OPS", "ALLOW_LHS_TMEM_LAYOUT_CONVERSION",
             "DISABLE_MMA_V3", "DISABLE_PTXAS_OPT", "LLVM_PASS_PLUGIN_PATH", "TRITON_DISABLE_LINE_INFO"]  # fmt: skip


def shift(x_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + i, tl.load(x_ptr + i, mask=i < n) + 3, mask=i < n)


@pytest.fixture
def tuned(bench):
    return autotune([Config({"BLOCK": 16}), Config({"BLOCK": 32})], key=["n"], do_bench=bench)(triton.jit(shift))


def test_a_variable_that_changes_code_is_noticed_by_bound_calls(tuned, bench, launches, monkeypatch):
    x = torch.zeros(100)
    for _ in range(2):
        tuned[(4,)](x, 100)
    assert (tuned.cache_info().hits, bench.calls) == (1, [16, 32])
    plain = launches[-1].function
    monkeypatch.setenv("DISABLE_LLVM_OPT", "1")
    for _ in range(2):
        tuned[(4,)](x, 100)
    assert bench.calls == [16, 32, 16, 32]
    assert launches[-1].function != plain  # compiled anew: Triton itself does not look
    assert tuned.cache_info().hits == 2
    monkeypatch.delenv("DISABLE_LLVM_OPT")
    tuned[(4,)](x, 100)
    assert len(bench.calls) == 4  # this process's own choice of before
    contexts = [record.key.context["environment"] for _, record in listing.all_records()]
    assert sorted("DISABLE_LLVM_OPT" in environment for environment in contexts) == [False, True]


@pytest.mark.parametrize("name", ["MY_VARIABLE", "CUDA_LAUNCH_BLOCKING", "PYTHONHASHSEED", "TRITON_CACHE_DIR"])
def test_other_variables_change_nothing(tuned, bench, monkeypatch, name, tmp_path):
    x = torch.zeros(100)
    tuned[(4,)](x, 100)
    monkeypatch.setenv(name, str(tmp_path))
    for _ in range(2):
        tuned[(4,)](x, 100)
    assert bench.calls == [16, 32]
    assert tuned.cache_info().hits >= 1


@pytest.mark.parametrize("name", VARIABLES)
def test_every_variable_that_triton_names_is_watched(monkeypatch, name):
    monkeypatch.setenv(name, "1")
    if name in kernel.environment():
        assert name.encode().startswith(env._CODE_PREFIXES)


def test_triton_names_no_variable_that_is_not_watched():
    libtriton = sys.modules["triton._C.libtriton"].__file__
    with open(libtriton, "rb") as file:
        content = file.read()
    at = content.find(b"\0DISABLE_MMA_V3\0")
    assert at > 0
    around = content[max(0, at - 2000) : at + 2000].split(b"\0")
    before = dict(os.environ)
    named = [word.decode() for word in around if word.isupper() and word.replace(b"_", b"").isalnum() and len(word) > 5]
    for name in named:
        os.environ[name] = "1"
        try:
            if name in kernel.environment():
                assert name.encode().startswith(env._CODE_PREFIXES)
        finally:
            os.environ.pop(name) if name not in before else os.environ.update({name: before[name]})


def test_another_ptxas_is_noticed_by_bound_calls(tuned, bench, monkeypatch, tmp_path):
    x = torch.zeros(100)
    tuned[(4,)](x, 100)
    own = fingerprint._ptxas("sm_90")
    wrapper = tmp_path / "ptxas"
    wrapper.write_text(f'#!/bin/sh\nexec "{own}" "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv(fingerprint._ptxas_places("sm_90")[0], str(wrapper))
    found = tuned.explain(x, 100, grid=(4,))
    assert found.reason == "other toolchain"
    assert [change.path for change in found.changes] == ["context.ptxas"]
    tuned[(4,)](x, 100)
    assert bench.calls == [16, 32, 16, 32]


def test_a_record_of_another_triton_is_a_miss_and_explain_says_so(tuned, bench, monkeypatch):
    x = torch.zeros(100)
    real = fingerprint.of
    monkeypatch.setattr(fingerprint, "of", lambda *a: {**real(*a), "triton": "3.5.0", "triton_key": "00"})
    tuned[(4,)](x, 100)
    monkeypatch.setattr(fingerprint, "of", real)
    found = tuned.explain(x, 100, grid=(4,))
    assert (found.reason, found.answer) == ("other toolchain", "search")
    assert f'context.triton: "3.5.0" -> "{triton.__version__}"' in str(found)


def test_devices_of_one_product_share_a_choice_and_others_do_not(tuned, bench, driver, monkeypatch):
    from types import SimpleNamespace

    names = ["NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe", "NVIDIA H100 NVL"]
    gpus = [
        SimpleNamespace(name=name, major=9, minor=0, multi_processor_count=114 if "PCIe" in name else 132)
        for name in names
    ]
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index=None: gpus[index or 0])
    x = torch.zeros(100)
    searched = []
    for driver.device in (0, 1, 2, 3, 2):
        tuned[(4,)](x, 100)
        searched.append(tuned.cache_info().searches)
    assert searched == [1, 1, 2, 3, 3]


def test_a_key_is_made_without_a_word_to_the_device(tuned, driver, monkeypatch):
    x = torch.zeros(100)
    call = tuned.tuner.call((x, 100), {}, (4,))
    digest = tuned.tuner.chooser.key(call).digest

    def touched(*arguments, **named):
        raise AssertionError("the device was asked")

    for name in ("synchronize", "current_stream", "get_device_capability", "mem_get_info"):
        monkeypatch.setattr(torch.cuda, name, touched)
    for name in ("get_device_properties", "load_binary"):
        monkeypatch.setattr(driver.utils, name, touched, raising=False)
    monkeypatch.setattr(driver, "get_current_stream", touched)
    assert tuned.tuner.chooser.key(call).digest == digest


@pytest.mark.parametrize("order", [1, -1])
def test_configs_that_differ_in_warps_only_are_three_kernels_b24(launches, order):
    seen = []

    def warps(call, quantiles):
        call()
        seen.append(launches[-1].warps)
        return [{1: 3.0, 4: 1.0, 8: 2.0}[seen[-1]]] * 3

    configs = [Config({"BLOCK": 64}, num_warps=count) for count in (1, 4, 8)][::order]
    kernel = autotune(configs, key=[], do_bench=warps)(triton.jit(shift))
    kernel[(4,)](torch.zeros(100), 100)
    assert sorted(seen) == [1, 4, 8]
    assert kernel.best_config.num_warps == 4
    assert len({launch.function for launch in launches}) == 3


def test_a_config_that_does_not_compile_is_compiled_once_b36(driver, launches):
    tried = []
    real = triton.compile

    @triton.jit
    def picky(x_ptr, n, BLOCK: tl.constexpr):
        tl.static_assert(BLOCK < 64)
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(x_ptr + i, i + 1.0, mask=i < n)

    def count(**info):
        tried.append(info["compile"]["constants"][(2,)])

    configs = [Config({"BLOCK": block}) for block in (16, 32, 64)]
    kernel = autotune(configs, key=["n"], do_bench=lambda call, quantiles: (call(), [1.0] * 3)[1])(picky)
    compiles = []
    run = kernel.fn.run

    def counting(*args, **kwargs):
        compiles.append(kwargs["BLOCK"])
        return run(*args, **kwargs)

    kernel.fn.run = counting
    for n in range(101, 109, 2):
        kernel[(8,)](torch.zeros(200), n)
    assert compiles.count(64) == 1
    assert kernel.cache_info().searches == 4
    for _, record in listing.all_records():
        assert [timing.status for timing in record.timings] == ["ok", "ok", "failed"]
    assert real is triton.compile


def test_what_c_code_sets_is_in_the_next_key():
    c = ctypes.CDLL(None)
    before = kernel.environment()
    try:
        c.setenv(b"DISABLE_LLVM_OPT", b"1", 1)
        assert "DISABLE_LLVM_OPT" not in os.environ
        assert kernel.environment() == {**before, "DISABLE_LLVM_OPT": "true"}
        c.setenv(b"DISABLE_LLVM_OPT", b"0", 1)
        assert kernel.environment() != {**before, "DISABLE_LLVM_OPT": "true"}
    finally:
        c.unsetenv(b"DISABLE_LLVM_OPT")
    assert kernel.environment() == before
