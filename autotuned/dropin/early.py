"""Prepares what Triton's first launch would wait for, in the background: the hash of Triton's files, and its driver.

Triton hashes its files before it compiles or finds anything (0.4 s), and runs a C compiler where its cache lacks the
driver (0.4 s). Neither touches a device.
"""

from __future__ import annotations

import logging
import sys
import threading
import time

from autotuned import env
from autotuned.dropin import kept_choices
from autotuned.store import layout
from autotuned.triton_compat import compiled, fingerprint, launcher, versions

log = logging.getLogger("autotuned")
LOOK_S = 0.02  # interval of checking the main thread
LONGEST_S = 60.0  # a program may run inside an import forever


def begin() -> None:
    """Start the thread once per process, unless Triton interprets or is of an unknown version, or one worker is set."""
    if not (_begun or env.interpreter_requested() or versions.strange_triton() or _is_one_worker()):
        _begun.append(True)
        threading.Thread(target=_prepare, name="autotuned-early", daemon=True).start()


_begun: list[bool] = []


def _is_one_worker() -> bool:
    try:
        asked = env.compile_workers()
        return asked is not None and asked < 2
    except ValueError:  # reported where configs are compiled
        return False


def _prepare() -> None:
    """Prepare once the main thread is not importing: two threads importing Triton's modules might deadlock."""
    end = time.monotonic() + LONGEST_S
    while _is_importing() and time.monotonic() < end:
        time.sleep(LOOK_S)
    try:
        if not kept_choices.are_there() and not fingerprint.begin(layout.root()):
            compiled.prepare_compiler()
    except Exception as error:  # the first launch meets and reports it
        log.debug("hashed early: %s", error)
    launcher.build_driver()


def _is_importing() -> bool:
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
