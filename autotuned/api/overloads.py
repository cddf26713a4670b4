"""The types that `autotune(...)` returns; imported by type checkers only."""

from __future__ import annotations

from typing import Literal, Protocol, overload

from autotuned.api.function import TunedFunction
from autotuned.api.static import F0, F1, F2, F3, F4, F5, F6, K
from autotuned.api.tuned import Tuned


class Decorator(Protocol):
    """Turns a Triton kernel into a `Tuned`, another callable into a `TunedFunction`."""

    # mypy never matches the later ones, since any callable might take more arguments; the first match is right.
    @overload
    def __call__(self, fn: K, /) -> Tuned: ...
    @overload
    def __call__(self, fn: F6, /) -> TunedFunction[F6, Literal[6]]: ...
    @overload
    def __call__(self, fn: F5, /) -> TunedFunction[F5, Literal[5]]: ...  # type: ignore[overload-cannot-match]
    @overload
    def __call__(self, fn: F4, /) -> TunedFunction[F4, Literal[4]]: ...  # type: ignore[overload-cannot-match]
    @overload
    def __call__(self, fn: F3, /) -> TunedFunction[F3, Literal[3]]: ...  # type: ignore[overload-cannot-match]
    @overload
    def __call__(self, fn: F2, /) -> TunedFunction[F2, Literal[2]]: ...  # type: ignore[overload-cannot-match]
    @overload
    def __call__(self, fn: F1, /) -> TunedFunction[F1, Literal[1]]: ...  # type: ignore[overload-cannot-match]
    @overload
    def __call__(self, fn: F0, /) -> TunedFunction[F0, Literal[0]]: ...  # type: ignore[overload-cannot-match]
