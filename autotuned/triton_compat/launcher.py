"""Triton's launcher of a compiled kernel: the C function that it calls, and building it and the driver early."""

from __future__ import annotations

import atexit
import contextlib
import copy
import logging
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from concurrent import futures
from functools import partial
from typing import Any

from autotuned.triton_compat import compiled, kernel

log = logging.getLogger("autotuned")
# Known fields of Triton's launcher; a launcher with other fields may do more.
_LAUNCHER_HAS = frozenset((
    "arg_annotations", "global_scratch_align", "global_scratch_size", "gsan_enabled", "kernel_signature", "launch",
    "launch_cooperative_grid", "launch_pdl", "num_ctas", "profile_scratch_align", "profile_scratch_size",
))  # fmt: skip


def beneath(run: Any, function: int, packed: Any, places: Sequence[str]) -> tuple[Callable[..., Any], list[Any], bool]:
    """The function that a launch without hooks calls, its leading arguments, and whether values follow one by one.

    Triton's launcher is 0.8 us of Python around a C function (3.6 to 3.9, Python 3.11). One probing call shows whether
    it only passes its arguments on, and how; then the C function is called directly. `places` are names of the leading
    arguments that change per launch.
    """
    itself = run, [*places, (function,), (packed,), (None,), (None,), (None,)], True
    kind = type(run)
    if kind.__name__ != "CudaLauncher" or not kernel.is_tritons(kind.__call__):
        return itself
    if not vars(run).keys() <= _LAUNCHER_HAS or any(getattr(run, name, 0) for name in compiled.ALLOCATES):
        return itself
    seen: list[tuple[Any, ...]] = []
    probe = copy.copy(run)
    probe.launch = lambda *given: seen.append(given)
    marks, values = {place: object() for place in places}, (object(), object())
    try:
        probe(*marks.values(), function, packed, None, None, None, *values)
        (given,) = seen
    except Exception:  # it does more than pass its arguments on
        return itself
    one_by_one = given[-2:] == values
    if not one_by_one and given[-1:] != (values,):
        return itself
    marked = {id(mark): place for place, mark in marks.items()}
    return run.launch, [marked.get(id(one), (one,)) for one in given[: -2 if one_by_one else -1]], one_by_one


def stand_in_for_build(make: Callable[[Callable[..., str]], Callable[..., str]]) -> Callable[[], None]:
    """Replace Triton's `_build`, which runs a C compiler, by `make(original)`; returns an undo function."""
    from triton.runtime import build

    return kernel.stand_in(build, "_build", make)


def builds_by_itself() -> bool:
    """Whether Triton runs the C compiler itself, not through a user's function."""
    from triton import knobs

    return knobs.build.impl is None


def build_driver() -> None:
    """Build the C part of Triton's driver, or load it from Triton's cache; uses no device.

    The compiler prints nothing and ends with this process, which may never launch a kernel.
    """
    try:
        from triton.backends.nvidia import driver
        from triton.runtime import build

        before: Any = build.subprocess
        build.subprocess = _Quiet(before)
        try:
            driver.CudaUtils()
        finally:
            build.subprocess = before
    except Exception as error:  # Triton reports it again if a kernel is launched
        log.debug("driver: %s", error)


class _Quiet:
    """Replaces `subprocess` where Triton runs a C compiler: one thread's compiler is silent and ends with us."""

    def __init__(self, before: Any) -> None:
        self._before, self._thread = before, threading.current_thread()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._before, name)

    def check_call(self, command: Sequence[str], **options: Any) -> int:
        """Like `subprocess.check_call`."""
        if threading.current_thread() is not self._thread:
            code: int = self._before.check_call(command, **options)
            return code
        none = subprocess.DEVNULL  # a pipe would stay open as long as the compiler runs
        started: futures.Future[subprocess.Popen[bytes]] = futures.Future()
        end = partial(_end, started, self._thread, os.getpid())
        atexit.register(end)  # before it starts, since the program may exit meanwhile
        try:
            process = subprocess.Popen(command, stdin=none, stdout=none, stderr=none, start_new_session=True)
            started.set_result(process)
            if process.wait():
                raise subprocess.CalledProcessError(process.returncode, command)
        finally:
            atexit.unregister(end)
        return 0


def _end(started: futures.Future[subprocess.Popen[bytes]], thread: threading.Thread, owner: int) -> None:
    """Kill a compiler and its child processes, and let its thread remove the files."""
    if os.getpid() == owner:
        with contextlib.suppress(OSError, AttributeError, futures.TimeoutError):
            process = started.result(1.0)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        thread.join(1.0)


_begun: set[Any] = set()


def build_early(binary: Any) -> None:
    """Build Triton's launcher of a compiled kernel, once per signature; the launch reports errors.

    Triton 3.6 runs a C compiler for it (0.3 s, then cached), which may overlap with the compilation of other configs.
    """
    from triton.runtime.driver import driver

    try:
        signature = tuple(binary.src.signature.items())
        if signature not in _begun:
            _begun.add(signature)
            driver.active.launcher_cls(binary.src, binary.metadata)
    except Exception as error:
        log.debug("launcher: %s", error)
