"""The pool of outputs: what it hands out again, and what it never does."""

from __future__ import annotations

import gc
import threading
import weakref

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from outputs import comes_back, empty_pool, new  # noqa: F401
from torch.utils.dlpack import to_dlpack

from autotuned import experimental
from autotuned._native import extension

pytestmark = pytest.mark.skipif(extension is None, reason="the pool is in C")


@pytest.mark.parametrize("x", [
    torch.ones(()), torch.ones(5), torch.ones(4, 6).t(), torch.ones(4, 6)[:, ::2], torch.ones(3, 1).expand(3, 5),
    torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last), torch.ones(4, dtype=torch.int8),
    torch.ones(3, dtype=torch.bfloat16), torch.ones(4, requires_grad=True), torch.ones(3, dtype=torch.complex64).conj(),
], ids=lambda x: f"{x.dtype}{tuple(x.stride())}")  # fmt: skip
def test_a_tensor_that_nobody_holds_comes_back_as_torch_would_make_it(x):
    made = experimental.empty_like(x)
    first = id(made)
    made.fill_(7)
    del made
    again, right = experimental.empty_like(x), torch.empty_like(x)
    assert id(again) == first
    facts = lambda t: (
        t.shape,
        t.stride(),
        t.dtype,
        t.device,
        t.requires_grad,
        t.grad_fn,
        t.is_conj(),
        t.is_inference(),
    )
    assert facts(again) == facts(right)
    assert experimental.empty_like(x) is not again


def test_layouts_are_kept_apart():
    square = torch.ones(8, 8)
    alike = [square, square.t(), square.int(), torch.ones(8, 8, 1), torch.ones(64), square[::2], square[:, ::2]]
    for _ in range(2):
        for x in alike:
            made, right = experimental.empty_like(x), torch.empty_like(x)
            assert (made.shape, made.stride(), made.dtype) == (right.shape, right.stride(), right.dtype)
            del made


@pytest.mark.parametrize(
    "x", [torch.ones(0), torch.ones(1, 1, 1, 1, 1, 1), torch.ones(3).to_sparse(), torch.ones(9 << 20)]
)
def test_what_the_pool_does_not_keep_is_torchs(x):
    made = experimental.empty_like(x)
    held = weakref.ref(made)
    assert made.shape == x.shape and made.layout == x.layout
    del made
    assert held() is None


HOLDERS = {
    "a name": lambda t: t,
    "a list": lambda t: [t],
    "a view": lambda t: t.view(-1),
    "a slice": lambda t: t[1:2],
    "detach": lambda t: t.detach(),
    "a parameter": lambda t: torch.nn.Parameter(t),
    "a storage": lambda t: t.untyped_storage(),
    "NumPy": lambda t: t.numpy(),
    "NumPy, through a view": lambda t: t[1:].numpy(),
    "DLPack": lambda t: to_dlpack(t),
    "DLPack, imported": lambda t: torch.from_dlpack(t),
    "NumPy's DLPack": lambda t: __import__("numpy").from_dlpack(t),
    "saved for backward": lambda t: torch.ones(64, 3, requires_grad=True) * t,
    "a graph": lambda t: t.requires_grad_() * 2,
    "a memoryview": lambda t: memoryview(t.numpy()),
    "an alias that lost its name": lambda t: torch.as_strided(t, (3,), (1,)),
    "set_": lambda t: torch.empty(0).set_(t),
    ".data": lambda t: t.data,
    "a closure": lambda t: (lambda: t),
    "a custom function": lambda t: Doubled.apply(t, torch.ones(64, 3, requires_grad=True)),
}  # fmt: skip


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t, w):
        ctx.save_for_backward(t)
        return w * 2

    @staticmethod
    def backward(ctx, grad):
        return None, grad * ctx.saved_tensors[0]


@pytest.mark.parametrize("holder", HOLDERS)
def test_what_anything_refers_to_never_comes_back(holder):
    made, address = new()
    held = HOLDERS[holder](made)
    del made
    gc.collect()
    assert not comes_back(address)
    assert held is not None


CHANGES = {
    "requires_grad": lambda t: t.requires_grad_(),
    "requires_grad, and no more": lambda t: t.requires_grad_().requires_grad_(False),
    "resize": lambda t: t.resize_(3),
    "a larger size": lambda t: t.resize_(4096),
    "set": lambda t: t.set_(torch.ones(64, 3)),
    "data": lambda t: setattr(t, "data", torch.ones(64, 3)),
    "transposed in place": lambda t: t.t_(),
    "another rank": lambda t: t.unsqueeze_(0),
    "an attribute": lambda t: setattr(t, "mine", 1),
    "hooks": lambda t: setattr(t, "_backward_hooks", {}),
    "a class": lambda t: setattr(t, "__class__", torch.nn.Parameter),
    "shared memory": lambda t: t.share_memory_(),
    "in-place with a gradient": lambda t: t.copy_(torch.ones(64, 3, requires_grad=True)),
    "swapped": lambda t: torch.utils.swap_tensors(t, torch.ones(5)),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_what_was_changed_never_comes_back(change):
    made = new()[0]
    CHANGES[change](made)
    del made
    facts = lambda t: (t.shape, t.stride(), type(t), t.requires_grad, t.grad, t.is_shared(), vars(t), t._backward_hooks)
    right = facts(torch.empty_like(torch.ones(64, 3)))
    assert [facts(new()[0]) for _ in range(4)] == [right] * 4


def test_a_weak_reference_dies_as_it_would_without_the_pool():
    made, _ = new()
    died = []
    gone = weakref.ref(made, died.append)
    del made
    held = new()
    assert gone() is None and len(died) == 1 and held is not None


def test_what_another_thread_holds_never_comes_back():
    made, address = new()
    inside, leave = threading.Event(), threading.Event()

    def hold(box):
        mine = box.pop()
        inside.set()
        leave.wait()
        del mine

    box = [made]
    thread = threading.Thread(target=hold, args=(box,))
    thread.start()
    inside.wait()
    del made
    before = comes_back(address)
    leave.set()
    thread.join()
    assert not before and comes_back(address, 5)


def test_a_held_dictionary_is_not_another_tensors():
    made, _ = new()
    attributes = vars(made)
    del made
    attributes["mine"] = 1
    assert not any(hasattr(new()[0], "mine") for _ in range(4))


OPERATIONS = (
    "view",
    "clone",
    "save",
    "numpy",
    "capsule",
    "storage",
    "drop",
    "new",
    "new",
    "attribute",
    "detach",
    "empty",
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 30), st.integers(0, 2)), max_size=60))
def test_no_two_live_tensors_ever_share_memory(plan):
    """Each tensor is filled with a number of its own, which is there as long as anything refers to it."""
    experimental.release()
    like = [torch.ones(64), torch.ones(8, 8), torch.ones(8, 8).t()]
    live, number = [], 0  # what refers to a tensor's memory, how to read it, and its number
    read = lambda t: t.detach().reshape(-1).tolist()
    for operation, which, size in plan:
        number += 1
        if operation in ("new", "empty") or not live:
            if operation == "empty":
                made = experimental.empty(64, dtype=torch.float32, device="cpu")
            else:
                made = experimental.empty_like(like[size])
            made.fill_(number)
            live.append((made, read, number))
            continue
        held, how, own = live.pop(which % len(live))
        if operation == "drop" or not isinstance(held, torch.Tensor) or held.requires_grad:
            continue
        extra = {
            "view": lambda: (held.reshape(-1)[-3:], read, own),
            "clone": lambda: (held.clone(), read, own),
            "detach": lambda: (held.detach(), read, own),
            "numpy": lambda: (held.numpy(), lambda a: a.reshape(-1).tolist(), own),
            "capsule": lambda: (to_dlpack(held), lambda c: [own], own),
            "storage": lambda: (
                held.untyped_storage(),
                lambda s: torch.tensor(s, dtype=torch.uint8).view(torch.float32).tolist(),
                own,
            ),
            "save": lambda: ((torch.ones_like(held).requires_grad_() * held).sum(), saved, own),
            "attribute": lambda: (setattr(held, "mine", 1), lambda none: [own], own),
        }[operation]()
        if which % 2:
            live.append((held, how, own))
        live.append(extra)
        del held, extra
    for held, how, own in live:
        assert set(how(held)) == {own}


def saved(total):
    """What a product has saved of its second factor: the gradient of the first one."""
    leaf = total.grad_fn.next_functions[0][0].next_functions[0][0].variable
    total.backward()
    return leaf.grad.reshape(-1).tolist()
