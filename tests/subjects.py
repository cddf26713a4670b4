"""Triton's tuner and ours as subjects of one test: as it is, with a memory, replaced, and our own decorator."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import triton
from triton.runtime import autotuner

import autotuned
from autotuned import dropin

SUBJECTS = ["triton", "seeded", "replaced", "autotuned"]
INSTALLED = ["seeded", "replaced"]  # `install()` as it stands, and with replace=True
OURS = ["seeded", "replaced", "autotuned"]
VERSION = tuple(int(part) for part in triton.__version__.split(".")[:2])


@dataclass(frozen=True)
class Subject:
    """One of them: its name and its decorator."""

    name: str
    autotune: Callable[..., Any]

    @property
    def is_ours(self) -> bool:
        """Whether the decorated object is of this package's class."""
        return self.name in ("replaced", "autotuned")


@contextlib.contextmanager
def subject(name: str) -> Iterator[Subject]:
    """A subject, installed for as long as the block runs."""
    if name in INSTALLED:
        dropin.install(replace=name == "replaced")
    try:
        yield Subject(name, autotuned.autotune if name == "autotuned" else triton.autotune)
    finally:
        if name in INSTALLED:
            dropin.uninstall()
            assert not hasattr(autotuner.Autotuner.run, "in_front_of")
