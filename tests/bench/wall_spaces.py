"""Seconds until a search of our matmul space has timed a config within 5% of the best, with cold caches.

By hand, on a GPU: python tests/bench/spaces.py --wall [DIR] [--budget 200] [--json FILE]
The tables in DIR (tests/data/spaces), measured completely on this card, tell which configs are within 5%. Strategies
take turns, all with the seed of the turn; each run is a process with an empty store and empty caches, and uses this
package's compile pool and race, without `first=` and shipped files. A strategy is asked for more whenever a compiler is
free, Kernel Tuner's within a generation; with ", batches" after its name it is asked only when all results are told.
"prior" finds the record of another card in the store, with the best and 20 other times of the other shape.
`--pretended` rehearses it without a GPU: kernels are compiled, times come from the tables.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import space_peers
import space_tables

HERE = Path(__file__).resolve()
KERNEL, WITHIN = "matmul", 1.05
LIMIT_S = 40.0  # of one search
TOOLS = ("auto", "auto, prior", "Optuna TPE", "Kernel Tuner diff_evo", "Kernel Tuner genetic_algorithm")


class Watched:
    """A strategy that ends once a config is good enough, and notes the time."""

    def __init__(self, inner: Any, is_good: Callable[[Any], bool], asks_ahead: bool) -> None:
        self.inner, self._is_good, self.asks_ahead = inner, is_good, asks_ahead
        self.reached_s: float | None = None
        self._told: set[str] = set()

    def ask(self, n: int) -> list[Any]:
        """The strategy's requests; none once the goal is reached."""
        return [] if self.reached_s is not None else list(self.inner.ask(n))

    def tell(self, results: list[tuple[Any, float | None, str]]) -> None:
        """Count the measured configs, each once."""
        self.inner.tell(results)
        self._told |= {str(config) for config, _, _ in results}
        if self.reached_s is None and any(us and self._is_good(config) for config, us, _ in results):
            self.reached_s = time.perf_counter()

    @property
    def trials(self) -> int:
        """Number of configs measured."""
        return len(self._told)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


# -- one run, in its own process --------------------------------------------------------------------------------------


def child(tool: str, folder: Path, pretended: bool, seed: int) -> dict[str, Any]:
    """Run one search; seconds until the goal is reached, or None, and its costs."""
    bench = pretend() if pretended else None
    import torch
    from own_spaces import PROBLEMS

    from autotuned import autotune
    from autotuned.resolve import searcher

    problem, (path, other) = PROBLEMS[KERNEL], tables(folder)
    recorded = space_tables.read(path)
    shape = tuple(recorded.facts["shape"])
    case = problem.case(shape, "cpu" if pretended else "cuda")
    space = copy.copy(problem.space)
    space.first = ()
    watch = watching(tool, recorded, seed)
    if tool.endswith("prior"):
        searcher.priors = Earlier(searcher.priors, other)
    more = {"do_bench": bench(recorded)} if bench else {}
    wanted = "auto" if tool.startswith("auto") else watch.peer
    more |= {"key": ["M", "N", "K"], "name": "bench.matmul"}  # under its own name it would find shipped files
    tuned = autotune(configs=space, strategy=wanted, budget_s=LIMIT_S, **more)(problem.kernel)
    space_peers.import_all()  # exclude imports and start-up of the context, cuBLAS and the clocks
    if not pretended:
        square = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
        for _ in range(50):
            square @ square
        torch.cuda.synchronize()
    start = time.perf_counter()
    tuned[case.grid](*case.arguments)
    all_s, found = time.perf_counter() - start, watch.made
    ms = recorded.rows[row_of(tuned.best_config, recorded)][0]
    best = min(ms for ms, _ in recorded.rows.values() if ms is not None)
    return {"seconds": found.reached_s and found.reached_s - start, "trials": found.trials, "all_s": all_s,
             "picked": ms and ms / best, "shape": shape, "card": recorded.facts["device"]}  # fmt: skip


class watching:
    """Watches the strategy of the search: ours as created by the decorator, or a peer's."""

    def __init__(self, tool: str, recorded: space_tables.Recorded, seed: int) -> None:
        from autotuned.space import declared

        best = min(ms for ms, _ in recorded.rows.values() if ms is not None)
        good = {row for row, (ms, _) in recorded.rows.items() if ms is not None and ms <= WITHIN * best}
        self._tool, _, self._how = tool.partition(", ")
        self._seed, self._is_good = seed, lambda config: row_of(config, recorded) in good
        self.made: Any = None
        made = declared.strategy
        declared.strategy = lambda name, members, _, prior: self._watched(made(name, members, seed, prior))

    def peer(self, members: Any) -> Any:
        """A peer's strategy for the decorator."""
        return self._watched(dict(space_peers.peers())[self._tool](members, self._seed))

    def _watched(self, inner: Any) -> Any:
        self.made = Watched(inner, self._is_good, self._how != "batches")
        return self.made


def row_of(config: Any, recorded: space_tables.Recorded) -> tuple[Any, ...]:
    """A config as a row of a table."""
    return tuple(config.kwargs.get(name, getattr(config, name, None)) for name in recorded.names)


class Earlier:
    """`priors`, with another card's record added to the store."""

    def __init__(self, inner: Any, path: Path) -> None:
        self._inner, self._path = inner, path

    def of(self, key: Any, live: Any, stored: bool) -> Any:
        """Store the record, then look as usual."""
        from autotuned.key.key import Key
        from autotuned.store import records
        from autotuned.store.record import Timing, TuningRecord

        other = space_tables.read(self._path)
        times = {row: ms for row, (ms, _) in other.rows.items() if ms is not None}
        best = min(times, key=lambda row: times[row])
        timings = []
        for row in [best, *random.Random(0).sample(sorted(times), 20)]:
            form = form_of(row, other.names)
            timings.append(Timing(form, times[row] * 1e3, times[row] * 1e3, times[row] * 1e3, 20))
        device = {**key.context["device"], "name": "another card"}
        before = Key(key.kernel, key.call, {**key.context, "device": device})
        records.keep(TuningRecord(before, timings[0].config, timings[0].median_us, "ok", tuple(timings), {}))
        return self._inner.of(key, live, stored)


def form_of(row: tuple[Any, ...], names: tuple[str, ...]) -> dict[str, Any]:
    """A row as the canonical form of its config."""
    import triton

    from autotuned.tunable import configs

    given = dict(zip(names, row))
    options = {name: given.pop(name) for name in names if name.startswith("num_")}
    return configs.to_json(triton.Config(given, **options), KERNEL, None)


def pretend() -> Callable[[space_tables.Recorded], Callable[..., Any]]:
    """Pretend a GPU in this process; returns a function that creates a benchmark from a table."""
    sys.path.insert(0, str(HERE.parents[1] / "support"))
    import fake_cuda
    import pytest
    import triton

    from autotuned.search import timers

    timers.GivenTimer.overlaps = True  # times from a table do not depend on compilations
    triton.runtime.driver._active = fake_cuda.Driver()
    fake_cuda.install_with_host_clock(pytest.MonkeyPatch())

    def bench(recorded: space_tables.Recorded) -> Callable[..., Any]:
        def answer(call: Callable[[], Any], quantiles: Any = None) -> list[float]:
            call()
            launch = fake_cuda.Launcher.launches[-1]
            values = {**launch.arguments, "num_warps": launch.warps, "num_stages": launch.metadata.num_stages}
            ms, status = recorded.rows[tuple(values[name] for name in recorded.names)]
            if ms is None:
                raise RuntimeError(status)
            return [ms] * 3

        return answer

    return bench


# -- all runs ---------------------------------------------------------------------------------------------------------


def tables(folder: Path) -> list[Path]:
    """The kernel's tables, longest best time first."""
    found = sorted(folder.glob(f"{KERNEL}-*.csv.gz"))
    if len(found) < 2:
        raise SystemExit(f"expected two tables {KERNEL}-*.csv.gz in {folder}, got {len(found)}: --record makes them.")
    best = lambda path: min(ms for ms, _ in space_tables.read(path).rows.values() if ms is not None)
    return sorted(found, key=best, reverse=True)[:2]


def run(tool: str, folder: Path, pretended: bool, seed: int) -> dict[str, Any]:
    """Run one search in a new process with empty caches."""
    with tempfile.TemporaryDirectory() as empty:
        caches = {"TRITON_CACHE_DIR": f"{empty}/triton", "AUTOTUNED_CACHE_DIR": f"{empty}/autotuned"}
        environment = {**os.environ, **caches, "AUTOTUNED_CONFIG_PATH": "", "TRITON_DEFAULT_FP_FUSION": "1"}
        command = [sys.executable, str(HERE), "--child", tool, str(folder), str(int(pretended)), str(seed)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        return {"error": done.stderr[-2000:]}
    return json.loads(done.stdout.splitlines()[-1])


def measure(folder: Path, budget_s: float, pretended: bool, json_path: Path | None, only: list[str]) -> None:
    """Run strategies in turn, as often as the budget allows; prints each run and the table."""
    tables(folder)
    end, runs = time.monotonic() + budget_s, []
    for seed in itertools.count():
        for tool in only or TOOLS:
            took = [one["took_s"] for one in runs if one["tool"] == tool]
            if time.monotonic() + (max(took) if took else 15.0) > end:
                show(runs)
                return
            start = time.monotonic()
            runs.append(
                {"tool": tool, "seed": seed, **run(tool, folder, pretended, seed), "took_s": time.monotonic() - start}
            )
            print(json.dumps(runs[-1]), flush=True)
            if json_path:
                json_path.write_text(json.dumps(runs, indent=1) + "\n")


def show(runs: list[dict[str, Any]]) -> None:
    """Print a row of Markdown for each strategy."""
    print("| strategy | runs | there | s, median | worst | trials | of the best |\n|---|---|---|---|---|---|---|")
    for tool in dict.fromkeys(one["tool"] for one in runs):
        mine = [one for one in runs if one["tool"] == tool and "error" not in one]
        there = sorted(one["seconds"] for one in mine if one["seconds"] is not None)
        row = f"{statistics.median(there):.1f} | {there[-1]:.1f}" if there else "| "
        trials = statistics.median(one["trials"] for one in mine) if mine else ""
        picked = max((one["picked"] or 0 for one in mine), default=0)
        print(f"| {tool} | {len(mine)} | {len(there)} | {row} | {trials} | {picked:.3f} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", nargs=4, metavar=("TOOL", "DIR", "PRETENDED", "SEED"), required=True)
    asked = parser.parse_args().child
    print(json.dumps(child(asked[0], Path(asked[1]), bool(int(asked[2])), int(asked[3]))))
