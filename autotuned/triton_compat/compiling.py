"""Observes or refuses Triton's compilations, which start when its cache has no binary."""

from __future__ import annotations

import functools
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from autotuned._startup import renewed
from autotuned.triton_compat import kernel as kernels


class _Compiling(threading.local):
    """The source that this thread compiles: Triton creates its IR and kernel on the same thread."""

    source: Callable[[], Any] = staticmethod(lambda: None)
    since = 0.0


_compiling = _Compiling()
_guard = renewed(threading.Lock())
_is_watching = False


def begin(before: Callable[[Any], None], after: Callable[[Any, float], None]) -> None:
    """Watch each compilation of this process; repeated calls do nothing.

    `before` gets Triton's source, and its exceptions abort the compilation; `after` gets source and seconds.
    """
    from triton.compiler import compiler

    global _is_watching
    with _guard:
        if not _is_watching:
            _is_watching = True
            for kind in (compiler.ASTSource, compiler.IRSource):
                _watch_kind(kind, before)
            _watch_new_kinds(compiler.ASTSource, before)
            _watch_ends(compiler.CompiledKernel, after)


def _watch_kind(kind: Any, before: Callable[[Any], None]) -> None:
    """Patch the `make_ir` of a source class: a compilation starts with it."""
    original = vars(kind)["make_ir"]

    @functools.wraps(original)
    def make_ir(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _compiling.source() is not self:  # otherwise a subclass has reported it
            before(self)
            _compiling.source, _compiling.since = weakref.ref(self), time.perf_counter()
        return original(self, *args, **kwargs)

    make_ir.is_watched = True  # type: ignore[attr-defined]
    kind.make_ir = make_ir


def _watch_new_kinds(base: Any, before: Callable[[Any], None]) -> None:
    """Also patch later subclasses with their own `make_ir`, such as Gluon's."""
    original = base.__init__

    @functools.wraps(original)
    def create(self: Any, *args: Any, **kwargs: Any) -> None:
        for kind in type(self).__mro__:
            own = vars(kind).get("make_ir")
            if own is not None and not hasattr(own, "is_watched"):
                _watch_kind(kind, before)
        original(self, *args, **kwargs)

    base.__init__ = create


def _watch_ends(compiled: Any, after: Callable[[Any, float], None]) -> None:
    """Patch the constructor of Triton's compiled kernels: a compilation ends with it."""
    original = compiled.__init__

    @functools.wraps(original)
    def end(self: Any, src: Any, *args: Any, **kwargs: Any) -> None:
        original(self, src, *args, **kwargs)
        if src is not None and _compiling.source() is src:
            seconds = time.perf_counter() - _compiling.since
            del _compiling.source
            after(src, seconds)

    compiled.__init__ = end


def sources_of(jit: Any) -> Iterator[Any]:
    """The sources of a kernel's binaries in this process, on all devices."""
    sources = (getattr(binary, "src", None) for binary in kernels.binaries_of(jit))
    return (source for source in sources if source is not None)
