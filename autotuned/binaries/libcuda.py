"""The few functions of CUDA's driver that load and launch a binary, without Triton and without a compiler."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from autotuned._startup import Frozen
from autotuned.errors import BinaryError
from autotuned.triton_compat.descriptors import Encoding

USUAL_SHARED = 48 << 10  # bytes of dynamic shared memory that a launch may use by default
# Attributes of a function, as the driver numbers them.
MAX_THREADS, LOCAL_BYTES, REGISTERS, _DYNAMIC_SHARED, _NON_PORTABLE_CLUSTER = 0, 3, 4, 8, 14
_RELAXED = 2  # capture mode of a thread whose calls do not end other threads' captures
_DEVICE_POINTER, _INVALID_VALUE = 3, 1  # an attribute of addresses, and the status of an address without it
_NO_INTERLEAVE, _PROMOTE_128 = 0, 2
_MAP_BYTES, _MAP_ALIGNMENT = 128, 64
_CLEARED_UP_TO = 13010  # last driver version for which Triton clears a bit of small maps
_LIBRARIES = ("libcuda.so.1", "nvcuda.dll")
_PARAMETERS = ctypes.POINTER(ctypes.c_void_p)


class _Attribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_uint * 16)]


class _Config(ctypes.Structure):
    _fields_ = [
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)), ("attribute_count", ctypes.c_uint),
    ]  # fmt: skip


class Needs(Frozen):
    """What a launch needs: bytes of shared memory, threads per block, blocks per cluster."""

    shared: int
    threads: int
    ctas: int


class Function(Frozen):
    """A loaded function: handles of module and function, and its maximum number of threads per block."""

    module: int
    handle: int
    most_threads: int


class Driver:
    """The driver of this process; BinaryError without one."""

    def __init__(self) -> None:
        self._library = _library()

    def load(self, code: bytes, name: str, device: int, needs: Needs) -> Function:
        """Load machine code onto a device, ready for launches; BinaryError if the driver refuses it."""
        self._use(device)
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(code))
        try:
            self._call("cuModuleGetFunction", ctypes.byref(function), module, ctypes.c_char_p(name.encode()))
            self._prepare(function, needs)
            most = self.fact(function.value or 0, MAX_THREADS)
            if needs.threads > most:
                raise BinaryError(f"{name}: expected at most {most} threads a block, got {needs.threads}.", path="")
        except BaseException:
            self._library.cuModuleUnload(module)
            raise
        return Function(module.value or 0, function.value or 0, most)

    def launch(
        self, function: int, grid: Sequence[int], stream: int, needs: Needs, values: Sequence[Any],
        attributes: Sequence[tuple[int, ...]],
    ) -> None:  # fmt: skip
        """Launch with ctypes values as parameters; RuntimeError if the driver refuses it."""
        made = (_Attribute * max(len(attributes), 1))()
        for one, (which, *value) in zip(made, attributes):
            one.id, one.value[: len(value)] = which, value
        sizes = (ctypes.c_uint * 3)(grid[0] * needs.ctas, grid[1], grid[2])
        block = (ctypes.c_uint * 3)(needs.threads, 1, 1)
        config = _Config(sizes, block, needs.shared, stream, made, len(attributes))
        places = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        status = self._library.cuLaunchKernelEx(
            ctypes.byref(config), ctypes.c_void_p(function), ctypes.cast(places, _PARAMETERS), None
        )
        if status:
            raise self._refusal(status)

    def tensor_map(self, encoding: Encoding, address: int, block: Any) -> Any:
        """Encode a tensor descriptor for the driver, as the C launcher does (`launch/c/descriptors.h`).

        Args:
            block: The descriptor: `shape` and `strides` in elements, `padding`.

        Raises:
            RuntimeError: The driver refuses it: memory or a stride not aligned to 16 bytes.
        """
        _, rank, _, swizzle, size, type_, rounded, clears_bit, _, box = encoding
        if rounded >= 0 and getattr(block, "round_f32_to_tf32", False):
            type_ = rounded
        sizes, steps = list(block.shape)[::-1], [size * step for step in list(block.strides)[-2::-1]]
        room = bytearray(_MAP_BYTES + _MAP_ALIGNMENT)
        past = ctypes.addressof(ctypes.c_char.from_buffer(room)) % _MAP_ALIGNMENT
        made = (ctypes.c_uint64 * (_MAP_BYTES // 8)).from_buffer(room, -past % _MAP_ALIGNMENT)
        wide, narrow = ctypes.c_uint64 * rank, ctypes.c_uint32 * rank
        status = self._library.cuTensorMapEncodeTiled(
            made, type_, rank, ctypes.c_void_p(address), wide(*sizes), wide(*steps), narrow(*box[::-1]),
            narrow(*[1] * rank), _NO_INTERLEAVE, swizzle, _PROMOTE_128, int(block.padding == "nan"),
        )  # fmt: skip
        if status:
            raise self._refusal(status)
        if clears_bit and self._version() <= _CLEARED_UP_TO and _bytes_spanned(sizes, [size, *steps]) < 128 << 10:
            made[1] &= ~(1 << 21)
        return made

    def _version(self) -> int:
        version = ctypes.c_int()
        self._library.cuDriverGetVersion(ctypes.byref(version))
        return version.value

    def address(self, address: int) -> int | None:
        """The device address of memory; None if the current device cannot access it.

        The driver decides, as in Triton's launcher: pinned host memory may have another address on the device.
        """
        found, which = ctypes.c_uint64(), ctypes.c_int(_DEVICE_POINTER)
        status = self._library.cuPointerGetAttribute(ctypes.byref(found), which, ctypes.c_uint64(address))
        return None if status == _INVALID_VALUE else address if status else found.value

    def exchange_capture_mode(self, mode: int) -> int:
        """Set what this thread may do while others capture graphs; returns the previous mode."""
        value = ctypes.c_int(mode)
        self._call("cuThreadExchangeStreamCaptureMode", ctypes.byref(value))
        return value.value

    def _use(self, device: int) -> None:
        """Make the device's primary context current if no context is, as on a new thread."""
        context, handle = ctypes.c_void_p(), ctypes.c_int()
        self._call("cuCtxGetCurrent", ctypes.byref(context))
        if not context.value:
            self._call("cuDeviceGet", ctypes.byref(handle), device)
            self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), handle)
            self._call("cuCtxSetCurrent", context)

    def _prepare(self, function: Any, needs: Needs) -> None:
        if needs.shared > USUAL_SHARED:
            self._call("cuFuncSetAttribute", function, _DYNAMIC_SHARED, needs.shared)
        if needs.ctas > 8:  # more than every device of the architecture supports
            self._call("cuFuncSetAttribute", function, _NON_PORTABLE_CLUSTER, 1)

    def fact(self, function: int, which: int) -> int:
        """An attribute of a loaded function, by its handle."""
        value = ctypes.c_int()
        self._call("cuFuncGetAttribute", ctypes.byref(value), which, ctypes.c_void_p(function))
        return value.value

    def _call(self, name: str, *args: Any) -> None:
        status = getattr(self._library, name)(*args)
        if status:
            raise BinaryError(f"{name}: {self._words(status)}", path="")

    def _refusal(self, status: int) -> RuntimeError:
        return RuntimeError(f"Triton Error [CUDA]: {self._words(status)}")

    def _words(self, status: int) -> str:
        text = ctypes.c_char_p()
        self._library.cuGetErrorString(status, ctypes.byref(text))
        return (text.value or b"").decode(errors="replace") or f"error {status}"


def _bytes_spanned(sizes: Sequence[int], steps: Sequence[int]) -> int:
    """A tensor's extent in bytes, added up in 32 bits as Triton does."""
    last = sum((size - 1) * step for size, step in zip(sizes, steps)) & 0xFFFFFFFF
    return last - (last >> 31 << 32) + 1


def may_pass(refusal: str) -> bool:
    """Whether a refusal may be temporary: full memory is freed later."""
    return "out of memory" in refusal


def _library() -> Any:
    for name in _LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise BinaryError("expected CUDA's driver library, found none: binaries are loaded by it.", path="")


@contextmanager
def relaxed_captures() -> Iterator[None]:
    """Let this thread load code without breaking graph captures of other threads."""
    try:
        exchange = driver().exchange_capture_mode
    except BinaryError:  # nothing is captured without it
        yield
        return
    before = exchange(_RELAXED)
    try:
        yield
    finally:
        exchange(before)


@lru_cache(maxsize=1)
def driver() -> Driver:
    """The driver, found once."""
    return Driver()
