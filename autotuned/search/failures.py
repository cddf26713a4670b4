"""Tells the failures of configs apart, and makes the errors of a search."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from autotuned.errors import (
    AllConfigsFailedError,
    AutotunedError,
    DeviceLostError,
    LeftOutError,
    OutOfMemoryError,
    SealedError,
    described,
    text_of,
)

SHOWN = 24  # configs named per reason
_RESOURCES = ("OutOfResources", "OutOfMemoryError", "PTXASError")
# How the driver words a launch that it refused before the kernel ran.
_REFUSALS = ("invalid argument", "too many resources requested", "invalid configuration", "invalid cluster")
_NO_ROOM = ("out of memory", "can't allocate memory", "cannot allocate memory", "cudaerrormemoryallocation")


def describe(error: Exception) -> str:
    """Type and text of an exception, to keep instead of it: its traceback would keep the caller's tensors alive."""
    return text_of(error) if isinstance(error, LeftOutError) else described(error)


def note(error: BaseException, text: str) -> None:
    """Add a note to an exception; Python 3.10 keeps it without printing it."""
    if text in getattr(error, "__notes__", ()):
        return
    if hasattr(error, "add_note"):
        BaseException.add_note(error, text)  # type: ignore[attr-defined]  # bypassing overrides
    else:
        vars(error)["__notes__"] = [*getattr(error, "__notes__", ()), text]


def let_go(error: BaseException | None) -> None:
    """Strip an exception and what led to it of frames, as Triton 3.6 keeps it forever; unlink what callers handle."""
    running = {id(frame) for frame, _ in traceback.walk_stack(sys._getframe())}
    met = [] if error is None else [error]
    for one in met:  # which grows, but not for ever: `raise error from error` makes a circle
        one.__traceback__ = None
        for link in ("__cause__", "__context__"):
            other = getattr(one, link)
            trace = getattr(other, "__traceback__", None)
            if trace is not None and id(trace.tb_frame) in running:
                setattr(one, link, None)
            elif other is not None and all(other is not known for known in met):
                met.append(other)


def is_resource_error(error: Exception) -> bool:
    """Whether a config needs more than the device has, which is not a bug of the user's."""
    return type(error).__name__ in _RESOURCES


def is_memory_error(error: BaseException) -> bool:
    """Whether device or host memory ran out, as torch, Triton or the driver say it."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and any(words in text_of(error).lower() for words in _NO_ROOM)


@contextmanager
def suppress_memory_errors() -> Iterator[None]:
    """Go on after the `with` if memory runs out in it."""
    try:
        yield
    except Exception as error:
        if not is_memory_error(error):
            raise


def no_room(kernel: str, reason: str) -> OutOfMemoryError:
    """The error of a search that ran out of memory."""
    return OutOfMemoryError(
        f"`{kernel}`: not enough free memory to tune now ({reason}). Tune earlier, or name the written arguments in "
        "restore_value=.",
        kernel=kernel,
    )


def device_lost(kernel: str, error: Exception, config: str = "") -> DeviceLostError:
    """The error for a device that is unusable in this process; `config` ran when it was lost, "" if none did."""
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
    """Turn running out of memory during a search into `OutOfMemoryError`."""
    try:
        yield
    except Exception as error:
        if isinstance(error, AutotunedError) or not is_memory_error(error):
            raise
        reason = describe(error)
        let_go(error)
        raise no_room(kernel, reason) from None


def is_passing(error: Exception) -> bool:
    """Whether an error says nothing about the config: full memory, a timeout, a cancelled compilation, a seal, or a
    CUDA call that is forbidden while another thread captures a graph in mode "global".
    """
    if isinstance(error, (TimeoutError, SealedError)) or type(error).__name__ in ("TimeoutExpired", "CancelledError"):
        return True
    return is_memory_error(error) or (isinstance(error, RuntimeError) and "captur" in text_of(error).lower())


def is_refusal(error: Exception) -> bool:
    """Whether a launch was refused before the kernel ran, because of the config's needs."""
    if type(error).__name__ == "OutOfResources":
        return True
    return isinstance(error, RuntimeError) and any(words in text_of(error).lower() for words in _REFUSALS)


def all_failed(kernel: str, failed: Sequence[tuple[str, str]]) -> AllConfigsFailedError:
    """The error of a search in which every config failed: each reason with the labels of its configs.

    Configs that exceed the same resource are grouped under the smallest need.
    """
    reasons: dict[str, list[str]] = {}
    for reason, label in failed:
        reasons.setdefault(reason, []).append(label)
    lines = "\n".join(f"  {reason}\n    {_shown(labels)}" for reason, labels in _by_resource(reasons))
    return AllConfigsFailedError(
        f"`{kernel}`: expected at least one config that compiles and runs here; all {len(failed)} failed. Add a "
        f"config that fits, or give @autotune a default=.\n{lines}",
        kernel=kernel,
        reasons=reasons,
    )


def _shown(labels: Sequence[str]) -> str:
    more = f"; and {len(labels) - SHOWN} more" if len(labels) > SHOWN else ""
    return "; ".join(labels[:SHOWN]) + more


_REQUIRED = re.compile(r"(?<=Required: )\d+")  # in Triton's message


def _by_resource(reasons: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, list[str]]]:
    """Reasons that differ only in the required amount, grouped; in order of appearance."""
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
    """Growing pauses, counted in calls, between tries of something that failed for lack of memory."""

    def __init__(self) -> None:
        self._left: dict[str, tuple[int, int]] = {}  # by name: calls left to skip, next pause

    def is_due(self, name: str) -> bool:
        """Whether to try at this call."""
        left, pause = self._left.get(name, (0, 0))
        if left:
            self._left[name] = left - 1, pause
        return not left

    def failed(self, name: str) -> None:
        """Retry at the next call; after further failures skip 1, 3, 7, ... calls."""
        _, pause = self._left.get(name, (0, 0))
        self._left[name] = pause, 2 * pause + 1
