"""Selects GPUs by `devices` and by `CUDA_VISIBLE_DEVICES` and similar variables."""

from __future__ import annotations

import re
from collections.abc import Mapping

from autotuned.errors import DeviceChoiceError, NoDeviceError
from autotuned.gpu.inventory import Gpu

ALL = "all"
ORDER = "CUDA_DEVICE_ORDER"
CUDA, HIP, ROCR = "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"
VARIABLES = (CUDA, HIP, ROCR, ORDER)


def chosen(text: str, table: list[Gpu], variables: Mapping[str, str]) -> list[Gpu]:
    """The GPUs named by `devices`, in its order.

    Args:
        text: "all", or names separated by commas: an index into the visible GPUs, or a UUID (GPU-..., MIG-...) or a
            prefix of one.
        table: The host's GPUs (`inventory.table`).
        variables: Those of `VARIABLES` that are set.

    Raises:
        NoDeviceError: There is no GPU, or the environment hides all.
        DeviceChoiceError: A name matches no visible GPU or several, or is given twice.
    """
    if not table:
        raise NoDeviceError(
            f"devices={text!r}: expected GPUs, and there is none: NVIDIA's management library, /proc/driver/nvidia and "
            "/sys/class/kfd show none. To tune on the CPU, leave the option out."
        )
    found = visible(table, variables)
    if not found:
        raise NoDeviceError(f"devices={text!r}: expected GPUs, and {_why_none(table, variables)}")
    if text.strip().lower() == ALL:
        return found
    named: list[Gpu] = []
    for name in text.split(","):
        gpu = _named(name.strip(), found, text)
        if gpu in named:
            raise DeviceChoiceError(
                f"expected each GPU once, got {name.strip()!r} for {gpu}, which is named before.", device=name.strip()
            )
        named.append(gpu)
    return named


def _named(name: str, found: list[Gpu], text: str) -> Gpu:
    fitting = found[int(name) :][:1] if name.isdecimal() else _fitting(name, {gpu.uuid: gpu for gpu in found})
    if len(fitting) == 1:
        return fitting[0]
    offered = ", ".join(f"{index}: {gpu}" for index, gpu in enumerate(found))
    problem = "matches none" if not fitting else f"matches {len(fitting)}"
    raise DeviceChoiceError(
        f"expected {ALL}, or indices or UUIDs of GPUs, got {text!r}: {name!r} {problem} of the visible GPUs "
        f"({offered}).",
        device=name,
    )


def _fitting(name: str, offered: Mapping[str, Gpu]) -> list[Gpu]:
    """GPUs whose UUID starts with a name, ignoring case; a whole UUID matches only its own GPU."""
    lower = name.lower()
    if not lower.startswith(("gpu-", "mig-")):
        return []
    exact = [gpu for uuid, gpu in offered.items() if uuid.lower() == lower]
    return exact or [gpu for uuid, gpu in offered.items() if uuid.lower().startswith(lower)]


def _whole(gpu: Gpu) -> str:
    return gpu.parent or gpu.uuid or str(gpu.index)


# -- GPUs that the environment leaves visible ---------------------------------------------------------------------


def visible(table: list[Gpu], variables: Mapping[str, str]) -> list[Gpu]:
    """The GPUs listed by the environment, in its order; all if no list is set.

    The first entry that matches no GPU, such as -1, ends the list; a repeated GPU leaves none.
    """
    if table and table[0].vendor == "amd":
        left = _left(table, table, variables.get(ROCR))
        return _left(left, left, variables.get(HIP, variables.get(CUDA)))
    return _left(table, _counted(table, variables.get(ORDER, "").strip()), variables.get(CUDA))


def _left(table: list[Gpu], counted: list[Gpu], text: str | None) -> list[Gpu]:
    """The GPUs that a variable selects; `counted` are those its indices refer to."""
    if text is None:
        return table
    # A partitioned GPU's own name selects its first slice: CUDA shows no other.
    offered = {_whole(gpu): gpu for gpu in reversed(table)} | {gpu.uuid: gpu for gpu in table}
    left: list[Gpu] = []
    for name in map(str.strip, text.split(",")):
        digits = re.match(r"\+?(\d+)", name)  # like C's atoi: "1x" is 1
        fitting = counted[int(digits[1]) :][:1] if digits else _fitting(name, offered)
        if len(fitting) != 1:
            break
        left += fitting
    return left if len(set(left)) == len(left) else []


def _counted(table: list[Gpu], order: str) -> list[Gpu]:
    """The GPU, or its first slice, for each index.

    CUDA numbers the fastest GPU first. With several models, only the process that uses an index learns which GPU it is,
    so these have neither UUID nor name.
    """
    whole = {_whole(gpu): gpu for gpu in reversed(table)}
    if order == "PCI_BUS_ID" or len({gpu.name for gpu in table if not gpu.parent}) < 2:
        return list(reversed(whole.values()))
    return [Gpu("nvidia", index, "", "") for index in range(len(whole))]


def _why_none(table: list[Gpu], variables: Mapping[str, str]) -> str:
    names = (ROCR, HIP, CUDA) if table[0].vendor == "amd" else (CUDA,)
    given = ", ".join(f"{name}={variables[name]!r}" for name in names if name in variables)
    has = ", ".join(f"{gpu.index}: {gpu}" for gpu in table)
    return f"{given} leaves none of the {len(table)} here ({has}). Unset it, or let it name one of these."
