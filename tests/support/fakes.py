"""Stand-ins for tensors, configs and keys: the core is duck-typed, so its tests need neither torch nor triton."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from autotuned.key.key import Key
from autotuned.tunable import configs as candidates


class FakeTensor:
    """Layout and address of a tensor, without memory."""

    def __init__(
        self,
        *shape: int,
        dtype: str = "torch.float32",
        strides: Sequence[int] | None = None,
        address: int = 4096,
        itemsize: int = 4,
        device: int = 0,
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        self.itemsize = itemsize
        self._strides = tuple(strides) if strides is not None else contiguous(shape)
        self._address, self._device = address, device

    def stride(self) -> tuple[int, ...]:
        return self._strides

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def is_contiguous(self) -> bool:
        return 0 in self.shape or all(
            size == 1 or stride == dense
            for size, stride, dense in zip(self.shape, self._strides, contiguous(self.shape), strict=True)
        )

    def data_ptr(self) -> int:
        return self._address

    def element_size(self) -> int:
        return self.itemsize

    def get_device(self) -> int:
        return self._device


class FakeDescriptor:
    """A tensor descriptor: the base tensor, and its own layout."""

    def __init__(self, base: Any, block_shape: Iterable[int] = (1, 1)) -> None:
        self.base = base
        self.shape = list(base.shape)
        self.strides = list(base.stride())
        self.block_shape = list(block_shape)


class FakeConfig:
    """The fields of `triton.Config`."""

    def __init__(
        self,
        kwargs: dict[str, Any],
        num_warps: int = 4,
        num_stages: int = 3,
        num_ctas: int = 1,
        maxnreg: int | None = None,
        pre_hook: Any = None,
        ir_override: str | None = None,
    ) -> None:
        self.kwargs = kwargs
        self.num_warps, self.num_stages, self.num_ctas = num_warps, num_stages, num_ctas
        self.maxnreg, self.pre_hook, self.ir_override = maxnreg, pre_hook, ir_override

    def all_kwargs(self) -> dict[str, Any]:
        options = ("num_warps", "num_ctas", "num_stages", "maxnreg", "ir_override")
        given = {name: getattr(self, name) for name in options}
        return {**self.kwargs, **{name: value for name, value in given.items() if value is not None}}


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides, in elements, of a contiguous tensor of this shape."""
    return tuple(math.prod(max(size, 1) for size in shape[dim + 1 :]) for dim in range(len(shape)))


def named_type(module: str, name: str, **attributes: Any) -> type:
    """A class that seems to come from `module`."""
    return type(name, (), {"__module__": module, "__qualname__": name, **attributes})


TorchDtype = named_type(
    "torch", "dtype", __init__=lambda self, name: setattr(self, "name", name), __str__=lambda self: f"torch.{self.name}"
)
# The launcher recognizes torch's tensors by their type's name.
TorchTensor = type("Tensor", (FakeTensor,), {"__module__": "torch"})

DEVICE = {"kind": "cuda", "name": "NVIDIA H100 80GB HBM3", "arch": "sm_90", "sm_count": 132, "mig": None}
CONTEXT = {
    "device": DEVICE,
    "triton": "3.9.0",
    "triton_key": "aa",
    "ptxas": "13.0.88",
    "environment": {},
    "source": "bb",
    "version": None,
}


def make_key(n: int = 1024, kernel: str = "app.k", **context: Any) -> Key:
    """A key of a call with one integer."""
    return Key(kernel, {"tensors": {}, "values": {"n": n}, "none": []}, {**CONTEXT, **context})


def form(config: FakeConfig) -> dict[str, Any]:
    """A config's canonical form."""
    return candidates.to_json(config, "app.k")


def by_identity(*configs: FakeConfig) -> dict[str, FakeConfig]:
    """Live candidates by identity."""
    return {candidates.identity(config, "app.k"): config for config in configs}


def put(*path: Any, value: Any) -> Callable[[Any], Any]:
    """A change to JSON: replaces the value at `path`."""

    def change(data: Any) -> Any:
        _at(data, path[:-1])[path[-1]] = value
        return data

    return change


def drop(*path: Any) -> Callable[[Any], Any]:
    """A change to JSON: removes the value at `path`."""

    def change(data: Any) -> Any:
        del _at(data, path[:-1])[path[-1]]
        return data

    return change


def _at(data: Any, path: Iterable[Any]) -> Any:
    for step in path:
        data = data[step]
    return data
