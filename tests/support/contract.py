"""The kernel that tests of docs/contract.md tune, with fixtures to decorate and launch it."""

import pytest
import torch
import triton
import triton.language as tl
from triton import Config

CONFIGS = [Config({"BLOCK": 16}), Config({"BLOCK": 32})]
DECORATED = pytest.mark.subjects(["replaced", "autotuned"])


def add(x_ptr, y_ptr, n, BLOCK: tl.constexpr, EVEN: tl.constexpr = False):
    """`y = x + 1`."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n) + 1, mask=i < n)


@pytest.fixture
def make(subject, bench):
    """`make(configs, jit, key, **options)` decorates for this tuner; the default benchmark is `bench`."""

    def make(configs=CONFIGS, jit=None, key=("n",), **options):
        return subject.autotune(configs, key=list(key), **{"do_bench": bench, **options})(jit or triton.jit(add))

    return make


@pytest.fixture
def x():
    """128 zeros."""
    return torch.zeros(128)
