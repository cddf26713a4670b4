"""How well configs are picked: many searches against an independent ground truth, and the recording of raw samples.

Run by hand on a machine with a GPU: python tests/bench/quality.py [--problems P,...] [--repeats N] [--orders N] [--load SHARE]
[--record DIR]
The truth of a config is the median over three sittings of the means of 200 interleaved samples, their outer twentieths
left out, taken by events around each launch with the cache flushed, by code of its own. Means, because the samples of
some kernels have two modes, percents apart and about as frequent: in which of them a median lies is chance. Regret is the truth of what was picked over the best truth, less
one. `--orders` shuffles the list, whose first config stays what runs untuned: how many distinct winners, and by how
much their truths differ, is in `winners` and `winners_apart`, a tie below 0.3%. `--record` keeps the samples of this package's timer, in the order in which they were taken, for the replay in CI.
"""

from __future__ import annotations

import argparse
import gzip
import json
import platform
import random
import statistics
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import triton
from problems import PROBLEMS, Problem

import autotuned
from autotuned import autotune
from autotuned.search.timers import CudaTimer
from autotuned.search.trial import Trial

SITTINGS, SAMPLES, BLOCK = 3, 200, 4


class Launches:
    """The compiled configs of a problem's first shape, to be launched one by one."""

    def __init__(self, problem: Problem) -> None:
        shape = problem.shapes[0]
        self.problem, self.arguments, self.grid = problem, problem.arguments(shape, "cuda"), problem.grid(shape)
        self.kernel = triton.jit(problem.function)
        names = self.kernel.arg_names
        self.zeroed = [value for name, value in zip(names, self.arguments) if name in problem.zero]
        with ThreadPoolExecutor() as threads, triton.AsyncCompileMode(threads, ignore_errors=True):
            for config in problem.configs:
                self.kernel.warmup(*self.arguments, grid=(1,), **config.all_kwargs())
        self.configs = [config for config in problem.configs if self._runs(config)]

    def _runs(self, config: Any) -> bool:
        try:
            self.launch(config)
            torch.cuda.synchronize()
        except triton.runtime.errors.OutOfResources:
            return False
        return True

    def launch(self, config: Any) -> None:
        """Once, through Triton."""
        self.kernel[self.grid](*self.arguments, **config.all_kwargs())

    def prepare(self) -> None:
        """What `reset_to_zero` asks."""
        for tensor in self.zeroed:
            tensor.zero_()


def truth(launches: Launches) -> tuple[list[float], list[list[float]]]:
    """Median of the trimmed means of all sittings, and these, in microseconds, by config."""
    flush = torch.empty(2 * torch.cuda.get_device_properties().L2_cache_size, dtype=torch.int8, device="cuda")
    sittings = []
    for sitting in range(SITTINGS):
        times: list[list[float]] = [[] for _ in launches.configs]
        order = list(range(len(launches.configs)))
        shuffle = random.Random(sitting)
        for _ in range(SAMPLES // BLOCK):
            shuffle.shuffle(order)
            for index in order:
                times[index] += _block(launches, launches.configs[index], flush)
        sittings.append([_trimmed_mean(one) for one in times])
    return [statistics.median(column) for column in zip(*sittings)], sittings


def _trimmed_mean(samples: list[float]) -> float:
    # As in tests/support/replay.py, but of its own: a script of this folder runs without the modules of the tests.
    outer = len(samples) // 20
    return statistics.mean(sorted(samples)[outer : len(samples) - outer])


def _block(launches: Launches, config: Any, flush: torch.Tensor) -> list[float]:
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(BLOCK)]
    torch.cuda._sleep(2_000_000)
    for before, after in events:
        launches.prepare()
        flush.zero_()
        before.record()
        launches.launch(config)
        after.record()
    torch.cuda.synchronize()
    return [before.elapsed_time(after) * 1e3 for before, after in events]


def searches(problem: Problem, launches: Launches, repeats: int) -> list[tuple[int, float, str]]:
    """Index of what was picked, seconds and quality of each of many searches; binaries are compiled once."""
    tuned = problem.tuned(autotune, cache_results=False)
    found = []
    for _ in range(repeats + 1):
        tuned.cache_clear()
        torch.cuda.synchronize()
        start = time.perf_counter()
        tuned[launches.grid](*launches.arguments)
        torch.cuda.synchronize()
        found.append((_index(launches, tuned.best_config), time.perf_counter() - start, ""))
    return found[1:]  # the first compiles


def orders(problem: Problem, launches: Launches, count: int) -> list[tuple[int, float, str]]:
    """The same, one search of each of so many shuffles of the list; what runs untuned is the same in all."""
    found = []
    for seed in range(count):
        listed = random.Random(seed).sample(launches.configs, len(launches.configs))
        tuned = autotune(listed, list(problem.key), reset_to_zero=list(problem.zero) or None, cache_results=False,
                         default=launches.configs[0])(launches.kernel)  # fmt: skip
        start = time.perf_counter()
        with autotuned.mode("search"):
            tuned[launches.grid](*launches.arguments)
        torch.cuda.synchronize()
        found.append((_index(launches, tuned.best_config), time.perf_counter() - start, ""))
    return found


def stock(problem: Problem, launches: Launches, repeats: int) -> list[tuple[int, float, str]]:
    """The same with triton.autotune."""
    found = []
    tuned = problem.tuned(triton.autotune)
    for _ in range(repeats):
        tuned.cache.clear()
        start = time.perf_counter()
        tuned[launches.grid](*launches.arguments)
        torch.cuda.synchronize()
        found.append((_index(launches, tuned.best_config), time.perf_counter() - start, ""))
    return found


def _index(launches: Launches, config: Any) -> int:
    return [str(one) for one in launches.configs].index(str(config))


def record(launches: Launches) -> dict[str, Any]:
    """Samples of this package's timer: blocks of one config, configs shuffled, with the time each block began."""
    timer = CudaTimer()
    timer.warm_up()
    trials = [
        Trial(index, launches.prepare, lambda config=config: launches.launch(config))
        for index, config in enumerate(launches.configs)
    ]
    blocks = []
    start = time.perf_counter()
    for sitting in range(SITTINGS):
        shuffle = random.Random(100 + sitting)
        for _ in range(SAMPLES // BLOCK // 4):
            for trial in shuffle.sample(trials, len(trials)):
                began = time.perf_counter() - start
                samples = timer.sample(trial, 2 * BLOCK)
                trial.samples_us += samples
                blocks.append([trial.index, round(began, 4), [round(sample, 3) for sample in samples]])
    return {"configs": [str(config) for config in launches.configs], "blocks": blocks}


class Load:
    """Another user of the GPU: bursts of matrix products for a share of the time."""

    def __init__(self, share: float) -> None:
        self._share, self._stop = share, threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        square = torch.randn(2048, 2048, device="cuda", dtype=torch.float16)
        stream = torch.cuda.Stream()
        while not self._stop.is_set():
            start = time.perf_counter()
            with torch.cuda.stream(stream):
                for _ in range(10):
                    square @ square
            stream.synchronize()
            time.sleep((time.perf_counter() - start) * (1 / self._share - 1))

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *details: object) -> None:
        self._stop.set()
        self._thread.join()


def summary(name: str, tool: str, picks: list[tuple[int, float, str]], true_us: list[float]) -> dict[str, Any]:
    """Regret and stability of many searches."""
    regrets = sorted(true_us[index] / min(true_us) - 1 for index, _, _ in picks)
    winners = [true_us[index] for index in {index for index, _, _ in picks}]
    return {
        "problem": name, "tool": tool, "searches": len(picks), "median_regret": statistics.median(regrets),
        "p95_regret": regrets[min(len(regrets) - 1, int(0.95 * len(regrets)))], "worst_regret": regrets[-1],
        "winners": len(winners), "winners_apart": max(winners) / min(winners) - 1, "seconds": statistics.median(one[1] for one in picks),
    }  # fmt: skip


def save(path: Path | None, head: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Write what there is so far."""
    if path:
        path.write_text(json.dumps({**head, "rows": rows}, indent=1) + "\n")


def main() -> None:
    """Print the table, and JSON and recordings where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", default="matmul,attention,rmsnorm,add,splitk")
    parser.add_argument("--repeats", type=int, default=20, help="searches of each problem; 0 only records")
    parser.add_argument("--stock", type=int, default=3, help="searches with triton.autotune")
    parser.add_argument("--orders", type=int, default=0, help="searches with the list in so many orders")
    parser.add_argument("--load", type=float, default=0.0, help="share of time that another thread uses the GPU")
    parser.add_argument("--record", type=Path, help="write raw samples into this folder")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    head = {"card": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__,
            "python": platform.python_version(), "autotuned": autotuned.__version__}  # fmt: skip
    print(head)
    rows = []
    for name in arguments.problems.split(","):
        launches = Launches(PROBLEMS[name])
        if arguments.record:
            data = record(launches)
            path = arguments.record / f"samples-{name}.json.gz"
            path.write_bytes(gzip.compress(json.dumps({**head, "problem": name, **data}).encode(), 9, mtime=0))
        if not arguments.repeats:
            save(arguments.json, head, rows)
            continue
        true_us, sittings = truth(launches)
        picks = {"ours": searches(PROBLEMS[name], launches, arguments.repeats)}
        if arguments.stock:
            picks["stock"] = stock(PROBLEMS[name], launches, arguments.stock)
        if arguments.orders:
            picks[f"ours, {arguments.orders} orders"] = orders(PROBLEMS[name], launches, arguments.orders)
        if arguments.load:
            with Load(arguments.load):
                picks[f"ours, {arguments.load:.0%} load"] = searches(PROBLEMS[name], launches, arguments.repeats)
        for tool, found in picks.items():
            rows.append({**summary(name, tool, found, true_us), "picks": [index for index, _, _ in found]})
            print({key: round(value, 5) if isinstance(value, float) else value for key, value in rows[-1].items()})
        rows[-1]["sittings"] = sittings
        sys.stdout.flush()
        save(arguments.json, head, rows)


if __name__ == "__main__":
    main()
