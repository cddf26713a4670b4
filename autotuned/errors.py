"""Every exception raised on purpose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class AutotunedError(Exception):
    """Base of every error this package raises on purpose.

    The facts of a message are also attributes of the exception (each class names its own), and every error
    survives pickling, so that a worker process can hand it to its parent.
    """

    def __init__(self, message: str, **facts: object) -> None:
        super().__init__(message)
        self.__dict__.update(facts)


class DecorationError(AutotunedError, TypeError):
    """`@autotune` was given something it cannot decorate, or options that contradict each other."""


class ArgumentNameError(AutotunedError, ValueError):
    """A list of argument names holds one that the kernel does not have (`.name`, `.kernel`)."""

    name: str
    kernel: str


class ConfigError(AutotunedError, ValueError):
    """A candidate config cannot belong to this kernel (`.kernel`)."""

    kernel: str


class SpaceError(AutotunedError, ValueError):
    """A declared space cannot be read, or leaves nothing for a call (`.constraint` says where)."""

    constraint: str


class PruningError(AutotunedError, ValueError):
    """A pruner left nothing, or gave something that is no config (`.kernel`)."""

    kernel: str


class CallError(AutotunedError, TypeError):
    """A kernel was called in a way that cannot be launched, for example without a grid (`.kernel`)."""

    kernel: str


class VersionError(AutotunedError, ImportError):
    """Triton is older than this package can use (`.distribution`, `.version`)."""

    distribution: str
    version: str


class NoDeviceError(AutotunedError, RuntimeError):
    """A compiled kernel was launched where there is no GPU."""


class OptionError(AutotunedError, ValueError):
    """An option of a function, or a variable, cannot have its value (`.option`, "" for variables; `.problem`)."""

    option: str
    problem: str


class DeviceChoiceError(AutotunedError, ValueError):
    """GPUs were named that are not there, or not clearly (`.device` is the name)."""

    device: str


class PlaceError(AutotunedError, ValueError):
    """A tensor lies where the GPU that a kernel runs on cannot reach it (`.argument`, `.device`)."""

    argument: str
    device: str


class DeviceLostError(AutotunedError, RuntimeError):
    """The device is in an error state that this process cannot leave (`.kernel`; `.config` ran, or is empty)."""

    kernel: str
    config: str


class LeftOutError(AutotunedError, RuntimeError):
    """A config took its compiler along, or more time than it may (`.seconds` is what it took)."""

    seconds: float


class EncodingError(AutotunedError, TypeError):
    """A value cannot be written as typed JSON, so it can be no part of a stored key (`.where`)."""

    where: str


class RecordError(AutotunedError, ValueError):
    """A stored record is not what its schema says (`.where` names the field)."""

    where: str


class ConfigFileError(AutotunedError, ValueError):
    """A shipped config file cannot be read or is not what its schema says (`.path`)."""

    path: str


class OutputError(AutotunedError, OSError):
    """Nothing can be written where it was asked for, or an input would be overwritten (`.path`)."""

    path: str


class StoreError(AutotunedError, OSError):
    """A shared store cannot be reached, or what it has cannot be believed; a launch does not raise it."""


class KernelNameError(AutotunedError, LookupError):
    """A name stands for no kernel of which something is stored, or for several (`.name`; "" where all are meant)."""

    name: str


class TargetError(AutotunedError, ValueError):
    """A target of `autotuned tune` cannot be imported, or has nothing to tune (`.target`)."""

    target: str


class RecordingError(AutotunedError, ValueError):
    """A file of recorded calls cannot be read or written (`.path`)."""

    path: str


class NotTunedError(AutotunedError, LookupError):
    """No stored choice for this call, and a search is not allowed here (`.kernel`, `.digest`)."""

    kernel: str
    digest: str


class AllConfigsFailedError(AutotunedError, RuntimeError):
    """Every candidate failed to compile, launch or give a usable time (`.kernel`, `.reasons`).

    `.reasons` maps the text of each failure to the labels of the configs that ended that way.
    """

    kernel: str
    reasons: Mapping[str, Sequence[str]]


class OutOfMemoryError(AutotunedError, MemoryError):
    """There is not enough free memory to tune now; the key stays untuned (`.kernel`)."""

    kernel: str


class SyncError(AutotunedError, RuntimeError):
    """Ranks did not come to one choice in time, or cannot (`.kernel`)."""

    kernel: str


class CheckError(AutotunedError, RuntimeError):
    """The reference of `check=` raises, or it stands against most configs (`.kernel`)."""

    kernel: str


class BinaryError(AutotunedError, ValueError):
    """Compiled kernels that ship cannot be read, built or loaded (`.path`)."""

    path: str


class SealedError(AutotunedError, RuntimeError):
    """The process is sealed, and a call needs a search or a compilation (`.kernel`, `.what`, `.reason`).

    `.what` is "search" or "compile".
    """

    kernel: str
    what: str
    reason: str
