"""The command line: one thin file per command; `main.py` first."""

from __future__ import annotations

import os
import signal
import sys
import threading


def command() -> None:
    """Run `autotuned`; Ctrl-C ends it with exit code 130 and without a traceback, also while it is imported."""
    is_ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # no shell or caller has it ignored
    is_ours = is_ours and threading.current_thread() is threading.main_thread()  # which alone may set it
    if is_ours:
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))  # no exception: imports would turn it into another one
    try:
        from .main import app

        if is_ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        app()
    except KeyboardInterrupt:
        sys.exit(130)
