"""The command line: one thin file per command; `main.py` first."""

from __future__ import annotations

import os
import signal
import sys


def command() -> None:
    """Run `autotuned`; Ctrl-C ends it with exit code 130 and without a traceback, also while it is imported."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # otherwise a shell or a caller has it ignored
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))  # no exception: imports would turn it into another one
    try:
        from .main import app

        signal.signal(signal.SIGINT, before)
        app()
    except KeyboardInterrupt:
        sys.exit(130)
