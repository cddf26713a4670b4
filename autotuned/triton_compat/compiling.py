"""Triton's compilations as they begin and end: seen where Triton has found nothing in its cache, and may be refused."""

from __future__ import annotations

import functools
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple


class _Watchers(NamedTuple):
    before: Callable[[Any], None]
    after: Callable[[Any, float], None]


class _Compiling(threading.local):
    """What this thread compiles: Triton makes the first form and the finished kernel of a source on one thread."""

    source: Callable[[], Any] = staticmethod(lambda: None)
    since = 0.0


_watchers: list[_Watchers] = []  # one at most
_compiling = _Compiling()
_begun = threading.Lock()


def begin(before: Callable[[Any], None], after: Callable[[Any, float], None]) -> None:
    """Watch each compilation of this process, whoever asks for it; called again, it does nothing.

    Args:
        before: Given Triton's source before anything of it is compiled; what it raises ends the compilation.
        after: Given the source of what was compiled, and seconds.
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
    """Have a class of sources say when its first form is made, which is where a compilation begins."""
    original = vars(kind)["make_ir"]

    @functools.wraps(original)
    def make_ir(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _compiling.source() is not self:  # else a subclass's own has said it
            for watcher in _watchers:
                watcher.before(self)
            _compiling.source, _compiling.since = weakref.ref(self), time.perf_counter()
        return original(self, *args, **kwargs)

    make_ir.is_watched = True  # type: ignore[attr-defined]
    kind.make_ir = make_ir


def _watch_new_kinds(base: Any) -> None:
    """The same for subclasses that come to be later and have a `make_ir` of their own, as Gluon's."""
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
    """The sources of what Triton has of a kernel in this process, on any device."""
    for kernels, *_ in list((getattr(jit, "device_caches", None) or {}).values()):
        for kernel in list(kernels.values()):
            source = getattr(kernel, "src", None)
            if source is not None:
                yield source
