"""Run the kernel for some sizes and say where its configs came from: `python -m example_app [SIZE]...`."""

import os
import sys

import torch

from example_app.kernels import SIZES, bias_gelu, bias_gelu_kernel, inputs


def main(sizes: list[int]) -> None:
    """Launch, compare with PyTorch, and report."""
    device = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
    for n_cols in sizes:
        x, bias = inputs(device, n_cols)
        before = bias_gelu_kernel.explain(torch.empty_like(x), x, bias, n_cols, grid=(x.shape[0],))
        y = bias_gelu(x, bias)
        torch.testing.assert_close(y, (x + bias) * torch.sigmoid(1.702 * (x + bias)))
        print(f"{n_cols} columns: {before.config}, by {before.steps[-1]}")
    print(f"searches: {bias_gelu_kernel.cache_info().searches}")


if __name__ == "__main__":
    main([int(size) for size in sys.argv[1:]] or list(SIZES))
