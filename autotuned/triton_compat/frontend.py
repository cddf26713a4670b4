"""Triton's front end run once for all configs of a search that differ only in what it does not look at.

From a kernel's syntax tree Triton builds its first form of a config, in Python: 15 to 40 ms in which no other thread
runs Python. Warps and stages are of no account there, unless the kernel asks for them. So one config's form, as text,
serves all with the same constants, and is read back in a millisecond. Whether options were asked for is watched, not
assumed, and what is compiled from a form that was read back is the same to the byte.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
from collections.abc import Callable, Hashable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from autotuned import disk
from autotuned.triton_compat import kernel as toolchain
from autotuned.triton_compat import versions

log = logging.getLogger("autotuned")
LATER = frozenset({"num_warps", "num_stages", "maxnreg"})  # options that later passes read, and the front end seldom
_numbers = itertools.count()


@contextmanager
def shared(kernel: Any, folder: Path) -> Iterator[None]:
    """Let configs of a kernel that are compiled in a `with` block share forms, which are files in `folder` meanwhile.

    Nothing is shared where somebody else has changed how the kernel's sources are made, off NVIDIA's back end, and
    beside a Triton that was never tried.
    """
    jit = toolchain.innermost(kernel)
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
    """Triton's class of sources, if the kernel uses just that; None else."""
    from triton.compiler import ASTSource

    if versions.strange_triton():
        return None
    try:
        jit.device_caches[toolchain.current_device()]  # made now, or the kernel's first launch would set the class anew
        is_plain = jit.__dict__.get("ASTSource") is ASTSource and not jit.is_gluon()
    except (AttributeError, TypeError, RuntimeError):
        return None
    return ASTSource if is_plain else None


def _source_class(original: Any, forms: Forms) -> Any:
    class SharedSource(original):  # type: ignore[misc]
        """A kernel with its constants; asked for its first form, it may take that of an earlier config."""

        def make_ir(self, target: Any, options: Any, codegen_fns: Any, module_map: Any, context: Any) -> Any:
            self.__class__ = original  # what was compiled keeps its source, and needs nothing of this search

            def build(watched: Any) -> Any:
                return self.make_ir(target, watched, codegen_fns, module_map, context)

            if target.backend != "cuda":
                return build(options)
            return forms.get(_key(self.hash(), options), options, build, context)

    return SharedSource


def _key(source: str, options: Any) -> Hashable:
    """What a form depends on: the kernel with types and constants, and every option but those of later passes."""
    return source, repr(sorted((name, repr(value)) for name, value in vars(options).items() if name not in LATER))


class _FailedError(Exception):
    """The config that was to build a form did not."""


class Forms:
    """Forms of one search: the first config that needs one builds it, and others wait for it."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._process = folder, os.getpid()
        self._paths: dict[Hashable, Future[Path | None]] = {}

    def get(self, key: Hashable, options: Any, build: Callable[[Any], Any], context: Any) -> Any:
        """A module in `context`: read back from an earlier config's, else built."""
        if self._process != os.getpid():
            return build(options)  # a forked child: who builds for others stayed in its parent
        mine: Future[Path | None] = Future()
        while (first := self._paths.setdefault(key, mine)) is not mine:
            with contextlib.suppress(_FailedError):  # its own error; that of the next may be another, or none
                path = first.result()
                module = None if path is None else _parsed(path, context)
                return build(options) if module is None else module
        return self._built(key, mine, options, build)

    def _built(self, key: Hashable, mine: Future[Path | None], options: Any, build: Callable[[Any], Any]) -> Any:
        try:
            module = build(watched := Watched(options))
            path = None if LATER & watched.seen() else self._kept(str(module))
        except BaseException:
            del self._paths[key]  # first, so that whoever waits builds the next
            mine.set_exception(_FailedError())
            raise
        mine.set_result(path)
        return module

    def _kept(self, text: str) -> Path | None:
        path = self._folder / f"form-{os.getpid()}-{next(_numbers)}.ttir"
        try:
            disk.write_text(path, text)
        except OSError as error:
            log.debug("front end: %s; every config builds its own form.", error)
            return None
        return path

    def close(self) -> None:
        """Remove the files; a thread that still compiles builds its own."""
        for future in self._paths.values():
            if future.done() and not future.exception() and (path := future.result()) is not None:
                disk.remove(path)


def _parsed(path: Path, context: Any) -> Any:
    from triton._C.libtriton import ir

    try:
        module = ir.parse_mlir_module(str(path), context)
    except RuntimeError as error:  # the file is gone, or holds what Triton prints and does not read
        log.debug("front end: %s", error)
        return None
    module.context = context  # a module does not keep it alive by itself
    return module


class Watched:
    """A compiler's options, with the names that were read."""

    __slots__ = ("_names", "_options")

    def __init__(self, options: Any) -> None:
        self._options, self._names = options, set[str]()

    def __getattr__(self, name: str) -> Any:
        self._names.add(name)
        return getattr(self._options, name)

    def seen(self) -> frozenset[str]:
        """What was read; everything, if all options were asked for at once."""
        everything: Mapping[str, Any] = vars(self._options)
        return frozenset(everything) if self._names & {"__dict__", "__dataclass_fields__"} else frozenset(self._names)
