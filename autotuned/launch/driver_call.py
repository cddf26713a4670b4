"""Reads from a loaded kernel the fields with which the C launcher calls the driver, and compares its launches."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import repeat
from typing import Any

from autotuned.triton_compat import descriptors
from autotuned.triton_compat.compiled import ALLOCATES, Handle

# How Triton's types are written into the parameter buffer, in the letters of `struct`; '-' is compiled in.
_KINDS = {
    "constexpr": "-", "i1": "?", "u1": "?", "i8": "b", "u8": "B", "i16": "h", "u16": "H", "i32": "i", "u32": "I",
    "i64": "q", "u64": "Q", "fp32": "f", "f32": "f", "fp64": "d",
}  # fmt: skip
# Launch attributes of the driver: cooperative, cluster dimension, cluster scheduling (1: spread), programmatic launch.
_COOPERATIVE, _CLUSTER, _SCHEDULING, _PROGRAMMATIC = 2, 4, 5, 6


def fields(
    found: Handle, names: Sequence[str], constants: Mapping[str, Any], prologue: tuple[Any, Mapping[str, Any], Any]
) -> tuple[Any, ...] | None:
    """What the C launcher needs to call the driver, in the order of `direct_of` in `launch/c/entries.h`.

    None for kernels that need more than a parameter buffer, which use Triton's C launcher: scratch memory,
    instrumentation pointers, unusual descriptors, half-precision scalars, tuned run-time parameters, unusually much
    shared memory.

    Args:
        found: The kernel.
        names: Its free parameters, in order.
        constants: Values set by the config, for grid callables.
        prologue: The config's hook or None, its extra arguments by name, and indexes of zeroed parameters.
    """
    kernel = found.kernel()
    metadata = _facts(kernel)
    kinds, described = _parameters(tuple(kernel.src.signature.items()), tuple(names))
    # `map` saves a Python call for each `getattr`.
    needs_more = [*map(getattr, repeat(metadata), ALLOCATES, _NONE), *map(getattr, repeat(found.run), ALLOCATES, _NONE)]
    if kinds is None or any(needs_more) or metadata.shared > 228 << 10 or metadata.target.backend != "cuda":
        return None
    encodings = descriptors.encodings(described, metadata)
    if encodings is None or not (hasattr(found.run, "written") or descriptors.are_compared(encodings)):
        return None
    ctas = getattr(metadata, "num_ctas", 1)
    attributes = launch_attributes(metadata, ctas)
    threads = 32 * metadata.num_warps
    hook, given, zeroed = prologue
    blank = dict.fromkeys(names)
    return (
        found.kernel, found.function, threads, metadata.shared, kinds, attributes, found.cache,
        found.cache_key, found.pre_run, found.entering, found.leaving, found.holds, {**blank, **constants},
        found.dicts, ctas, hook, {**blank, **given}, tuple(zeroed),
        found.device, encodings,
    )  # fmt: skip


_NONE = (0,) * len(ALLOCATES)


def _facts(kernel: Any) -> Any:
    """The metadata of Triton's kernel, or the equal facts of a shipped binary, which makes Triton's class on demand."""
    return vars(kernel).get("facts") or kernel.metadata


@lru_cache(maxsize=256)
def _parameters(signature: tuple[tuple[str, Any], ...], names: tuple[str, ...]) -> tuple[str | None, Sequence[str]]:
    """The kinds of free parameters, and the types of all descriptors; no kinds if Triton must pass a value."""
    types = dict(signature)
    kinds = [_kind(types.get(name)) for name in names]
    tuned = [type_ for name, type_ in signature if name not in names and _kind(type_) != "-"]
    unknown = None in kinds or bool(tuned)
    return None if unknown else "".join(map(str, kinds)), descriptors.flat(types.values())


@lru_cache(maxsize=1024)
def _kind(type_: Any) -> str | None:
    """The letter of a type, a tuple's items in brackets; None if Triton must pass it."""
    if isinstance(type_, tuple):
        inner = list(map(_kind, type_))
        return None if None in inner else f"({''.join(map(str, inner))})"
    if descriptors.is_type(type_):
        return "T"
    return "P" if str(type_).startswith("*") else _KINDS.get(type_)


def launch_attributes(metadata: Any, ctas: int) -> tuple[tuple[int, int, int, int], ...]:
    """The driver's launch attributes, each a number and three words, from a kernel's metadata or launcher."""
    found = []
    if getattr(metadata, "launch_pdl", False):
        found.append((_PROGRAMMATIC, 1, 0, 0))
    if getattr(metadata, "launch_cooperative_grid", False):
        found.append((_COOPERATIVE, 1, 0, 0))
    if ctas != 1:
        found += [(_CLUSTER, ctas, 1, 1), (_SCHEDULING, 1, 0, 0)]
    return tuple(found)


class Twin:
    """The Python twin's launches of a kernel, for comparison with the C launcher's.

    The twin passes values to Triton's launcher; this reproduces how that fills the parameter buffer (Triton's
    `driver.c`). `meta` maps values of the free parameters `names` to a grid callable's argument.
    """

    def __init__(self, found: Handle, names: Sequence[str], meta: Callable[..., Mapping[str, Any]]) -> None:
        kernel = found.kernel()
        signature = kernel.src.signature
        self._found, self._names, self._meta = found, names, meta
        self.kernel = found.kernel  # a weak reference
        self._types = [signature.get(name) for name in names]
        described = descriptors.flat(signature.values())
        self._written = getattr(found.run, "written", descriptors.written)  # of a shipped binary, or Triton's own
        how = descriptors.metas if self._written is descriptors.written else descriptors.encodings
        self._described = how(described, _facts(kernel)) or [None] * len(described)
        launched_by = found.run if hasattr(found.run, "num_ctas") else _facts(kernel)
        self._attributes = launch_attributes(launched_by, getattr(launched_by, "num_ctas", 1))

    def differences(self, values: tuple[Any, ...], grid: Any, passed: tuple[Any, ...] | None) -> list[str]:
        """Descriptions of the differences between the C launcher's launch and the twin's.

        `passed` is from `passed_of` in `launch/c/submit.h`, None if nothing; `grid` is the caller's or its result.
        """
        if passed is None:
            return []
        function, sizes, threads, shared, stream, attributes, parameters = passed
        found, (warps, ctas, shared_by_triton) = self._found, self._found.packed[:3]
        wanted = {
            "function": (found.function, function), "threads": (32 * warps, threads),
            "shared memory": (shared_by_triton, shared), "stream": (found.stream_of(found.device), stream),
            "attributes": (self._attributes, attributes),
        }  # fmt: skip
        if sizes is not None:
            x, y, z = _three(grid(self._meta(*values)) if callable(grid) else grid)
            wanted["grid"] = (x * ctas, y, z), sizes
        said = [f"{what}: expected {twin}, got {c}" for what, (twin, c) in wanted.items() if twin != c]
        return said + list(self._parameter_differences(values, parameters))

    def _parameter_differences(self, values: tuple[Any, ...], parameters: Sequence[bytes]) -> Iterator[str]:
        described = iter(self._described)
        passed = [
            part for name, type_, value in zip(self._names, self._types, values)
            for part in self._parts(name, type_, value, described)
        ]  # fmt: skip
        if len(passed) != len(parameters):
            yield f"parameters: expected {len(passed)}, got {len(parameters)}"
        for (name, type_, value, wanted), got in zip(passed, parameters):
            if got[: len(wanted)] != wanted:
                yield (
                    f"argument {name!r} of type {type_}: expected {wanted.hex(' ')} for {value!r:.60}, "
                    f"got {got[: len(wanted)].hex(' ')}"
                )

    def _parts(
        self, name: str, type_: Any, value: Any, described: Iterator[Any]
    ) -> Iterator[tuple[str, Any, Any, bytes]]:
        """Path, type, value and bytes of each parameter made of an argument: several for tuples and descriptors."""
        if isinstance(type_, tuple):
            for place, (inner, item) in enumerate(zip(type_, value)):
                yield from self._parts(f"{name}[{place}]", inner, item, described)
        elif descriptors.is_type(type_):
            for one in self._written(type_, next(described), value):
                yield name, type_, value, one
        elif (kind := _kind(type_) or "-") != "-":
            yield name, type_, value, _written(kind, value)


def _three(grid: Any) -> tuple[int, int, int]:
    x, y, z = (*(grid[i] for i in range(min(len(grid), 3))), 1, 1)[:3]  # by index, like Triton
    return x.__index__(), y.__index__(), z.__index__()


def _written(kind: str, value: Any) -> bytes:
    """A value in the parameter buffer; floats beyond 32 bits are narrowed, which `struct` would refuse."""
    if kind == "P":
        address = 0 if value is None else value if isinstance(value, int) else value.data_ptr()
        return struct.pack("<Q", address)
    if kind == "f":
        return bytes(ctypes.c_float(value))
    return struct.pack(f"<{kind}", value)
