"""What the C launcher needs to call the driver itself, read off a loaded kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autotuned.compiledkernel import Handle

# How Triton's type of a parameter is written into the kernel's parameter buffer, in the letters of `struct`; '-' is
# compiled in.
_KINDS = {
    "constexpr": "-", "i1": "?", "u1": "?", "i8": "b", "u8": "B", "i16": "h", "u16": "H", "i32": "i", "u32": "I",
    "i64": "q", "u64": "Q", "fp32": "f", "f32": "f", "fp64": "d",
}  # fmt: skip
# Launch attributes of the driver: cooperative, cluster dimension, cluster scheduling (1: spread), programmatic launch.
_COOPERATIVE, _CLUSTER, _SCHEDULING, _PROGRAMMATIC = 2, 4, 5, 6


def fields(
    found: Handle, names: Sequence[str], constants: Mapping[str, Any], prologue: tuple[Any, Mapping[str, Any], Any]
) -> tuple[Any, ...] | None:
    """What the C launcher needs to call the driver itself, in the order of `direct_of` in `_launch_entries.h`.

    None for a kernel that needs more than parameters in a buffer: scratch memory, tensor descriptors, tuples,
    half-precision scalars, tuned run-time parameters, more shared memory than is usual. It goes through Triton's C
    launcher instead.

    Args:
        found: The kernel.
        names: Its free parameters, in order.
        constants: What the config sets, for grid callables.
        prologue: The config's hook or None, what else it is given by name, and indexes of zeroed parameters.
    """
    kernel = found.kernel()
    metadata, signature = kernel.metadata, dict(kernel.src.signature)
    kinds = [_kind(signature.get(name)) for name in names]
    needs_more = any(getattr(metadata, name, 0) for name in ("global_scratch_size", "profile_scratch_size"))
    tuned = [type_ for name, type_ in signature.items() if name not in names and _kind(type_) != "-"]
    if None in kinds or needs_more or tuned or metadata.shared > 228 << 10 or metadata.target.backend != "cuda":
        return None
    ctas = getattr(metadata, "num_ctas", 1)
    attributes = _attributes(metadata, ctas)
    threads = 32 * metadata.num_warps
    hook, given, zeroed = prologue
    blank = dict.fromkeys(names)
    return (
        found.kernel, found.function, threads, metadata.shared, "".join(map(str, kinds)), attributes, found.cache,
        found.cache_key, found.pre_run, found.entering, found.leaving, found.holds, {**blank, **constants},
        tuple(one for one in found.watched if isinstance(one, dict)), ctas, hook, {**blank, **given}, tuple(zeroed),
        found.device,
    )  # fmt: skip


def _kind(type_: Any) -> str | None:
    if isinstance(type_, str) and type_.startswith("*"):
        return "P"
    return _KINDS.get(type_) if isinstance(type_, str) else None


def _attributes(metadata: Any, ctas: int) -> tuple[tuple[int, int, int, int], ...]:
    found = []
    if getattr(metadata, "launch_pdl", False):
        found.append((_PROGRAMMATIC, 1, 0, 0))
    if getattr(metadata, "launch_cooperative_grid", False):
        found.append((_COOPERATIVE, 1, 0, 0))
    if ctas != 1:
        found += [(_CLUSTER, ctas, 1, 1), (_SCHEDULING, 1, 0, 0)]
    return tuple(found)
