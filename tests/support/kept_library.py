"""A library of kernels, installed in any folder."""

from __future__ import annotations

import importlib.util
import sys

TEXT = """
import triton
import triton.language as tl

SCALE = tl.constexpr(2)

@triton.jit
def twice(x):
    return x * SCALE

@triton.jit
def plain(x_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + i, twice(tl.load(x_ptr + i, mask=i < n)), mask=i < n)

@triton.jit
def of_a_tuple(pair, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(pair[0] + i, tl.load(pair[1] + i, mask=i < n), mask=i < n)
"""


def module(folder, text=TEXT):
    """Install the library in a folder; returns its module."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "library_of_kernels.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("library_of_kernels", path)
    found = importlib.util.module_from_spec(spec)
    sys.modules["library_of_kernels"] = found
    spec.loader.exec_module(found)
    return found
