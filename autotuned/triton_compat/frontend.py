"""Runs Triton's front end once for all configs of a search that differ only in options it does not read.

Building a config's IR takes 15 to 40 ms of Python under the GIL, and rarely depends on warps and stages. So one
config's IR, as text, serves all configs with the same constants and is parsed in a millisecond. Reads of options are
observed, not assumed, and the compiled result is identical to the byte.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from autotuned import disk
from autotuned.triton_compat import kernel as kernels
from autotuned.triton_compat import versions

log = logging.getLogger("autotuned")
LATER = frozenset({"num_warps", "num_stages", "maxnreg"})  # options the front end rarely reads
# Building IR holds the GIL, so one thread does it at a time; after this long, others no longer wait for it. The first
# config, whose later passes take longest, reaches them after 20 ms; if 12 threads took turns, all would after 330 ms.
PATIENCE_S = 1.0
_numbers = itertools.count()


@contextmanager
def shared(kernel: Any, folder: Path) -> Iterator[None]:
    """Let configs of a kernel that are compiled in a `with` block share IR, through temporary files in `folder`.

    Does nothing for a customized source class, back ends other than NVIDIA's, and untested versions of Triton.
    """
    jit = kernels.innermost(kernel)
    original = _original(jit)
    if original is None:
        yield
        return
    forms = Forms(folder)
    jit.ASTSource = ours = _source_class(original, forms)
    try:
        yield
    finally:
        if jit.__dict__.get("ASTSource") is ours:
            jit.ASTSource = original
        forms.close()


def _original(jit: Any) -> Any:
    """Triton's source class if the kernel uses it unmodified, otherwise None."""
    from triton.compiler import ASTSource

    if versions.strange_triton():
        return None
    try:
        jit.device_caches[kernels.current_device()]  # creates them now: later, that would reset `jit.ASTSource`
        is_plain = jit.__dict__.get("ASTSource") is ASTSource and not jit.is_gluon()
    except (AttributeError, TypeError, RuntimeError):
        return None
    return ASTSource if is_plain else None


def _source_class(original: Any, forms: Forms) -> Any:
    class SharedSource(original):  # type: ignore[misc]
        """A kernel with its constants, whose IR may come from an earlier config."""

        def make_ir(self, target: Any, options: Any, codegen_fns: Any, module_map: Any, context: Any) -> Any:
            self.__class__ = original  # the compiled kernel keeps its source, which must not keep this search alive

            def build(watched: Any) -> Any:
                return self.make_ir(target, watched, codegen_fns, module_map, context)

            if target.backend != "cuda":
                return build(options)
            return forms.get(_key(self.hash(), options), options, build, context)

    SharedSource.__name__ = original.__name__  # compilations are recognized by it
    return SharedSource


def _key(source: str, options: Any) -> Hashable:
    """What IR depends on: the kernel with types and constants, and all options except those of later passes."""
    return source, repr(sorted((name, repr(value)) for name, value in vars(options).items() if name not in LATER))


class _FailedError(Exception):
    """The config that should have built the IR failed."""


class Forms:
    """The IR of one search: the first config that needs one builds it, others wait."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._process = folder, os.getpid()
        self._paths: dict[Hashable, Future[Path | None]] = {}
        self._turn = threading.Lock()

    def get(self, key: Hashable, options: Any, build: Callable[[Any], Any], context: Any) -> Any:
        """A module in `context`, parsed from an earlier config's IR or built."""
        if self._process != os.getpid():
            return build(options)  # a forked child: the builders are in its parent
        mine: Future[Path | None] = Future()
        while (first := self._paths.setdefault(key, mine)) is not mine:
            with contextlib.suppress(_FailedError):  # this config may fail differently, or not at all
                path = first.result()
                module = None if path is None else _parsed(path, context)
                return build(options) if module is None else module
        return self._built(key, mine, options, build)

    def _built(self, key: Hashable, mine: Future[Path | None], options: Any, build: Callable[[Any], Any]) -> Any:
        try:
            with self._in_turn():
                module = build(watched := WatchedOptions(options))
            path = None if LATER & watched.seen() else self._kept(str(module))
        except BaseException:
            del self._paths[key]  # before the waiting configs wake: one of them builds next
            mine.set_exception(_FailedError())
            raise
        mine.set_result(path)
        return module

    @contextmanager
    def _in_turn(self) -> Iterator[None]:
        is_ours = self._turn.acquire(timeout=PATIENCE_S)
        try:
            yield
        finally:
            if is_ours:
                self._turn.release()

    def _kept(self, text: str) -> Path | None:
        path = self._folder / f"form-{os.getpid()}-{next(_numbers)}.ttir"
        try:
            disk.write_text(path, text)
        except OSError as error:
            log.debug("front end: %s; every config builds its own form.", error)
            return None
        return path

    def close(self) -> None:
        """Remove the files; a thread that still compiles builds its own IR."""
        for future in list(self._paths.values()):  # a copy: threads that still compile add to it
            if future.done() and not future.exception() and (path := future.result()) is not None:
                disk.remove(path)


def _parsed(path: Path, context: Any) -> Any:
    from triton._C.libtriton import ir

    try:
        module = ir.parse_mlir_module(str(path), context)
    except RuntimeError as error:  # the file is gone, or Triton cannot parse its own output
        log.debug("front end: %s", error)
        return None
    module.context = context  # keeps it alive
    return module


class WatchedOptions:
    """Compiler options that record which names were read."""

    __slots__ = ("_names", "_options")

    def __init__(self, options: Any) -> None:
        self._options, self._names = options, set[str]()

    def __getattr__(self, name: str) -> Any:
        self._names.add(name)
        return getattr(self._options, name)

    def seen(self) -> frozenset[str]:
        """The names read; all names if the options were read as a whole."""
        everything: Mapping[str, Any] = vars(self._options)
        return frozenset(everything) if self._names & {"__dict__", "__dataclass_fields__"} else frozenset(self._names)
