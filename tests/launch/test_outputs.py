"""The pool of outputs: what it hands out again, and what it never does."""

from __future__ import annotations

import contextlib
import gc
import re
import threading
import types
import weakref

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.dlpack import to_dlpack

import autotuned
from autotuned import experimental
from autotuned._native import extension

pytestmark = pytest.mark.skipif(extension is None, reason="the pool is in C")


@pytest.fixture(autouse=True)
def empty_pool():
    experimental.release()
    yield
    experimental.release()


def new(size=(64, 3)):
    """A tensor that nobody holds but the caller, and its address."""
    x = torch.ones(size)
    made = experimental.empty_like(x)
    return made, made.data_ptr()


def comes_back(address, count=4) -> bool:
    """Whether one of the next tensors of the pool lies there."""
    held = [new() for _ in range(count)]
    return address in [where for _, where in held]


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


class Through(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls.append(str(func))
        return func(*args, **(kwargs or {}))


class Functions(torch.overrides.TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.calls.append(func.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.filterwarnings("ignore:`torch.jit.trace")
def test_under_modes_and_transforms_it_is_torchs():
    address = new()[1]
    for mode, name in ((Through(), "aten.empty_like.default"), (Functions(), "empty_like")):
        x = torch.ones(64, 3)
        with mode:
            for _ in range(3):
                experimental.empty_like(x)
        assert mode.calls.count(name) == 3
    x = torch.ones(64, 3)
    torch.use_deterministic_algorithms(True)
    try:
        assert experimental.empty_like(x).isnan().all()
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.vmap(lambda row: experimental.empty_like(row))(x).shape == (64, 3)
    traced = torch.jit.trace(lambda t: experimental.empty_like(t), x, check_trace=False)
    assert "empty_like" in str(traced.graph)
    made = torch.fx.experimental.proxy_tensor.make_fx(experimental.empty_like)(x)
    assert "empty_like" in made.code
    with torch._subclasses.fake_tensor.FakeTensorMode():
        assert type(experimental.empty_like(torch.ones(64, 3))) is not torch.Tensor
    assert comes_back(address)


def test_in_inference_mode_its_tensors_are_of_that_mode():
    x = torch.ones(64, 3)
    normal = new()[1]
    with torch.inference_mode():
        made = experimental.empty_like(x)
        first = id(made)
        assert made.is_inference() and made.data_ptr() != normal
        del made
        assert id(experimental.empty_like(x)) == first
    assert not experimental.empty_like(x).is_inference()


def test_torch_compile_sees_torchs():
    graphs = []

    def seen(graph, inputs):
        graphs.append(graph)
        return graph.forward

    def double(x):
        return experimental.empty_like(x), experimental.empty(3, dtype=torch.float32, device="cpu")

    torch.compile(double, backend=seen, fullgraph=True)(torch.ones(4))
    assert {node.target for node in graphs[0].graph.nodes} >= {torch.empty_like, torch.empty}


def test_empty_serves_a_dtype_and_a_device():
    asked = dict(dtype=torch.float16, device="cpu")
    one = experimental.empty(4, 5, **asked)
    first = id(one)
    assert (one.shape, one.dtype, one.stride()) == ((4, 5), torch.float16, (5, 1))
    two = experimental.empty((4, 5), **asked)
    assert two.data_ptr() != one.data_ptr()
    del one
    assert id(experimental.empty([4, 5], **asked)) == first
    assert id(experimental.empty(torch.Size((4, 5)), dtype=torch.float16, device=torch.device("cpu"))) != first
    assert experimental.empty(2).dtype == torch.get_default_dtype()
    assert experimental.empty(2, dtype=torch.int8, requires_grad=False).dtype == torch.int8
    with pytest.raises(RuntimeError, match="negative"):
        experimental.empty(-1, **asked)


ASKED = dict(dtype=torch.float32, device="cpu")


@pytest.mark.parametrize(
    "size",
    [(3.0,), ((3.0,),), (iter((3,)),), (), ("3",), ([3, [4]],), (None,)],
    ids=lambda size: re.sub(" at 0x.*?>", "", repr(size)),
)
def test_empty_refuses_what_torch_refuses(size):
    experimental.empty(3, **ASKED)
    for empty in (torch.empty, experimental.empty):
        with pytest.raises(TypeError):
            empty(*size, **ASKED)


@pytest.mark.parametrize("three", [np.int64(3), torch.tensor(3)], ids=["NumPy", "torch"])
def test_empty_takes_every_size_that_torch_takes(three):
    experimental.empty(3, 2, **ASKED)
    assert experimental.empty(three, **ASKED).shape == (3,)
    assert experimental.empty(three, 2, **ASKED).shape == experimental.empty((three, 2), **ASKED).shape == (3, 2)


def test_empty_is_torchs_under_modes_and_traces_too():
    for _ in range(2):
        experimental.empty(4, 5, **ASKED)
    mode = Through()
    with mode:
        experimental.empty(4, 5, **ASKED)
        experimental.empty(4, 6, **ASKED)
    assert mode.calls == ["aten.empty.memory_format"] * 2
    with torch._subclasses.fake_tensor.FakeTensorMode():
        assert type(experimental.empty(4, 5, **ASKED)) is not torch.Tensor
    traced = torch.fx.experimental.proxy_tensor.make_fx(lambda x: experimental.empty(4, 5, **ASKED) + x)
    assert "constant" not in traced(torch.ones(4, 5)).code


@pytest.mark.skipif(not hasattr(torch, "_to_functional_tensor"), reason="a private name of torch's")
def test_a_wrapper_of_torchs_own_class_is_not_a_plain_tensor():
    new()
    wrapped = torch._to_functional_tensor(torch.ones(64, 3))
    for _ in range(3):
        assert torch._is_functional_tensor(experimental.empty_like(wrapped))
    assert not torch._is_functional_tensor(new()[0])


@pytest.mark.skipif(not hasattr(torch.Tensor, "rename"), reason="torch without named tensors")
@pytest.mark.filterwarnings("ignore:Named tensors")
def test_names_are_torchs():
    named = torch.ones(64, 3).rename("rows", "columns")
    new()
    assert [experimental.empty_like(named).names for _ in range(3)] == [("rows", "columns")] * 3
    assert new()[0].names == (None, None)


def test_a_held_dictionary_is_not_another_tensors():
    made, _ = new()
    attributes = vars(made)
    del made
    attributes["mine"] = 1
    assert not any(hasattr(new()[0], "mine") for _ in range(4))


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
    assert [r.getMessage() for r in caplog.records] == [f"The pool of outputs does not know torch {torch.__version__}; torch.empty_like serves."]  # fmt: skip
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
