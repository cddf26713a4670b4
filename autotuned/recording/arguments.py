"""Describes a call's arguments as JSON, and builds similar ones from it: exact layout, similar data."""

from __future__ import annotations

import base64
import math
import zlib
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from autotuned.errors import EncodingError, RecordError
from autotuned.key.key import is_descriptor, is_tensor, strides_of
from autotuned.key.memory import is_torch
from autotuned.recording import tensors
from autotuned.recording.tensors import ALIGNMENT, BY_VALUE_BYTES
from autotuned.typed_json import INT64_MAX, Json, encode, typed

PIECE = 1 << 22  # elements of a large integer tensor to read at once


def describe(arguments: Mapping[str, Any]) -> dict[str, Json]:
    """Describe arguments: dtype, shape, strides, offset, alignment and shared memory of tensors; scalars by value.

    Tensors that share memory share it again when built, at the same offsets. Integer and boolean tensors up to 64 KiB
    keep their values, larger ones only their range and whether they ascend, computed on their device. Floating-point
    data is not kept. Reading integers waits for the device.

    Args:
        arguments: By name: torch tensors, NumPy arrays, tensor descriptors, plain values, and tuples, named tuples,
            lists and dicts of these.

    Returns:
        `{"memories": [...], "values": {name: ...}}`, typed JSON.

    Raises:
        EncodingError: A value has no JSON form, such as a function or a user's object.
    """
    memories = _Memories()
    for name, value in arguments.items():
        try:
            memories.add(value)
        except RecursionError:
            raise EncodingError(
                f"argument {name!r}: expected nested values of limited depth, got a {type(value).__name__} "
                "that contains itself or is nested too deeply.",
                where=f"argument {name!r}",
            ) from None
    values = {name: _describe(value, f"argument {name!r}", memories) for name, value in arguments.items()}
    return {"memories": memories.to_json(), "values": values}


def build(spec: Mapping[str, Json], device: Any = "cuda", random_seed: int = 0) -> dict[str, Any]:
    """Make arguments like the described ones.

    Args:
        spec: What `describe` returned.
        device: For torch tensors that were on a GPU; host tensors stay on the host.
        random_seed: Seed of the data: normally distributed floating-point numbers, uniform integers.

    Raises:
        RecordError: The description is invalid (`.where` names the field), or needs too much memory. All memories are
            checked before any is allocated, and no tensor reaches beyond its own.
    """
    try:
        memories = _Made(typed(spec, dict, "arguments").get("memories"), device)
        values = typed(spec.get("values"), dict, "values")
        return {name: _build(value, memories, random_seed, f"values.{name}") for name, value in values.items()}
    except RecordError:
        raise
    # Raised by torch, NumPy and Triton for values that are invalid to them, or by a lack of memory.
    except (ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError,
            ValueError) as error:  # fmt: skip
        raise RecordError(
            f"arguments: expected what describe() returns, got {error!r:.200}.", where="values"
        ) from error


# -- describing -------------------------------------------------------------------------------------------------------


class _Memories:
    """The used ranges of memory, one per storage."""

    def __init__(self) -> None:
        self._spans: dict[tuple[str, int], list[int]] = {}  # (kind, address of the storage) -> start and end
        self._devices: dict[tuple[str, int], str] = {}

    def add(self, value: Any) -> None:
        if is_tensor(value):
            place, start = _place(value), _address(value)
            span = self._spans.setdefault(place, [start, start])
            span[0], span[1] = min(span[0], start), max(span[1], start + _extent(value))
            self._devices[place] = str(getattr(value, "device", "cpu")).partition(":")[0]
        elif isinstance(value, tuple) or type(value) in (list, dict):
            for part in value.values() if isinstance(value, dict) else value:
                self.add(part)
        elif is_descriptor(value):
            self.add(value.base)
            self._reach(value)

    def _reach(self, descriptor: Any) -> None:
        """Extend to memory that a descriptor covers beyond its tensor, such as further rows."""
        base = descriptor.base
        span, start = self._spans[_place(base)], _address(base)
        end = start + tensors.elements(descriptor.shape, descriptor.strides) * base.itemsize
        if is_torch(base) and end > base.untyped_storage().data_ptr() + base.untyped_storage().nbytes():
            raise EncodingError(
                f"expected a descriptor within the memory of its tensor, got one of shape {list(descriptor.shape)}.",
                where="arguments",
            )
        span[1] = max(span[1], end)

    def to_json(self) -> list[Json]:
        return [
            {"library": place[0], "device": self._devices[place], "bytes": end - start, "align": start % ALIGNMENT}
            for place, (start, end) in self._spans.items()
        ]

    def index(self, tensor: Any) -> int:
        return list(self._spans).index(_place(tensor))

    def offset(self, tensor: Any) -> int:
        return _address(tensor) - self._spans[_place(tensor)][0]


def _place(tensor: Any) -> tuple[str, int]:
    if is_torch(tensor):
        # Torch says that a tensor without elements is at address 0, whatever memory it is a part of.
        storage = int(tensor.untyped_storage().data_ptr()) if tensor.numel() else 0
        return "torch", storage or -id(tensor)
    base = tensor
    while hasattr(getattr(base, "base", None), "__array_interface__"):  # false if the base is a torch tensor
        base = base.base
    return "numpy", int(base.__array_interface__["data"][0])


def _address(tensor: Any) -> int:
    if is_torch(tensor):
        return int(tensor.data_ptr())
    if not hasattr(tensor, "__array_interface__") or any(step < 0 for step in tensor.strides):
        raise EncodingError(
            f"expected a torch tensor, or a NumPy array without negative strides, got {type(tensor).__name__}.",
            where="arguments",
        )
    if tensor.dtype.kind in "OSUmM" or tensor.dtype.names:  # objects, text, dates, records
        raise EncodingError(f"expected an array of numbers, got one of {tensor.dtype}.", where="arguments")
    return int(tensor.__array_interface__["data"][0])


def _extent(tensor: Any) -> int:
    """Bytes from a tensor's first element to the end of its last."""
    return int(tensors.elements(tuple(tensor.shape), strides_of(tensor)) * tensor.itemsize)


def _describe(value: Any, where: str, memories: _Memories) -> Json:
    if is_tensor(value):
        return {"tensor": {
            "memory": memories.index(value), "offset": memories.offset(value), "dtype": str(value.dtype),
            "shape": list(value.shape), "strides": list(strides_of(value)), "data": _data(value),
        }}  # fmt: skip
    if isinstance(value, tuple) or type(value) in (list, dict):
        return _describe_items(value, where, memories)
    if is_descriptor(value):
        sizes = {name: [int(size) for size in getattr(value, name)] for name in ("shape", "strides", "block_shape")}
        return {"descriptor": {"base": _describe(value.base, where, memories), **sizes}}
    return encode(value, where)


def _describe_items(value: Any, where: str, memories: _Memories) -> Json:
    """A tuple, named tuple, list or dict, whose items may be tensors."""
    if isinstance(value, dict):
        return {"dict": [[encode(key, where), _describe(part, where, memories)] for key, part in value.items()]}
    parts = [_describe(part, f"{where}[{i}]", memories) for i, part in enumerate(value)]
    if type(value) is list:
        return parts
    if type(value) is tuple:
        return {"tuple": parts}
    fields = getattr(value, "_fields", None)
    if fields is None:
        raise EncodingError(f"{where}: expected a tuple or a named tuple, got {type(value).__name__}.", where=where)
    return {"named": [type(value).__name__, list(fields), parts]}


def _data(tensor: Any) -> Json:
    """What is kept of a tensor's data; None for floating-point numbers."""
    text = str(tensor.dtype)
    if not any(kind in text for kind in ("int", "bool")) or 0 in tuple(tensor.shape):
        return None
    if tensor.itemsize * math.prod(tensor.shape) <= BY_VALUE_BYTES:
        return {"values": base64.b64encode(zlib.compress(_array(tensor).tobytes(), 9)).decode()}
    return _summary(tensor)


def _summary(tensor: Any) -> dict[str, Json]:
    """Smallest and largest value, and whether they ascend; computed in pieces on the tensor's device."""
    ranges, ascending, last = [], True, None
    for piece in _pieces(tensor):
        flat, base = _ordered(piece)
        ends = [int(value) + base for value in (flat.min(), flat.max(), flat[0], flat[-1])]
        ascending = ascending and (last is None or last <= ends[2]) and bool((flat[1:] >= flat[:-1]).all())
        ranges += ends[:2]
        last = ends[3]
    return {"range": [min(ranges), max(ranges)], "ascending": ascending}


def _pieces(tensor: Any) -> Iterator[Any]:
    """Parts along the outer dimensions, of at most `PIECE` elements, to bound temporaries."""
    size, rows = math.prod(tensor.shape), tensor.shape[0] if tensor.shape else 1
    if size <= PIECE:
        yield tensor
    elif rows == 1 or size // rows > PIECE:
        for row in range(rows):
            yield from _pieces(tensor[row])
    else:
        step = PIECE // (size // rows)
        yield from (tensor[start : start + step] for start in range(0, rows, step))


def _ordered(piece: Any) -> tuple[Any, int]:
    """A piece's elements, flat, in a dtype that torch can compare, and an offset to add to each."""
    flat = piece.reshape(-1)
    if not is_torch(piece):
        return flat.view("u1") if flat.dtype == bool else flat, 0
    import torch

    flat = flat.detach()
    if flat.dtype is torch.bool:
        return flat.view(torch.uint8), 0
    if flat.dtype is torch.uint64:
        return flat.view(torch.int64) ^ -(1 << 63), 1 << 63
    return flat.to(torch.int64) if flat.dtype in (torch.uint16, torch.uint32) else flat, 0


def _array(tensor: Any) -> Any:
    import numpy

    return numpy.ascontiguousarray(tensor.detach().cpu().numpy() if is_torch(tensor) else tensor)


# -- building ---------------------------------------------------------------------------------------------------------


class _Made:
    def __init__(self, described: Json, device: Any) -> None:
        self.described = tensors.memories(described, device)
        self._rooms = [_allocate(memory, device) for memory in self.described]

    def tensor(self, spec: Json, random_seed: int, where: str) -> Any:
        tensors.tensor(spec, self.described, where)
        seed = random_seed + 1000 * spec["memory"] + spec["offset"]
        return _tensor(spec, self._rooms[spec["memory"]], seed)


def _allocate(memory: Json, device: Any) -> Any:
    """Zeroed bytes with the original alignment."""
    size, align = memory["bytes"], memory["align"]
    if memory["library"] == "torch":
        import torch

        where = device if memory["device"] != "cpu" else "cpu"
        return torch.zeros(ALIGNMENT + align + size, dtype=torch.uint8, device=where)[align:]
    import numpy

    room = numpy.zeros(2 * ALIGNMENT + size, dtype=numpy.uint8)
    return room[(align - room.ctypes.data) % ALIGNMENT :]


def _build(value: Json, memories: _Made, random_seed: int, where: str) -> Any:
    if not isinstance(value, dict):
        return [_build(part, memories, random_seed, where) for part in value] if isinstance(value, list) else value
    [(kind, content)] = value.items()
    if kind == "tensor":
        return memories.tensor(content, random_seed, where)
    if kind == "tuple":
        return tuple(_build(part, memories, random_seed, f"{where}[{i}]") for i, part in enumerate(content))
    if kind == "dict":
        return {_build(name, memories, 0, where): _build(part, memories, random_seed, where) for name, part in content}
    if kind == "named":
        name, fields, parts = content
        return namedtuple(name, fields, module="recorded")(*_build(parts, memories, random_seed, where))
    if kind == "numpy":
        import numpy

        with numpy.errstate(over="raise"):  # else a value beyond the dtype becomes infinite
            return tensors.numpy_dtype(content[0], where).type(_build(content[1], memories, 0, where))
    if kind == "descriptor":
        from triton.tools.tensor_descriptor import TensorDescriptor

        tensors.descriptor(content, memories.described, where)
        base = _build(content["base"], memories, random_seed, where)
        return TensorDescriptor(base, content["shape"], content["strides"], content["block_shape"])
    if kind not in _READERS:
        raise RecordError(f"{where}: expected a tensor or a plain value, got {kind!r:.60}.", where=where)
    return _READERS[kind](content)


def _dtype(text: str) -> Any:
    if not typed(text, str, "dtype").startswith("triton."):
        return tensors.torch_dtype(text, "dtype")
    import triton.language as tl

    return tl.dtype(text.removeprefix("triton."))  # raises if invalid


def _device(text: str) -> Any:
    import torch

    return torch.device(text)


_READERS: dict[str, Callable[[Any], Any]] = {
    "float": float.fromhex,
    "complex": lambda parts: complex(*(float.fromhex(part["float"]) for part in parts)),
    "bytes": bytes.fromhex,
    "text": lambda text: bytes.fromhex(text).decode("utf-8", "surrogatepass"),
    "dtype": _dtype,
    "device": _device,
}


def _tensor(spec: Json, memory: Any, random_seed: int) -> Any:
    shape, strides, start = tuple(spec["shape"]), tuple(spec["strides"]), spec["offset"]
    if spec["dtype"].startswith("torch."):
        import torch

        dtype = tensors.torch_dtype(spec["dtype"], "dtype")
        size = torch.empty(0, dtype=dtype).element_size()
        flat = torch.empty(0, dtype=dtype, device=memory.device).set_(
            memory.untyped_storage(), (memory.storage_offset() + start) // size, (tensors.elements(shape, strides),)
        )
        _fill(flat, spec["data"], random_seed)
        view = flat.as_strided(shape, strides, flat.storage_offset())
    else:
        import numpy

        size = numpy.dtype(spec["dtype"]).itemsize
        flat = memory[start : start + size * tensors.elements(shape, strides)].view(spec["dtype"])
        _fill_array(flat, spec["data"], random_seed)
        view = numpy.lib.stride_tricks.as_strided(flat, shape, [stride * size for stride in strides])
    if (spec["data"] or {}).get("values") is not None:
        _place_values(view, spec["data"]["values"])
    return view


def _fill(flat: Any, data: Json, random_seed: int) -> None:
    """Fill with random numbers, in place on the device."""
    import torch

    generator = torch.Generator(flat.device).manual_seed(random_seed)
    if data is None and flat.dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        flat.normal_(generator=generator)
    elif data is None and "float4" in str(flat.dtype):  # two numbers in a byte, which torch converts from no dtype
        flat.view(torch.uint8).random_(generator=generator)
    elif data is None:  # torch cannot draw every dtype, such as fp8
        wide = torch.complex64 if flat.dtype.is_complex else torch.float16
        flat.copy_(torch.empty(flat.shape, dtype=wide, device=flat.device).normal_(generator=generator))
    elif "range" in data:
        low, high = data["range"]
        drawn = torch.randint(min(high - low + 1, INT64_MAX), flat.shape, generator=generator, device=flat.device)
        drawn = drawn.sort().values if data["ascending"] else drawn
        if flat.dtype is torch.uint64:  # int64 has the same bits, and wraps
            flat.view(torch.int64).copy_(drawn + (low - (1 << 64) if low > INT64_MAX else low))
        else:
            flat.copy_(drawn + low)


def _fill_array(flat: Any, data: Json, random_seed: int) -> None:
    import numpy

    random: Any = numpy.random.default_rng(random_seed)
    if data is None:
        flat[...] = random.standard_normal(flat.shape)
    elif "range" in data:
        drawn = random.integers(*data["range"], size=flat.shape, dtype=flat.dtype, endpoint=True)
        flat[...] = numpy.sort(drawn) if data["ascending"] else drawn


def _place_values(view: Any, text: str) -> None:
    """Write the recorded values; elements that share memory are written once."""
    import numpy

    name, shape = str(view.dtype).removeprefix("torch."), tuple(view.shape)
    raw = tensors.values(text, math.prod(shape) * view.itemsize, "values")
    array = numpy.frombuffer(raw, dtype=name).reshape(shape).copy()
    if not is_torch(view):
        view[...] = array
        return
    import torch

    source = torch.from_numpy(array).to(view.device)
    for dim, stride in enumerate(view.stride()):
        if stride == 0 and view.shape[dim] > 1:
            view, source = view.narrow(dim, 0, 1), source.narrow(dim, 0, 1)
    view.copy_(source)
