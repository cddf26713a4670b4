"""Which GPUs a process may use and a user names: `CUDA_VISIBLE_DEVICES`, its kin, and `--devices`, in every form."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from autotuned.errors import DeviceChoiceError, NoDeviceError
from autotuned.gpu.inventory import Gpu

ALL = "all"
ORDER = "CUDA_DEVICE_ORDER"
CUDA, HIP, ROCR = "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"
VARIABLES = (CUDA, HIP, ROCR, ORDER)


def chosen(text: str, table: Sequence[Gpu], variables: Mapping[str, str]) -> list[Gpu]:
    """The GPUs that `--devices` names, in its order.

    Args:
        text: "all", or names separated by commas: an index into what is visible, or a UUID (GPU-..., MIG-...) or
            the beginning of one.
        table: What the host has (`gpus.table`).
        variables: Those of `VARIABLES` that are set.

    Raises:
        NoDeviceError: There is no GPU, or the environment hides all.
        DeviceChoiceError: A name fits none or several of those that are visible, is given twice, or an index in the
            environment may stand for several.
    """
    if not table:
        raise NoDeviceError(
            f"--devices {text}: expected GPUs, and there is none: neither NVIDIA's management library nor "
            "/proc/driver/nvidia nor /sys/class/kfd shows one. Leave the option out to tune on the CPU."
        )
    found = visible(table, variables)
    if not found:
        raise NoDeviceError(f"--devices {text}: expected GPUs, and {_why_none(table, variables)}")
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


def _named(name: str, found: Sequence[Gpu], text: str) -> Gpu:
    fitting = _fitting(name, found) if not name.isdecimal() else list(found[int(name) :][:1])
    if len(fitting) == 1:
        return fitting[0]
    offered = ", ".join(f"{index}: {gpu}" for index, gpu in enumerate(found))
    problem = "fits none" if not fitting else f"fits {len(fitting)}"
    raise DeviceChoiceError(
        f"expected {ALL}, or indices or UUIDs of GPUs, got {text!r}: {name!r} {problem} of those that are visible "
        f"({offered}).",
        device=name,
    )


def _fitting(name: str, found: Sequence[Gpu]) -> list[Gpu]:
    """Those whose UUID begins so, in either case; the whole UUID is always one."""
    lower = name.lower()
    if not lower.startswith(("gpu-", "mig-")):
        return []
    exact = [gpu for gpu in found if gpu.uuid.lower() == lower]
    return exact or [gpu for gpu in found if gpu.uuid.lower().startswith(lower)]


# -- what the environment leaves ----------------------------------------------------------------------------------


def visible(table: Sequence[Gpu], variables: Mapping[str, str]) -> list[Gpu]:
    """What the vendor's runtime would show a process with these variables, in its order.

    As CUDA and ROCm read them: an unset variable hides nothing, an empty one everything; the first name that fits no
    GPU, such as -1, ends the list; a GPU that is named twice leaves none.

    Raises:
        DeviceChoiceError: GPUs of several kinds are chosen by index in an order that only CUDA knows.
    """
    if table and table[0].vendor == "amd":
        left = _left(list(table), variables.get(ROCR), mixed=True)
        return _left(left, variables.get(HIP, variables.get(CUDA)), mixed=True)
    _check_order(table, variables)
    return _left(list(table), variables.get(CUDA))


def _left(table: list[Gpu], text: str | None, mixed: bool = False) -> list[Gpu]:
    """What a variable leaves of GPUs; `mixed` where one list may hold indices and UUIDs."""
    if text is None:
        return table
    left: list[Gpu] = []
    names = [name.strip() for name in text.split(",")]
    kind = _kind(names[0])
    for name in names:
        gpu = _meant(name, table) if mixed or _kind(name) == kind else None
        if gpu is None:
            break
        if gpu in left:
            return []
        left.append(gpu)
    return left


def _kind(name: str) -> str:
    return name[:4] if name[:4] in ("GPU-", "MIG-") else "index"


def _meant(name: str, table: Sequence[Gpu]) -> Gpu | None:
    """The GPU that one name of a variable stands for; of a GPU in slices the first, which is all that CUDA shows."""
    if _kind(name) == "index":
        whole = list(dict.fromkeys(_whole(gpu) for gpu in table))
        digits = re.match(r"\+?(\d+)", name)  # as the C library reads numbers: "1x" is 1
        fitting = whole[int(digits[1]) :][:1] if digits else []
    else:
        offered = {_whole(gpu) if name.startswith("GPU-") else gpu.uuid for gpu in table}
        fitting = [uuid for uuid in offered if uuid == name] or [uuid for uuid in offered if uuid.startswith(name)]
    if len(fitting) != 1:
        return None
    return next(gpu for gpu in table if fitting[0] in (gpu.uuid, _whole(gpu)))


def _whole(gpu: Gpu) -> str:
    """What names the GPU that this is, or is a slice of."""
    return gpu.parent or gpu.uuid or str(gpu.index)


def _check_order(table: Sequence[Gpu], variables: Mapping[str, str]) -> None:
    """Refuse indices where CUDA's order, fastest first by its own judgement, may be another than that of the bus."""
    text = variables.get(CUDA, "")
    kinds = {gpu.name for gpu in table if not gpu.parent}
    if len(kinds) < 2 or not re.match(r"\s*\+?\d", text) or variables.get(ORDER, "").strip() == "PCI_BUS_ID":
        return
    raise DeviceChoiceError(
        f"{CUDA}={text}: expected UUIDs, since this host has GPUs of several kinds ({', '.join(sorted(kinds))}) and "
        f"CUDA counts the fastest first. Name them by UUID, or set {ORDER}=PCI_BUS_ID to count as nvidia-smi does.",
        device=text,
    )


def _why_none(table: Sequence[Gpu], variables: Mapping[str, str]) -> str:
    names = (ROCR, HIP, CUDA) if table[0].vendor == "amd" else (CUDA,)
    given = ", ".join(f"{name}={variables[name]!r}" for name in names if name in variables)
    has = ", ".join(f"{gpu.index}: {gpu}" for gpu in table)
    return f"{given} leaves none of the {len(table)} here ({has}). Unset it, or name one that is there."
