"""List this host's GPUs from the driver's management library or the kernel, without initialising CUDA."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from pathlib import Path

from autotuned._startup import Frozen
from autotuned.gpu.nvml import LIBRARY, Nvml, NvmlError

_MIG_ON = 1


class Gpu(Frozen):
    """A GPU, or a MIG slice of one."""

    vendor: str  # "nvidia" or "amd"
    index: int  # the GPU's, in bus order; slices of one GPU share it
    uuid: str  # "GPU-..." or "MIG-..."; "" if an AMD GPU has none, or if only CUDA knows which GPU has this index
    name: str  # the product, from the driver, with a slice's profile; "" if only CUDA knows it
    parent: str = ""  # UUID of a slice's GPU

    @property
    def settings(self) -> dict[str, str | None]:
        """Environment that makes a process see only this GPU; None for a variable that must be unset."""
        chosen = self.uuid or str(self.index)
        if self.vendor == "nvidia":
            return {"CUDA_VISIBLE_DEVICES": chosen}
        # ROCR filters before HIP, in which the chosen GPU has index 0.
        return {"ROCR_VISIBLE_DEVICES": chosen, "HIP_VISIBLE_DEVICES": None, "CUDA_VISIBLE_DEVICES": None}

    def __str__(self) -> str:
        return f"{self.name or 'GPU'} ({self.uuid or f'number {self.index}'})"


def table(root: Path = Path("/"), library: str = LIBRARY) -> list[Gpu]:
    """The usable GPUs in bus order; a GPU partitioned by MIG is listed as its slices."""
    return _from_nvml(library) or _from_proc(root) or _from_kfd(root)


# -- NVIDIA: the management library ---------------------------------------------------------------------------------


def _from_nvml(library: str) -> list[Gpu]:
    try:
        with contextlib.closing(Nvml(library)) as nvml:
            return [gpu for index, handle in enumerate(_handles(nvml)) for gpu in _with_slices(nvml, index, handle)]
    except NvmlError:
        return []


def _handles(nvml: Nvml) -> Iterator[ctypes.c_void_p]:
    for index in range(nvml.number("nvmlDeviceGetCount_v2")):
        try:
            yield nvml.handle("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index))
        except NvmlError:
            continue  # blocked by a control group, or broken; CUDA does not count it either


def _with_slices(nvml: Nvml, index: int, handle: ctypes.c_void_p) -> Iterator[Gpu]:
    uuid = nvml.text("nvmlDeviceGetUUID", handle)
    if not _has_slices(nvml, handle):
        yield Gpu("nvidia", index, uuid, nvml.text("nvmlDeviceGetName", handle))
        return
    for number in range(nvml.number("nvmlDeviceGetMaxMigDeviceCount", handle)):
        try:
            piece = nvml.handle("nvmlDeviceGetMigDeviceHandleByIndex", handle, ctypes.c_uint(number))
        except NvmlError:
            continue  # no such slice
        name = nvml.text("nvmlDeviceGetName", piece)
        yield Gpu("nvidia", index, nvml.text("nvmlDeviceGetUUID", piece), name, uuid)


def _has_slices(nvml: Nvml, handle: ctypes.c_void_p) -> bool:
    now, pending = ctypes.c_uint(), ctypes.c_uint()
    try:
        nvml.call("nvmlDeviceGetMigMode", handle, ctypes.byref(now), ctypes.byref(pending))
    except NvmlError:  # a product without MIG
        return False
    return now.value == _MIG_ON


# -- fallback: the kernel modules -------------------------------------------------------------------------------------


def _from_proc(root: Path) -> list[Gpu]:
    """List NVIDIA GPUs as the kernel module does, for containers that lack the library."""
    found: list[Gpu] = []
    for folder in sorted(_listed(root / "proc/driver/nvidia/gpus")):
        fields = _fields(folder / "information", ":")
        uuid, name = fields.get("GPU UUID", ""), fields.get("Model", "")
        if uuid.startswith("GPU-"):
            found.append(Gpu("nvidia", len(found), uuid, name))
    return found


def _from_kfd(root: Path) -> list[Gpu]:
    """List AMD GPUs from the kernel's nodes, which include CPUs; this process may not use unreadable nodes."""
    found: list[Gpu] = []
    nodes = [node for node in _listed(root / "sys/class/kfd/kfd/topology/nodes") if node.name.isdecimal()]
    for node in sorted(nodes, key=lambda node: int(node.name)):
        fields = _fields(node / "properties", " ")
        if fields.get("simd_count", "0") == "0":
            continue
        unique = int(fields.get("unique_id", "0"))
        render = root / f"sys/class/drm/renderD{fields.get('drm_render_minor', '')}/device/product_name"
        name = _text(render) or f"AMD gfx target {fields.get('gfx_target_version', 'unknown')}"
        found.append(Gpu("amd", len(found), f"GPU-{unique:016x}" if unique else "", name))
    return found


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _fields(path: Path, between: str) -> dict[str, str]:
    lines = (line.partition(between) for line in _text(path).splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
