"""The tuner on a real GPU: numbers, state, second process, graphs, streams, failures."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest
import torch
import triton
import triton.language as tl

from autotuned import Config, autotune
from autotuned.errors import AllConfigsFailedError, NotTunedError

pytestmark = pytest.mark.gpu
CONFIGS = [Config({"BLOCK": block}, num_warps=warps) for block in (128, 256, 1024) for warps in (1, 4)]


@triton.jit
def _scale(x_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + i, tl.load(x_ptr + i, mask=i < n) * 0.5, mask=i < n)


@triton.jit
def _add_into(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out_ptr + i, tl.load(x_ptr + i, mask=i < n), mask=i < n)


def grid(meta):
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)


@pytest.mark.parametrize("restore", [["x_ptr"], None], ids=["declared", "found out"])
def test_in_place_kernel_leaves_one_clean_launch(restore):
    kernel = autotune(configs=CONFIGS, key=["n"], restore_value=restore)(_scale)
    x = torch.ones(100_000, device="cuda")
    kernel[grid](x, 100_000)
    assert torch.equal(x, torch.full_like(x, 0.5))
    kernel[grid](x, n=100_000)
    assert torch.equal(x, torch.full_like(x, 0.25))
    assert kernel.cache_info().searches == 1
    assert kernel.cache_info().hits == 1
    assert kernel.restore_value == ["x_ptr"]


def test_accumulator_is_zeroed_on_every_path():
    kernel = autotune(configs=CONFIGS, key=["n"], reset_to_zero=["out_ptr"])(_add_into)
    x = torch.randn(5000, device="cuda")
    out = torch.full_like(x, 7.0)
    for _ in range(3):
        kernel[grid](x, out, 5000)
        assert torch.equal(out, x)
    kernel.cache_clear()  # the choice comes from disk now
    kernel[grid](x, out, 5000)
    assert torch.equal(out, x)
    assert kernel.cache_info().searches == 1


def test_misaligned_views_and_integer_classes_get_their_own_binary():
    kernel = autotune(configs=CONFIGS, key=[])(_scale)
    base = torch.ones(70_000, device="cuda", dtype=torch.float16)
    for offset in (0, 1, 2, 7, 8):
        for n in (1, 15, 16, 1023, 1024, 65_536):
            for _ in range(2):
                x = base.fill_(1.0)[offset:]
                kernel[grid](x, n)
                assert torch.equal(x[:n], torch.full_like(x[:n], 0.5))
                assert bool((x[n:] == 1.0).all())


def test_b71_side_stream_is_used_for_everything():
    kernel = autotune(configs=CONFIGS, key=["n"], restore_value=["x_ptr"])(_scale)
    stream = torch.cuda.Stream()
    x = torch.zeros(1 << 20, device="cuda")
    torch.cuda.synchronize()
    for expected in (0.5, 0.5):
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)  # a long producer: a launch on another stream would read zeros
            x.fill_(1.0)
            kernel[grid](x, 1 << 20)
        stream.synchronize()
        assert torch.equal(x, torch.full_like(x, expected))


def test_b67_graph_capture_serves_tuned_and_refuses_untuned():
    kernel = autotune(configs=CONFIGS, key=["n"], restore_value=["x_ptr"])(_scale)
    x = torch.ones(4096, device="cuda")
    y = torch.ones(4096, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(NotTunedError, match="captured"):
            kernel[grid](x, 4096)
        y.mul_(2.0)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(y, torch.full_like(y, 2.0))
    kernel[grid](x, 4096)
    x.fill_(1.0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel[grid](x, 4096)
    graph.replay()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(x, torch.full_like(x, 0.25))


def test_config_that_does_not_fit_is_skipped_and_all_is_an_error():
    @triton.jit
    def product(a_ptr, o_ptr, n, BLOCK: tl.constexpr, K: tl.constexpr):
        r = tl.arange(0, BLOCK)
        total = tl.zeros((BLOCK, BLOCK), tl.float32)
        for k in range(0, n, K):
            c = k + tl.arange(0, K)
            a = tl.load(a_ptr + r[:, None] * n + c[None, :])
            b = tl.load(a_ptr + r[None, :] * n + c[:, None])
            total += tl.dot(a, b)
        tl.store(o_ptr + r[:, None] * BLOCK + r[None, :], total)

    fits, too_large = Config({"BLOCK": 64, "K": 32}, num_stages=2), Config({"BLOCK": 128, "K": 256}, num_stages=4)
    a = torch.randn(128, 1024, device="cuda", dtype=torch.float16)
    out = torch.zeros(128 * 128, device="cuda")
    kernel = autotune(configs=[too_large, fits], key=["n"])(product)
    kernel[(1,)](a, out, 1024)
    assert kernel.best_config is fits
    torch.testing.assert_close(out[: 64 * 64].view(64, 64), a[:64].float() @ a[:64].float().T, atol=0.5, rtol=0.05)
    kernel = autotune(configs=[too_large, Config({"BLOCK": 128, "K": 256}, num_stages=5)], key=["n"])(product)
    with pytest.raises(AllConfigsFailedError, match="shared memory"):
        kernel[(1,)](a, out, 1024)


def test_memory_returns_to_the_base_after_a_search():
    kernel = autotune(configs=CONFIGS, key=["n"])(_scale)
    x = torch.ones(1 << 22, device="cuda")
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    kernel[grid](x, 1 << 22)
    assert torch.cuda.memory_allocated() == before


def test_the_race_finds_the_config_that_is_far_faster():
    @triton.jit
    def slow_or_fast(x_ptr, n, BLOCK: tl.constexpr, REPEAT: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + i, mask=i < n)
        for _ in range(REPEAT):
            x = tl.sqrt(x + 1.0)
        tl.store(x_ptr + i, x, mask=i < n)

    configs = [Config({"BLOCK": 256, "REPEAT": repeat}) for repeat in (400, 800, 20, 200)]
    kernel = autotune(configs=configs, key=["n"])(slow_or_fast)
    kernel[grid](torch.ones(1 << 20, device="cuda"), 1 << 20)
    assert kernel.best_config.kwargs["REPEAT"] == 20


SECOND_PROCESS = """
import torch, triton, triton.language as tl
from triton import knobs
from autotuned import Config, autotune
compiled = []
knobs.runtime.jit_post_compile_hook = lambda **facts: compiled.append(facts["repr"])
@autotune(configs=[Config({"BLOCK": b}, num_warps=w) for b in (128, 256, 1024) for w in (1, 4)], key=["n"])
@triton.jit
def scale(x_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + i, tl.load(x_ptr + i, mask=i < n) * 0.5, mask=i < n)
x = torch.ones(4096, device="cuda")
scale[lambda meta: (triton.cdiv(4096, meta["BLOCK"]),)](x, 4096)
assert torch.equal(x, torch.full_like(x, 0.5))
print(scale.cache_info().searches, len(compiled), scale.best_config)
"""


def test_second_process_measures_nothing_and_compiles_once(tmp_path):
    script = tmp_path / "app.py"
    script.write_text(textwrap.dedent(SECOND_PROCESS))

    def run() -> list[str]:
        done = subprocess.run(
            [sys.executable, script], capture_output=True, text=True, env=dict(os.environ), timeout=300
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.split(" ", 2)

    first, second = run(), run()
    assert (first[0], first[1]) == ("1", "6")
    assert (second[0], second[1]) == ("0", "1")
    assert first[2] == second[2]
