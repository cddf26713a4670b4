"""Whether tuned ever loses to untuned: tune in one process, measure again in another, and count.

Run by hand: python tests/bench/never.py FOLDER [--budget 300] [--shapes 60] [--json FILE]
Six kernels of `autotuned.kernels` get a good `default=`: for each shape the choice that this package ships for the
nearest other shape, or the first of the list. One process tunes every shape; another, with independent code, times
tuned and untuned again in alternating blocks, until the 95% interval of their ratio is at most 0.4% to either side. It
also times all configs to find the best, which is compared with untuned in the same way. FOLDER keeps the results, case
by case: run the same command again to continue. Without a GPU the interpreter is used, as a rehearsal.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

HALF_WIDTH, LOSES, CONFIDENCE = 0.004, 0.01, 0.95
BLOCK, FIRST_BLOCKS, MOST_BLOCKS = 4, 24, 600  # launches per block; blocks per comparison
SCREENED = 5  # blocks of each config, to find the best
TUNING_SHARE = 0.55  # of the budget


class Interval(NamedTuple):
    """A ratio of times minus one, with its 95% interval."""

    ratio: float
    half_width: float

    @property
    def loses(self) -> bool:
        """Whether the whole interval lies above the allowed loss."""
        return self.ratio - self.half_width > LOSES


def interval(logs: Sequence[float]) -> Interval:
    """The interval of logarithms of ratios of paired blocks; trims the outer twentieths, since other users only add."""
    outer = len(logs) // 20
    inner = sorted(logs)[outer : len(logs) - outer]
    mean, spread = statistics.mean(inner), statistics.stdev(logs)
    spread = min(spread, 1.4826 * statistics.median(abs(log - mean) for log in logs) or spread)
    return Interval(math.expm1(mean), 1.96 * 1.05 * spread / math.sqrt(len(logs)))


def upper_bound(lost: int, count: int, confidence: float = CONFIDENCE) -> float:
    """The upper bound of the rate of losses, given a number of losses in a number of cases (Clopper and Pearson)."""
    if lost >= count:
        return 1.0
    low, high = lost / count if count else 0.0, 1.0
    for _ in range(60):
        rate = (low + high) / 2
        seen = sum(math.comb(count, k) * rate**k * (1 - rate) ** (count - k) for k in range(lost + 1))
        low, high = (rate, high) if seen > 1 - confidence else (low, rate)
    return high


def geomean(ratios: Sequence[float]) -> float:
    """Geometric mean of ratios above 0; NaN without any."""
    return math.exp(statistics.mean(map(math.log, ratios))) if ratios else math.nan


# -- the cases -----------------------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """A kernel and how to create a call of it."""

    number: int
    tuned: Any
    make: Callable[..., dict[str, Any]]
    shape: tuple[Any, ...]

    @property
    def words(self) -> str:
        """The case in words."""
        name = self.tuned.fn.__name__.removesuffix("_kernel")
        return f"{name} {'x'.join(str(part).removeprefix('torch.') for part in self.shape)}"


def cases(count: int) -> list[Case]:
    """`count` calls in total, the same number per kernel, spread evenly over its shapes."""
    import torch

    from autotuned.kernels import layernorm_bwd, matmul, rmsnorm, shapes, softmax, splitk_matmul

    found = []
    modules = (matmul, splitk_matmul, softmax, rmsnorm, layernorm_bwd)
    tiny = {id(module.make_case): module._shapes("cpu") for module in modules}
    tiny[id(layernorm_bwd.make_reduce_case)] = [(cols, dtype) for _, cols, dtype in layernorm_bwd._shapes("cpu")]
    each = max(1, count // len(shapes.TUNED))
    for tuned, make, listed in shapes.TUNED:
        some = listed if torch.cuda.is_available() else tiny[id(make)]
        step = max(1, len(some) // each)
        found += [(tuned, make, shape) for shape in some[::step][:each]]
    return [Case(number, *one) for number, one in enumerate(found)]


def device() -> str:
    """The device to run on."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def good_default(case: Case, call: Any) -> Any:
    """The shipped choice for the nearest other shape, as a config of the list, or the list's first."""
    from autotuned.configfiles import lookup
    from autotuned.key import nearest_key

    chooser = case.tuned.tuner.chooser
    key, live = chooser.key(call), chooser.candidates(call)
    shipped = [(other, entry) for _, other, entry in lookup.shipped(key.kernel) if other.call != key.call]
    far = nearest_key.distances(key, [other for other, _ in shipped])
    ranked = sorted(zip(far, range(len(shipped))))
    near = (live.get(shipped[place][1].identity) for _, place in ranked)
    return next((config for config in near if config is not None), case.tuned.configs[0])


# -- tune, in one process ------------------------------------------------------------------------------------------------


def tune(folder: Path, count: int, budget_s: float) -> None:
    """Tune the cases that have no file yet, one file each."""
    import autotuned
    from autotuned.offline import targets
    from autotuned.tunable import configs as forms

    end = time.monotonic() + budget_s
    for case in cases(count):
        path = folder / f"tuned-{case.number:03}.json"
        if path.exists() or time.monotonic() > end:
            continue
        made = case.make(device(), *case.shape)
        [found] = [one for one in targets.load(case.make.__module__) if one.tuned is case.tuned]
        call = targets.bind(found, made)
        default = good_default(case, call)
        twin = autotuned.autotune(
            list(case.tuned.configs), key=list(case.tuned.keys), default=default, reset_to_zero=case.tuned.reset_to_zero,
            restore_value="auto", name=f"never.{case.tuned.fn.__name__}",
        )(case.tuned.fn)  # fmt: skip
        start = time.perf_counter()
        with autotuned.mode("search"):
            twin[made["grid"]](*made["args"])
        record = next(iter(twin.tuner.chooser.state.choices.values())).record
        chosen = forms.label(forms.to_json(twin.best_config, case.words))
        save(path, {
            "case": case.words, "seconds": time.perf_counter() - start, "quality": record.quality, "chosen": chosen,
            "default": forms.label(forms.to_json(default, case.words)),
        })  # fmt: skip
        print(f"tuned {case.words}: {chosen} ({record.quality})", flush=True)


# -- measure again, in another -------------------------------------------------------------------------------------------


class Launches:
    """A call whose configs are launched through Triton alone, on its own tensors.

    Attributes:
        configs: The configs that run, by label.
    """

    def __init__(self, case: Case) -> None:
        import torch

        self._torch, self._made = torch, case.make(device(), *case.shape)
        self._kernel = case.tuned.fn
        by_name = dict(zip(case.tuned.arg_names, self._made["args"]))
        self._zeroed = [by_name[name] for name in case.tuned.reset_to_zero or ()]
        restored = [by_name[name] for name in case.tuned.restore_value or () if name not in case.tuned.reset_to_zero]
        self._restored = [(tensor, tensor.clone()) for tensor in restored]
        self._flush = None
        if device() == "cuda":
            size = 2 * torch.cuda.get_device_properties().L2_cache_size
            self._flush = torch.empty(size, dtype=torch.int8, device="cuda")
        self.configs = {label: config for label, config in self._labelled(case) if self._runs(config)}

    def _labelled(self, case: Case) -> Iterator[tuple[str, Any]]:
        from autotuned.tunable import configs as forms

        self._compile_all(case.tuned.configs)
        for config in case.tuned.configs:
            yield forms.label(forms.to_json(config, case.words)), config

    def _compile_all(self, configs: Sequence[Any]) -> None:
        """Compile on several threads: launches would compile one by one."""
        if self._flush is None:
            return
        from concurrent.futures import ThreadPoolExecutor

        import triton

        with ThreadPoolExecutor() as threads, triton.AsyncCompileMode(threads, ignore_errors=True):
            for config in configs:
                self._kernel.warmup(*self._made["args"], grid=(1,), **config.all_kwargs())

    def _runs(self, config: Any) -> bool:
        try:
            self.block(config)
        except Exception as error:
            print(f"left out: {config}: {type(error).__name__}", flush=True)
            return False
        return True

    def _prepare(self) -> None:
        for tensor, saved in self._restored:
            tensor.copy_(saved)
        for tensor in self._zeroed:
            tensor.zero_()
        if self._flush is not None:
            self._flush.zero_()

    def _launch(self, config: Any) -> None:
        self._kernel[self._made["grid"]](*self._made["args"], **config.all_kwargs())

    def block(self, config: Any) -> float:
        """Mean microseconds of a block of launches."""
        return self._on_host(config) if self._flush is None else self._on_device(config)

    def _on_host(self, config: Any) -> float:
        self._prepare()
        start = time.perf_counter()
        self._launch(config)
        return (time.perf_counter() - start) * 1e6

    def _on_device(self, config: Any) -> float:
        cuda = self._torch.cuda
        events = [[cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(BLOCK)]
        cuda._sleep(1_000_000)  # the host gets ahead
        for before, after in events:
            self._prepare()
            before.record()
            self._launch(config)
            after.record()
        cuda.synchronize()
        return 1e3 * statistics.mean(before.elapsed_time(after) for before, after in events)

    def compare(self, one: str, other: str, end_s: float) -> Interval:
        """The ratio of two configs' times, measured in alternating blocks until the interval is narrow enough."""
        if one == other:
            return Interval(0.0, 0.0)
        shuffle, logs, pair = random.Random(1), [], [one, other]
        while len(logs) < MOST_BLOCKS:
            shuffle.shuffle(pair)
            us = {label: self.block(self.configs[label]) for label in pair}
            logs.append(math.log(us[one] / us[other]))
            late = time.monotonic() > end_s
            if late and len(logs) > 2 or len(logs) >= FIRST_BLOCKS and interval(logs).half_width <= HALF_WIDTH:
                break
        return interval(logs)

    def best(self) -> str:
        """The fastest config, by several blocks of each in turn."""
        times: dict[str, list[float]] = {label: [] for label in self.configs}
        for _ in range(SCREENED):
            for label in random.sample(list(times), len(times)):
                times[label].append(self.block(self.configs[label]))
        return min(times, key=lambda label: statistics.median(times[label]))


def measure(folder: Path, count: int, budget_s: float) -> None:
    """Measure the tuned cases that have no measurement yet, one file each."""
    end = time.monotonic() + budget_s
    for case in cases(count):
        tuned, path = folder / f"tuned-{case.number:03}.json", folder / f"measured-{case.number:03}.json"
        if not tuned.exists() or path.exists() or time.monotonic() > end:
            continue
        said = json.loads(tuned.read_text())
        launches = Launches(case)
        best = launches.best()
        mine = launches.compare(said["chosen"], said["default"], end)
        exhaustive = mine if best == said["chosen"] else launches.compare(best, said["default"], end)
        if exhaustive.ratio > mine.ratio:  # the apparent best is slower than the choice
            best, exhaustive = said["chosen"], mine
        save(path, {**said, "best": best, "vs_untuned": mine, "best_vs_untuned": exhaustive})
        print(f"measured {case.words}: {mine.ratio:+.2%} +- {mine.half_width:.2%}", flush=True)


# -- results -------------------------------------------------------------------------------------------------------------


def report(folder: Path, count: int) -> dict[str, Any]:
    """All rows and the totals, as JSON."""
    rows = [json.loads(path.read_text()) for path in sorted(folder.glob("measured-*.json"))]
    found = [(Interval(*row["vs_untuned"]), Interval(*row["best_vs_untuned"])) for row in rows]
    lost = [row["case"] for row, (mine, _) in zip(rows, found) if mine.loses]
    gain = geomean([1 / (1 + mine.ratio) for mine, _ in found])
    best = geomean([1 / (1 + exhaustive.ratio) for _, exhaustive in found])
    return {
        "rows": rows, "measured": len(rows), "wanted": count, "lost": lost,
        "too wide": [row["case"] for row, (mine, _) in zip(rows, found) if mine.half_width > HALF_WIDTH],
        "losing rate, upper bound": upper_bound(len(lost), len(rows)) if rows else 1.0,
        "gain": gain, "gain of the best": best, "of the best": gain / best,
        "seconds of tuning": sum(row["seconds"] for row in rows),
    }  # fmt: skip


def table(found: dict[str, Any]) -> Iterator[str]:
    """The rows and the totals in words."""
    for row in found["rows"]:
        mine, best = Interval(*row["vs_untuned"]), Interval(*row["best_vs_untuned"])
        mark = "LOSES" if mine.loses else ""
        yield f"{row['case']:<40} {mine.ratio:+8.2%} +- {mine.half_width:6.2%}  best {best.ratio:+8.2%}  {mark}"
    yield (
        f"{len(found['lost'])} of {found['measured']} lose by over {LOSES:.0%} (wanted {found['wanted']} cases); the "
        f"rate is below {found['losing rate, upper bound']:.1%} with {CONFIDENCE:.0%} confidence"
    )
    yield f"{len(found['too wide'])} intervals are wider than {HALF_WIDTH:.1%} to either side"
    yield (
        f"geometric-mean gain over untuned {found['gain']:.4f}x, of the best {found['gain of the best']:.4f}x: "
        f"{found['of the best']:.2%}"
    )


def save(path: Path, data: dict[str, Any]) -> None:
    """Write a file atomically: a run may end at any time."""
    beside = path.with_suffix(".part")
    beside.write_text(json.dumps(data, indent=1) + "\n")
    beside.replace(path)


def environment(folder: Path) -> dict[str, str]:
    """The environment of both processes: their own store, and a cache that keeps losers' binaries, to compile once."""
    manager = os.environ.get("TRITON_CACHE_MANAGER", "triton.runtime.cache:FileCacheManager")
    import torch

    interpreted = {} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1"}
    return {
        **os.environ, **interpreted, "AUTOTUNED_CACHE_DIR": str(folder / "store"), "TRITON_CACHE_MANAGER": manager,
        "TRITON_CACHE_DIR": str(folder / "triton"),
    }  # fmt: skip


def main() -> None:
    """Run both phases within the budget, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--budget", type=float, default=300.0, metavar="S", help="seconds in all")
    parser.add_argument("--shapes", type=int, default=60, help="cases in all, as many of each kernel")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--phase", choices=("tune", "measure"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    if given.phase is not None:
        (tune if given.phase == "tune" else measure)(given.folder, given.shapes, given.budget)
        return
    end = time.monotonic() + given.budget
    for phase, share in (("tune", TUNING_SHARE), ("measure", 1.0)):
        left_s = max(1.0, (end - time.monotonic()) * share)
        command = [sys.executable, __file__, str(given.folder.resolve()), "--phase", phase]
        command += ["--budget", f"{left_s:.1f}", "--shapes", str(given.shapes)]
        subprocess.run(command, env=environment(given.folder.resolve()), check=True)
    found = report(given.folder, given.shapes)
    print("\n".join(table(found)))
    if given.json:
        save(given.json, found)


if __name__ == "__main__":
    main()
