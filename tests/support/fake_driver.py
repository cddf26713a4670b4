"""The driver's functions made with ctypes: they record the C launcher's calls byte for byte."""

import ctypes
import hashlib
import struct
from types import SimpleNamespace


class Attribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_uint * 16)]


class LaunchConfig(ctypes.Structure):
    _fields_ = [
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint), ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(Attribute)), ("attribute_count", ctypes.c_uint),
    ]  # fmt: skip


PARAMS = ctypes.POINTER(ctypes.c_void_p)
LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(LaunchConfig), ctypes.c_void_p, PARAMS, PARAMS)
CONTEXT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_void_p))
STREAM = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))
MEMSET = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_ubyte, ctypes.c_size_t, ctypes.c_void_p)
WIDE, NARROW = ctypes.POINTER(ctypes.c_uint64), ctypes.POINTER(ctypes.c_uint32)
ENCODE = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.c_uint32,
    ctypes.c_void_p,
    WIDE,
    WIDE,
    NARROW,
    NARROW,
    *[ctypes.c_int] * 4,
)
OLD_DRIVER = 13000  # CUDA 13.0, for which Triton 3.7 and later clear a bit of small maps


class Device:
    """The pretended driver: its calls, in order, and its answers."""

    def __init__(self) -> None:
        self.calls: list[SimpleNamespace] = []
        self.asked: list[int] = []  # the devices whose current stream was requested
        self.context, self.stream, self.error, self.params = 0x1000, 0x77, 0, 0
        self.sizes: list[int] | None = None  # bytes to record of each parameter, instead of 8 of each of `params`
        self.maps: list[tuple] = []  # arguments of encoded maps
        self.encode = ENCODE(self._encode)
        self.functions = LAUNCH(self._launch), CONTEXT(self._context), STREAM(self._stream), MEMSET(self._memset)

    def addresses(self) -> list[int]:
        return [ctypes.cast(function, ctypes.c_void_p).value for function in self.functions]

    def all_addresses(self) -> list[int]:
        """The arguments of `_launch.use_driver`."""
        return [*self.addresses(), 1, self.encoder(), OLD_DRIVER]

    def encoder(self) -> int:
        return ctypes.cast(self.encode, ctypes.c_void_p).value

    def _encode(self, out, type_, rank, address, sizes, steps, box, every, *rest):
        """Encode a map whose bytes show its arguments; like the driver, it refuses unaligned ones."""
        made = type_, rank, address, sizes[:rank], steps[: rank - 1], box[:rank], every[:rank], rest
        self.maps.append(made)
        if (address or 0) % 16 or any(step % 16 for step in steps[: rank - 1]):
            return 1
        digest = hashlib.sha512(repr(made).encode()).digest()
        ctypes.memmove(out, digest * 2, 128)
        return 0

    def _launch(self, config, function, params, extra):
        c = config.contents
        sizes = [8] * self.params if self.sizes is None else self.sizes
        raw = [ctypes.string_at(params[i], size) for i, size in enumerate(sizes)]
        attributes = [(c.attributes[i].id, tuple(c.attributes[i].value[:3])) for i in range(c.attribute_count)]
        self.calls.append(SimpleNamespace(
            kind="launch", grid=tuple(c.grid), block=tuple(c.block), shared=c.shared, stream=c.stream, function=function,
            raw=raw, attributes=attributes,
        ))  # fmt: skip
        return self.error

    def _context(self, out):
        out[0] = self.context
        return 0

    def _stream(self, kind, index, out):
        self.asked.append(index)
        out[0] = self.stream
        return 0

    def _memset(self, address, value, size, stream):
        self.calls.append(SimpleNamespace(kind="memset", address=address, value=value, size=size, stream=stream))
        return self.error


FORMS = {"i1": "<?", "u1": "<?", "i8": "<b", "i16": "<h", "i32": "<i", "i64": "<q", "u64": "<Q", "fp32": "<f",
         "fp64": "<d"}  # fmt: skip


def expected(compiled, arguments):
    """The parameter buffer by Triton's signature, computed independently."""
    packed = []
    for name, kind in compiled.src.signature.items():
        if kind.startswith("*"):
            packed.append(struct.pack("<Q", arguments[name].data_ptr()))
        elif kind != "constexpr":
            packed.append(struct.pack(FORMS[kind], arguments[name]))
    return [*packed, b"\0" * 8, b"\0" * 8]
