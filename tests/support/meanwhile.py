"""Another thread's work between any two lines of a call, without a thread."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

MOST = 50  # or a call that visits what is added would never end


def interrupted(call: Callable[[], Any], meanwhile: Callable[[], Any]) -> Any:
    """The result of a call that is interrupted at each of its first lines, also in what it calls."""
    count = 0

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal count
        if event == "line" and count < MOST:
            count += 1
            meanwhile()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        return call()
    finally:
        sys.settrace(before)
        assert count
