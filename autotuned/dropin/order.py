"""Remembers which kernels a program launched, so that its next process compiles them at once if Triton lacks them.

If a store moved to another machine, or Triton's cache was cleared, choices have no binaries, and kernels would compile
one after another at their first calls. Each program has one file.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotuned import disk, env
from autotuned._startup import after_fork, later
from autotuned.errors import AutotunedError
from autotuned.resolve import sealing
from autotuned.search import failures
from autotuned.store import layout
from autotuned.triton_compat import cache, kernel
from autotuned.typed_json import Json, named, typed

if TYPE_CHECKING:
    from autotuned.search.compiling import crew, parallelism
    from autotuned.triton_compat import compiled, recorded
    from autotuned.triton_compat.compiled import Compilation
else:
    crew, parallelism = later("search.compiling.crew"), later("search.compiling.parallelism")
    compiled, recorded = later("triton_compat.compiled"), later("triton_compat.recorded")

log = logging.getLogger("autotuned")
SCHEMA = 1
MOST = 512  # entries of a program; the latest stay
_FIELDS = ("function", "key", "binary", "compiled")


class Program:
    """This process's program: its entries in a file, running compilations, and launches."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._guard = threading.Lock()
        self._entries = _read(path)
        self._left = list(self._entries.values())
        self._crews: list[crew.Crew] = []

    def expect(self, key: str) -> None:
        """Before launching a stored choice: compile what followed it last time, and wait for its own binary."""
        with self._guard:
            wanted = self._wanted()
            if len(wanted) > 1 and (count := parallelism.ahead()):
                self._crews.append(crew.Crew(wanted, count, crew.shared_slots()).start())
            crews = self._crews = [one for one in self._crews if one.done < one.total]
            entry = self._entries.get(key)
        if entry is not None:
            for one in crews:
                one.wait_for(entry["binary"])

    def _wanted(self) -> list[Compilation]:
        """The binaries missing from Triton's cache, of kernels already imported."""
        found, left = [], []
        for entry in self._left:
            if cache.holds(entry["binary"]):
                continue
            jit = _function(entry["function"])
            if jit is None:
                left.append(entry)
            elif compiled.compiles_for_cache(jit) and (one := _compilation(jit, entry)) is not None:
                found.append(one)
        self._left = left
        return found

    def note(self, key: str, launched: Any) -> None:
        """Record the kernel launched for a key."""
        binary = getattr(launched, "hash", None)
        if not isinstance(binary, str) or self._entries.get(key, {}).get("binary") == binary:
            return
        entry = _entry(key, launched, binary)
        if entry is None:
            return
        with self._guard:
            self._entries.pop(key, None)
            self._entries = dict([*{**_read(self._path), **self._entries, key: entry}.items()][-MOST:])
            try:
                disk.write_text(self._path, disk.text({"schema": SCHEMA, "launched": [*self._entries.values()]}))
            except OSError as error:
                log.debug("%s cannot be written: %s", self._path, error)


def _entry(key: str, launched: Any, binary: str) -> dict[str, Any] | None:
    jit = launched.src.fn
    function = f"{jit.fn.__module__}:{jit.fn.__qualname__}"
    data = recorded.written(launched) if _function(function) is jit else None
    return None if data is None else {"function": function, "key": key, "binary": binary, "compiled": data}


def _read(path: Path) -> dict[str, dict[str, Any]]:
    """Entries by key, in launch order; empty if there is no readable file."""
    try:
        data: Any = typed(disk.read_json(path), dict, "launched")
        if data.get("schema") != SCHEMA:
            return {}
        return {entry["key"]: entry for entry in map(_checked, typed(data["launched"], list, "launched"))}
    except (OSError, AutotunedError, ValueError, KeyError):
        return {}


def _checked(data: Json) -> dict[str, Any]:
    entry: dict[str, Any] = dict(named(data, "launched", _FIELDS))
    for name in ("function", "key", "binary"):
        typed(entry[name], str, name)
    return entry


def _function(name: str) -> Any:
    """The Triton function of a name; None if its module is not imported or lacks it."""
    module, _, path = name.partition(":")
    try:
        return kernel.innermost(reduce(getattr, path.split("."), sys.modules[module]))
    except (KeyError, AttributeError, IndexError):
        return None


def _compilation(jit: Any, entry: Mapping[str, Any]) -> Compilation | None:
    try:
        return recorded.compilation(jit, entry["compiled"], entry["binary"])
    except Exception as error:  # of another version of Triton, or of the kernel
        log.debug("%s is not compiled ahead: %s", entry["function"], failures.describe(error))
        return None


def name() -> str:
    """The program's identity: the module of `python -m`, or the script's path."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec.name if spec is not None else os.path.abspath(sys.argv[0] if sys.argv else "")


_programs: dict[Path, Program] = {}


def program() -> Program:
    """This process's program."""
    path = layout.program_path(name())
    found = _programs.get(path)
    return found if found is not None else _programs.setdefault(path, Program(path))


def expect(key: str) -> None:
    """`Program.expect`; errors only mean that Triton compiles at the launch."""
    try:
        if sealing.current() is None:  # under a seal, compile only what the program asks for
            program().expect(key)
    except Exception as error:
        env.warn_once("order", "nothing is compiled ahead of stored choices: %s", failures.describe(error))


def note(key: str, launched: Any) -> None:
    """`Program.note`; errors are logged."""
    try:
        program().note(key, launched)
    except Exception as error:
        log.debug("launched kernels are not recorded: %s", failures.describe(error))


after_fork(_programs.clear)  # the parent's threads do not exist in the child
