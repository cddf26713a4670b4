"""Whether a GPU runs below its clocks, as its driver's library says; nothing where that library is not."""

from __future__ import annotations

import ctypes
import logging
import threading
from collections.abc import Callable

from autotuned.gpu.nvml import Nvml, NvmlError

log = logging.getLogger("autotuned")
# Reasons for low clocks that no kernel of a search is to blame for: heat, and slowdowns and brakes of the hardware. The
# power cap is none of them: a busy GPU is always under it.
HW_SLOWDOWN, SW_THERMAL, HW_THERMAL, HW_POWER_BRAKE = 0x08, 0x20, 0x40, 0x80
SLOWED = HW_SLOWDOWN | SW_THERMAL | HW_THERMAL | HW_POWER_BRAKE
_REASONS = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")  # new and old name


class Clocks:
    """What the driver says of the clocks of one GPU.

    The library is opened by a thread of its own, since that may take some time; until then nothing is known.

    Args:
        uuid: Of the GPU, as torch spells it; None for none that could be asked.
    """

    def __init__(self, uuid: str | None) -> None:
        self._uuid = uuid
        self._ask: Callable[[], int] | None = None
        self._opening: threading.Thread | None = None

    def open(self) -> None:
        """Begin to open the library, once."""
        if self._uuid and self._opening is None:
            self._opening = threading.Thread(target=self._open, name="autotuned-clocks", daemon=True)
            self._opening.start()

    def _open(self) -> None:
        try:
            self._ask = _reasons_of(Nvml(), str(self._uuid))
        except NvmlError as error:
            log.debug("clocks of the GPU are not watched: %s", error)

    def wait(self) -> None:
        """Until the library is open, or is known not to be there."""
        if self._opening is not None:
            self._opening.join()

    @property
    def slowed(self) -> bool:
        """Whether heat or the hardware holds the clocks down now; False where that is not known."""
        return self._ask is not None and bool(self._ask() & SLOWED)


def _reasons_of(nvml: Nvml, uuid: str) -> Callable[[], int]:
    """A function that asks for the reasons of low clocks, as bits; 0 where the driver does not answer.

    Raises:
        NvmlError: The library does not know the GPU, or no reasons.
    """
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
    """The clocks of a GPU, opened once in this process."""
    found = _known.setdefault(uuid, Clocks(uuid))
    found.open()
    return found
