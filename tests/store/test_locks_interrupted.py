"""Locks whose holder is interrupted while it takes or frees them."""

import itertools
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faults import faults

from autotuned.store import locks


def outcomes(path: Path) -> list[locks.Lock]:
    """What this thread and another one get, without waiting."""
    found = []

    def enter() -> None:
        with locks.locked(path, timeout_s=0.0) as lock:
            found.append(lock)

    enter()
    thread = threading.Thread(target=enter)
    thread.start()
    thread.join(60)
    return found


def interrupted_at(line: int, enter: Callable[[], None]) -> KeyboardInterrupt | None:
    """Call a function and interrupt it before a line of this many that it runs of `locks.py`."""
    left = itertools.count(line, -1)

    def trace(frame: Any, event: str, value: object) -> Any:
        if frame.f_code.co_filename != locks.__file__:
            return None
        if event == "line" and next(left) == 0:
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        enter()
    except KeyboardInterrupt as error:
        return error
    finally:
        sys.settrace(before)
    return None


def test_an_interrupt_at_any_line_on_the_way_in_leaves_the_lock_free(tmp_path: Path) -> None:
    entered, kept = [], []  # a notebook keeps the last exception, and so every frame in it

    def enter() -> None:
        with locks.locked(tmp_path / "k.lock"):
            sys.settrace(None)
            entered.append(1)

    for line in itertools.count():
        kept.append(interrupted_at(line, enter))
        assert outcomes(tmp_path / "k.lock") == [locks.Lock.HELD] * 2, line
        if entered:
            break
    assert len(kept) > 20 and kept[-1] is None and None not in kept[:-1]


def test_an_interrupt_while_the_holders_file_is_removed_leaves_the_lock_free(tmp_path: Path) -> None:
    with (
        pytest.raises(KeyboardInterrupt),
        faults("unlink", KeyboardInterrupt(), times=1),
        locks.locked(tmp_path / "k.lock"),
    ):
        pass
    assert outcomes(tmp_path / "k.lock") == [locks.Lock.HELD] * 2
