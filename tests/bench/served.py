"""The calls of the service of `serving.py`: kernels with a `default=`, or plain functions if SERVED=pretended."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

from autotuned import Config, autotune

PRETENDED = os.environ.get("SERVED") == "pretended"
TAGS = 64  # configs of `scaled` that differ only in name: each swap loads a binary, but all are equally fast


class Call:
    """A call of a tuned kernel with its arguments.

    Attributes:
        grid: None for a plain function.
    """

    def __init__(self, tuned: Any, shape: tuple[int, ...], args: tuple[Any, ...], grid: Any = None) -> None:
        self.tuned, self.shape, self.args, self.grid = tuned, shape, args, grid

    @property
    def words(self) -> str:
        return f"{self.tuned.tuner.tunable.name} {'x'.join(map(str, self.shape))}"

    def launcher(self) -> Callable[[], Any]:
        """A function that makes the call with no more overhead than a loop."""
        launch, args = self.tuned if self.grid is None else self.tuned[self.grid], self.args
        return lambda: launch(*args)


if PRETENDED:

    def bench(call: Any, quantiles: Any) -> list[float]:
        call()
        return [ran[-1]] * 3

    ran: list[float] = []
    STEPS = [Config({"steps": steps}) for steps in (400, 100, 200)]

    def worked(n: int, steps: int) -> None:
        """Takes as many steps as it is told."""
        ran[:] = [float(steps)]
        for _ in range(steps):
            pass

    def same(n: int, TAG: int) -> None:
        """Takes no notice of its config."""

    scaled = autotune(
        [Config({"TAG": tag}) for tag in range(TAGS)], key=["n"], default=Config({"TAG": 0}), name="served.scaled"
    )(same)
    matmul = autotune(STEPS, key=["n"], default=STEPS[0], do_bench=bench, name="served.matmul")(worked)
    worked, same = matmul, scaled  # a recording names them so

    def calls(count: int, first: int = 1) -> Iterator[Call]:
        """`count` calls to tune."""
        return (Call(matmul, (n,), (n,)) for n in range(first, first + count))

    def steady(count: int) -> list[Call]:
        """`count` calls that are served while their choices are swapped."""
        return [Call(scaled, (n,), (n,)) for n in range(count)]

    def wait() -> None:
        """Do nothing: calls are synchronous."""

else:
    import problems
    import torch
    import triton
    import triton.language as tl
    from served_kernels import add, matmul, rmsnorm, softmax  # written by `serving.py`

    def scale(x_ptr, y_ptr, n, BLOCK: tl.constexpr, TAG: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n) * 2 + 0 * TAG, mask=i < n)

    tagged = [Config({"BLOCK": 1024, "TAG": tag}) for tag in range(TAGS)]
    scale = autotune(tagged, key=["n"], default=tagged[0], name="served.scaled")(triton.jit(scale))
    DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
    SHAPES = [
        *((matmul, "matmul", (m, n, k)) for n, k in ((4096, 1024), (6144, 4096), (4096, 8192))
          for m in (512, 768, 1024, 1536, 2048, 3072, 4096, 8192)),
        *((softmax, "softmax", (4096, 512 * cols)) for cols in range(2, 34, 2)),
        *((rmsnorm, "rmsnorm", (4096, 2**power)) for power in range(8, 16)),
        *((add, "add", (n << 20,)) for n in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)),
    ]  # fmt: skip

    def _call(tuned: Any, name: str, shape: tuple[int, ...]) -> Call:
        problem = problems.PROBLEMS[name]
        return Call(tuned, shape, problem.arguments(shape, DEVICE), problem.grid(shape))

    def calls(count: int, first: int = 0) -> Iterator[Call]:
        """`count` calls to tune: from 60, or, with `first`, products with 16 x `first` rows and more."""
        if not first:
            return (_call(*one) for one in SHAPES[:: max(1, len(SHAPES) // count)][:count])
        return (_call(matmul, "matmul", (16 * (first + i), 4096, 2048)) for i in range(count))

    def steady(count: int) -> list[Call]:
        """`count` calls that are served while their choices are swapped; each takes about 10 us."""
        grid = lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]),)
        sizes = [(1 << 20) + 65536 * i for i in range(count)]
        memory = [torch.zeros(2, n, device=DEVICE) for n in sizes]
        return [Call(scale, (n,), (x, y, n), grid) for n, (x, y) in zip(sizes, memory)]

    def wait() -> None:
        """Wait until the device is done."""
        if DEVICE == "cuda":
            torch.cuda.synchronize()
