"""NVIDIA's management library (NVML), with errors as exceptions."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Callable
from typing import Any

LIBRARY = "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"
_TEXT_BYTES = 96  # NVML_DEVICE_NAME_V2_BUFFER_SIZE; a UUID needs less


class NvmlError(Exception):
    """The library or a function is missing, or a call failed."""


class Nvml:
    """An open NVML library, usable from any thread; all methods raise NvmlError if it is missing or a call fails."""

    def __init__(self, library: str = LIBRARY) -> None:
        try:
            self._library = ctypes.CDLL(library)
        except OSError as error:
            raise NvmlError(str(error)) from error
        self.call("nvmlInit_v2")

    def close(self) -> None:
        """Release the library, ignoring errors."""
        with contextlib.suppress(NvmlError):
            self.call("nvmlShutdown")

    def function(self, *names: str) -> Callable[..., None]:
        """The first of these functions that the driver has."""
        for name in names:
            found = getattr(self._library, name, None)
            if found is not None:
                return _checked(name, found)
        raise NvmlError(f"NVML has no {' and no '.join(names)}")

    def call(self, name: str, *args: Any) -> None:
        """Call one function."""
        self.function(name)(*args)

    def number(self, name: str, *args: Any) -> int:
        """Call a function whose last parameter returns an integer."""
        found = ctypes.c_uint()
        self.call(name, *args, ctypes.byref(found))
        return found.value

    def handle(self, name: str, *args: Any) -> ctypes.c_void_p:
        """Call a function whose last parameter returns a device."""
        found = ctypes.c_void_p()
        self.call(name, *args, ctypes.byref(found))
        return found

    def text(self, name: str, handle: ctypes.c_void_p) -> str:
        """A device's name or UUID."""
        found = ctypes.create_string_buffer(_TEXT_BYTES)
        self.call(name, handle, found, ctypes.c_uint(_TEXT_BYTES))
        return found.value.decode(errors="replace")


def _checked(name: str, function: Callable[..., int]) -> Callable[..., None]:
    def call(*args: Any) -> None:
        code = function(*args)
        if code != 0:
            raise NvmlError(f"NVML refuses {name} with error {code}")

    return call
