"""All exceptions that this package raises on purpose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class AutotunedError(Exception):
    """Base of every error this package raises on purpose.

    The facts in a message are also attributes, which each class lists. Errors can be pickled, so that worker processes
    can pass them on.
    """

    def __init__(self, message: str, **facts: object) -> None:
        super().__init__(message)
        self.__dict__.update(facts)


class DecorationError(AutotunedError, TypeError):
    """`@autotune` got an object that it cannot decorate, or contradicting options."""


class ArgumentNameError(AutotunedError, ValueError):
    """A list of argument names has one that the kernel lacks (`.name`, `.kernel`)."""

    name: str
    kernel: str


class ConfigError(AutotunedError, ValueError):
    """A candidate config does not fit this kernel (`.kernel`)."""

    kernel: str


class SpaceError(AutotunedError, ValueError):
    """A declared space is invalid, or empty for a call (`.constraint` is the cause)."""

    constraint: str


class PruningError(AutotunedError, ValueError):
    """A pruner returned no configs, or something other than configs (`.kernel`)."""

    kernel: str


class CallError(AutotunedError, TypeError):
    """A call cannot be launched, for example without a grid (`.kernel`)."""

    kernel: str


class VersionError(AutotunedError, ImportError):
    """Triton is older than this package supports (`.distribution`, `.version`)."""

    distribution: str
    version: str


class NoDeviceError(AutotunedError, RuntimeError):
    """A compiled kernel was launched without a GPU."""


class OptionError(AutotunedError, ValueError):
    """An option or a variable has an invalid value (`.option`, "" for variables; `.problem`)."""

    option: str
    problem: str


class DeviceChoiceError(AutotunedError, ValueError):
    """A GPU was named that does not exist or is ambiguous (`.device` is the name)."""

    device: str


class PlaceError(AutotunedError, ValueError):
    """A tensor is in memory that the kernel's GPU cannot access (`.argument`, `.device`)."""

    argument: str
    device: str


class DeviceLostError(AutotunedError, RuntimeError):
    """The device is in an error state that this process cannot leave (`.kernel`; `.config` that ran, or "")."""

    kernel: str
    config: str


class LeftOutError(AutotunedError, RuntimeError):
    """A config crashed its compiler or exceeded its time limit, after `.seconds`."""

    seconds: float


class EncodingError(AutotunedError, TypeError):
    """A value cannot be written as typed JSON and so cannot be in a stored key (`.where`)."""

    where: str


class RecordError(AutotunedError, ValueError):
    """A stored record violates its schema (`.where` names the field)."""

    where: str


class ConfigFileError(AutotunedError, ValueError):
    """A shipped config file is unreadable or violates its schema (`.path`)."""

    path: str


class OutputError(AutotunedError, OSError):
    """An output path cannot be written, or is also an input (`.path`)."""

    path: str


class StoreError(AutotunedError, OSError):
    """A shared store is unreachable or its data cannot be trusted; never raised by a launch."""


class KernelNameError(AutotunedError, LookupError):
    """A name matches no stored kernel, or several (`.name`; "" for all)."""

    name: str


class TargetError(AutotunedError, ValueError):
    """A target of `autotuned tune` cannot be imported or has nothing to tune (`.target`)."""

    target: str


class RecordingError(AutotunedError, ValueError):
    """A recording cannot be read or written (`.path`)."""

    path: str


class NotTunedError(AutotunedError, LookupError):
    """No choice is stored for this call, and searching is not allowed here (`.kernel`, `.digest`)."""

    kernel: str
    digest: str


class AllConfigsFailedError(AutotunedError, RuntimeError):
    """Every candidate failed to compile, launch or give a usable time (`.kernel`, `.reasons`).

    `.reasons` maps each failure's text to the labels of the configs that failed with it.
    """

    kernel: str
    reasons: Mapping[str, Sequence[str]]


class OutOfMemoryError(AutotunedError, MemoryError):
    """Not enough free memory to tune now; the key stays untuned (`.kernel`)."""

    kernel: str


class SyncError(AutotunedError, RuntimeError):
    """Ranks did not agree on a choice, or not in time (`.kernel`)."""

    kernel: str


class CheckError(AutotunedError, RuntimeError):
    """The reference of `check=` raises, or differs from most configs (`.kernel`)."""

    kernel: str


class BinaryError(AutotunedError, ValueError):
    """Shipped compiled kernels cannot be read, built or loaded (`.path`)."""

    path: str


class SealedError(AutotunedError, RuntimeError):
    """The process is sealed, and a call needs a search or compilation (`.kernel`, `.what`, `.reason`).

    `.what` is "search" or "compile".
    """

    kernel: str
    what: str
    reason: str


def text_of(error: BaseException) -> str:
    """The text of an exception of any class, also of one that fails to make it."""
    try:
        return str(error)
    except Exception:
        return "<exception str() failed>"  # as in Python's tracebacks


def described(error: BaseException) -> str:
    """Type and text of an exception of any class."""
    return f"{type(error).__name__}: {text_of(error)}"


def refused(option: str, problem: str) -> OptionError:
    """The error for an option with an invalid value."""
    return OptionError(f"{option}: {problem}.", option=option, problem=problem)
