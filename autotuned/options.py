"""Descriptions of the environment variables that users set, for `autotuned doctor` and the docs."""

from __future__ import annotations

import os
from collections.abc import Callable

from autotuned import env
from autotuned._startup import Frozen
from autotuned.env import INSTALLS, MODES, SEALS


class Option(Frozen):
    """An environment variable: name, default in words, and effect."""

    name: str
    default: str
    help: str


OPTIONS = (
    Option("AUTOTUNED_MODE", "auto", f"What a call does when nothing is stored for it: {', '.join(MODES)}."),
    Option("AUTOTUNED_CACHE_DIR", "the user's cache folder", "Where records are kept. '~' is expanded."),
    Option("AUTOTUNED_CONFIG_PATH", "none", f"Folders of config files, separated by '{os.pathsep}'."),
    Option("AUTOTUNED_RECORD", "none", "A file or a store's URL to record every distinct call of tuned kernels into."),
    Option("AUTOTUNED_LOG", "warning", "Log level on stderr: debug, info, warning, error."),
    Option(
        "AUTOTUNED_LAUNCHER",
        "c if it was built",
        "Launch path: c, python, triton (Triton's own), or verify (c, each launch compared).",
    ),
    Option("AUTOTUNED_INSTALL", "set by autotuned run", f"What that command installs: {', '.join(INSTALLS)}."),
    Option("AUTOTUNED_RACE_BUDGET_S", "set by autotuned run", "Seconds after which that command's races end."),
    Option("AUTOTUNED_BINARIES", "set by autotuned run", "Where that command keeps compiled Triton kernels."),
    Option("AUTOTUNED_SEAL", "none", f"How a sealed process treats a search or compilation: {' or '.join(SEALS)}."),
    Option("AUTOTUNED_COMPILE_WORKERS", "by cores and memory", "Configs compiled at once; 0 or 1: one by one."),
    Option(
        "AUTOTUNED_STORE", "none", "A shared store behind the cache folder: redis://, rediss://, file:///, s3://..."
    ),
    Option(
        "AUTOTUNED_STORE_KEY", "none", "Signs data sent to the shared store; data that it does not verify is ignored."
    ),
    Option("AUTOTUNED_STORE_READ_ONLY", "0", "1: the shared store is read and never written."),
    Option("AUTOTUNED_STORE_WAIT_S", "0.3", "Seconds that a call waits for the shared store before it searches."),
    Option("AUTOTUNED_DEVICE", "cuda if there is a GPU", "For the command line: cuda or interpreter."),
)

_SECRET: dict[str, Callable[[str], str]] = {
    "AUTOTUNED_STORE": env.redacted,
    "AUTOTUNED_STORE_KEY": lambda key: "***" if key else "",
}


def values() -> dict[str, str]:
    """Each option's value ("" if unset) without secrets, for `autotuned doctor`."""
    return {option.name: _SECRET.get(option.name, str)(env.get(option.name)) for option in OPTIONS}
