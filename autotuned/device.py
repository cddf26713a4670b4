"""Which device a choice was made on: its identity in keys, and its folder name among config files."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from autotuned.errors import NoDeviceError
from autotuned.values import Json


@dataclass(frozen=True)
class Device:
    """One kind of device; two devices with equal fields share choices.

    Attributes:
        kind: "cuda" (also AMD GPUs under torch.cuda) or "cpu".
        name: The product, as the driver names it; "interpreter" where Triton interprets kernels.
        arch: Compute capability such as "sm_90", an AMD architecture, or the CPU's machine name.
        sm_count: Streaming multiprocessors; cores for a CPU.
        mig: Profile of a MIG slice such as "1g.10gb", else None.
    """

    kind: str
    name: str
    arch: str
    sm_count: int
    mig: str | None = None

    def to_json(self) -> dict[str, Json]:
        """The device part of a key's context."""
        return asdict(self)

    @property
    def slug(self) -> str:
        """Folder name of this device's config files: `name-arch-SMs[-mig]`, safe on every file system."""
        if self.kind == "cpu" and self.name == "interpreter":
            return "cpu-interpreter"
        parts = [self.name, self.arch, str(self.sm_count), *([self.mig] if self.mig else [])]
        return safe_name("-".join(["cpu", *parts] if self.kind == "cpu" else parts))


def safe_name(text: str) -> str:
    """Lower-case letters, digits, '.', '_' and '-' only; each run of anything else becomes one '-'."""
    return re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-.")


INTERPRETER = Device("cpu", "interpreter", "interpreter", 0)


def from_json(data: Json) -> Device:
    """The device of a stored context.

    Raises:
        TypeError: Fields are missing, unknown or of another type.
    """
    found = Device(**data)
    texts = [found.kind, found.name, found.arch, "" if found.mig is None else found.mig]
    if not all(isinstance(text, str) for text in texts) or type(found.sm_count) is not int:
        raise TypeError(f"device: expected text and, as sm_count, a number, got {data!r:.200}")
    return found


@lru_cache(maxsize=1)
def cpu() -> Device:
    """The CPU of this machine: model, machine name and the cores it has."""
    return Device("cpu", _cpu_model(), platform.machine() or "unknown", os.cpu_count() or 1)


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model"))]
    return models[0] if models else platform.processor() or "unknown"


def cuda(index: int | None = None) -> Device:
    """The GPU with this index, by default the current one.

    Asked anew each time (it is on the miss path only), so that a process which changes device, or a test that
    patches `torch.cuda.get_device_properties`, gets the answer of the moment.

    Raises:
        NoDeviceError: There is no GPU; the message says how to run without one.
    """
    import torch

    if not torch.cuda.is_available():
        raise no_device()
    index = torch.cuda.current_device() if index is None else index
    properties = torch.cuda.get_device_properties(index)
    name, _, mig = properties.name.partition(" MIG ")
    return Device("cuda", name, _arch(properties), properties.multi_processor_count, mig.strip() or None)


def no_device() -> NoDeviceError:
    """The error for a compiled kernel where there is no GPU."""
    return NoDeviceError(
        "Expected a GPU to launch a compiled Triton kernel on, and torch.cuda sees none. To run on the CPU, set "
        "TRITON_INTERPRET=1 before triton is first imported; `autotuned tune` does so by itself."
    )


def _arch(properties: Any) -> str:
    import torch

    if torch.version.hip is not None:
        return str(properties.gcnArchName).partition(":")[0]
    return f"sm_{properties.major}{properties.minor}"
