"""Where a bound kernel is called from: backward threads, forks, tracers; and tensors that change under it."""

import os
import threading

import fake_cuda
import pytest
import torch
import triton
import triton.language as tl
from counted import profiled
from torch._subclasses.fake_tensor import FakeTensorMode
from triton import Config

from autotuned import autotune

CONFIGS = [Config({"BLOCK": 16}), Config({"BLOCK": 32})]
INTEGERS = [0, 1, 2, 15, 16, 17, 2**31 - 1, 2**31, 2**63, -1, -16, -(2**31), -(2**31) - 1, True, False]


@triton.jit
def scale(x_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + i, tl.load(x_ptr + i, mask=i < n), mask=i < n)


def make(fn=scale, key=(), configs=CONFIGS):
    return autotune(list(configs), key=list(key), do_bench=fake_cuda.by_config({16: 2.0, 32: 1.0}))(fn)


@pytest.fixture
def x():
    return torch.zeros(100)


@pytest.fixture
def bound(x):
    kernel = make()
    for _ in range(2):
        kernel[(4,)](x, 100)
    assert kernel.cache_info().hits == 1
    return kernel


def test_a_backward_thread_launches_and_has_a_best_config_of_its_own(bound, launches):
    found = []

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            thread = threading.Thread(target=launch, args=(gradient.contiguous(),))  # as for a second device
            thread.start()
            thread.join(20)
            launch(gradient.contiguous())
            return gradient

    def launch(gradient):
        bound[(4,)](gradient, 100)
        found.append((launches[-1].arguments["x_ptr"] is gradient, bound.best_config is bound.configs[1]))

    Scaled.apply(torch.zeros(100, requires_grad=True)).sum().backward()
    assert found == [(True, True)] * 2
    assert bound.cache_info().hits == 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_launches_what_its_parent_has_bound(bound, x, launches):
    child = os.fork()
    if child == 0:
        try:
            before = len(launches)
            bound[(4,)](x, 100)
            bound[(4,)](torch.zeros(200)[1:], 100)  # other words: the miss path in the child
            os._exit(0 if len(launches) == before + 2 and bound.cache_info().hits == 2 else 1)
        except BaseException:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    bound[(4,)](x, 100)
    assert bound.cache_info().hits == 2


def test_a_fake_tensor_is_never_a_hit(bound, launches):
    before = bound.cache_info().hits
    with FakeTensorMode():
        fake = torch.zeros(100)
        assert bound.tuner.launcher.find((fake, 100)) is None
        assert not bound.tuner.launcher.bind((fake, 100), None)
    assert bound.cache_info().hits == before


@pytest.mark.parametrize("transform", ["vmap", "grad"])
@pytest.mark.filterwarnings("ignore:.*:UserWarning", "ignore:.*:DeprecationWarning")
def test_tensors_of_functorch_are_never_a_hit(bound, transform):
    """They are of type Tensor and have no memory of their own."""
    seen = []

    def traced(x):
        seen.append((type(x), bound.tuner.launcher.find((x, 100)), bound.tuner.launcher.bind((x, 100), object())))
        return x.sum()

    if transform == "vmap":
        torch.vmap(traced)(torch.zeros(3, 100))
    else:
        torch.func.grad(traced)(torch.zeros(100))
    assert seen == [(torch.Tensor, None, False)]


CHANGES = {
    "resize_": lambda x, memory: x.resize_(60, 2),
    "set_ to a misaligned start": lambda x, memory: x.set_(memory[1:101]),
    "data": lambda x, memory: setattr(x, "data", memory[1:101]),
    "data of another dtype": lambda x, memory: setattr(x, "data", torch.zeros(100, dtype=torch.float16)),
    "transposed in place": lambda x, memory: x.resize_(10, 10).t_(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_tensor_that_changed_in_place_b83(launches, change):
    x, memory = torch.zeros(100), torch.zeros(200)
    kernel = make(key=["x_ptr"])
    for _ in range(2):
        kernel[(4,)](x, 100)
    CHANGES[change](x, memory)
    for _ in range(2):
        assert kernel[(4,)](x, 100) is scale[(4,)](x, 100, **kernel.best_config.all_kwargs())
        assert launches[-2].function == launches[-1].function
    info = kernel.cache_info()
    assert (info.misses, info.hits) == (2, 2)


@triton.jit(do_not_specialize=["n"])
def unspecialized(x_ptr, n, BLOCK: tl.constexpr):
    tl.store(x_ptr + tl.arange(0, BLOCK), n)


@triton.jit(do_not_specialize_on_alignment=["n", "x_ptr"])
def unaligned(x_ptr, n, BLOCK: tl.constexpr):
    tl.store(x_ptr + tl.arange(0, BLOCK), n)


@triton.jit
def annotated(x_ptr, n: tl.int64, BLOCK: tl.constexpr):
    tl.store(x_ptr + tl.arange(0, BLOCK), n)


@triton.jit
def ordinary(x_ptr, n, BLOCK: tl.constexpr):
    tl.store(x_ptr + tl.arange(0, BLOCK), n)


@pytest.mark.usefixtures("no_machine_code")
@pytest.mark.parametrize("fn", [ordinary, unspecialized, unaligned, annotated], ids=lambda fn: fn.__name__)
def test_every_class_of_integers_gets_tritons_binary(fn):
    """Each twice, so that the second comes from the table; the plain kernel says which binary is right."""
    kernel, x = make(fn, configs=CONFIGS[:1]), torch.zeros(64, dtype=torch.int64)
    for n in INTEGERS * 2:
        assert kernel[(1,)](x, n) is fn[(1,)](x, n, **CONFIGS[0].all_kwargs()), n
    assert kernel.cache_info().hits >= len(INTEGERS)


@pytest.mark.parametrize("fn", [ordinary, unaligned], ids=lambda fn: fn.__name__)
def test_every_start_within_32_bytes_gets_tritons_binary(fn):
    kernel, memory = make(fn, configs=CONFIGS[:1]), torch.zeros(128, dtype=torch.int8)
    assert memory.data_ptr() % 32 == 0
    for offset in [*range(32), *range(32)]:
        x = memory[offset:]
        assert kernel[(1,)](x, 3) is fn[(1,)](x, 3, **CONFIGS[0].all_kwargs()), offset
    assert kernel.cache_info().hits >= 32


def events_of(call):
    """How many functions, of Python and of C, one call enters."""
    count = 0

    def note(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    profiled(call, note)
    return count - 2  # the call itself, and setting the profiler back


def test_the_cost_of_a_key_is_gated_by_counting(x, launcher):
    tensors = [torch.zeros(100) for _ in range(3)]

    @triton.jit
    def three(a, b, c, n, BLOCK: tl.constexpr):
        tl.store(c + tl.arange(0, BLOCK), tl.load(a + tl.arange(0, BLOCK)) + tl.load(b + tl.arange(0, BLOCK)) + n)

    kernel = make(three, key=["n"])
    for _ in range(2):
        kernel[(4,)](*tensors, 100)
    table = kernel.tuner.launcher
    find, values = table.in_c.find if launcher == "c" else table.find, (*tensors, 100)
    found = events_of(lambda: find(values))
    # In C the function itself and, where there is no libcuda, the device. In Python the plan's function, the
    # device, the table's get, and three methods a tensor.
    assert found <= (3 if launcher == "c" else 3 + 3 * len(tensors))
