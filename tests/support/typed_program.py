"""A program as users write it, checked by mypy and pyright and never run.

Lines that end in `# wrong` must be refused, all others accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import triton
import triton.language as tl
from typing_extensions import assert_type

import autotuned
from autotuned import Config, Space, Tuned, TunedFunction, autotune
from autotuned.api.heuristics import Heuristics
from autotuned.resolve.counters import CacheInfo
from autotuned.resolve.explain import Explanation

# -- Triton kernels ----------------------------------------------------------------------------------------------------


@autotune(configs=[Config({"BLOCK": 64}), Config({"BLOCK": 128})], key=["n"], default=Config({"BLOCK": 64}))
@triton.jit
def scale(x_ptr, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    pass


assert_type(scale, Tuned)
assert_type(scale[(1,)], Callable[..., Any])
assert_type(scale[lambda meta: (triton.cdiv(1000, meta["BLOCK"]),)], Callable[..., Any])
assert_type(scale.explain(1, 2, grid=(1,)), Explanation)
assert_type(scale.cache_info(), CacheInfo)
assert_type(scale.cache_info().hits, int)
assert_type(scale.restore_value, list[str])
scale[(1,)](1, 2)
scale.run(1, 2, grid=(1,))
scale[1](1, 2)  # wrong
scale(1, 2)  # wrong
scale.explian(1, 2)  # wrong


@scale.case
def cases(device: str) -> Iterator[dict[str, Any]]:
    yield {"args": (1, 2), "grid": (1,)}


@autotuned.heuristics({"BLOCK": lambda arguments: 64})
@triton.jit
def padded(x_ptr, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    pass


assert_type(padded, Heuristics)
assert_type(padded[(1,)], Callable[..., Any])
assert_type(autotune([])(padded), Tuned)

# -- plain callables ---------------------------------------------------------------------------------------------------


@autotune([Config({"step": 1})])
def run(n: int, *, step: int) -> str:
    return "x" * n * step


assert_type(run(1), str)
assert_type(run(n=1), str)
assert_type(run.explain(1), Explanation)
run("no")  # wrong
run.explian(1)  # wrong


@autotune([Config({"step": 1})], check="first", objective="call", strategy=None)
def add(x: np.ndarray[Any, Any], y: float = 1.0, *, step: int = 1) -> float:  # which has an Any in it
    return 1.0


assert_type(add(np.zeros(4)), float)
assert_type(add(np.zeros(4), 2.0), float)
add("no")  # wrong
add(np.zeros(4), "no")  # wrong


@autotune(Space({"step": [1, 2]}), strategy="guided")
def many(a: int, b: int, c: int, d: int, e: int, f: str, g: str, step: int) -> int:  # `step` may have a place
    return step


assert_type(many(1, 2, 3, 4, 5, "f", "g"), int)
many(1, 2, 3, 4, 5, 6)  # wrong


@autotune([Config({"step": 1})])
def named(*, n: int, step: int) -> int:
    return n


assert_type(named(n=1), int)


class Model:
    @autotune([Config({"step": 1})])
    def forward(self, n: int, *, step: int) -> int:
        return n


assert_type(Model().forward(1), int)


def use(kernel: Tuned, function: TunedFunction[Callable[..., int]]) -> None:
    kernel[(1,)](1)
    assert_type(function(1), int)


use(scale, named)

# -- words that options have -------------------------------------------------------------------------------------------

with autotuned.mode("strict"), autotuned.seal(on="warn"):
    pass
autotuned.mode("strct")  # wrong
autotuned.seal("eror")  # wrong
autotune([], objective="krnel")  # wrong
autotune([], strategy="guidd")  # wrong
autotune([], check="frst")  # wrong
autotuned.strategy("guidd", Space({"step": [1]}))  # wrong
autotuned.mdoe("strict")  # wrong
autotune([], strategy=autotuned.strategy("random", Space({"step": [1]})))
for row in autotuned.tune("a_module").cases:
    if row.quality == "noisy":
        print(row.kernel)
