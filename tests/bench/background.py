"""What calls lose while `refresh(every_s=)` swaps choices: the part of `serving.py` that needs one GPU, no companion.

Windows of a few seconds alternate at random: idle, idle again (control), and with a refresher that takes newer choices,
which were put into the store just before. Each window is saved when it ends.
"""

from __future__ import annotations

import contextlib
import gc
import json
import random
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

KINDS = ("control", "control again", "background")
SERVED, BLOCK, STEP_NS, SETTLE_S = 8, 500, 10, 0.05  # keys; calls per clock reading; bin width; pause before a window
Bins = dict[int, int]  # number of calls by time, in steps of `STEP_NS`


def measure(folder: Path, options: Any, lines: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Measure windows until there are enough; None if the budget ends first, and the next run continues.

    Args:
        lines: The windows of earlier runs.
    """
    import served

    import autotuned

    swaps: list[float] = []  # seconds of each
    handle = autotuned.on_event(lambda event: swaps.append(event.seconds) if event.kind == "swap" else None)
    serving, end = served.steady(SERVED), time.monotonic() + options.budget
    launchers = [call.launcher() for call in serving]
    for launch in launchers * 200:  # bound, and warm
        launch()
    served.wait()
    with contextlib.closing(handle):
        for number in range(len(lines), len(KINDS) * options.rounds):
            if time.monotonic() + options.seconds + 1.0 > end:
                return None
            kind = random.Random(number // len(KINDS)).sample(KINDS, len(KINDS))[number % len(KINDS)]
            before = len(swaps)
            with refreshing(serving, number, options.every) if kind == "background" else contextlib.nullcontext():
                gc.collect()
                time.sleep(SETTLE_S)
                bins, calls, longest = window(launchers, served.wait, options.seconds)
            lines.append(
                {"kind": kind, "calls": calls, "max_us": longest / 1e3, "bins": bins, "swap_s": swaps[before:]}
            )
            with (folder / "windows.jsonl").open("a") as file:
                file.write(f"\n{json.dumps(lines[-1])}\n")
    return summary(lines) | {"profile": profile(serving, options)}


@contextlib.contextmanager
def refreshing(serving: Sequence[Any], number: int, every_s: float) -> Iterator[None]:
    """Put newer choices into the store and run a refresher that takes them; its thread ends with the block."""
    import autotuned

    put(serving, number)
    with autotuned.refresh(every_s=every_s):
        yield
    while any(thread.name == "autotuned-refresh" for thread in threading.enumerate()):
        time.sleep(0.01)


def put(serving: Sequence[Any], number: int) -> None:
    """Store another choice for each call, as a companion would."""
    from newer import store_choice

    for call in serving:
        configs = call.tuned.configs
        store_choice(call.tuned, configs[(1 + number) % len(configs)], *call.args, grid=call.grid)


def window(launchers: Sequence[Callable[[], Any]], wait: Callable[[], None], seconds: float) -> tuple[Bins, int, int]:
    """Times of all calls, including the wait, for this long; their number; the longest in nanoseconds."""
    clock, bins, longest, calls = time.perf_counter_ns, Counter[int](), 0, 0
    end = clock() + round(seconds * 1e9)
    while clock() < end:
        times = []
        for number in range(BLOCK):
            launch = launchers[number % len(launchers)]
            start = clock()
            launch()
            wait()
            times.append(clock() - start)
        bins.update(time_ns // STEP_NS for time_ns in times)
        longest, calls = max(longest, *times), calls + BLOCK
    return bins, calls, longest


def quantile(windows: Sequence[dict[str, Any]], share: float) -> float:
    """The quantile of the times of all windows' calls, in microseconds."""
    bins: Counter[int] = Counter()
    for one in windows:
        bins.update({int(step): count for step, count in one["bins"].items()})
    left = share * bins.total()
    for step in sorted(bins):
        left -= bins[step]
        if left < 0:
            break
    return (step + 0.5) * STEP_NS / 1e3


def summary(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """By kind of window: number of calls, and quantiles in microseconds; number of swaps, and their seconds."""
    kinds = {}
    for kind in KINDS:
        some = [one for one in lines if one["kind"] == kind]
        kinds[kind] = {
            "calls": sum(one["calls"] for one in some), "max_us": max(one["max_us"] for one in some),
            "p50_us": quantile(some, 0.5), "p99_us": quantile(some, 0.99), "p999_us": quantile(some, 0.999),
            "each_p99_us": [quantile([one], 0.99) for one in some],
        }  # fmt: skip
    swap_s = [seconds for one in lines for seconds in one["swap_s"]]
    return {"windows": kinds, "swaps": len(swap_s), "median_swap_s": statistics.median(swap_s or [0.0])}


def profile(serving: Sequence[Any], options: Any) -> list[str]:
    """The profile of one refresh of all calls, by time within each function."""
    import cProfile
    import io
    import pstats

    import autotuned

    put(serving, len(KINDS) * options.rounds)
    profiler, text = cProfile.Profile(), io.StringIO()
    profiler.runcall(autotuned.refresh)
    pstats.Stats(profiler, stream=text).sort_stats("tottime").print_stats(30)
    return [line.rstrip() for line in text.getvalue().splitlines() if line.strip()]
