"""The pool of outputs: where its tensors are torch's own, under modes, traces and transforms, and what it takes."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from outputs import comes_back, empty_pool, new  # noqa: F401
from torch.utils._python_dispatch import TorchDispatchMode

from autotuned import experimental
from autotuned._native import extension

pytestmark = pytest.mark.skipif(extension is None, reason="the pool is in C")


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
