"""CUDA's driver for `binaries.libcuda`, made of Python functions: records loads and launches in order."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from types import SimpleNamespace

from fake_driver import OLD_DRIVER, Device

from autotuned.binaries import libcuda, serve

OUT_OF_MEMORY, NO_IMAGE = 2, 200
WORDS = {OUT_OF_MEMORY: b"out of memory", NO_IMAGE: b"device kernel image is invalid"}


class Library:
    """Loads anything that begins like machine code; `error` is the result of the next load.

    `params` is the number of parameters of a launch to record, 8 bytes each, or the bytes of each.
    """

    def __init__(self):
        self.loads, self.launches, self.attributes, self.unloads = [], [], [], 0
        self.error = self.params = 0
        self.reaches = True  # whether the device can access host memory

    def cuCtxGetCurrent(self, out):
        out._obj.value = 1
        return 0

    def cuModuleLoadData(self, out, code):
        if self.error:
            return self.error
        if code.value[:4] != b"\x7fELF":
            return NO_IMAGE
        self.loads.append(code.value)
        out._obj.value = 1000 + len(self.loads)
        return 0

    def cuModuleUnload(self, module):
        self.unloads += 1
        return 0

    def cuModuleGetFunction(self, out, module, name):
        out._obj.value = module.value + 1000
        self.loads[-1] = name.value.decode()
        return 0

    def cuFuncSetAttribute(self, function, which, value):
        self.attributes.append((which, value))
        return 0

    def cuFuncGetAttribute(self, out, which, function):
        out._obj.value = {0: 1024, 3: 0, 4: 32}[which]
        return 0

    def cuLaunchKernelEx(self, config, function, params, extra):
        c = config._obj
        self.launches.append(SimpleNamespace(
            grid=tuple(c.grid), block=tuple(c.block), shared=c.shared, stream=c.stream, function=function.value,
            attributes=[(c.attributes[i].id, *c.attributes[i].value[:3]) for i in range(c.attribute_count)],
            raw=[ctypes.string_at(params[i], size) for i, size in enumerate(self._sizes())],
        ))  # fmt: skip
        return 0

    def _sizes(self):
        return [8] * self.params if isinstance(self.params, int) else self.params

    def cuThreadExchangeStreamCaptureMode(self, mode):
        return 0

    def cuTensorMapEncodeTiled(self, out, type_, rank, address, *rest):
        assert ctypes.addressof(out) % 64 == 0
        return Device()._encode(ctypes.addressof(out), type_, rank, address.value, *rest)

    def cuDriverGetVersion(self, out):
        out._obj.value = OLD_DRIVER
        return 0

    def cuPointerGetAttribute(self, out, which, address):
        out._obj.value = address.value
        return 0 if self.reaches else 1

    def cuGetErrorString(self, status, out):
        out._obj.value = WORDS.get(status, b"unknown error")
        return 0


def install(monkeypatch) -> Library:
    """Install it in place of the driver's library, with nothing loaded."""
    library = Library()
    monkeypatch.setattr(libcuda, "_library", lambda: library)
    monkeypatch.setattr(libcuda, "driver", lru_cache(maxsize=1)(libcuda.Driver))  # a new one for each test
    monkeypatch.setattr(serve, "_loaded", {})
    return library
