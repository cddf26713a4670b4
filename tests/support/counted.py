"""Counts work instead of timing it: a count is the same on a busy machine as on an idle one."""

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import FrameType
from typing import Any


@contextmanager
def no_collection() -> Iterator[None]:
    """Prevent garbage collection in a `with` block: its callbacks, such as Hypothesis's, would be counted."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def profiled(run: Callable[[], Any], note: Callable[[FrameType, str, Any], Any]) -> None:
    """Report each function that a call enters and leaves on this thread to `note`, as `sys.setprofile` does."""
    with no_collection():
        sys.setprofile(note)
        try:
            run()
        finally:
            sys.setprofile(None)


def opcodes(run: Callable[[], Any]) -> int:
    """Number of Python bytecodes that a call executes on this thread, without those of C functions."""
    executed, before = 0, sys.gettrace()  # of a debugger or coverage tool

    def trace(frame: FrameType, event: str, argument: Any) -> Callable[..., Any]:
        nonlocal executed
        frame.f_trace_opcodes = True
        executed += event == "opcode"
        return trace

    sys._getframe().f_trace_opcodes = True  # Python 3.12 asks at `settrace` whether any frame wants them
    with no_collection():
        sys.settrace(trace)
        try:
            run()
        finally:
            sys.settrace(before)
            sys._getframe().f_trace_opcodes = False
    return executed


def opened(run: Callable[[], Any]) -> list[str]:
    """The files that a call opens, in order."""
    paths: list[str] = []
    _listen()
    _listeners.append(paths)
    try:
        run()
    finally:
        _listeners.remove(paths)
    return paths


_listeners: list[list[str]] = []


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open":
        for paths in _listeners:
            paths.append(str(arguments[0]))


@cache
def _listen() -> None:
    sys.addaudithook(_hear)  # at first use: it cannot be removed, and slows down everything after it
