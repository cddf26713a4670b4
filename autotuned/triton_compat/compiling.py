"""Observes or refuses Triton's compilations, which start when its cache has no binary."""

from __future__ import annotations

import functools
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from autotuned._startup import renewed
from autotuned.triton_compat import kernel as kernels


class _Watchers(NamedTuple):
    before: Callable[[Any], None]
    after: Callable[[Any, float], None]


class _Compiling(threading.local):
    """The source that this thread compiles: Triton creates its IR and kernel on the same thread."""

    source: Callable[[], Any] = staticmethod(lambda: None)
    since = 0.0


_watchers: list[_Watchers] = []  # at most one
_compiling = _Compiling()
_begun = renewed(threading.Lock())


def begin(before: Callable[[Any], None], after: Callable[[Any, float], None]) -> None:
    """Watch each compilation of this process; repeated calls do nothing.

    `before` gets Triton's source, and its exceptions abort the compilation; `after` gets source and seconds.
    """
    from triton.compiler import compiler

    with _begun:
        if _watchers:
            return
        _watchers.append(_Watchers(before, after))
        for kind in (compiler.ASTSource, compiler.IRSource):
            _watch_kind(kind)
        _watch_new_kinds(compiler.ASTSource)
        _watch_ends(compiler.CompiledKernel)


def _watch_kind(kind: Any) -> None:
    """Patch the `make_ir` of a source class: a compilation starts with it."""
    original = vars(kind)["make_ir"]

    @functools.wraps(original)
    def make_ir(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _compiling.source() is not self:  # otherwise a subclass has reported it
            for watcher in _watchers:
                watcher.before(self)
            _compiling.source, _compiling.since = weakref.ref(self), time.perf_counter()
        return original(self, *args, **kwargs)

    make_ir.is_watched = True  # type: ignore[attr-defined]
    kind.make_ir = make_ir


def _watch_new_kinds(base: Any) -> None:
    """Also patch later subclasses with their own `make_ir`, such as Gluon's."""
    original = base.__init__

    @functools.wraps(original)
    def begin(self: Any, *args: Any, **kwargs: Any) -> None:
        for kind in type(self).__mro__:
            own = vars(kind).get("make_ir")
            if own is not None and not hasattr(own, "is_watched"):
                _watch_kind(kind)
        original(self, *args, **kwargs)

    base.__init__ = begin


def _watch_ends(compiled: Any) -> None:
    original = compiled.__init__

    @functools.wraps(original)
    def end(self: Any, src: Any, *args: Any, **kwargs: Any) -> None:
        original(self, src, *args, **kwargs)
        if src is not None and _compiling.source() is src:
            seconds = time.perf_counter() - _compiling.since
            del _compiling.source
            for watcher in _watchers:
                watcher.after(src, seconds)

    compiled.__init__ = end


def sources_of(jit: Any) -> Iterator[Any]:
    """The sources of a kernel's binaries in this process, on all devices."""
    for binary in kernels.binaries_of(jit):
        source = getattr(binary, "src", None)
        if source is not None:
            yield source
