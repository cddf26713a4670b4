"""Several threads in Triton's compiler at once: what they do to Python's lock and to Python's parser."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

# Threads that leave LLVM take the interpreter's lock from each other; the thread that measures must not wait 5 ms
# (Python's default) each time it comes back from a call of torch's.
SWITCH_S = 0.0005
# Python's parser counts its depth for all threads together (seen in 3.11.7), and a parse that is interrupted by another
# thread's may end in "SystemError: AST constructor recursion depth mismatch", which says nothing of the kernel.
PARSER_TRIES = 5


def parsed_again(compile_: Callable[[], Any]) -> Any:
    """What a compilation returns, begun anew where Python's parser was disturbed."""
    for _ in range(PARSER_TRIES):
        with contextlib.suppress(SystemError):
            return compile_()
    return compile_()


_brisk_lock = threading.Lock()
_brisk_users: list[float] = []  # the interval before, once for each search under way


@contextmanager
def brisk() -> Iterator[None]:
    """Let threads hand over the interpreter's lock sooner while compilers share it with the thread that measures."""
    with _brisk_lock:
        _brisk_users.append(sys.getswitchinterval() if not _brisk_users else _brisk_users[0])
        sys.setswitchinterval(min(SWITCH_S, _brisk_users[0]))
    try:
        yield
    finally:
        with _brisk_lock:
            before = _brisk_users.pop()
            if not _brisk_users:
                sys.setswitchinterval(before)
