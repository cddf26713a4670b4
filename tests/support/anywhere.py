"""Another thread's work before each instruction of a function in turn, without a thread."""

import itertools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def interrupt(function: Callable[..., Any], begin: Callable[[], tuple[Callable[[], Any], Callable[[], Any]]]) -> None:
    """Run a call once for each instruction of the function, and what happens meanwhile before that instruction.

    Args:
        begin: Returns a call that calls the function once, and what happens meanwhile; both start afresh.
    """
    for place in itertools.count():
        if not _is_interrupted(function, place, *begin()):
            assert place
            return


def _is_interrupted(function: Any, place: int, call: Callable[[], Any], meanwhile: Callable[[], Any]) -> bool:
    steps = itertools.count()
    reached = False

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal reached
        if frame.f_code is not function.__code__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and next(steps) == place:
            reached = True
            meanwhile()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return reached
