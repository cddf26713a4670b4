"""The pool of outputs: what it keeps is bounded, keeps nothing else alive, and goes where memory is wanted."""

from __future__ import annotations

import contextlib
import gc
import types
import weakref

import pytest
import torch
from outputs import comes_back, empty_pool, new  # noqa: F401

import autotuned
from autotuned import experimental
from autotuned._native import extension

pytestmark = pytest.mark.skipif(extension is None, reason="the pool is in C")


class Owner:
    pass


class Kept(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.owner = Owner()
        ctx.was = weakref.ref(ctx.owner)
        return experimental.empty_like(x).copy_(x)

    @staticmethod
    def backward(ctx, grad):
        return grad


def _attribute(made):
    made.owner = Owner()
    return weakref.ref(made.owner)


def _cycle(made):
    made.owner = Owner()
    made.owner.output = made
    return weakref.ref(made.owner)


def _graph(made):
    made = Kept.apply(torch.ones(64, 3, requires_grad=True))
    return made.grad_fn.was


@pytest.mark.parametrize("frees", [gc.collect, lambda: experimental.empty_like(torch.ones(11))], ids=["gc", "a miss"])
@pytest.mark.parametrize("refers", [_attribute, _cycle, _graph])
def test_what_an_output_refers_to_is_not_kept_alive(refers, frees):
    made, _ = new()
    owner = refers(made)
    del made
    frees()
    if refers is _cycle:
        gc.collect()
    assert owner() is None


def test_a_collection_while_the_pool_looks_may_empty_it():
    """Making an output's dictionary may start the collector, whose callbacks and finalizers run any code."""
    emptied = []

    def empties(phase, about):
        emptied.append(phase)
        experimental.release()

    before = gc.get_threshold()
    gc.callbacks.append(empties)
    gc.set_threshold(1)
    try:
        for _ in range(100):
            x = torch.ones(64, 3)
            held = [experimental.empty_like(x).fill_(number) for number in range(4)]
            assert [t.unique().tolist() for t in held] == [[0], [1], [2], [3]]
            held[0].mine = held
            held[1].requires_grad_()
            del held
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(empties)
    assert len(emptied) > 100


def test_the_pool_is_bounded():
    x = torch.ones(1 << 20)  # 4 MiB
    held = [experimental.empty_like(x) for _ in range(20)]
    gone = [weakref.ref(t) for t in map(torch.Tensor.view_as, held, held)]
    assert len({t.data_ptr() for t in held}) == 20 and len(gone) == 20
    addresses = [t.data_ptr() for t in held]
    del held
    again = [experimental.empty_like(x) for _ in range(20)]
    assert sum(t.data_ptr() in addresses for t in again) >= 8


def test_the_pools_memory_is_bounded():
    for rows in range(1, 60):
        experimental.empty_like(torch.empty((1 << 24) + rows, dtype=torch.int8))
    kept = [t for t in gc.get_objects() if type(t) is torch.Tensor and t.numel() >= 1 << 24]
    assert 1 <= len(kept) <= 16  # of 16 MiB and more


def test_running_out_of_memory_releases_it(monkeypatch):
    made, address = new()
    del made
    real, fails = torch.empty_like, [True]

    def scarce(x):
        if fails and fails.pop():
            raise torch.OutOfMemoryError("no memory")
        return real(x)

    monkeypatch.setattr(torch, "empty_like", scarce)
    released = []
    monkeypatch.setattr(experimental, "release", lambda: released.append(1))
    assert experimental.empty_like(torch.ones(5, 5)).shape == (5, 5) and released == [1]


class Other(torch.Tensor):
    pass


@pytest.mark.parametrize("call", [
    lambda t: torch.cuda.CUDAGraph.capture_begin(object()),
    lambda t: torch._C._accelerator_emptyCache(),
    lambda t: t[3:].record_stream(None),
    lambda t: torch.nn.Parameter(t).record_stream(None),
    lambda t: t.as_subclass(Other).record_stream(None),
    lambda t: autotuned.restored(),
], ids=["capture", "empty_cache", "record_stream", "of a parameter", "of a subclass", "restored"])  # fmt: skip
def test_captures_other_streams_and_empty_cache_retire_what_was_handed_out(call):
    made, _ = new()
    other, _ = new((7,))
    gone = weakref.ref(made)  # held by the pool alone after `del`
    with contextlib.suppress(Exception):  # no accelerator here; what comes before the error counts
        call(made)
    del made
    assert gone() is None and other is not None


def test_it_is_torchs_where_counts_disagree(monkeypatch, caplog):
    monkeypatch.setattr(experimental, "_served", {})
    monkeypatch.setattr(experimental, "_take", lambda x: None)
    wrong = types.SimpleNamespace(pool_state=extension.pool_state, pool_counts=lambda x, storage: (1, 1))
    monkeypatch.setattr(experimental, "extension", wrong)
    for _ in range(3):
        assert experimental.empty_like(torch.ones(4)).shape == (4,)
    assert [r.getMessage() for r in caplog.records] == [f"The pool of outputs does not support torch {torch.__version__}; using torch.empty_like."]  # fmt: skip
    monkeypatch.setattr(experimental, "extension", None)
    monkeypatch.setattr(experimental, "_served", {})
    assert experimental.empty_like(torch.ones(4)).shape == (4,)
    experimental.release()


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def test_a_million_calls_leave_no_memory_behind():
    sizes = [torch.ones(n) for n in (64, 1000, 5000)]
    held = [None] * 5

    def calls(count):
        for i in range(count):
            held[i % 5] = experimental.empty_like(sizes[i % 3])
            experimental.empty(i % 700, 8, dtype=torch.float32, device="cpu") if i % 100 == 0 else None

    calls(20_000)
    before = resident()
    calls(1_000_000)
    assert resident() - before < 8 << 20
