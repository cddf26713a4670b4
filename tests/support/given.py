"""Inputs of commands: a module to tune with given times, and stored records."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fakes import FakeConfig, form, make_key

from autotuned.store import layout, records
from autotuned.store.record import Timing, TuningRecord

Write = Callable[[str, str], Path]
BEST = "ms=1"

# A plain callable with given times: tuned in a moment, and the second config is four times as fast as the first.
WORK = """
import time
from pathlib import Path

from autotuned import Config, autotune

CONFIGS = [Config({"ms": ms}) for ms in (4, 1, 6)]
ran = []

def bench(call, quantiles):
    call()
    return [float(ran[-1])] * 3

@autotune(configs=CONFIGS, key=["n"], do_bench=bench)
def work(n, ms):
    ran.append(ms)

@work.case
def cases(device):
    print("printed by the user's code")
    for n in map(int, Path(__file__).with_suffix(".txt").read_text().split()):
        yield {"args": (n,)}
"""


def work(write: Write, sizes: str = "1 2", name: str = "mod_work", text: str = WORK) -> str:
    """Write `WORK`, or another text, as a module with a case for each size; returns its name."""
    write(f"{name}.txt", sizes)
    write(f"{name}.py", text)
    for loaded in (name, "autotuned_target_" + name):
        sys.modules.pop(loaded, None)
    return name


def keep(count: int, kernel: str = "app.k") -> list[Any]:
    """Store `count` records of a kernel; returns their paths."""
    config = form(FakeConfig({"BLOCK": 64}))
    kept = []
    for n in range(count):
        key = make_key(n, kernel=kernel)
        assert records.keep(TuningRecord(key, config, 10.0, "ok", (Timing(config, 10.0, 10.0, 10.0, 40),)))
        kept.append(layout.record_path(key))
    return kept
