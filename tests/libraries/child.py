"""One operation in this process, measured: `python child.py OPERATION`, under `autotuned run` or not; one line of JSON.

`run.py` starts it, and says by the environment when that was (LIBRARIES_STARTED), which file has the operations
(LIBRARIES_OPERATIONS), for how long launches are timed (LIBRARIES_SECONDS), and whether threads compile ahead
(LIBRARIES_THREADS) or whatever compiles raises (LIBRARIES_BROKEN).
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))  # `python -P` leaves it out
import meter  # noqa: E402
from plan import Operation, load  # noqa: E402


def measured(operation: Operation) -> dict[str, Any]:
    """All numbers of one operation; seconds where the name ends in `_s`."""
    started, marks = float(os.environ["LIBRARIES_STARTED"]), {}
    compiles = import_all(operation)
    marks["imports_s"] = time.time() - started
    call = operation.make()
    wait = waiting()
    wait()
    marks["inputs_s"] = time.time() - started - marks["imports_s"]
    first, times = first_call(call, wait)
    told = {"compiles": compiles.count, "compile_s": compiles.seconds, "cache_hits": compiles.hits}
    tokens = {"tokens": operation.tokens} if operation.tokens else {}
    return {**marks, **times, **told, **tokens, **later_calls(call, wait, first)}


def import_all(operation: Operation) -> meter.Compiles:
    """Import torch, Triton and the library; listens to compiles from before the library on."""
    importlib.import_module("torch")
    compiles = meter.Compiles()
    compiles.listen()
    if os.environ.get("LIBRARIES_BROKEN"):
        meter.break_compilers()
    if operation.stand_in is not None:
        operation.stand_in()
    for name in operation.modules:
        importlib.import_module(name)
    return compiles


def waiting() -> Any:
    """What waits for the GPU."""
    import torch

    return torch.cuda.synchronize if torch.cuda.is_available() else lambda: None


def first_call(call: Any, wait: Any) -> tuple[str, dict[str, Any]]:
    """The bits of the first call, how long it took, and what it spent that on."""
    ahead = meter.threads_ahead() if os.environ.get("LIBRARIES_THREADS") else contextlib.nullcontext()
    with ahead, meter.Sampler() as sampler:
        start = time.perf_counter()
        results = call()
        wait()
        first_s = time.perf_counter() - start
    return meter.digest(results, wait), {"first_s": first_s, "spent_s": sampler.seconds}


def later_calls(call: Any, wait: Any, first: str) -> dict[str, Any]:
    """What holds once all is bound: bits, host time, launches, choices."""
    bits = meter.digest(call(), wait)
    found: dict[str, Any] = {"bits": bits, "first_same": first == bits, "repeats": meter.digest(call(), wait) == bits}
    seconds = float(os.environ.get("LIBRARIES_SECONDS", "0.5"))
    found["host_us"] = meter.host_us(call, wait, seconds)
    found["whole_us"] = meter.whole_us(call, wait, seconds)
    found["launches"] = meter.launches(call)
    return {**found, "choices": meter.choices(), "searches": meter.searches(), "memory_mb": meter.memory_mb()}


def main() -> None:
    """Measure the operation that is named, and print what came of it."""
    operations = {one.name: one for one in load(Path(os.environ["LIBRARIES_OPERATIONS"]))}
    found = measured(operations[sys.argv[1]])
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
