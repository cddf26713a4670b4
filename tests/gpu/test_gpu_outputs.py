"""The pool of outputs on a real GPU: streams, captures, memory that torch wants back."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import torch
import triton
import triton.language as tl

from autotuned import Config, autotune, experimental
from autotuned._native import extension

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(extension is None, reason="the pool is in C")]
MEBIBYTE = 1 << 18  # numbers of four bytes


@autotune(configs=[Config({"BLOCK": block}) for block in (256, 512)], key=["n"], name="gpu_outputs.plus")
@triton.jit
def _plus(x_ptr, out_ptr, n, extra, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n) + extra, mask=i < n)


def plus(x, extra):
    out = experimental.empty_like(x)
    _plus[lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),)](x, out, x.numel(), float(extra))
    return out


@pytest.fixture(autouse=True)
def x():
    """A tensor of 1 MiB, and an empty pool that serves."""
    x = torch.arange(MEBIBYTE, device="cuda", dtype=torch.float32)
    experimental.empty_like(x)
    experimental.release()
    gc.collect()
    torch.cuda.synchronize()
    return x


def handed_out(x):
    """A tensor that nobody holds but the caller, and its address."""
    made = experimental.empty_like(x)
    return made, made.data_ptr()


def test_counts_agree_with_torchs_and_an_output_comes_back(x):
    assert experimental._served["cuda"] is True
    made, address = handed_out(x)
    name = id(made)
    made.mul_(2)
    del made
    allocations = torch.cuda.memory_stats()["allocation.all.allocated"]
    for _ in range(100):
        assert id(experimental.empty_like(x)) == name
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == allocations


def test_a_weak_reference_or_an_attribute_ends_it(x):
    """Where Python keeps them differs from version to version."""
    made = experimental.empty_like(x)
    died = []
    gone = weakref.ref(made, died.append)
    del made
    experimental.empty_like(x)
    assert gone() is None and len(died) == 1
    made = experimental.empty_like(x)
    made.mine = 1
    del made
    assert not hasattr(experimental.empty_like(x), "mine")
    name = id(experimental.empty_like(x))
    assert id(experimental.empty_like(x)) == name


def test_outputs_of_kernels_are_right_whatever_is_kept(x):
    kept, numbers = [], torch.Generator().manual_seed(0)
    weight = torch.ones_like(x, requires_grad=True)
    for extra in range(600):
        out = plus(x, extra)
        held = (out, out[5:], out.view(512, 512), out.detach(), (weight * out), torch.utils.dlpack.to_dlpack(out))
        kept.append((held[torch.randint(0, 6, (), generator=numbers)], extra))
        del out, held
        if len(kept) > 12:
            one, number = kept.pop(torch.randint(0, 12, (), generator=numbers))
            one = one if isinstance(one, torch.Tensor) else torch.from_dlpack(one)
            if one.requires_grad:
                one = torch.autograd.grad(one.sum(), weight)[0]
            torch.testing.assert_close(one.reshape(-1)[-10:], x[-10:] + number)


def test_a_stream_gets_tensors_of_its_own(x):
    made, address = handed_out(x)
    name = id(made)
    del made
    other = torch.cuda.Stream()
    with torch.cuda.stream(other):
        held = [experimental.empty_like(x) for _ in range(4)]
        assert name not in map(id, held)
    assert id(experimental.empty_like(x)) == name
    torch.cuda.synchronize()


def test_what_another_stream_was_recorded_for_is_torchs_again(x):
    made, address = handed_out(x)
    made[3:].record_stream(torch.cuda.Stream())
    before = torch.cuda.memory_allocated()
    del made
    experimental.empty_like(x.double())
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() < before + 8 * MEBIBYTE


def test_a_capture_retires_what_was_handed_out(x):
    held, idle = experimental.empty_like(x), experimental.empty_like(x)
    del idle
    plus(x, 0)  # tuned before the capture
    before = torch.cuda.memory_allocated()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        inside = plus(x, 1)
        again = experimental.empty_like(x)
    assert inside.data_ptr() != again.data_ptr()
    del again
    without = torch.cuda.memory_allocated()
    assert without < before + MEBIBYTE  # what was idle went, what the graph holds came, with its own random state
    del held
    assert torch.cuda.memory_allocated() == without - 4 * MEBIBYTE  # it is not kept
    outs = [plus(x, 5) for _ in range(10)]
    graph.replay()
    torch.testing.assert_close(inside, x + 1)
    for out in outs:
        torch.testing.assert_close(out, x + 5)


def test_a_capture_of_another_library_is_seen_by_a_call_within_it(x):
    made = experimental.empty_like(x)
    del made
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda.synchronize()
        torch._C._CUDAGraph.capture_begin(
            graph, pool=None, capture_error_mode="thread_local"
        )  # beneath what the pool watches
        allocated = torch.cuda.memory_allocated()
        extension.pool_take(x)
        assert torch.cuda.memory_allocated() < allocated
        inside = experimental.empty_like(x)
        inside.fill_(1)
        graph.capture_end()
    del inside, graph
    torch.cuda.synchronize()


def test_empty_cache_gives_the_pool_back(x):
    made = [experimental.empty_like(x) for _ in range(4)]
    before = torch.cuda.memory_allocated()
    del made
    assert torch.cuda.memory_allocated() == before
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() == before - 16 * MEBIBYTE


def test_running_out_of_memory_gives_the_pool_back(x):
    made = [experimental.empty_like(x) for _ in range(4)]
    before = torch.cuda.memory_allocated()
    del made
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(1 << 45, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_allocated() == before - 16 * MEBIBYTE


def test_an_output_that_another_process_was_given_does_not_come_back(x):
    made, address = handed_out(x)
    name = id(made)
    try:
        handle = made.untyped_storage()._share_cuda_()
    except RuntimeError as error:
        pytest.skip(f"no memory for other processes here: {error}")
    del made
    assert name not in [id(t) for t in [experimental.empty_like(x) for _ in range(4)] if t.data_ptr() == address]
    assert handle is not None


def test_threads_share_the_pool_without_sharing_tensors(x):
    wrong = []

    def work(number):
        for i in range(200):
            out = plus(x, number * 1000 + i)
            if i % 20 == 0 and not torch.equal(out, x + number * 1000 + i):
                wrong.append((number, i))

    plus(x, 0)
    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_empty_serves_a_device_with_its_index(x):
    asked = dict(dtype=torch.float16, device=torch.device("cuda", 0))
    name = id(experimental.empty(64, 64, **asked))
    assert id(experimental.empty((64, 64), **asked)) == name
    assert experimental.empty(64, 64, dtype=torch.float16, device="cuda").device == asked["device"]
    with torch.inference_mode():
        assert experimental.empty(64, 64, **asked).is_inference()
    with torch.autocast("cuda"):
        assert experimental.empty(64, 64, **asked).dtype == torch.float16


def test_tensors_of_two_devices_are_kept_apart(x):
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    there = torch.ones(MEBIBYTE, device="cuda:1")
    names = [id(experimental.empty_like(t)) for t in (x, there)]
    again = [experimental.empty_like(t) for t in (x, there)]
    assert [id(t) for t in again] == names and [t.device.index for t in again] == [0, 1]


def test_a_million_calls_leave_no_memory_behind(x):
    small, held = x[:4096].clone(), [None] * 5
    for i in range(1_000_000):
        held[i % 5] = experimental.empty_like(small)
        if i == 1000:
            before = torch.cuda.memory_allocated()
    assert torch.cuda.memory_allocated() == before
