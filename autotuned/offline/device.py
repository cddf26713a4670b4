"""The device that an offline run tunes for, decided before Triton is imported."""

from __future__ import annotations

import os

from autotuned import env
from autotuned.errors import NoDeviceError, OptionError


def use_device() -> str:
    """Decide between GPU and interpreter: "cuda" or "interpreter".

    Raises:
        NoDeviceError: The one that was asked for cannot be had.
        OptionError: `AUTOTUNED_DEVICE` names none.
    """
    asked = _asked()
    if asked == "cuda" and (not _has_gpu() or env.interpreter_requested()):
        why = "torch.cuda sees none. Unset it to use Triton's interpreter."
        if env.interpreter_requested():
            why = "TRITON_INTERPRET is set. Unset one of the two."
        raise NoDeviceError(f"AUTOTUNED_DEVICE=cuda: expected a GPU to tune on, and {why}")
    if asked == "cuda" or (not asked and not env.interpreter_requested() and _has_gpu()):
        return "cuda"
    try:
        env.use_interpreter()
    except RuntimeError as error:
        raise NoDeviceError(f"{error} Set it in the environment.") from error
    return "interpreter"


def check_environment() -> None:
    """Refuse variables that every process that measures would trip over, one after the other.

    Raises:
        OptionError: One of them has a value that it cannot have.
    """
    _asked()
    try:
        env.compile_workers()
    except ValueError as error:
        raise OptionError(str(error), option="", problem=str(error)) from error


def _asked() -> str:
    try:
        return env.command_line_device()
    except ValueError as error:
        raise OptionError(str(error), option="", problem=str(error)) from error


def _has_gpu() -> bool:
    try:
        import torch
    except ImportError:
        return False  # plain callables may do without
    return bool(torch.cuda.is_available())


def tensors_on(device: str) -> str:
    """Where the tensors of cases are made: "cuda", or "cpu" for the interpreter."""
    return "cpu" if device == "interpreter" else "cuda"


def isolates(asked: bool | None) -> bool:
    """Whether to measure in a process of its own: as asked, else where there is a GPU that a config can take along."""
    return has_driver() if asked is None else asked


def has_driver() -> bool:
    """Whether there is a GPU to measure on, told without asking its driver."""
    try:
        on_cpu = env.interpreter_requested() or env.command_line_device() == "interpreter"
    except ValueError:
        return False  # said in full where the device is chosen
    return os.name == "posix" and not on_cpu and any(map(os.path.exists, ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")))
