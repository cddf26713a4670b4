"""One policy on every path: whatever path, style of call and layout, the same bits in the user's memory."""

import ctypes
import itertools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes import FakeConfig as Config
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from paths import on_path, quick

from autotuned import autotune

CONFIGS = [Config({"step": step}) for step in (1, 3)]
PATHS = ["cold", "table", "disk", "file", "default", "single"]
DTYPES = [torch.float32, torch.float16, torch.float8_e4m3fn, torch.bool, torch.complex64, torch.int64]
LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda b: b,
    "strided": lambda b: b.view(-1)[::2],
    "transposed": lambda b: b.t(),
    "expanded": lambda b: b[1:2].expand(5, 6),
    "offset": lambda b: b.view(-1)[3:],
    "overlapping": lambda b: b.view(-1).as_strided((5, 4), (2, 1), 2),
    "zero-size": lambda b: b[:0],
    "no dimensions": lambda b: b[1, 1],
}
KINDS = ["apart", "aliased", "overlapping arguments", "None", "tuple", "list", "requires grad", "inference"]


def memory_of(tensor: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """A tensor's memory as a kernel sees it, byte by byte, and where in it the elements begin, each once."""
    ranges = [range(size) for size in tensor.shape]
    places = {sum(i * s for i, s in zip(index, tensor.stride())) for index in itertools.product(*ranges)}
    offsets = np.array(sorted(places), dtype=np.int64) * tensor.element_size()
    size = int(offsets.max()) + tensor.element_size() if len(offsets) else 0
    bytes_ = (ctypes.c_uint8 * size).from_address(tensor.data_ptr()) if size else b""
    return np.frombuffer(bytes_, np.uint8), offsets


def add_bytes(tensor: torch.Tensor, number: int) -> None:
    memory, offsets = memory_of(tensor)
    for byte in range(tensor.element_size() if len(offsets) else 0):
        memory[offsets + byte] += np.uint8(number)


def kernel(x: Any, out: Any, more: Any = None, scale: int = 3, *, step: int) -> None:
    """Changes every element of what it is given, so that a second run shows; zero is a value as any other."""
    add_bytes(x, scale)
    if out is not None:
        add_bytes(out, 5)
    for part in more or ():
        add_bytes(part, 7)


def once(zero: list[str], x: Any, out: Any, more: Any = None, scale: int = 3) -> None:
    """What one clean launch does."""
    if zero and out is not None:
        memory, offsets = memory_of(out)
        for byte in range(out.element_size() if len(offsets) else 0):
            memory[offsets + byte] = 0
    kernel(x, out, more, scale, step=1)


STYLES: dict[str, Callable[..., None]] = {
    "positional": lambda f, x, out, more: f(x, out, more, 3),
    "keyword": lambda f, x, out, more: f(x=x, out=out, more=more, scale=3),
    "mixed": lambda f, x, out, more: f(x, out, more=more),
    "reordered": lambda f, x, out, more: f(scale=3, more=more, out=out, x=x),
    "defaults": lambda f, x, out, more: f(x, out) if more is None else f(x, out, more),
}


def bits(*tensors: torch.Tensor) -> list[bytes]:
    return [bytes(memory_of(tensor)[0]) for tensor in tensors]


class Data:
    """The arguments of one call, and all the memory behind them."""

    def __init__(self, layout: str, other: str, kind: str, dtype: torch.dtype) -> None:
        with torch.inference_mode(kind == "inference"):
            self.buffers = [(torch.arange(24).reshape(4, 6) % 2 + i).to(dtype) for i in range(3)]
            self.x = LAYOUTS[layout](self.buffers[0])
            out = LAYOUTS[other](self.buffers[1])
            shared = {"aliased": self.x, "overlapping arguments": self.buffers[0].view(-1)[5:], "None": None}
            self.out = shared.get(kind, out)
            parts = self.buffers[2], self.buffers[2][:, 1]
            self.more = {"tuple": parts, "list": list(parts)}.get(kind)
            if kind == "requires grad" and (dtype.is_floating_point or dtype.is_complex) and dtype.itemsize > 1:
                self.x = self.x.detach().requires_grad_()

    def call(self, function: Any, style: str) -> list[bytes]:
        STYLES[style](function, self.x, self.out, self.more)
        return bits(*self.buffers)


@settings(
    max_examples=120, deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
@given(
    path=st.sampled_from(PATHS),
    style=st.sampled_from(sorted(STYLES)),
    layout=st.sampled_from(sorted(LAYOUTS)),
    other=st.sampled_from(sorted(LAYOUTS)),
    kind=st.sampled_from(KINDS),
    dtype=st.sampled_from(DTYPES),
    named=st.booleans(),
    zeroed=st.booleans(),
)
def test_the_same_bits_on_every_path(
    path: str, style: str, layout: str, other: str, kind: str, dtype: torch.dtype, named: bool, zeroed: bool
) -> None:
    # What shares memory with an input may not be zeroed; a name is in one of the two lists.
    zero = ["out"] if zeroed and kind not in ("aliased", "overlapping arguments") else []
    restore = [name for name in ("x", "out", "more") if name not in zero] if named else None

    def data() -> Data:
        return Data(layout, other, kind, dtype)

    def make(configs: Any, **options: Any) -> Any:
        return autotune(configs, restore_value=restore, reset_to_zero=zero, do_bench=quick, **options)(kernel)

    def clean(*args: Any, **kwargs: Any) -> None:
        once(zero, *args, **kwargs)

    expected = data().call(clean, style)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOTUNED_CACHE_DIR", folder)
        tuned = on_path(path, make, CONFIGS, lambda f: data().call(f, "keyword"), patch, Path(folder) / "work")
        fresh = data()
        assert fresh.call(tuned, style) == expected
        again = data()
        again.call(clean, style)
        assert fresh.call(tuned, style) == again.call(clean, style)
    assert tuned.cache_info().searches == (path in ("cold", "table"))
