"""How Triton's launcher passes tensor descriptors: as a driver tensor map, or decomposed."""

from __future__ import annotations

import ctypes
import inspect
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

# Known metadata of a tensor map. Triton handles other forms (padded 4-bit numbers, im2col) and unknown fields.
_KNOWN = frozenset(("swizzle", "elem_size", "elem_type", "block_size", "fp4_padded", "is_im2col"))
_MAP_BYTES = 128
ENCODED, DECOMPOSED = 0, 1  # forms, as in `launch/c/descriptors.h`
Encoding = tuple[int, int, int, int, int, int, int, int, tuple[int, ...], tuple[int, ...]]


@lru_cache(maxsize=1024)
def is_type(type_: Any) -> bool:
    """Whether a type in Triton's signature is a tensor descriptor."""
    return isinstance(type_, str) and type_.startswith("tensordesc<")


def flat(types: Iterable[Any]) -> list[str]:
    """The descriptor types in a signature, also inside tuples, in order."""
    found: list[str] = []
    for type_ in types:
        found += flat(type_) if isinstance(type_, tuple) else [type_] if is_type(type_) else []
    return found


def metas(types: Sequence[str], metadata: Any) -> list[Any] | None:
    """Metadata of each descriptor of a kernel, None for decomposed ones; None altogether if the counts differ."""
    found = getattr(metadata, "tensordesc_meta", None) or [None] * len(types)
    return list(found) if len(found) == len(types) else None


def encodings(types: Sequence[str], metadata: Any) -> tuple[Encoding, ...] | None:
    """How a kernel's descriptors are passed, in the form that `take_encoding` in `launch/c/entries.h` reads.

    None if only Triton's launcher can pass one of them.
    """
    if not types and not getattr(metadata, "tensordesc_meta", None):  # most kernels
        return ()
    found = metas(types, metadata)
    made = [_encoding(type_, meta) for type_, meta in zip(types, found)] if found is not None else [None]
    return None if None in made else tuple(one for one in made if one is not None)


def _encoding(type_: str, meta: Mapping[str, Any] | None) -> Encoding | None:
    block = _block(type_)
    if not block:
        return None
    if meta is None:
        return DECOMPOSED, len(block), _flags(), 0, 0, 0, -1, 0, block, block
    if not meta.keys() <= _KNOWN or meta["fp4_padded"] or meta.get("is_im2col"):
        return None
    nvidia = _nvidia()
    numbers = nvidia.TMA_DTYPE_DEVICE_TO_HOST[meta["elem_type"]], getattr(nvidia, "TMA_TF32", -1)
    box = tuple(meta["block_size"])
    if len(box) != len(block):
        return None
    return ENCODED, len(block), 0, meta["swizzle"], meta["elem_size"], *numbers, _clears_a_bit(), block, box


def _block(type_: str) -> tuple[int, ...]:
    """The block shape in a type; empty if the type is not like `tensordesc<fp16[16, 32]>`."""
    found = re.fullmatch(r"tensordesc<\w+\[([\d, ]+)\]>", type_)
    return tuple(map(int, found[1].split(","))) if found else ()


def are_compared(encodings: Sequence[Encoding]) -> bool:
    """Whether Triton's driver also creates these maps, for comparison with the C launcher's."""
    from triton.runtime.driver import driver

    names = ("fill_tma_descriptor_tiled", "fill_tma_descriptor")  # the latter in 3.6
    encoded = any(form == ENCODED for form, *_ in encodings)
    return not encoded or any(hasattr(driver.active.utils, name) for name in names)


def _nvidia() -> Any:
    from triton.backends.nvidia import driver

    return driver


def _made(value: Any, meta: Any) -> list[Any]:
    make = _nvidia().make_tensordesc_arg
    return list(make(value, meta, *[None] * (len(inspect.signature(make).parameters) - 2)))


@lru_cache(maxsize=1)
def _flags() -> int:
    """Number of flags after a decomposed descriptor's strides: padding, and rounding in later versions."""
    probe = SimpleNamespace(base=0, shape=[2], strides=[3], padding="nan", round_f32_to_tf32=False)
    made = _made(probe, None)
    if made not in ([0, 2, 3, True, 2, 3], [0, 2, 3, True, False, 2, 3]):
        raise ValueError(f"expected a descriptor's tensor, shape and strides, got {made}")
    return len(made) - 5


@lru_cache(maxsize=1)
def _clears_a_bit() -> bool:
    """Whether this Triton clears a bit in maps of small tensors, for older drivers."""
    source = Path(_nvidia().__file__).with_name("driver.c").read_text(encoding="utf-8")
    return "desc_u64[1] &= ~(1llu << 21)" in source


def written(type_: str, meta: Mapping[str, Any] | None, value: Any) -> list[bytes]:
    """The bytes that Triton's launcher writes into the parameter buffer for a descriptor, per parameter."""
    rank = len(_block(type_))
    made = _made(value, meta)
    head, shape, strides = made[: -2 * rank], made[-2 * rank : -rank], made[-rank:]
    if meta is None:
        base, numbers, flags = head[0], head[1 : 1 + 2 * rank], head[1 + 2 * rank :]
        first = struct.pack("<Q", base.data_ptr()), *(struct.pack("<q", one) for one in numbers)
        passed = [*first, *(struct.pack("?", one) for one in flags)]
    else:
        passed = [_bytes_of_map(head[0])]
    return [*passed, *(struct.pack("<i", one) for one in shape), *(struct.pack("<q", one) for one in strides)]


def _bytes_of_map(made: Any) -> bytes:
    """The tensor map, the last field of Triton's C object."""
    return ctypes.string_at(id(made) + type(made).__basicsize__ - _MAP_BYTES, _MAP_BYTES)
