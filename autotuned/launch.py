"""Picks the launcher: what turns a call's arguments into the kernel bound for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autotuned import env
from autotuned._launch_py import PyLauncher
from autotuned.key import KeySpec

Launcher = PyLauncher


def make(names: Sequence[str], spec: KeySpec, device: Callable[[], int]) -> Launcher:
    """The launcher for one tuned function; `PyLauncher` documents the arguments."""
    return PyLauncher(names, spec, device)


def binds_directly() -> bool:
    """Whether tuned kernels are launched past Triton's own look-up; `AUTOTUNED_LAUNCHER=triton` turns it off."""
    return env.launcher() != "triton"


def in_use() -> tuple[str, str]:
    """The launcher in use and why, for `autotuned doctor`."""
    if not binds_directly():
        return "triton", "asked for by AUTOTUNED_LAUNCHER"
    return "python", "the only one in this version besides Triton's own"
