"""The launcher on a real GPU: heuristics, profilers, many shapes, threads."""

from __future__ import annotations

import gc
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
from triton.tools.tensor_descriptor import TensorDescriptor

import autotuned
from autotuned import Config, autotune

pytestmark = pytest.mark.gpu
CONFIGS = [Config({"BLOCK": block}, num_warps=warps) for block in (256, 1024) for warps in (1, 4)]


@triton.jit
def _scaled(x_ptr, out_ptr, n, EVEN: tl.constexpr, TIMES: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    if EVEN:
        x += 1
    tl.store(out_ptr + i, x * TIMES, mask=i < n)


VALUES = {"EVEN": lambda args: args["n"] % 2 == 0, "TIMES": lambda args: 4 if args["EVEN"] else 2}


def grid(meta):
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)


def expected(x, n):
    return (x[:n] + 1) * 4 if n % 2 == 0 else x[:n] * 2


@pytest.fixture(params=["c", "python"])
def kernel(request, monkeypatch):
    """The kernel under this package's heuristics, on one launcher."""
    monkeypatch.setenv("AUTOTUNED_LAUNCHER", request.param)
    return tuned()


def tuned():
    return autotuned.heuristics(VALUES)(autotune(configs=CONFIGS, key=["n"], name="gpu_launch.scaled")(_scaled))


def test_heuristics_give_the_right_binary_cold_and_hit(kernel):
    x, out = torch.randn(5000, device="cuda"), torch.zeros(5000, device="cuda")
    for n in (4096, 4095, 4096, 4095, 1, 2, 1):
        out.zero_()
        kernel[grid](x, out, n=n)
        torch.testing.assert_close(out[:n], expected(x, n))
        assert not out[n:].any()
    assert kernel.fn.cache_info().hits >= 3


def test_threads_launch_one_kernel_on_streams_of_their_own(kernel):
    kernel[grid](torch.ones(5000, device="cuda"), torch.ones(5000, device="cuda"), 4096)
    wrong = []

    def work(seed):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            x, out = torch.full((5000,), float(seed), device="cuda"), torch.empty(5000, device="cuda")
            for i in range(200):
                n = 4096 - i % 2
                kernel[grid](x, out, n)
                if i % 20 == 0:
                    stream.synchronize()
                    if not torch.equal(out[:n], expected(x, n)):
                        wrong.append((seed, n))
            stream.synchronize()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


PROFILED = """
import os, sys, torch
sys.path.insert(0, sys.argv[1])
import test_gpu_launch as here
kernel = here.tuned()
x, out = torch.ones(5000, device="cuda"), torch.ones(5000, device="cuda")
kernel[here.grid](x, out, 4096)
torch.cuda.synchronize()
def launch():
    for _ in range(5):
        kernel[here.grid](x, out, 4096)
    torch.cuda.synchronize()
getattr(here, "count_by_" + sys.argv[2])(launch)
sys.stdout.flush()
os._exit(0)  # torch 2.11's profiler was seen to abort at exit
"""


def count_by_proton(launch):
    from triton import profiler as proton

    session = proton.start("profile", hook="triton")
    launch()
    proton.finalize(session)
    (path,) = Path().glob("profile*")
    print(launches_of("_scaled", json.loads(path.read_text())))


def count_by_torch(launch):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profile:
        launch()
    print(sum(event.count for event in profile.key_averages() if event.key == "_scaled"))


@pytest.mark.parametrize("launcher", ["c", "python"])
@pytest.mark.parametrize("profiler", ["proton", "torch"])
def test_a_profiler_sees_every_launch_with_its_name(profiler, launcher, tmp_path, monkeypatch):
    """In a process of its own: two profilers in one share the driver's interface for them."""
    if profiler == "proton":
        pytest.importorskip("triton.profiler")
    monkeypatch.setenv("AUTOTUNED_LAUNCHER", launcher)
    command = [sys.executable, "-P", "-c", PROFILED, os.path.dirname(__file__), profiler]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert (done.returncode, done.stdout.split()[-1:]) == (0, ["5"]), done.stderr


def launches_of(name, node):
    """How often a kernel is counted in a profile."""
    if isinstance(node, list):
        return sum(launches_of(name, part) for part in node)
    if not isinstance(node, dict):
        return 0
    own = node.get("metrics", {}).get("count", 0) if name in node.get("frame", {}).get("name", "") else 0
    return own or launches_of(name, node.get("children", []))


@triton.jit
def _scaled_pair(pair, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(pair[0] + i, mask=i < n) * pair[1], mask=i < n)


@pytest.mark.parametrize("launcher", ["c", "python"])
def test_tuples_are_launched_from_the_table(launcher, monkeypatch):
    monkeypatch.setenv("AUTOTUNED_LAUNCHER", launcher)
    kernel = autotune(configs=CONFIGS, key=["n"])(_scaled_pair)
    for _ in range(3):
        for by in (1, 2, 16, 17, 2.5):
            x, out = torch.randn(4096, device="cuda"), torch.zeros(4096, device="cuda")
            kernel[grid]((x, by), out, 4096)
            torch.testing.assert_close(out, x * by)
    assert kernel.cache_info().hits >= 10


def _set_block(arguments):
    for name in ("source", "target"):
        arguments[name].block_shape = [arguments["ROWS"], 32]


@triton.jit
def _copy_blocks(source, target, n, ROWS: tl.constexpr):
    row = tl.program_id(0) * ROWS
    target.store([row, 0], source.load([row, 0]) * 2)


@pytest.mark.skipif(torch.cuda.is_available() and torch.cuda.get_device_capability() < (9, 0), reason="needs sm_90")
@pytest.mark.parametrize("launcher", ["c", "python"])
@pytest.mark.parametrize("is_hooked", [False, True], ids=["fixed", "set by a hook"])
def test_descriptors_are_launched_from_the_table(launcher, is_hooked, monkeypatch):
    monkeypatch.setenv("AUTOTUNED_LAUNCHER", launcher)
    hook = _set_block if is_hooked else None
    configs = [
        Config({"ROWS": rows}, num_warps=warps, pre_hook=hook) for rows in (8, 16)[not is_hooked :] for warps in (1, 4)
    ]
    kernel = autotune(configs=configs, key=["n"])(_copy_blocks)
    for dtype in (torch.float16, torch.float32):
        for _ in range(3):  # descriptors of their own each time, as in a model's forward
            x, out = torch.randn(64, 32, device="cuda").to(dtype), torch.zeros(64, 32, device="cuda", dtype=dtype)
            made = (TensorDescriptor.from_tensor(tensor, [1 if is_hooked else 16, 32]) for tensor in (x, out))
            kernel[lambda meta: (64 // meta["ROWS"],)](*made, 64)
            torch.testing.assert_close(out, x * 2)
    assert kernel.cache_info().hits == 4


def test_memory_of_the_host_is_tritons_own_error_whatever_was_bound(kernel):
    """Pinned memory may be launched with, and has the words of memory that may not."""
    out = torch.zeros(4096, device="cuda")
    pinned, pageable = torch.ones(4096).pin_memory(), torch.ones(4096)
    for _ in range(2):
        kernel[grid](pinned, out, 4096)
    torch.testing.assert_close(out, torch.full_like(out, 8.0))
    with pytest.raises(ValueError, match="cannot be accessed from Triton"):
        kernel[grid](pageable, out, 4096)
    kernel[grid](torch.ones_like(out), out, 4096)  # the context is as sound as before
    torch.cuda.synchronize()


def test_five_thousand_shapes_keep_device_memory_flat(kernel):
    memory, out = torch.ones(5200, device="cuda"), torch.empty(5200, device="cuda")
    single = autotune(configs=CONFIGS[:1], key=["x_ptr"], name="gpu_launch.shapes")(_scaled)
    for n in range(1, 101):
        single[grid](memory[:n], out, n, False, 3)
    gc.collect()  # what other tests have left behind is not counted
    before = torch.cuda.memory_allocated()
    for n in range(1, 5001):
        single[grid](memory[:n], out, n, False, 3)
    torch.cuda.synchronize()
    gc.collect()
    assert torch.cuda.memory_allocated() <= before
    assert len(single.tuner.launcher) <= 4096
    assert bool((out[:5000] == 3).all())


@triton.jit
def _times(x_ptr, out_ptr, n, alpha: tl.float32, beta: tl.float64, count: tl.int32, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    tl.store(out_ptr + i, (x * alpha + beta + count).to(tl.float32), mask=i < n)


@pytest.mark.parametrize("launcher", ["c", "python", "verify"])
def test_annotated_numbers_are_converted_as_by_triton(launcher, monkeypatch, caplog):
    monkeypatch.setenv("AUTOTUNED_LAUNCHER", launcher)
    kernel = autotune(CONFIGS[:1], key=[], restore_value=[], name=f"gpu_launch.times.{launcher}")(_times)
    x, out = torch.ones(1000, device="cuda"), torch.zeros(1000, device="cuda")
    zero_d = torch.tensor(3, device="cuda")
    numbers = [2, 2.5, True, 16, 2**40, -7, zero_d, torch.tensor(2.5, device="cuda")]
    for alpha in [*numbers, *numbers]:
        for beta, count in ((3, 1), (0.5, True), (zero_d, zero_d)):
            out.zero_()
            kernel[grid](x, out, 1000, alpha, beta, count)
            assert float(out[0]) == float(out[-1]) == pytest.approx(float(alpha) + float(beta) + int(count))
    for wrong, error in (
        (torch.ones(3, device="cuda"), (RuntimeError, ValueError)),
        (None, TypeError),
        ("2", TypeError),
    ):
        for _ in range(2):
            with pytest.raises(error):
                kernel[grid](x, out, 1000, wrong, 0.5, 1)
    assert kernel.cache_info().hits > 0
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@triton.jit
def _stage(x_ptr, work_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(work_ptr + i, tl.load(x_ptr + i, mask=i < n), mask=i < n)
    tl.debug_barrier()  # what follows may be read by another thread than wrote it
    tl.store(out_ptr + i, tl.load(work_ptr + i, mask=i < n), mask=i < n)


@pytest.mark.parametrize("way", ["hook", "grid"])
@pytest.mark.parametrize("launcher", ["c", "python", "verify"])
def test_a_workspace_that_user_code_moves_is_the_one_that_is_written(launcher, way, monkeypatch):
    """Each call gets other memory, then memory at another alignment, before it is launched."""
    monkeypatch.setenv("AUTOTUNED_LAUNCHER", launcher)
    memory = [torch.zeros(5000, device="cuda") for _ in range(6)]
    x, out, work = torch.zeros(1000, device="cuda"), torch.zeros(1000, device="cuda"), torch.empty(0, device="cuda")
    moves = []

    def move(arguments):
        step = len(moves)
        work.set_(memory[step % 6][step % 2 :])
        moves.append(step)

    def moving(meta):
        if way == "grid":
            move(meta)
        return grid(meta)

    configs = [Config({"BLOCK": 256}, num_warps=4, pre_hook=move if way == "hook" else None)]
    kernel = autotune(configs, key=[], restore_value=[], name=f"gpu_launch.stage.{launcher}.{way}")(_stage)
    for value in range(1, 13):
        x.fill_(value)
        kernel[moving](x, work, out, 1000)
        assert bool((work[:1000] == value).all())
        assert bool((out == value).all())


@pytest.mark.parametrize("launcher", ["c", "python", "verify"])
def test_a_hook_that_sets_the_stream_is_obeyed(launcher, monkeypatch):
    monkeypatch.setenv("AUTOTUNED_LAUNCHER", launcher)
    other, torchs = torch.cuda.Stream(), torch.cuda.current_stream()
    hook = lambda arguments: torch.cuda.set_stream(other)
    kernel = autotune(
        [Config({"BLOCK": 256}, pre_hook=hook)], key=[], restore_value=[], name=f"gpu_launch.stream.{launcher}"
    )(_stage)
    x, work, out = (torch.zeros(1000, device="cuda") for _ in range(3))
    try:
        for value in (1.0, 2.0, 3.0):
            torch.cuda.set_stream(torchs)
            x.fill_(value)
            torch.cuda.synchronize()
            torch.cuda._sleep(10**8)  # on torch's own stream, which the launch must not wait for
            kernel[grid](x, work, out, 1000)
            other.synchronize()
            assert bool(torch.cuda.current_stream() == other)
            with torch.cuda.stream(other):
                assert float(out.sum()) == 1000 * value
    finally:
        torch.cuda.set_stream(torchs)
        torch.cuda.synchronize()
