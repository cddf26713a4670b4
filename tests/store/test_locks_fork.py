"""Locks and forks: what a child of a process has of a lock that its parent holds, which is nothing."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock, Timeout

from autotuned.store import layout, locks


def in_child(action: Any) -> int:
    """The exit code of a forked child that does something; 99 if it hung for 20 s."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads and fork: that is what is tested
        child = os.fork()
    if child == 0:
        code = 1
        try:
            code = action()
        finally:
            os._exit(code)
    end = time.monotonic() + 20
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return 99


def test_b44_a_forked_child_does_not_release_its_parents_lock(tmp_path: Path) -> None:
    path = tmp_path / "k.lock"
    with locks.locked(path):
        said = layout.holder_path(path).read_text()
        (lock,) = locks._locks.values()

        def leave() -> int:
            locks._release(lock, path, os.getppid())  # as leaving the block does in a child
            gc.collect()
            return 0

        assert in_child(leave) == 0
        assert layout.holder_path(path).read_text() == said
        with pytest.raises(Timeout):
            FileLock(path).acquire(timeout=0)
    FileLock(path).acquire(timeout=0).lock.release()


def test_a_child_that_leaves_the_block_it_was_forked_in_frees_nothing(tmp_path: Path) -> None:
    path = tmp_path / "k.lock"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        with locks.locked(path):
            child = os.fork()
            if child:
                code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                with pytest.raises(Timeout):
                    FileLock(path).acquire(timeout=0)
                assert layout.holder_path(path).exists()
    if child == 0:
        os._exit(0)  # it left the block
    assert code == 0


def test_a_child_that_outlives_its_parent_does_not_keep_the_lock(tmp_path: Path) -> None:
    script = (
        "import os, sys, time\nfrom pathlib import Path\nfrom autotuned.store import locks\n"
        "with locks.locked(Path(sys.argv[1])):\n"
        "    child = os.fork()\n"
        "    if child == 0:\n        time.sleep(60)\n        os._exit(0)\n"
        "    print(child, flush=True)\n    time.sleep(60)\n"
    )
    path = tmp_path / "k.lock"
    with subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
        parent.wait(30)
        with locks.locked(path, timeout_s=30) as lock:  # which is less than the child lives
            assert lock is locks.Lock.HELD
        os.kill(child, signal.SIGKILL)


def test_b44_a_child_forked_while_a_thread_holds_a_lock_does_not_hang(tmp_path: Path) -> None:
    taken, free = threading.Event(), threading.Event()

    def hold() -> None:
        with locks.locked(tmp_path / "k.lock", between_processes=False):
            taken.set()
            free.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait(60)

    def take() -> int:
        with locks.locked(tmp_path / "k.lock", timeout_s=60) as lock:
            return 0 if lock is locks.Lock.HELD else 2

    assert in_child(take) == 0
    free.set()
    thread.join()
