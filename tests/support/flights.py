"""For concurrent searches: a tuned function that records its measurements, and its stored record."""

import threading
import time
from typing import Any

from fakes import FakeConfig

from autotuned import autotune
from autotuned.store import listing


def make(bench_s: float = 0.005, **options: Any) -> tuple[Any, list[int]]:
    """A tuned function, and the list of measured steps."""
    measured: list[int] = []
    last = threading.local()

    def bench(call: Any, quantiles: Any) -> list[float]:
        call()
        measured.append(last.step)
        time.sleep(bench_s)
        return [1.0 + (last.step - 2) ** 2] * 3

    def body(x: Any, *, step: int) -> int:
        last.step = step
        return step

    configs = [FakeConfig({"step": step}) for step in range(4)]
    return autotune(configs, do_bench=bench, name="app.body", version="1", **options)(body), measured


def only_record() -> Any:
    """The one record in the store."""
    [(path, found)] = listing.all_records()
    return path, found
