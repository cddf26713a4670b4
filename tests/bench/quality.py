"""How well searches pick configs: many searches against an independent ground truth, and recording of raw samples.

Run by hand on a machine with a GPU: python tests/bench/quality.py [--problems P,...] [--repeats N] [--orders N] [--load SHARE]
[--record DIR] [--json FILE] [--limit SECONDS]
All five problems in at most 200 s per run; the same command continues where it ended:
    python tests/bench/quality.py --orders 10 --load 0.3 --stock 0 --json quality.json --limit 200
The truth of a config is the median over three sittings of the trimmed mean of 200 interleaved samples (without the
outer twentieths), measured by events around each launch with a flushed cache, by independent code. Means, because
samples of some kernels have two modes, several percent apart and about equally frequent: a median would lie in either
by chance. Configs that were more than half slower than the fastest in an earlier sitting of 8 samples get no more.
Regret is the truth of the picked config over the best truth, minus one. `--orders` shuffles the list, but the first
config remains the untuned one: `winners` and `winners_apart` are the number of distinct winners and how far their
truths differ, a tie below 0.3%. `--record` keeps the samples of this package's timer, in order, for the replay in CI.
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
from collections.abc import Callable, Iterator, Sequence
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

SITTINGS, SAMPLES, BLOCK, FAR = 3, 200, 4, 1.5
TIE = 0.003  # of winners' truths
Pick = tuple[int, float]  # index of the picked config, and seconds of the search
Done = dict[str, dict[str, Any]]  # by problem: its "sittings", and the picks of each tool


class Launches:
    """The compiled configs of a problem's first shape, launched one by one."""

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
        """Launch once, through Triton."""
        self.kernel[self.grid](*self.arguments, **config.all_kwargs())

    def prepare(self) -> None:
        """Zero the arguments of `reset_to_zero`."""
        for tensor in self.zeroed:
            tensor.zero_()


def truth(launches: Launches) -> list[list[float]]:
    """Trimmed means of all sittings, in microseconds, by config."""
    flush = torch.empty(2 * torch.cuda.get_device_properties().L2_cache_size, dtype=torch.int8, device="cuda")
    rough = _sitting(launches, range(len(launches.configs)), flush, 2, random.Random(0))
    near = [index for index, time_us in enumerate(rough) if time_us < FAR * min(rough)]
    sittings = []
    for sitting in range(SITTINGS):
        times = dict(zip(near, _sitting(launches, near, flush, SAMPLES // BLOCK, random.Random(sitting))))
        sittings.append([times.get(index, time_us) for index, time_us in enumerate(rough)])
    return sittings


def _sitting(
    launches: Launches, indices: Sequence[int], flush: torch.Tensor, blocks: int, shuffle: random.Random
) -> list[float]:
    times: dict[int, list[float]] = {index: [] for index in indices}
    order = list(indices)
    for _ in range(blocks):
        shuffle.shuffle(order)
        for index in order:
            times[index] += _block(launches, launches.configs[index], flush)
    return [_trimmed_mean(one) for one in times.values()]


def _trimmed_mean(samples: list[float]) -> float:
    # A copy of code in tests/support/replay.py: scripts in this folder run without the tests' modules.
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


def searches(problem: Problem, launches: Launches, repeats: int) -> list[Pick]:
    """Index of the picked config and seconds of each of many searches; binaries are compiled once."""
    tuned = problem.tuned(autotune, cache_results=False)
    found = []
    for _ in range(repeats + 1):
        tuned.cache_clear()
        torch.cuda.synchronize()
        start = time.perf_counter()
        tuned[launches.grid](*launches.arguments)
        torch.cuda.synchronize()
        found.append((_index(launches, tuned.best_config), time.perf_counter() - start))
    return found[1:]  # the first one compiles


def orders(problem: Problem, launches: Launches, count: int) -> list[Pick]:
    """The same for `count` shuffles of the list, with the same untuned config in all."""
    found = []
    for seed in range(count):
        listed = random.Random(seed).sample(launches.configs, len(launches.configs))
        tuned = autotune(listed, list(problem.key), reset_to_zero=list(problem.zero) or None, cache_results=False,
                         default=launches.configs[0])(launches.kernel)  # fmt: skip
        start = time.perf_counter()
        with autotuned.mode("search"):
            tuned[launches.grid](*launches.arguments)
        torch.cuda.synchronize()
        found.append((_index(launches, tuned.best_config), time.perf_counter() - start))
    return found


def stock(problem: Problem, launches: Launches, repeats: int) -> list[Pick]:
    """The same with triton.autotune."""
    found = []
    tuned = problem.tuned(triton.autotune)
    for _ in range(repeats):
        tuned.cache.clear()
        start = time.perf_counter()
        tuned[launches.grid](*launches.arguments)
        torch.cuda.synchronize()
        found.append((_index(launches, tuned.best_config), time.perf_counter() - start))
    return found


def _index(launches: Launches, config: Any) -> int:
    return [str(one) for one in launches.configs].index(str(config))


def record(launches: Launches) -> dict[str, Any]:
    """Samples of this package's timer: blocks of one config, shuffled, with the start time of each block."""
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


def summary(name: str, tool: str, picks: list[Pick], true_us: list[float]) -> dict[str, Any]:
    """Regret and stability of many searches."""
    regrets = sorted(true_us[index] / min(true_us) - 1 for index, _ in picks)
    winners = [true_us[index] for index in {index for index, _ in picks}]
    return {
        "problem": name, "tool": tool, "searches": len(picks), "median_regret": statistics.median(regrets),
        "p95_regret": regrets[min(len(regrets) - 1, int(0.95 * len(regrets)))], "worst_regret": regrets[-1],
        "winners": len(winners), "winners_apart": max(winners) / min(winners) - 1, "seconds": statistics.median(one[1] for one in picks),
    }  # fmt: skip


def rows_of(done: Done) -> list[dict[str, Any]]:
    """Summaries of all searches for problems with a known truth."""
    rows = []
    for name, pieces in done.items():
        if sittings := pieces.get("sittings"):
            true_us = [statistics.median(column) for column in zip(*sittings)]
            for tool, picks in pieces.items():
                if tool != "sittings":
                    rows.append({**summary(name, tool, picks, true_us), "picks": [index for index, _ in picks]})
    return rows


def table(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """One line per problem: its winners and their losses."""
    tools = dict.fromkeys(row["tool"] for row in rows)
    yield "| winners, how far apart, p95 regret, s a search | " + " | ".join(tools) + " |"
    yield "|---" * (1 + len(tools)) + "|"
    for name in dict.fromkeys(row["problem"] for row in rows):
        found = {row["tool"]: row for row in rows if row["problem"] == name}
        yield f"| {name} | " + " | ".join(_cell(found[tool]) if tool in found else "" for tool in tools) + " |"


def _cell(row: dict[str, Any]) -> str:
    verdict = "" if row["winners"] == 1 else " (tie)" if row["winners_apart"] < TIE else " **(no tie)**"
    shares = f"{row['winners_apart']:.2%}{verdict}, {row['p95_regret']:.2%}, {row['seconds']:.2f} s"
    return f"{row['winners']} in {row['searches']}, {shares}"


def load(path: Path | None, head: dict[str, Any]) -> Done:
    """Results of earlier runs with the same card and versions."""
    data = json.loads(path.read_text()) if path and path.exists() else {}
    return data.get("done", {}) if head.items() <= data.items() else {}


def save(path: Path | None, head: dict[str, Any], done: Done) -> None:
    """Write the results so far."""
    if path:
        path.write_text(json.dumps({**head, "rows": rows_of(done), "done": done}, indent=1) + "\n")


def pieces_of(problem: Problem, launches: Launches, options: argparse.Namespace) -> dict[str, Callable[[], Any]]:
    """The measurements of a problem by name; the truth and the searches on an idle device first."""

    def loaded() -> list[Pick]:
        with Load(options.load):
            return searches(problem, launches, options.repeats)

    found: dict[str, Callable[[], Any]] = {
        "sittings": lambda: truth(launches), "ours": lambda: searches(problem, launches, options.repeats),
    }  # fmt: skip
    if options.stock:
        found["stock"] = lambda: stock(problem, launches, options.stock)
    if options.orders:
        found[f"ours, {options.orders} orders"] = lambda: orders(problem, launches, options.orders)
    if options.load:
        found[f"ours, {options.load:.0%} load"] = loaded
    return found


def work(options: argparse.Namespace, head: dict[str, Any], made: Callable[[str], Launches]) -> tuple[Done, list[str]]:
    """Measure missing pieces that can begin before the limit; returns all results, and the pieces left."""
    done, left, end = load(options.json, head), [], time.monotonic() + options.limit
    for name in options.problems.split(","):
        wanted = list(pieces_of(PROBLEMS[name], None, options))  # type: ignore[arg-type]
        if all(piece in done.get(name, {}) for piece in wanted):
            continue
        if time.monotonic() > end:
            left.append(name)
            continue
        for piece, measure in pieces_of(PROBLEMS[name], made(name), options).items():
            if piece in done.setdefault(name, {}):
                continue
            if time.monotonic() > end:
                left.append(f"{name}: {piece}")
                continue
            done[name][piece] = measure()
            save(options.json, head, done)
            print(f"{name}: {piece}: {end - time.monotonic():.0f} s left", file=sys.stderr, flush=True)
    return done, left


def main() -> None:
    """Print the table; write JSON and recordings if requested."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", default="matmul,attention,rmsnorm,add,splitk")
    parser.add_argument("--repeats", type=int, default=20, help="searches of each problem; 0 only records")
    parser.add_argument("--stock", type=int, default=3, help="searches with triton.autotune")
    parser.add_argument("--orders", type=int, default=0, help="searches with the list in so many orders")
    parser.add_argument("--load", type=float, default=0.0, help="share of time that another thread uses the GPU")
    parser.add_argument("--record", type=Path, help="write raw samples into this folder")
    parser.add_argument("--json", type=Path, help="keep results here, and go on with those that are there")
    parser.add_argument("--limit", type=float, default=float("inf"), metavar="S", help="begin nothing after this")
    options = parser.parse_args()
    head = {"card": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__,
            "python": platform.python_version(), "autotuned": autotuned.__version__}  # fmt: skip
    print(head)
    for name in options.problems.split(",") if options.record else ():
        data = record(Launches(PROBLEMS[name]))
        path = options.record / f"samples-{name}.json.gz"
        path.write_bytes(gzip.compress(json.dumps({**head, "problem": name, **data}).encode(), 9, mtime=0))
    if not options.repeats:
        save(options.json, head, {})
        return
    done, left = work(options, head, lambda name: Launches(PROBLEMS[name]))
    rows = rows_of(done)
    for row in rows:
        print({key: round(value, 5) if isinstance(value, float) else value for key, value in row.items()})
    print(*table(rows), f"left: {', '.join(left) or 'nothing'}{'; run it again' * bool(left)}", sep="\n")


if __name__ == "__main__":
    main()
