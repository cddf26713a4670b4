"""The processes of `tune` on this host: one per named GPU, or a single one."""

from __future__ import annotations

import select
from collections.abc import Mapping, Sequence

from autotuned import env
from autotuned.gpu import inventory, visible
from autotuned.offline.workers.process import Worker
from autotuned.offline.workers.slots import DeviceSlot, Process
from autotuned.search.compiling import parallelism
from autotuned.typed_json import Json

COMPILE_WORKERS = "AUTOTUNED_COMPILE_WORKERS"


class Local:
    """Starts processes on this host: one on each GPU of the option `devices`, or one on the default device.

    Raises:
        NoDeviceError, DeviceChoiceError: The named GPUs do not exist.
    """

    gathers = False

    def __init__(self, devices: str | None) -> None:
        self._slots = [DeviceSlot("")] if devices is None else _slots(devices)

    def slots(self) -> list[DeviceSlot]:
        """A slot per GPU."""
        return self._slots

    def start(self, slot: DeviceSlot, given: Mapping[str, Json]) -> Worker:
        """Start a process that sees only the slot's GPU."""
        return Worker(given, slot.settings)

    def wait(self, processes: Sequence[Process], limit_s: float) -> None:
        """Return when a process has sent a message, or after the time limit."""
        select.select([process for process in processes if isinstance(process, Worker)], [], [], limit_s)

    def is_needed(self, slot: DeviceSlot) -> bool:
        """True: each named GPU may be of another kind."""
        return True

    def close(self) -> None:
        """Do nothing."""


def _slots(devices: str) -> list[DeviceSlot]:
    table, variables = inventory.table(), env.unstripped(visible.VARIABLES)
    chosen = visible.chosen(devices, table, variables)
    shown = visible.visible(table, variables)
    shared = _compilers(len(chosen))
    return [
        DeviceSlot(f"GPU {shown.index(gpu)}", gpu.name, gpu.uuid, settings={**gpu.settings, **shared}) for gpu in chosen
    ]


def _compilers(processes: int) -> dict[str, str | None]:
    """Each process's share of parallel compilations, unless the user set it."""
    if env.compile_workers() is not None or processes == 1:
        return {}
    return {COMPILE_WORKERS: str(parallelism.count(1 << 20) // processes)}
