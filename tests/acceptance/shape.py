"""One of the twelve shapes: how it is made, its data, its launch and its reference."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Shape:
    """One of the twelve.

    Attributes:
        make: `make(configs, **options)` decorates.
        data: Fresh inputs on a device, always the same.
        launch: `launch(tuned, data)` launches and returns the outputs by name; inputs may be overwritten.
        expect: The same outputs from untouched inputs, in float64 where that is possible.
        gpu: Why it needs a GPU, or "".
        bounds: It has loops with bounds known at run time, which Triton 3.6 does not interpret with NumPy 2.
    """

    configs: list[Any]
    make: Callable[..., Any]
    data: Callable[[str], dict[str, Any]]
    launch: Callable[[Any, dict[str, Any]], Tensors]
    expect: Callable[[dict[str, Any]], Tensors]
    tolerance: float = 1e-5
    gpu: str = ""
    bounds: bool = False


def random(device, *shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed + 31 * sum(shape))
    return torch.randn(*shape, generator=generator).to(device, dtype)
