"""What the failure of a config means: its text, whether it lies in the config, and the errors of a search."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from autotuned.errors import AllConfigsFailedError, AutotunedError, DeviceLostError, LeftOutError, OutOfMemoryError

_RESOURCES = ("OutOfResources", "OutOfMemoryError", "PTXASError")
# The driver's words for a launch that it did not begin; nothing of the kernel has run then.
_REFUSALS = ("invalid argument", "too many resources requested", "invalid configuration", "invalid cluster")
_NO_ROOM = ("out of memory", "can't allocate memory", "cannot allocate memory", "cudaerrormemoryallocation")


def describe(error: Exception) -> str:
    """Type and text of an exception: what is kept of it. Its traceback would keep the caller's tensors alive."""
    return str(error) if isinstance(error, LeftOutError) else f"{type(error).__name__}: {error}"


def note(error: BaseException, text: str) -> None:
    """Add a line below an exception's own text; Python 3.10 keeps it, and does not print it."""
    if text in getattr(error, "__notes__", ()):
        return
    if hasattr(error, "add_note"):
        BaseException.add_note(error, text)  # type: ignore[attr-defined]  # not what its class makes of it
    else:
        vars(error)["__notes__"] = [*getattr(error, "__notes__", ()), text]


def let_go(error: BaseException | None) -> None:
    """Strip an exception, and what it came from, of frames: Triton 3.6 keeps the exception of a kernel for good."""
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def is_resource_error(error: Exception) -> bool:
    """Whether a config asks for more than the device has: every config of a list may, and none is a user's bug."""
    return type(error).__name__ in _RESOURCES


def is_memory_error(error: BaseException) -> bool:
    """Whether the same may succeed where more memory is free: the device's as torch, Triton or the driver say it, or
    the host's.
    """
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _NO_ROOM)


def no_room(kernel: str, reason: str) -> OutOfMemoryError:
    """The error for a search that was given up for want of memory."""
    return OutOfMemoryError(
        f"`{kernel}`: there is no room to tune now ({reason}). Tune before memory is taken, or name what is written in "
        "restore_value=.",
        kernel=kernel,
    )


def device_lost(kernel: str, error: Exception, config: str = "") -> DeviceLostError:
    """The error for a device that cannot be used any more in this process.

    Args:
        config: The label of the config that ran; empty if the device was lost before any did.
    """
    culprit = f"config {config} left" if config else "before this search began something had left"
    innocent = "other configs are not" if config else "no config is"
    return DeviceLostError(
        f"`{kernel}`: {culprit} the device in an error state ({error}). Nothing can run on it in this process any more"
        f": restart the process; {innocent} to blame.",
        kernel=kernel,
        config=config,
    )


@contextmanager
def no_room_for(kernel: str) -> Iterator[None]:
    """Around a search: if memory runs out, and sparing some was not enough, it is the search that has no room.

    Raises:
        OutOfMemoryError: In place of torch's, Triton's and the driver's.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, AutotunedError) or not is_memory_error(error):
            raise
        reason = describe(error)
        let_go(error)
        raise no_room(kernel, reason) from None


def is_passing(error: Exception) -> bool:
    """Whether it says nothing of the config: memory that was full, a limit of time, or what CUDA allows nobody while
    another thread captures a graph in the mode "global".
    """
    if isinstance(error, TimeoutError) or type(error).__name__ == "TimeoutExpired":
        return True
    return is_memory_error(error) or (isinstance(error, RuntimeError) and "captur" in str(error).lower())


def is_refusal(error: Exception) -> bool:
    """Whether a launch was refused before anything of the kernel ran, for what the config asks."""
    if type(error).__name__ == "OutOfResources":
        return True
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _REFUSALS)


def all_failed(kernel: str, failed: Sequence[tuple[str, str]]) -> AllConfigsFailedError:
    """The error for a search that nothing survived: each reason with the configs it stopped.

    Those that want too much of one resource are one group: its reason is that of the least, the others say their own.

    Args:
        failed: Reason and label of each config.
    """
    reasons: dict[str, list[str]] = {}
    for reason, label in failed:
        reasons.setdefault(reason, []).append(label)
    lines = "\n".join(f"  {reason}\n    {'; '.join(labels)}" for reason, labels in _by_resource(reasons))
    return AllConfigsFailedError(
        f"`{kernel}`: expected at least one config that compiles and runs here; all {len(failed)} failed. Add a "
        f"config that fits, or give @autotune a default=.\n{lines}",
        kernel=kernel,
        reasons=reasons,
    )


_REQUIRED = re.compile(r"(?<=Required: )\d+")  # as Triton says it, with the limit behind it


def _by_resource(reasons: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, list[str]]]:
    """Reasons that differ in what is required only, as one; in the order in which they first came."""
    groups: dict[str, list[tuple[int, str]]] = {}
    for reason in reasons:
        required = _REQUIRED.search(reason)
        groups.setdefault(_REQUIRED.sub("", reason), []).append((int(required[0]) if required else 0, reason))
    for group in groups.values():
        (_, first), *more = sorted(group, key=lambda pair: pair[0])
        labels = [*reasons[first]]
        labels += [f"{label} (Required: {required})" for required, reason in more for label in reasons[reason]]
        yield first, labels


class Backoff:
    """Ever longer pauses, counted in calls, before something is tried again that failed for want of memory."""

    def __init__(self) -> None:
        self._left: dict[str, tuple[int, int]] = {}  # name -> calls still to skip, and the pause before the next try

    def is_due(self, name: str) -> bool:
        """Whether it may be tried at this call."""
        left, pause = self._left.get(name, (0, 0))
        if left:
            self._left[name] = left - 1, pause
        return not left

    def failed(self, name: str) -> None:
        """The next call may try once more; after that 1, 3, 7, ... calls are skipped."""
        _, pause = self._left.get(name, (0, 0))
        self._left[name] = pause, 2 * pause + 1
