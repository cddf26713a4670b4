"""An AMD GPU that is pretended: keys, store, config files, compiling for gfx942, and launches through Triton.

Nothing of this package ever ran on such a GPU. Triton's wheel compiles for it all the same.
"""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace

import fake_cuda
import pytest
import torch
import triton
import triton.language as tl
from triton import Config
from triton.backends.compiler import GPUTarget
from triton.compiler import compiler

import autotuned
from autotuned import autotune
from autotuned.configfiles import exchange
from autotuned.offline import binaries
from autotuned.store import listing

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton.backends.amd") is None, reason="this Triton has no back end for AMD"
)
MI300X = SimpleNamespace(
    name="AMD Instinct MI300X", gcnArchName="gfx942:sramecc+:xnack-", multi_processor_count=304, major=9, minor=4,
    L2_cache_size=4 << 20, warp_size=64,
)  # fmt: skip
CONFIGS = [Config({"BLOCK": 64, "waves_per_eu": waves}, num_warps=warps) for waves in (0, 2) for warps in (1, 4)]


@pytest.fixture(autouse=True)
def amd(driver, monkeypatch):
    """The pretended GPU is an MI300X under ROCm."""
    monkeypatch.setattr(torch.version, "hip", "6.4.0")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index=None: MI300X)
    monkeypatch.setattr(driver, "get_current_target", lambda: GPUTarget("hip", "gfx942", 64))
    monkeypatch.setattr(
        driver.utils, "get_device_properties",
        lambda index: {"max_shared_mem": 65536, "multiprocessor_count": 304, "warpSize": 64},
    )  # fmt: skip
    compiler.max_shared_mem.cache_clear()  # Triton asks once a process
    yield driver
    compiler.max_shared_mem.cache_clear()


def kernel():
    def bench(call, quantiles):
        call()
        asked = fake_cuda.Launcher.launches[-1].metadata
        bench.calls.append((asked.num_warps, asked.waves_per_eu))
        return [1.0 if bench.calls[-1] == (4, 2) else 2.0] * 3

    bench.calls = []

    @autotune(CONFIGS, key=["n"], do_bench=bench, name="amd.add")
    @triton.jit
    def add(x, y, n, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y + i, tl.load(x + i, mask=i < n) + 1, mask=i < n)

    add.calls = bench.calls
    return add


both = pytest.mark.parametrize("launcher", ["c", "python"], indirect=True)


@both
def test_a_search_is_stored_shipped_and_served(launches, tmp_path, monkeypatch):
    x, y = torch.zeros(256), torch.zeros(256)
    add = kernel()
    compiled = add[(4,)](x, y, 256)
    assert sorted(set(add.calls)) == [(1, 0), (1, 2), (4, 0), (4, 2)]
    assert (compiled.metadata.target, compiled.metadata.waves_per_eu) == (GPUTarget("hip", "gfx942", 64), 2)
    assert compiled.asm["hsaco"] and "cubin" not in compiled.asm
    assert (add.best_config.num_warps, add.best_config.kwargs) == (4, {"BLOCK": 64, "waves_per_eu": 2})
    [(_, record)] = listing.all_records("amd.add")
    said = record.key.context["device"]
    assert (said["name"], said["arch"], said["sm_count"]) == ("AMD Instinct MI300X", "gfx942", 304)

    again = kernel()  # of the store
    assert again[(4,)](x, y, 256).metadata.waves_per_eu == 2 and not again.calls
    launched = launches[-1]
    assert (launched.warps, launched.grid, launched.args[:3]) == (4, (4, 1, 1), (x, y, 256))
    assert again[(2,)](y, x, 256) is not None and again.cache_info().hits == 1
    assert (launches[-1].grid, launches[-1].args[:2]) == ((2, 1, 1), (y, x))

    exchange.export(tmp_path / "tuned")
    assert [path.parent.name for path in tmp_path.glob("tuned/*/*.json")] == ["amd-instinct-mi300x-gfx942-304"]
    monkeypatch.setenv("AUTOTUNED_CACHE_DIR", str(tmp_path / "empty"))
    autotuned.register_configs(tmp_path / "tuned")
    shipped = kernel()
    with autotuned.mode("strict"):
        shipped[(4,)](x, y, 256)
    assert not shipped.calls and launches[-1].metadata.waves_per_eu == 2


@both
def test_the_launch_is_tritons_own(launcher):
    x = torch.zeros(256)
    add = kernel()
    for _ in range(3):
        add[(4,)](x, x, 256)
    assert add.cache_info().hits == 2
    if launcher == "c":
        assert add.tuner.launcher.in_c.passed((x, x, 256), (4,)) is None  # nothing is passed to CUDA's driver


def test_binaries_are_not_built_and_that_is_said(tmp_path):
    kernel()[(4,)](torch.zeros(256), torch.zeros(256), 256)
    exchange.export(tmp_path / "tuned")
    [built] = binaries.build(tmp_path / "tuned", device="cpu").files
    assert built.variants == 0 and "expected a file of an NVIDIA GPU" in built.missing[0]


def test_what_does_not_fit_in_shared_memory_is_left_out(amd, monkeypatch):
    """Of 64 KiB; of 4 KiB here, for which little code is compiled."""
    properties = amd.utils.get_device_properties(0) | {"max_shared_mem": 4096}
    monkeypatch.setattr(amd.utils, "get_device_properties", lambda index: properties)

    @autotune([Config({"BLOCK": 16}), Config({"BLOCK": 64})], key=["n"], name="amd.dot")
    @triton.jit
    def dot(x, y, n, BLOCK: tl.constexpr):
        i = tl.arange(0, BLOCK)
        at = i[:, None] * n + i[None, :]
        tl.store(y + at, tl.dot(tl.load(x + at), tl.load(x + at)))

    x = torch.zeros(64 * 64, dtype=torch.float16)
    dot[(1,)](x, x.float(), 64)
    [(_, record)] = listing.all_records("amd.dot")
    by_block = {one.config["kwargs"]["BLOCK"]: one for one in record.timings}
    assert by_block[16].status == "ok" and by_block[64].status == "failed"
    assert "out of resource: shared memory" in by_block[64].error
