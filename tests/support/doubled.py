"""A kernel that doubles a row, for tests of its arguments and decorators."""

import torch
import triton
import triton.language as tl
from triton import Config

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CONFIGS = [Config({"BLOCK": 16}), Config({"BLOCK": 32})]
ARGUMENTS = "Arguments are: x_ptr, y_ptr, n_cols, BLOCK, FACTOR."


@triton.jit
def double(x_ptr, y_ptr, n_cols, BLOCK: tl.constexpr, FACTOR: tl.constexpr = 2):
    """`y = x * 2`."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n_cols) * FACTOR, mask=i < n_cols)
