"""Plain callables with a tuned step, which they record in `LAST`, and times for each step."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from fakes import FakeConfig as Config
from paths import quick

from autotuned import autotune

CONFIGS = [Config({"step": step}) for step in (8, 16)]
STEPS = [Config({"step": 1}), Config({"step": 2})]


class Last:
    """The step that a function ran with; an attribute, since the value of a global would be in the key."""

    step = 0


LAST = Last()


def by_step(times: dict[int, float]) -> Any:
    """A benchmark that returns each `step`'s time in ms; `bench.calls` lists the steps in order."""

    def bench(call: Callable[[], Any], quantiles: Sequence[float]) -> list[float]:
        call()
        bench.calls.append(LAST.step)
        return [times[LAST.step]] * 3

    bench.calls = []
    return bench


def scale(x: np.ndarray, n: int, *, step: int, factor: float = 0.5) -> None:
    """Multiply the first `n` elements in place."""
    LAST.step = step
    for start in range(0, n, step):
        x[start : min(start + step, n)] *= factor


def halve(x: np.ndarray, n: int, *, step: int = 1, mode: str = "fast") -> None:
    """Halve all elements in place, whatever the step."""
    x *= 0.5


def total(x: np.ndarray, step: int = 8) -> float:
    """The sum of all elements."""
    LAST.step = step
    return sum(float(x[start : start + step].sum()) for start in range(0, len(x), step))


def make(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """`make(function, **options)(configs, **more)` decorates; the default is a quick benchmark."""
    return lambda configs, **more: autotune(configs, **({"do_bench": quick} | options | more))(function)
