"""What is measured, in which order: operations, ways to run them, phases, and the tasks that these make."""

from __future__ import annotations

import importlib.machinery
import importlib.util
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

Call = Callable[[], list[Any]]  # one call of an operation; its results, then its gradients
PHASES = ("cold", "second", "warm", "container")
KEPT = "{kept}"  # in a command: the folder that keeps what is compiled


class Operation(NamedTuple):
    """One row of the table."""

    name: str
    package: str  # what is imported
    distribution: str  # what is installed
    make: Callable[[], Call]
    modules: tuple[str, ...] = ()  # what has the kernels; imported before the first call is timed
    main: bool = False  # measured several times, and in every phase
    required: bool = False
    environment: Mapping[str, str] = {}
    stand_in: Callable[[], None] | None = None  # run before the import, in place of a package's `__init__`
    tokens: int = 0  # of one call, where it is a whole program

    @property
    def is_there(self) -> bool:
        """Whether its library is installed here; nothing of it is imported."""
        folders: Sequence[str] | None = None
        for name in self.package.split("."):
            spec = importlib.machinery.PathFinder.find_spec(name, folders)
            if spec is None:
                return False
            folders = list(spec.submodule_search_locations or ())
        return True


class Way(NamedTuple):
    """How a process is started, and in which phases that is worth a row."""

    command: tuple[str, ...] = ()  # arguments of `autotuned`; none starts Python itself
    environment: Mapping[str, str] = {}
    phases: tuple[str, ...] = PHASES[:3]
    brief: tuple[str, ...] = ("cold",)  # the phases of an operation that is not one of the main ones
    memory: str | None = None  # the way whose cold process leaves what a later one finds; its own without
    ranks: int = 1  # processes that start at once, as of one job on this host

    @property
    def installs(self) -> bool:
        """Whether `autotuned` runs in it."""
        return bool(self.command)


# "cold": all caches are empty. "second": what was chosen is stored, Triton's cache is empty. "warm": both are there.
# "container": all caches are empty again, what `--binaries` kept and the libraries lie elsewhere.
WAYS = {
    "stock": Way(phases=("cold", "warm")),
    "ahead": Way(("run",), brief=("cold", "second")),
    "race": Way(("run", "--race")),
    "replace": Way(("run", "--replace"), brief=("warm",), memory="ahead"),
    "replace-race": Way(("run", "--replace", "--race"), memory="race"),
    "cached": Way((), {"TRITON_CACHE_AUTOTUNING": "1"}, ("cold", "warm"), ("cold", "warm")),
    "threads": Way((), {"LIBRARIES_THREADS": "1"}, ("cold",)),
    "binaries": Way(("run", "--binaries", KEPT), phases=("cold", "container"), brief=("cold", "container")),
    "no-compiler": Way(
        ("run", "--binaries", KEPT), {"LIBRARIES_BROKEN": "1", "PATH": "/nonexistent"}, ("container",), ("container",),
        memory="binaries",
    ),
    "stock-8": Way((), phases=("cold",), ranks=8),
    "ahead-8": Way(("run",), phases=("cold",), ranks=8),
    "race-8": Way(("run", "--race"), phases=("cold",), ranks=8),
}  # fmt: skip
DEFAULT = ("stock", "ahead", "race", "replace")


class Task(NamedTuple):
    """One process."""

    operation: str
    way: str
    phase: str
    repeat: int

    def __str__(self) -> str:
        return f"{self.operation}: {self.way}, {self.phase}, {self.repeat}"


def load(path: Path) -> tuple[Operation, ...]:
    """The OPERATIONS of a Python file."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"--operations: expected a Python file, got {path}.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return tuple(module.OPERATIONS)


def tasks(
    operations: Iterable[Operation], ways: Sequence[str], phases: Sequence[str] | None, repeats: int
) -> list[Task]:
    """All processes, those that say most first; without `phases` each way's own."""
    made = [
        (_stage(one, phase, way, repeat), Task(one.name, way, phase, repeat))
        for one in operations
        for repeat in range(repeats if one.main else 1)
        for phase in PHASES
        for way in ways
        if phase in (phases or (PHASES if one.main else WAYS[way].brief)) and phase in WAYS[way].phases
    ]
    return [task for _, task in sorted(made, key=lambda pair: pair[0])]


def _stage(operation: Operation, phase: str, way: str, repeat: int) -> int:
    if operation.main:
        return 3 if repeat else int(phase != "cold")
    return 2 if phase in ("cold", *WAYS[way].brief[:1]) else 4
