"""A device's identity in keys, and its folder of config files."""

from __future__ import annotations

import contextlib
import os
import platform
from functools import lru_cache
from pathlib import Path
from types import FunctionType
from typing import Any

from autotuned._startup import Frozen, errors
from autotuned.disk import safe_name
from autotuned.typed_json import Json


class Device(Frozen):
    """A kind of device; devices with equal fields share choices."""

    kind: str  # "cuda" (also AMD GPUs under torch.cuda) or "cpu"
    name: str  # the product, from the driver; "interpreter" if Triton interprets kernels
    arch: str  # compute capability such as "sm_90", an AMD architecture, or the CPU's machine name
    sm_count: int  # streaming multiprocessors; cores for a CPU
    mig: str | None = None  # profile of a MIG slice such as "1g.10gb"

    def to_json(self) -> dict[str, Json]:
        """The device part of a key's context."""
        return self.fields()

    @property
    def slug(self) -> str:
        """Folder name of this device's config files: `name-arch-SMs[-mig]`, safe on every file system."""
        if self.kind == "cpu" and self.name == "interpreter":
            return "cpu-interpreter"
        parts = [self.name, self.arch, str(self.sm_count), *([self.mig] if self.mig else [])]
        return safe_name("-".join(["cpu", *parts] if self.kind == "cpu" else parts))


INTERPRETER = Device("cpu", "interpreter", "interpreter", 0)

# Products with several driver names: exact name -> the name in keys and folders (see docs/keys.md). Only for the same
# silicon with the same number of multiprocessors: PCIe, SXM, NVL, H20 and H200 are separate products.
PRODUCTS = {
    # Editions that differ by 10 MiB of memory (local-inference-lab/b12x#407).
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": "NVIDIA RTX PRO 6000 Blackwell",
    "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition": "NVIDIA RTX PRO 6000 Blackwell",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "NVIDIA RTX PRO 6000 Blackwell",
    # A whole GPU seen from a virtual machine (merged in vLLM's platforms/rocm.py too).
    "AMD Instinct MI300X VF": "AMD Instinct MI300X",
    "AMD Instinct MI325X VF": "AMD Instinct MI325X",
}


def from_json(data: Json) -> Device:
    """The device of a stored context; TypeError if fields are missing, unknown or of the wrong type."""
    found = Device(**data)
    texts = [found.kind, found.name, found.arch, "" if found.mig is None else found.mig]
    is_count = type(found.sm_count) is int and 0 <= found.sm_count < 1 << 31
    if not all(isinstance(text, str) for text in texts) or not is_count:
        raise TypeError(f"device: expected text and, as sm_count, a number of 0 or more, got {data!r:.200}")
    return found


@lru_cache(maxsize=1)
def cpu() -> Device:
    """This machine's CPU: model, machine name and cores."""
    return Device("cpu", _cpu_model(), platform.machine() or "unknown", os.cpu_count() or 1)


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model"))]
    return models[0] if models else platform.processor() or "unknown"


_seen: dict[tuple[int | None, Any], Device] = {}  # (index, torch's own function that was asked) -> device


def forget() -> None:
    """Query each GPU again: the process may have moved to other GPUs."""
    _seen.clear()


def cuda(index: int | None = None) -> Device:
    """The GPU with this index, by default the current one.

    Cached per index, unless `torch.cuda.get_device_properties` was replaced (by tests that simulate another
    architecture). The absence of GPUs is not cached.

    Raises:
        NoDeviceError: There is no GPU; the message says how to run without one.
    """
    import torch

    query = torch.cuda.get_device_properties
    is_original = type(query) is FunctionType and query.__module__ == "torch.cuda"
    if index is None and is_original and _seen and torch.cuda.is_initialized():
        index = torch.cuda.current_device()
    if is_original and (known := _seen.get((index, query))) is not None:
        return known
    if not torch.cuda.is_available():
        raise errors.NoDeviceError(
            "Expected a GPU to launch a compiled Triton kernel on, and torch.cuda sees none. To run on the CPU, set "
            "TRITON_INTERPRET=1 before triton is first imported; `autotuned tune` does so automatically."
        )
    index = torch.cuda.current_device() if index is None else index
    found = _device(query(index))
    if is_original:
        _seen[index, query] = found
    return found


def wait_for(where: Device) -> None:
    """Wait for this thread's current stream; errors are left to the device's next user."""
    if where.kind == "cuda":
        with contextlib.suppress(Exception):
            import torch

            torch.cuda.current_stream().synchronize()


def _device(properties: Any) -> Device:
    name, _, mig = properties.name.partition(" MIG ")
    arch, sm_count = _arch(properties), properties.multi_processor_count
    return Device("cuda", PRODUCTS.get(name, name), arch, sm_count, mig.strip() or None)


def _arch(properties: Any) -> str:
    import torch

    if torch.version.hip is not None:
        return str(properties.gcnArchName).partition(":")[0]
    return f"sm_{properties.major}{properties.minor}"
