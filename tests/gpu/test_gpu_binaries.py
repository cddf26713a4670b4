"""Shipped binaries on a real GPU: a second process compiles nothing and computes the same bits, as does the generic one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pytest

from autotuned.configfiles import exchange
from autotuned.offline import binaries

pytestmark = pytest.mark.gpu

KERNEL = """
import torch, triton, triton.language as tl
from autotuned import Config, autotune

@autotune([Config({"BLOCK": block}, num_warps=4) for block in (128, 256)], key=["n"], name="gpu.shipped")
@triton.jit
def add(x_ptr, y_ptr, n, s, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i * s, tl.load(x_ptr + i * s, mask=i < n) * 3 + 1, mask=i < n)

def grid(meta):
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)

@add.case
def cases(device):
    for n in (4096, 5000):
        yield {"args": (torch.empty(n, device=device), torch.empty(n, device=device), n, 1), "grid": grid}
"""
PROGRAM = """
import json, sys, torch, triton, autotuned
from gpu_shipped_kernel import add, grid

def refuse(*args, **kwargs):
    raise AssertionError("compiled")

def launched(n, offset=0, s=1):
    x = torch.arange(2 * n + offset, device="cuda", dtype=torch.float32) * 0.1
    y = torch.zeros_like(x)
    kernel = add[grid](x[offset:], y[offset:], n, s)
    return y.sum().item(), type(kernel).__name__

if sys.argv[1] == "binaries":
    from autotuned.triton_compat import fingerprint
    triton.compile = triton.compiler.compile = triton.compiler.compiler.compile = refuse
    type(triton.runtime.driver).active = property(refuse)
    fingerprint.of = fingerprint.begin = refuse
    autotuned.register_configs("tuned", binaries=True)
calls = [(4096,), (5000,), (4096,), (4096, 1), (5000, 0, 2)]
print(json.dumps([launched(*call) for call in calls]))
"""


def clean():
    """The environment without a tool that Inductor named in this process: with it no binary serves."""
    return {name: value for name, value in os.environ.items() if not name.startswith("TRITON_PTXAS")}


def process(tmp_path, kind, **environment):
    """What a process printed, with caches of its own."""
    folder = tmp_path / kind
    environment = {
        **clean(), "AUTOTUNED_CACHE_DIR": str(folder / "store"), "TRITON_CACHE_DIR": str(folder / "triton"),
        **environment,
    }  # fmt: skip
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(PROGRAM), kind], cwd=tmp_path, env=environment,
                          capture_output=True, text=True, timeout=300)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """What a first process computed, and the binaries for its choices."""
    (tmp_path / "gpu_shipped_kernel.py").write_text(KERNEL)
    first = process(tmp_path, "compiled")
    monkeypatch.setenv("AUTOTUNED_CACHE_DIR", str(tmp_path / "compiled" / "store"))
    exchange.export(tmp_path / "tuned")
    monkeypatch.chdir(tmp_path)
    result = binaries.build(tmp_path / "tuned", ["gpu_shipped_kernel.py"])
    assert result.missing == []
    return first


@pytest.mark.parametrize("launcher", ["c", "python", "verify"])
def test_the_bits_are_those_of_a_compiled_run(shipped, tmp_path, launcher):
    """The last two calls were not foreseen: another alignment, and a stride."""
    second = process(tmp_path, "binaries", AUTOTUNED_LAUNCHER=launcher, PATH=str(tmp_path / "nothing"))
    assert [bits for bits, _ in second] == [bits for bits, _ in shipped]
    assert {name for _, name in second} == {"Loaded"} and {name for _, name in shipped} == {"CompiledKernel"}


SEALED = """
import json, torch, triton, autotuned
from autotuned.errors import SealedError

autotuned.register_configs("tuned", binaries=True)
from gpu_shipped_kernel import add, grid

ready = autotuned.prepare()
assert ready.missing == [] and ready.compiled == 0 and ready.loaded > 0, ready

def launched(n, offset=0, s=1):
    x = torch.arange(2 * n + offset, device="cuda", dtype=torch.float32) * 0.1
    y = torch.zeros_like(x)
    add[grid](x[offset:], y[offset:], n, s)
    return y.sum().item()

with autotuned.seal(all=True):
    found = [launched(*call) for call in [(4096,), (5000,), (4096,), (4096, 1), (5000, 0, 2)]]
    try:
        launched(4096, 0, 2.0)
    except SealedError as error:
        assert error.reason == "`s`: fp32; compiled were: i32", error
    else:
        raise AssertionError("expected a SealedError")
    try:
        launched(8192)
    except SealedError as error:
        assert error.what == "search", error
counts = {kind: count.events for (kernel, kind), count in autotuned.counters().items() if kernel == "gpu.shipped"}
assert counts["load"] == ready.loaded and "compile" not in counts and "search" not in counts, counts
print(json.dumps(found))
"""


def test_sealed_and_prepared_it_serves_the_same_bits_and_compiles_nothing(shipped, tmp_path):
    environment = {
        **clean(), "AUTOTUNED_CACHE_DIR": str(tmp_path / "sealed" / "store"),
        "TRITON_CACHE_DIR": str(tmp_path / "sealed" / "triton"),
    }  # fmt: skip
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(SEALED)], cwd=tmp_path, env=environment,
                          capture_output=True, text=True, timeout=300)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [bits for bits, _ in shipped]
