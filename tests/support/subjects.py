"""Triton's tuner and ours as subjects of one test: stock, seeded, replaced, and our own decorator."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import triton
from triton.runtime import autotuner

import autotuned
from autotuned.dropin import install

SUBJECTS = ["triton", "seeded", "raced", "beside", "replaced", "autotuned"]
# Plain `install()`; with replace=True over kernels with Triton's own decorator, and over those with ours.
# "raced" is `install(race=True)`.
INSTALLED = ["seeded", "raced", "beside", "replaced"]
OURS = ["seeded", "raced", "beside", "replaced", "autotuned"]
VERSION = tuple(int(part) for part in triton.__version__.split(".")[:2])


@dataclass(frozen=True)
class Subject:
    """A subject: its name and its decorator."""

    name: str
    autotune: Callable[..., Any]

    @property
    def is_ours(self) -> bool:
        """Whether the decorated object is of this package's class."""
        return self.name in ("replaced", "autotuned")


@contextlib.contextmanager
def subject(name: str) -> Iterator[Subject]:
    """A subject, installed within a `with` block."""
    stock = triton.autotune
    if name in INSTALLED:
        install.install(replace=name in ("beside", "replaced"), race=name == "raced")
    decorators = {"autotuned": autotuned.autotune, "replaced": triton.autotune}
    try:
        yield Subject(name, decorators.get(name, stock))
    finally:
        if name in INSTALLED:
            install.uninstall()
            assert not hasattr(autotuner.Autotuner.run, "in_front_of")
