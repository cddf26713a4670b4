"""Graphs, Inductor and installed tuners on a real GPU."""

from __future__ import annotations

import gc
import logging
import threading

import pytest
import subjects
import torch
import triton
import triton.language as tl

import autotuned
from autotuned import Config, autotune
from autotuned.errors import NotTunedError
from autotuned.store import listing

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:.*:DeprecationWarning", "ignore:.*:UserWarning")]
CONFIGS = [Config({"BLOCK": block}, num_warps=warps) for block in (128, 512) for warps in (1, 4)]


@triton.jit
def _double(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n) * 2, mask=i < n)


@triton.jit
def _grow(x_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + i, tl.load(x_ptr + i, mask=i < n) + 1, mask=i < n)


def grid(meta):
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)


@pytest.fixture
def xy():
    return torch.randn(5000, device="cuda"), torch.zeros(5000, device="cuda")


def captured(launch, **options):
    gc.collect()  # Triton 3.9 unloads a kernel that is collected, and inside a capture that breaks it
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, **options):
        launch()
    return graph


def replays_right(graph, x, y):
    for value in (1.0, -3.0):
        x.fill_(value), y.zero_()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(y, x * 2)


# -- graphs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loaded", [True, False], ids=["loaded", "not loaded"])
def test_b67_a_stored_choice_is_captured(xy, loaded):
    x, y = xy
    make = lambda: autotune(configs=CONFIGS, key=["n"])(triton.jit(_double.fn))
    make()[grid](x, y, 5000)
    kernel = make()  # as in another process: nothing is bound, and its binary is not loaded
    if loaded:
        kernel[grid](x, y, 5000)
    graph = captured(lambda: kernel[grid](x, y, 5000))
    assert kernel.cache_info().searches == 0
    replays_right(graph, x, y)


def test_b67_a_refusal_leaves_the_capture_valid(xy):
    x, y = xy
    tuned = autotune(configs=CONFIGS, key=["n"])(_double)
    tuned[grid](x, y, 5000)
    untuned = autotune(configs=CONFIGS, key=["n"])(_grow)

    def launch():
        with pytest.raises(NotTunedError):
            untuned[grid](y, 5000)
        tuned[grid](x, y, 5000)

    replays_right(captured(launch), x, y)


@pytest.mark.parametrize("name", subjects.INSTALLED)
def test_an_installed_tuner_measures_nothing_under_capture(xy, name, caplog):
    x, y = xy
    with subjects.subject(name) as one, caplog.at_level(logging.WARNING, "autotuned"):
        kernel = one.autotune(CONFIGS, key=["n"])(triton.jit(_double.fn))
        graph = captured(lambda: kernel[grid](x, y, 5000))
        assert kernel.best_config is CONFIGS[0]
        assert "nothing may be measured now" in caplog.text
        assert list(listing.all_records()) == []
        replays_right(graph, x, y)
        kernel[grid](x, y, 5000)
        assert len(list(listing.all_records())) == 1
        again = one.autotune(CONFIGS, key=["n"])(triton.jit(_double.fn))
        replays_right(captured(lambda: again[grid](x, y, 5000)), x, y)
        assert again.best_config is kernel.best_config


def test_b67_one_thread_captures_while_another_tunes(xy):
    """With `thread_local`: torch's default mode lets no other thread allocate or wait while one captures."""
    x, y = xy
    tuned = autotune(configs=CONFIGS, key=["n"])(_double)
    tuned[grid](x, y, 5000)
    other = autotune(configs=CONFIGS, key=["n"])(_grow)
    failures, begun, stop = [], threading.Event(), threading.Event()

    def tune():
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                z = torch.zeros(100_000, device="cuda")
                for n in range(90_000, 100_000, 100):
                    other[grid](z, n)
                    torch.cuda.current_stream().synchronize()
                    begun.set()
                    if stop.is_set():
                        return
        except Exception as error:
            failures.append(error)
            begun.set()

    thread = threading.Thread(target=tune)
    thread.start()
    begun.wait(60)
    graphs = [captured(lambda: tuned[grid](x, y, 5000), capture_error_mode="thread_local") for _ in range(5)]
    stop.set()
    thread.join(60)
    assert failures == []
    assert other.cache_info().searches >= 1
    for graph in graphs:
        replays_right(graph, x, y)


# -- torch.compile ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("frozen", [False, True], ids=["tuned", "frozen"])
def test_inductor(xy, frozen):
    x, y = xy
    kernel = autotune(configs=CONFIGS, key=["n"])(_double)
    kernel[grid](x, y, 5000)
    assert kernel.restore_value == ["y_ptr"]
    inner = autotuned.freeze(kernel, x, y, 5000) if frozen else kernel

    @torch.compile(fullgraph=True)
    def step(x):
        y = torch.empty_like(x)
        inner[grid](x, y, 5000)
        return y + 1

    for _ in range(2):
        assert torch.equal(step(x), x * 2 + 1)


# -- installed tuners -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["triton", *subjects.INSTALLED])
def test_numbers_and_what_is_measured(xy, name):
    x, y = xy
    counts = []
    for _ in range(2):
        benched = []

        def bench(call, quantiles, benched=benched):
            benched.append(call)
            return triton.testing.do_bench(call, warmup=1, rep=5, quantiles=quantiles)

        with subjects.subject(name) as one:
            kernel = one.autotune(CONFIGS, key=["n"], restore_value=["x_ptr"], do_bench=bench)(triton.jit(_grow.fn))
            for n in (5000, 5000, 4000):
                z = torch.zeros(5000, device="cuda")
                kernel[grid](z, n)
                assert torch.equal(z, (torch.arange(5000, device="cuda") < n).float())
        counts.append(len(benched))
    assert counts == ([8, 8] if name == "triton" else [8, 0])
