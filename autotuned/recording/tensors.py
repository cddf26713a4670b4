"""Descriptions of tensors and their memory in a recording, validated before any memory is allocated."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Sequence
from typing import Any

from autotuned import disk
from autotuned.errors import RecordError
from autotuned.search.compiling import parallelism
from autotuned.typed_json import INT64_MAX, Json, integer, integers, named, typed, wrong

ALIGNMENT = 16  # bytes; Triton specializes on it
BY_VALUE_BYTES = 64 << 10  # integer tensors up to this size are recorded by value
_NUMBERS = "biufc"  # NumPy's kinds of numeric dtypes


def memories(spec: Json, device: Any) -> list[dict[str, Json]]:
    """Validated descriptions of memories that fit into the memory here.

    Raises:
        RecordError: One is not as `arguments.describe` writes it, or together they are too large.
    """
    found = [_memory(memory, f"memories[{i}]") for i, memory in enumerate(typed(spec, list, "memories"))]
    for there in ("host", "device"):
        needed = sum(memory["bytes"] for memory in found if (memory["device"] == "cpu") == (there == "host"))
        if needed and needed > (limit := parallelism.memory_bytes() if there == "host" else _device_bytes(device)):
            raise wrong("memories", f"at most {limit} bytes of {there} memory", needed)
    return found


def _memory(memory: Json, where: str) -> dict[str, Json]:
    named(memory, where, ("library", "device", "bytes", "align"))
    if memory["library"] not in ("torch", "numpy"):
        raise wrong(f"{where}.library", "torch or numpy", memory["library"])
    kind = typed(memory["device"], str, f"{where}.device")
    if kind != "cpu" and (memory["library"] == "numpy" or not _is_device(kind)):
        raise wrong(f"{where}.device", "a kind of device, such as cpu or cuda", kind)
    integer(memory["bytes"], f"{where}.bytes")
    integer(memory["align"], f"{where}.align", 0, ALIGNMENT - 1)
    return memory  # type: ignore[no-any-return]


def _is_device(kind: str) -> bool:
    import torch

    try:
        return kind != "meta" and torch.device(kind).index is None
    except RuntimeError:
        return False


def _device_bytes(device: Any) -> int:
    """Memory of a GPU; of other devices the host's free memory."""
    import torch

    if torch.device(device).type != "cuda":
        return parallelism.memory_bytes()
    return int(torch.cuda.get_device_properties(device).total_memory)


def tensor(spec: Json, memories: Sequence[dict[str, Json]], where: str) -> dict[str, Json]:
    """The validated description of a tensor within its memory.

    Raises:
        RecordError: It is not as `arguments.describe` writes it.
    """
    named(spec, where, ("memory", "offset", "dtype", "shape", "strides", "data"))
    memory = memories[integer(spec["memory"], f"{where}.memory", 0, len(memories) - 1)]
    shape, strides = (integers(spec[name], f"{where}.{name}") for name in ("shape", "strides"))
    offset = integer(spec["offset"], f"{where}.offset")
    if len(shape) != len(strides) or math.prod(shape) > INT64_MAX:
        raise wrong(f"{where}.shape", "as many sizes as strides, of less than 2**63 elements", spec["shape"])
    is_number, size = _kind(spec["dtype"], memory["library"], f"{where}.dtype")
    if offset + elements(shape, strides) * size > memory["bytes"]:
        raise wrong(f"{where}.shape", f"elements within its memory of {memory['bytes']} bytes", spec["shape"])
    if memory["library"] == "torch" and (memory["align"] + offset) % size:
        raise wrong(f"{where}.offset", f"a multiple of {size} bytes", offset)
    _data(spec, is_number, size, f"{where}.data")
    return spec  # type: ignore[no-any-return]


def descriptor(spec: Json, memories: Sequence[dict[str, Json]], where: str) -> None:
    """Check that a tensor descriptor stays within its tensor's memory.

    Raises:
        RecordError: It is not as `arguments.describe` writes it.
    """
    named(spec, where, ("base", "shape", "strides", "block_shape"))
    base = tensor(named(spec["base"], f"{where}.base", ("tensor",))["tensor"], memories, f"{where}.base")
    shape, strides, block = (integers(spec[name], f"{where}.{name}") for name in ("shape", "strides", "block_shape"))
    if not len(shape) == len(strides) == len(block):
        raise wrong(f"{where}.shape", "as many sizes as strides, and as in a block", spec["shape"])
    memory = memories[base["memory"]]
    _, size = _kind(base["dtype"], memory["library"], f"{where}.base.dtype")
    if base["offset"] + elements(shape, strides) * size > memory["bytes"]:
        raise wrong(f"{where}.shape", f"a descriptor within its memory of {memory['bytes']} bytes", spec["shape"])


def elements(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Number of elements from the first to the last, both included; 0 if empty."""
    return 0 if 0 in shape else 1 + sum((size - 1) * stride for size, stride in zip(shape, strides))


def _kind(text: Json, library: str, where: str) -> tuple[bool, int]:
    """Whether a dtype holds integers or booleans, and its size in bytes."""
    if library == "torch":
        found = torch_dtype(text, where)
        import torch

        return not (found.is_floating_point or found.is_complex), torch.empty(0, dtype=found).element_size()
    kept = numpy_dtype(text, where)
    return kept.kind in "biu", int(kept.itemsize)


def torch_dtype(text: Json, where: str) -> Any:
    """A dtype by its name, "torch.float32"; RecordError for other names and quantized ones."""
    import torch

    library, _, name = typed(text, str, where).partition(".")
    found = getattr(torch, name, None) if library == "torch" and name.isidentifier() else None
    if not isinstance(found, torch.dtype) or str(found) != text or name.startswith(("q", "bits")):
        raise wrong(where, "a dtype of torch such as torch.float32", text)
    return found


def numpy_dtype(text: Json, where: str) -> Any:
    """A numeric dtype by its name, "float32"; RecordError for others."""
    import numpy

    try:
        found = numpy.dtype(typed(text, str, where))
    except (TypeError, SyntaxError, OverflowError) as error:
        raise wrong(where, "a dtype of NumPy such as float32", text) from error
    if found.kind not in _NUMBERS or found.subdtype is not None:
        raise wrong(where, "a dtype of numbers", text)
    return found


def _data(spec: dict[str, Json], is_number: bool, size: int, where: str) -> None:
    data, count = spec["data"], math.prod(spec["shape"])
    if data is None and (not is_number or not count):
        return
    fields = data if isinstance(data, dict) and is_number and count else {}
    if fields.keys() == {"values"} and count * size <= BY_VALUE_BYTES:
        values(fields["values"], count * size, f"{where}.values")
    elif fields.keys() == {"range", "ascending"}:
        typed(fields["ascending"], bool, f"{where}.ascending")
        _range(fields["range"], spec["dtype"], f"{where}.range")
    else:
        raise wrong(where, "values or a range of integers, and of other data nothing", data)


def _range(data: Json, dtype: str, where: str) -> None:
    least, most = _bounds(dtype)
    ends = [integer(end, where, least, most) for end in typed(data, list, where)]
    if len(ends) != 2 or ends[0] > ends[1]:
        raise wrong(where, "the smallest and the largest value", data)


def _bounds(dtype: str) -> tuple[int, int]:
    import numpy

    name = dtype.removeprefix("torch.")
    try:
        info = numpy.iinfo("uint8" if name == "bool" else name)
    except (TypeError, ValueError):
        raise wrong("dtype", "a dtype of integers", dtype) from None
    return (0, 1) if name == "bool" else (int(info.min), int(info.max))


def values(text: Json, size: int, where: str) -> bytes:
    """The bytes in a text: base64 of compressed data.

    Raises:
        RecordError: It is invalid or does not hold `size` bytes; never unpacks more.
    """
    try:
        found = disk.inflate(base64.b64decode(typed(text, str, where), validate=True), size)
    except (binascii.Error, ValueError) as error:
        if isinstance(error, RecordError):
            raise
        raise wrong(where, f"{size} bytes, compressed, in base64 ({error})", text) from None
    if len(found) != size:
        raise wrong(where, f"{size} bytes", len(found))
    return found
