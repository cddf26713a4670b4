"""Compile ahead on a real GPU: the same binaries and bits as stock, sooner; together with other ranks; and after."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from triton import Config, knobs

import autotuned
from autotuned.dropin import install

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:.*:DeprecationWarning", "ignore:.*:UserWarning")]
CONFIGS = [
    Config({"M": m, "N": n, "K": 32}, num_warps=warps, num_stages=stages)
    for m in (64, 128) for n in (64, 128) for warps in (4, 8) for stages in (2, 3, 4)
]  # fmt: skip


def matmul(a_ptr, b_ptr, c_ptr, size, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    rows = tl.program_id(0) * M + tl.arange(0, M)
    columns = tl.program_id(1) * N + tl.arange(0, N)
    total = tl.zeros((M, N), tl.float32)
    for begin in range(0, size, K):
        inner = begin + tl.arange(0, K)
        a = tl.load(a_ptr + rows[:, None] * size + inner[None, :])
        b = tl.load(b_ptr + inner[:, None] * size + columns[None, :])
        total = tl.dot(a, b, total)
    tl.store(c_ptr + rows[:, None] * size + columns[None, :], total.to(tl.float16))


def tuned(configs=CONFIGS, **options):
    return triton.autotune(configs, key=["size"], **options)(triton.jit(matmul))


def launch(kernel, size=512):
    torch.manual_seed(0)
    a, b, c = (torch.randn(size, size, device="cuda", dtype=torch.float16) for _ in range(3))
    kernel[lambda meta: (size // meta["M"], size // meta["N"])](a, b, c, size)
    torch.cuda.synchronize()
    return c


@pytest.fixture(autouse=True)
def nothing_stays():
    yield
    install.uninstall()


@pytest.fixture
def compiled(monkeypatch):
    """Threads that compiled something, each with the seconds that it took."""
    seen = []

    def note(*, cache_hit, times, **event):
        if not cache_hit:
            seen.append((threading.current_thread().name.partition("_")[0], times.total / 1e6))

    monkeypatch.setattr(knobs.compilation, "listener", note)
    return seen


def test_the_first_call_compiles_on_all_cores_and_computes_the_same(compiled, tmp_path, monkeypatch):
    found = {}
    for way in ("stock", "ahead"):
        monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / way))
        if way == "ahead":
            autotuned.install()
        compiled.clear()
        kernel = tuned()
        result = launch(kernel)
        chosen = tuned([kernel.best_config])
        found[way] = result, {path.read_bytes() for path in (tmp_path / way).rglob("*.cubin")}, list(compiled)
        assert torch.equal(launch(chosen), result)
    assert found["stock"][1] == found["ahead"][1] and len(found["stock"][1]) > 1
    assert {name for name, _ in found["stock"][2]} == {"MainThread"}
    assert {name for name, _ in found["ahead"][2]} == {"autotuned-ahead"}
    assert len(found["ahead"][2]) == len(found["stock"][2]) == len(CONFIGS)


def test_autograds_thread_compiles_ahead_too(compiled, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    autotuned.install()
    kernel = tuned()

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return x * x

        @staticmethod
        def backward(context, gradient):
            return gradient * launch(kernel)[0, 0]

    Square.apply(torch.ones(4, device="cuda", requires_grad=True)).sum().backward()
    assert {name for name, _ in compiled} == {"autotuned-ahead"} and len(compiled) == len(CONFIGS)


PROCESS = """
import json, sys, threading, time
import torch, triton
from triton import knobs
sys.path.insert(0, {folder!r})
import autotuned
import {module} as library
compiled = []
def note(*, cache_hit, **event):
    if not cache_hit:
        compiled.append(threading.current_thread().name.partition("_")[0])
knobs.compilation.listener = note
autotuned.install()
kernels = [library.first, library.second, library.third]
torch.zeros(1, device="cuda")
begin = time.perf_counter()
for kernel in kernels:
    library.launch(kernel)
print(json.dumps({{"compiled": compiled, "seconds": time.perf_counter() - begin,
                  "chosen": [str(kernel.best_config) for kernel in kernels]}}))
"""


@pytest.fixture
def process(tmp_path):
    """Starts a process that launches three kernels of one library."""
    text = "import torch, triton, triton.language as tl\nfrom triton import Config\n"
    here = Path(__file__).read_text()
    body = here[here.index("CONFIGS = [") : here.index("@pytest.fixture(autouse=True)")]
    text += body + "".join(
        "@triton.autotune(CONFIGS, key=['size'])\n@triton.jit\n"
        + here[here.index("def matmul(") : here.index("def tuned(")].replace("def matmul", f"def {name}")
          .replace("total = tl.zeros((M, N), tl.float32)", f"total = tl.zeros((M, N), tl.float32) + {number}")
        for number, name in enumerate(("first", "second", "third"))
    )  # fmt: skip
    (tmp_path / "library_of_three.py").write_text(text)
    script = tmp_path / "program.py"
    script.write_text(PROCESS.format(folder=str(tmp_path), module="library_of_three"))

    def start(cache, store="store", **environment):
        variables = {**os.environ, "AUTOTUNED_CACHE_DIR": str(tmp_path / store),
                     "TRITON_CACHE_DIR": str(tmp_path / cache), **environment}  # fmt: skip
        return subprocess.Popen([sys.executable, str(script)], env=variables, stdout=subprocess.PIPE, text=True)

    return start


def answer(process):
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    return json.loads(output)


def test_the_second_process_compiles_the_winners_at_once(process):
    first, second = answer(process("one")), answer(process("two"))
    assert second["chosen"] == first["chosen"]
    assert len(first["compiled"]) == 3 * len(CONFIGS) and len(second["compiled"]) == 3
    assert second["compiled"].count("MainThread") <= 1
    print(f"first {first['seconds']:.1f} s, second {second['seconds']:.1f} s")


def test_ranks_compile_each_binary_once(process):
    ranks = [process("shared", f"store-{rank}", LOCAL_WORLD_SIZE="4") for rank in range(4)]
    found = [answer(rank) for rank in ranks]
    assert sum(len(one["compiled"]) for one in found) == 3 * len(CONFIGS)
    print("seconds of each rank:", [round(one["seconds"], 1) for one in found])
