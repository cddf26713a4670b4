"""Asks the driver whether a GPU's clocks are throttled."""

from __future__ import annotations

import ctypes
import logging
import threading
from collections.abc import Callable

from autotuned.gpu.nvml import Nvml, NvmlError

log = logging.getLogger("autotuned")
# Heat and hardware slowdowns; not the power cap, which limits any busy GPU.
HW_SLOWDOWN, SW_THERMAL, HW_THERMAL, HW_POWER_BRAKE = 0x08, 0x20, 0x40, 0x80
SLOWED = HW_SLOWDOWN | SW_THERMAL | HW_THERMAL | HW_POWER_BRAKE
_REASONS = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")  # new and old name


class Clocks:
    """Clock throttling of one GPU, named by torch's `uuid`; unknown until a thread has opened the library."""

    def __init__(self, uuid: str | None) -> None:
        self._uuid = uuid
        self._ask: Callable[[], int] | None = None
        self._opening: threading.Thread | None = None

    def open(self) -> None:
        """Start opening the library, once."""
        if self._uuid and self._opening is None:
            self._opening = threading.Thread(target=self._open, name="autotuned-clocks", daemon=True)
            self._opening.start()

    def _open(self) -> None:
        try:
            self._ask = _reasons_of(Nvml(), str(self._uuid))
        except NvmlError as error:
            log.debug("clocks of the GPU are not watched: %s", error)

    def wait(self) -> None:
        """Wait until the library is open or known to be missing."""
        if self._opening is not None:
            self._opening.join()

    @property
    def slowed(self) -> bool:
        """Whether heat or the hardware limits the clocks now; False if unknown."""
        return self._ask is not None and bool(self._ask() & SLOWED)


def _reasons_of(nvml: Nvml, uuid: str) -> Callable[[], int]:
    """A function returning the reasons for low clocks as bits, 0 if the call fails; NvmlError if unsupported."""
    name = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
    handle = nvml.handle("nvmlDeviceGetHandleByUUID", name.encode())
    get = nvml.function(*_REASONS)

    def ask() -> int:
        bits = ctypes.c_ulonglong()
        try:
            get(handle, ctypes.byref(bits))
        except NvmlError:
            return 0
        return bits.value

    return ask


_known: dict[str | None, Clocks] = {}


def of(uuid: str | None) -> Clocks:
    """The clocks of a GPU, opened once per process."""
    found = _known.setdefault(uuid, Clocks(uuid))
    found.open()
    return found
