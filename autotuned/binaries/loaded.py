"""A binary on the device: returned by `kernel[grid](...)` in place of Triton's kernel, and launched by it."""

from __future__ import annotations

import copy
import ctypes
import operator
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, reduce
from types import SimpleNamespace
from typing import Any

from autotuned.binaries import libcuda
from autotuned.binaries.variant import Variant
from autotuned.errors import BinaryError
from autotuned.launch.driver_call import launch_attributes
from autotuned.triton_compat import compiled, descriptors, kernel, specialization
from autotuned.triton_compat.descriptors import Encoding

_C_TYPES: Mapping[str, Any] = {
    "i1": ctypes.c_int8, "u1": ctypes.c_uint8, "i8": ctypes.c_int8, "u8": ctypes.c_uint8, "i16": ctypes.c_int16,
    "u16": ctypes.c_uint16, "i32": ctypes.c_int32, "u32": ctypes.c_uint32, "i64": ctypes.c_int64,
    "u64": ctypes.c_uint64, "fp32": ctypes.c_float, "f32": ctypes.c_float, "fp64": ctypes.c_double,
}  # fmt: skip
_FLOATS = ("fp32", "f32", "fp64")
NOT_HERE = "its kernel was loaded from a shipped binary, which holds machine code only; docs/ship-without-a-compiler.md"


class Loaded:
    """A kernel loaded from a shipped binary, with the attributes of Triton's `CompiledKernel` that it can have.

    Attributes:
        name, metadata, packed_metadata: As Triton's.
        asm: Holds "cubin"; any other stage is a `KeyError` that says why.
        kernel: The machine code.
        hash: The variant's digest.
        module, function: The driver's handles.
        n_regs, n_spills, n_max_threads: From the driver, asked at the first use.
        facts: The fields of `metadata`.
        src: Has `fn` and `signature` only.
        run: Launches, as Triton's launcher does.
    """

    def __init__(self, jit: Any, variant: Variant, code: bytes, device: int) -> None:
        launch = {**variant.launch, "target": specialization.target(variant.code.arch), "hash": variant.digest}
        self.variant, self.name, self.hash = variant, str(launch["name"]), variant.digest
        self.facts = SimpleNamespace(**launch)
        self.src = SimpleNamespace(fn=jit, signature=variant.form.signature)
        self.kernel, self.asm = code, _Stages(cubin=code)
        needs = libcuda.Needs(launch["shared"], 32 * launch["num_warps"], launch["num_ctas"] or 1)
        self.packed_metadata = launch["num_warps"], needs.ctas, needs.shared
        compiled.tell_load(None, None, self.name, self.hash)
        found = libcuda.driver().load(code, self.name, device, needs)
        compiled.tell_load(found.module, found.handle, self.name, self.hash)
        self.module, self.function = found.module, found.handle
        self.n_max_threads = found.most_threads
        self.run = Launch(self, needs)

    @cached_property
    def metadata(self) -> Any:
        """The facts as Triton's class; built on demand, since it takes as long to build as a binary to load."""
        return namedtuple("KernelMetadata", sorted(vars(self.facts)))(**vars(self.facts))

    @cached_property
    def n_regs(self) -> int:
        """Registers of a thread."""
        return libcuda.driver().fact(self.function, libcuda.REGISTERS)

    @cached_property
    def n_spills(self) -> int:
        """Words that a thread spills to memory."""
        return libcuda.driver().fact(self.function, libcuda.LOCAL_BYTES) // 4

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"expected an attribute that a shipped binary has, got {name!r}: {NOT_HERE}.")

    def of(self, jit: Any) -> Loaded:
        """The same loaded code for another function object."""
        made = copy.copy(self)
        made.src = SimpleNamespace(fn=jit, signature=self.src.signature)
        return made

    def handle(self, jit: Any, device: int) -> compiled.Handle:
        """The handle for a direct launch; UnbindableError if this Triton is unknown."""
        return compiled.handle_outside(jit, self, device)

    def launch_metadata(self, grid: Sequence[int], stream: int, *args: Any) -> Any:
        """The argument of launch hooks; None without hooks."""
        return compiled.hook_metadata(self, grid, stream, args)

    def __getitem__(self, grid: Sequence[int]) -> Callable[..., None]:
        """Bind a grid; all parameters are passed by position, as with Triton's compiled kernel."""

        def runner(*args: Any, stream: int | None = None) -> None:
            on = kernel.stream_getter()(kernel.current_device()) if stream is None else stream
            self.launch(grid, on, args)

        return runner

    def launch(self, grid: Sequence[int], stream: int, args: Sequence[Any]) -> None:
        """Launch, hooks included."""
        enter, leave = compiled.launch_hooks()
        x, y, z = (*grid, 1, 1)[:3]
        metadata = self.launch_metadata(grid, stream, *args)
        self.run(x, y, z, stream, self.function, self.packed_metadata, metadata, enter, leave, *args)


class _Stages(dict[str, Any]):
    def __missing__(self, stage: str) -> Any:
        raise KeyError(f"expected 'cubin', got {stage!r}: {NOT_HERE}")


class Launch:
    """`Loaded.run`: a replacement for Triton's launcher of a compiled kernel."""

    def __init__(self, loaded: Loaded, needs: libcuda.Needs) -> None:
        metadata = loaded.facts
        self.num_ctas, self._needs = needs.ctas, needs
        self.global_scratch_size = getattr(metadata, "global_scratch_size", 0) or 0
        self.global_scratch_align = getattr(metadata, "global_scratch_align", 1) or 1
        self.profile_scratch_size = 0
        self.launch_cooperative_grid, self.launch_pdl = metadata.launch_cooperative_grid, metadata.launch_pdl
        self._attributes = launch_attributes(metadata, needs.ctas)
        self._form = loaded.variant.form
        self._encodings: tuple[Encoding, ...] = ()
        if self._form.has_descriptors:
            found = descriptors.encodings(descriptors.flat(type_ for _, type_ in self._form.launched), metadata)
            if found is None:
                raise BinaryError("expected descriptors that the driver's own call encodes, got another kind.", path="")
            self._encodings = found

    @cached_property
    def _passed(self) -> list[tuple[Sequence[int], str, str, Encoding | None]]:
        """Where each passed parameter is, its name and type, and how it is encoded; most are launched in C."""
        form, encodings = self._form, iter(self._encodings)
        return [
            (form.place(name), name, type_, next(encodings) if descriptors.is_type(type_) else None)
            for name, type_ in form.launched
        ]

    def __call__(
        self, x: int, y: int, z: int, stream: int, function: int, packed: Any, metadata: Any, enter: Any, leave: Any,
        *args: Any,
    ) -> None:  # fmt: skip
        """Launch, with `metadata` passed to the hooks before and after."""
        if enter is not None:
            enter(metadata)
        if x > 0 and y > 0 and z > 0:
            scratch = self._scratch(x * y * z, stream)  # held until the launch is made
            address = 0 if scratch is None else scratch.data_ptr()
            values = [one for passed in self._passed for one in _parameters(args, *passed)]
            values += [ctypes.c_uint64(address), ctypes.c_uint64(0)]
            libcuda.driver().launch(function, (x, y, z), stream, self._needs, values, self._attributes)
        if leave is not None:
            leave(metadata)

    def written(self, type_: str, encoding: Encoding, value: Any) -> list[bytes]:
        """The bytes passed for a descriptor, parameter by parameter (`descriptors.written`)."""
        return [bytes(one) for one in described(type_, value, encoding)]

    def _scratch(self, blocks: int, stream: int) -> Any:
        if not self.global_scratch_size:
            return None
        return compiled.scratch(blocks * self.num_ctas * self.global_scratch_size, self.global_scratch_align, stream)


def _parameters(
    args: Sequence[Any], place: Sequence[int], name: str, type_: str, encoding: Encoding | None
) -> list[Any]:
    """The values passed for a parameter or an item of a tuple."""
    value = reduce(operator.getitem, place, args)
    return [_parameter(name, type_, value)] if encoding is None else described(name, value, encoding)


def described(name: str, value: Any, encoding: Encoding) -> list[Any]:
    """The values passed for a tensor descriptor, as in Triton's launcher (`descriptors.written`).

    Raises:
        ValueError: It is not the block that the kernel was compiled for.
        OverflowError: A size does not fit its parameter.
    """
    form, rank, flags, *_, block, _ = encoding
    if tuple(value.block_shape) != block or len(value.shape) != rank:
        raise ValueError(f"argument {name!r}: expected a block of {list(block)}, got {value.block_shape!r:.60}.")
    address, sizes, steps = _address(name, value.base), list(value.shape), list(value.strides)
    shape, strides = [_number(name, "i32", size) for size in sizes], [_number(name, "i64", step) for step in steps]
    if form == descriptors.ENCODED:
        return [libcuda.driver().tensor_map(encoding, address, value), *shape, *strides]
    said = [value.padding == "nan", getattr(value, "round_f32_to_tf32", False)][:flags]
    head = [ctypes.c_uint64(address), *(_number(name, "i64", one) for one in (*sizes, *steps))]
    return [*head, *map(ctypes.c_bool, said), *shape, *strides]


def _number(name: str, type_: str, value: Any) -> Any:
    if not -(1 << 31) <= value < 1 << 31 and type_ == "i32":
        raise OverflowError(f"argument {name!r}: expected sizes of at most 32 bits, got {value}.")
    return _C_TYPES[type_](value)


def _parameter(name: str, type_: str, value: Any) -> Any:
    """Convert a value to the kernel's type by the rules of Triton's launcher.

    Raises:
        TypeError, OverflowError: The value does not fit the parameter's type.
        ValueError: It is a tensor in memory that the GPU cannot access.
    """
    if type_[0] == "*":
        return ctypes.c_uint64(_address(name, value))
    if type_ in _FLOATS:
        return _C_TYPES[type_](value)
    unsigned = type_[0] == "u"
    is_plain = type(value) is int or (unsigned and isinstance(value, int))
    number = value if is_plain else _index(name, type_, value)
    least = 0 if unsigned else -(1 << 63)
    if not least <= number < least + (1 << 64):
        raise OverflowError(f"argument {name!r}: expected {type_} of at most 64 bits, got {value!r:.60}.")
    return _C_TYPES[type_](number)  # the low bytes


def _index(name: str, type_: str, value: Any) -> int:
    if type_.startswith("u") or not hasattr(value, "__index__"):
        raise TypeError(f"argument {name!r}: expected an integer for {type_}, got {type(value).__name__}.")
    return operator.index(value)


def _address(name: str, value: Any) -> int:
    if value is None or isinstance(value, int):
        return value or 0
    address: int = value.data_ptr()
    if not address or getattr(value, "is_cuda", False):
        return address
    on_device = libcuda.driver().address(address)
    if on_device is None:
        raise ValueError(
            f"argument {name!r}: expected memory that the GPU can access, got a tensor that cannot be accessed "
            "(cpu tensor?). Move it to the GPU."
        )
    return on_device
