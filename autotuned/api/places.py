"""Where a call's tensors are: which GPU it runs on, and which tensors that GPU cannot access."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from autotuned._startup import later
from autotuned.errors import BinaryError, PlaceError
from autotuned.key.key import PLAIN, TENSORS, by_class, is_descriptor, is_tensor_type
from autotuned.triton_compat import kernel

if TYPE_CHECKING:
    from autotuned.binaries import libcuda
else:
    libcuda = later("binaries.libcuda")  # used only for tensors on other devices


def gpu_elsewhere(arguments: Mapping[str, Any], name: str) -> int | None:
    """The GPU that holds all GPU tensors of a call; None if it is the current one or there are several.

    Includes tensors in tuples and in tensor descriptors. If the result is None, raises as `refuse_unreachable` does.
    """
    places = {gpu_of(tensor) for tensor in _tensors(arguments.values())}
    gpus = places - {None}
    if len(gpus) == 1:
        here = kernel.current_device()
        if here not in gpus:
            return gpus.pop()
        if len(places) == 1:  # most calls
            return None
    refuse_unreachable(arguments, name)
    return None


def gpu_of(tensor: Any) -> int | None:
    """Index of a torch tensor's GPU; None without one."""
    try:
        device = tensor.device
        index: int | None = device.index if device.type == "cuda" else None
        return index
    except AttributeError:  # another library's tensor
        return None


def refuse_unreachable(arguments: Mapping[str, Any], name: str) -> None:
    """Refuse tensors that the current GPU cannot access, as Triton's launcher would, before any launch.

    Pinned host memory and memory of peer GPUs are accessible.

    Args:
        arguments: Arguments by name, without constants.
        name: The kernel's name.

    Raises:
        PlaceError: Names the argument and its device.
    """
    here: int | None = None
    for argument, value in arguments.items():
        for tensor in () if type(value) in PLAIN else _tensors([value], described=False):
            gpu = gpu_of(tensor)
            try:
                here = kernel.current_device() if here is None else here
            except RuntimeError:  # no driver: the launch reports it
                return
            if gpu == here or _is_reachable(tensor):
                continue
            raise PlaceError(
                f"`{name}`: expected memory that cuda:{here} can access, got argument {argument!r} on {tensor.device}: "
                f"it cannot be accessed from Triton. Move it to cuda:{here}, or pin it if it is host memory.",
                argument=argument,
                device=str(tensor.device),
            )


def _tensors(values: Iterable[Any], described: bool = True) -> list[Any]:
    found: list[Any] = []
    for value in values:
        kind: Any = type(value)  # mypy: a class is not Hashable
        if kind in PLAIN:
            continue
        if kind in TENSORS or _is_placed(kind):
            found += [value]
        elif isinstance(value, tuple):
            found += _tensors(value, described)
        elif is_descriptor(value):
            found += [value.base] if described else []
        elif hasattr(value, "data_ptr") and hasattr(value, "device"):
            found += [value]
    return found


@by_class
def _is_placed(kind: type) -> bool:
    """Whether values of a type are tensors with an address and a device."""
    return is_tensor_type(kind) and hasattr(kind, "data_ptr") and hasattr(kind, "device")


def _is_reachable(tensor: Any) -> bool:
    """Whether the driver knows a tensor's address; True without a driver."""
    try:
        address = tensor.data_ptr()
        return not address or libcuda.driver().address(address) is not None
    except (BinaryError, AttributeError, RuntimeError, TypeError):  # no driver; a tracer has no address
        return True
