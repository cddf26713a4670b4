"""Tuples and tensor descriptors: in a table of their own, and launched as by Triton."""

import collections
import gc
import weakref

import fake_cuda
import torch
import triton
import triton.language as tl
from triton import Config

from autotuned import autotune

CONFIGS = [Config({"BLOCK": 16}), Config({"BLOCK": 32}, num_warps=2)]


def add_all(tensors, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(tensors[0] + i, tl.load(tensors[1] + i, mask=i < n), mask=i < n)


def test_tuples_are_launched_as_by_triton(launches):
    one, other = torch.zeros(100), torch.zeros(101)[1:]
    tuned = autotune(CONFIGS, default=CONFIGS[1])(triton.jit(add_all))
    compiled = {tuned[(4,)]((x, y), 100) for x, y in [(one, one), (one, other), (other, one), (one, one)]}
    plain = {
        tuned.fn[(4,)]((x, y), 100, **CONFIGS[1].all_kwargs()) for x, y in [(one, one), (one, other), (other, one)]
    }
    assert compiled == plain
    assert len(plain) == 3
    assert tuned.cache_info().hits == 1
    assert launches[3].arguments["tensors"][1] is one


def add_item(pair, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(pair[0] + i, pair[1], mask=i < n)


Pair = collections.namedtuple("Pair", "out by")


def pairs():
    """Tuples that Triton compiles apart, some of them more than once."""
    x = torch.zeros(100)
    for by in (1, 3, 16, 5, 1 << 40, -1, True, 2.0, float("nan"), -0.0):
        yield x, by
        yield torch.zeros(101)[1:], by
    yield Pair(x, 3)
    yield torch.zeros(100, dtype=torch.float16), 3.0
    yield torch.zeros(100).to(torch.int32), 3


def test_tuples_in_the_table_are_what_triton_would_compile(launches):
    tuned = autotune(CONFIGS, default=CONFIGS[1], key=[])(triton.jit(add_item))
    for _ in range(3):
        for pair in pairs():
            compiled = tuned[(4,)](pair, 100)
            ours = launches[-1]
            assert compiled is tuned.fn[(4,)](pair, 100, **CONFIGS[1].all_kwargs())
            assert fake_cuda.same(ours, launches[-1])
    info = tuned.cache_info()
    assert info.hits >= 2 * len(list(pairs())) and info.misses <= len(list(pairs()))


def test_what_is_in_a_tuple_is_in_the_words_as_in_the_key(launches):
    tuned = autotune(CONFIGS, default=CONFIGS[1], key=["pair"])(triton.jit(add_item))
    for _ in range(2):
        for by in (3, 5):
            for length in (100, 200):
                tuned[(4,)]((torch.zeros(length), by), 100)
    assert (tuned.cache_info().misses, tuned.cache_info().hits) == (4, 4)


def test_tensors_in_tuples_are_not_kept_alive(launches):
    tuned = autotune(CONFIGS, default=CONFIGS[1], key=["pair"])(triton.jit(add_item))
    x = torch.zeros(100)
    alive = weakref.ref(x)
    tuned[(4,)]((x, 3), 100)
    assert list(tuned.cache) == [(((100,), 3),)]
    launches.clear()
    del x
    gc.collect()
    assert alive() is None


View = collections.namedtuple("View", "pointer shape stride dtype")


def test_named_tuples_may_have_a_tensors_fields(launches):
    def fill(view, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(view.pointer + i * view.stride[0], 1.0, mask=i < view.shape[0])

    tuned = autotune(CONFIGS, do_bench=fake_cuda.by_config({16: 2.0, 32: 1.0}))(triton.jit(fill))
    for length in (100, 100, 64):
        view = View(torch.zeros(200), (length,), (2,), None)
        assert tuned[(4,)](view) is tuned.fn[(4,)](view, **CONFIGS[1].all_kwargs())
    assert (tuned.cache_info().searches, tuned.cache_info().hits) == (2, 1)


def test_a_tuple_with_something_unknown_in_it_is_launched_through_triton(launches):
    tuned = autotune(CONFIGS, default=CONFIGS[1], key=[])(triton.jit(add_item))
    for _ in range(3):
        tuned[(4,)]((torch.zeros(100).as_subclass(type("Named", (torch.Tensor,), {})), 3), 100)
    assert tuned.cache_info().hits == 0
    assert len(launches) == 3


def copy_block(source, target, n, BLOCK: tl.constexpr):
    target.store([0], source.load([0]))


def test_descriptors_whose_block_a_hook_sets(launches):
    from triton.tools.tensor_descriptor import TensorDescriptor

    def hook(arguments):
        for name in ("source", "target"):
            arguments[name].block_shape = [arguments["BLOCK"]]

    configs = [Config({"BLOCK": block}, pre_hook=hook) for block in (16, 32)]
    tuned = autotune(configs, do_bench=fake_cuda.by_config({16: 2.0, 32: 1.0}))(triton.jit(copy_block))
    for _ in range(3):
        x, y = (TensorDescriptor.from_tensor(torch.zeros(128), [1]) for _ in range(2))
        compiled = tuned[(4,)](x, y, 100)
        assert x.block_shape == y.block_shape == [32]
        assert compiled is tuned.fn[(4,)](x, y, 100, **configs[1].all_kwargs())
    assert tuned.cache_info().searches == 1
    assert tuned.cache_info().hits == 2


def test_descriptors_in_the_table_are_what_triton_would_compile(launches, launcher):
    from triton.tools.tensor_descriptor import TensorDescriptor

    tuned = autotune(CONFIGS, default=CONFIGS[1], key=[])(triton.jit(copy_block))
    calls = 0
    for _ in range(3):
        for dtype in (torch.float16, torch.float32):
            for block, padding in ((16, "zero"), (32, "zero"), (32, "nan")):
                x, y = (TensorDescriptor.from_tensor(torch.zeros(128, dtype=dtype), [block], padding) for _ in "xy")
                compiled = tuned[(4,)](x, y, 100)
                assert (launches[-1].arguments["source"], launches[-1].arguments["target"]) == (x, y)
                assert compiled is tuned.fn[(4,)](x, y, 100, **CONFIGS[1].all_kwargs())
                calls += 1
    assert tuned.cache_info().hits == calls - (4 if launcher == "c" else 2)  # in C the block counts too
