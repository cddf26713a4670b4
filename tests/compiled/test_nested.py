"""A nested tensor of torch with the strided layout has no sizes to ask for, and is launched as Triton launches it."""

import warnings

import fake_cuda
import pytest
import torch
import triton
import triton.language as tl
from triton import Config

from autotuned import autotune

CONFIGS = [Config({"BLOCK": 16}), Config({"BLOCK": 32}, num_warps=2)]


def scale(x_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + i, tl.load(x_ptr + i, mask=i < n) * 2, mask=i < n)


def nested(*shapes):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that its interface may change
        return torch.nested.nested_tensor([torch.ones(shape) for shape in shapes], layout=torch.strided)


def all_alike(size):
    return 8


@pytest.mark.parametrize(
    "options, searches",
    [
        ({"key": ["x_ptr"]}, 2),
        ({"key": ["n"]}, 1),
        ({"key": []}, 1),
        ({"key": ["x_ptr"], "restore_value": ["x_ptr"]}, 2),
        ({"key": ["x_ptr"], "reset_to_zero": ["x_ptr"]}, 2),
        ({"key": ["x_ptr"], "bucket": {"x_ptr": all_alike}}, 1),
        ({"key": ["x_ptr"], "nearest": {"x_ptr": 2}}, 2),
    ],
    ids=lambda given: "-".join(given) if isinstance(given, dict) else None,
)
def test_it_is_launched_and_searched_for_once(launches, options, searches):
    """With it in key= the first call raised after its search, in what is kept for `cache` of Triton's tuner."""
    bench = fake_cuda.by_config({16: 2.0, 32: 1.0})
    tuned = autotune(CONFIGS, do_bench=bench, **options)(triton.jit(scale))
    one, other = nested((3, 4), (5, 4)), nested((2, 4), (9, 4))
    for tensor in (one, one, other, other, one):
        tuned[(2,)](tensor, 32)
        mine = launches[-1]
        tuned.fn[(2,)](tensor, 32, **CONFIGS[1].all_kwargs())
        assert fake_cuda.same(mine, launches[-1]) and mine.arguments["x_ptr"] is tensor
    assert tuned.cache_info().searches == searches
