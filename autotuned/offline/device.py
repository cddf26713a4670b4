"""Decides which device an offline run tunes for, before Triton is imported."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from autotuned import env
from autotuned.errors import NoDeviceError, OptionError

T = TypeVar("T")


def use_device() -> str:
    """Decide between "cuda" and "interpreter".

    Raises:
        NoDeviceError: The requested device is not available.
        OptionError: `AUTOTUNED_DEVICE` has an unknown value.
    """
    asked = _checked(env.command_line_device)
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
    """Check variables that every measuring process reads; OptionError if one has an invalid value."""
    for variable in (env.command_line_device, env.compile_workers):
        _checked(variable)


def _checked(variable: Callable[[], T]) -> T:
    try:
        return variable()
    except ValueError as error:
        raise OptionError(str(error), option="", problem=str(error)) from error


def _has_gpu() -> bool:
    try:
        import torch
    except ImportError:
        return False  # plain callables need no torch
    return bool(torch.cuda.is_available())


def tensors_on(device: str) -> str:
    """The device of cases' tensors: "cuda", or "cpu" for the interpreter."""
    return "cpu" if device == "interpreter" else "cuda"


def isolates(asked: bool | None) -> bool:
    """Whether to measure in a separate process; by default if there is a GPU, since a config could break it."""
    return has_driver() if asked is None else asked


def has_driver() -> bool:
    """Whether there is a GPU, by its device files, without its driver."""
    try:
        on_cpu = env.interpreter_requested() or env.command_line_device() == "interpreter"
    except ValueError:
        return False  # `use_device` reports the error
    return os.name == "posix" and not on_cpu and any(map(os.path.exists, ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")))
