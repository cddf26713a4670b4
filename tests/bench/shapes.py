"""Tables of times of all configs over many shapes: recorded on a GPU, and replayed to judge rules and --cover.

By hand: python tests/bench/shapes.py --record [--budget 300] [--only matmul,rmsnorm] [--data tests/data/shapes]
or:      python tests/bench/shapes.py --replay [--data tests/data/shapes]
or:      python tests/bench/shapes.py --synthetic 6 [--first 0] [--within 0.05]
Recording continues where it stopped. For each shape every config gets `SAMPLES` samples, interleaved in random order
with the cache flushed before each, by this package's timer; the table has the medians. No config leaves early.
Replaying leaves out whole bands of the size that varies most, so that a rule is fitted to no shape within a factor of
1.3, and whole combinations of the other sizes, and prints the losses of the rule and of simpler methods. `--synthetic`
does the same with kernels of `tests/support/synthetic.py`, this many of each kind, with 300 shapes each.
"""

from __future__ import annotations

import argparse
import math
import platform
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from recorded_shapes import KERNELS, Recorded, interleaved, load, save

from autotuned.offline import ranges
from autotuned.rules import cover as covers
from autotuned.rules import fit, folds
from autotuned.rules.table import Table

DATA = Path(__file__).parents[1] / "data" / "shapes"
SAMPLES, WITHIN, NEAR = 9, 0.05, 2.0
SAVE_S = 10.0  # between two writes of a table

# -- recording --------------------------------------------------------------------------------------------------------


class Launches:
    """One kernel: its configs, compiled for each specialization on demand."""

    def __init__(self, kernel: str) -> None:
        import triton
        from problems import PROBLEMS

        self.problem = PROBLEMS[kernel.removesuffix("-dense")]
        self.kernel = triton.jit(self.problem.function)
        self._triton, self._kinds = triton, set()

    @property
    def configs(self) -> list[str]:
        """The text of each config's canonical form."""
        from autotuned.tunable import configs
        from autotuned.typed_json import canonical

        return [canonical(configs.to_json(one, self.problem.name, None)) for one in self.problem.configs]

    def measure(self, shape: tuple[int, ...], timer: Any) -> list[float | None]:
        """Median of each config in microseconds; None for one that does not run."""
        import torch

        from autotuned.search.trial import Trial

        arguments, grid = self.problem.arguments(shape, "cuda"), self.problem.grid(shape)
        self._compile(shape, arguments)
        zeroed = [value for name, value in zip(self.kernel.arg_names, arguments) if name in self.problem.zero]

        def made(index: int, config: Any) -> Trial:
            return Trial(index, lambda: [one.zero_() for one in zeroed],
                         lambda: self.kernel[grid](*arguments, **config.all_kwargs()))  # fmt: skip

        trials = [made(index, config) for index, config in enumerate(self.problem.configs)]
        for trial in trials:
            try:
                trial.launch()
            except Exception as error:  # too large for the card, or refused by the compiler
                trial.error = str(error)
        torch.cuda.synchronize()  # a config that breaks the device ends the run
        left, shuffle = [trial for trial in trials if trial.error is None], random.Random(str(shape))
        timer.warm_up()
        for _ in range(SAMPLES):
            turn = shuffle.sample(left, len(left))
            for trial, us in zip(turn, timer.turn(turn)):
                trial.samples_us.append(us)
        return [statistics.median(trial.samples_us) if trial.samples_us else None for trial in trials]

    def _compile(self, shape: tuple[int, ...], arguments: Sequence[Any]) -> None:
        """Compile in a pool, once for each specialization."""
        constants = {"rmsnorm": shape[1:], "attention": shape[2:]}.get(self.problem.name, ())
        kind = tuple((size == 1, size % 16 == 0) for size in shape), constants
        if kind in self._kinds:
            return
        self._kinds.add(kind)
        with ThreadPoolExecutor() as threads, self._triton.AsyncCompileMode(threads, ignore_errors=True):
            for config in self.problem.configs:
                self.kernel.warmup(*arguments, grid=(1,), **config.all_kwargs())


def record(folder: Path, budget_s: float, only: Sequence[str]) -> None:
    """Measure missing shapes for at most `budget_s` seconds."""
    import torch
    import triton

    from autotuned.gpu import device
    from autotuned.search.timers import CudaTimer

    end, where, timer = time.monotonic() + budget_s, device.cuda(), CudaTimer()
    paths = {kernel: folder / f"{kernel}-{where.slug}.csv.gz" for kernel in only}
    made = {kernel: Launches(kernel) for kernel in only}
    found = {}
    for kernel, path in paths.items():
        facts = {"kernel": kernel, "device": where.slug, "triton": triton.__version__, "torch": torch.__version__,
                 "python": platform.python_version(), "samples": SAMPLES}  # fmt: skip
        found[kernel] = load(path) if path.exists() else Recorded(facts, KERNELS[kernel][0], made[kernel].configs, {})
        if found[kernel].configs != made[kernel].configs:
            raise SystemExit(f"{path} is of other configs than {kernel} has now: move it away to record it anew.")
    waiting, saved = interleaved({kernel: set(one.rows) for kernel, one in found.items()}), time.monotonic()
    for number, (kernel, shape) in enumerate(waiting):
        if time.monotonic() > end:
            break
        found[kernel].rows[shape] = made[kernel].measure(shape, timer)
        if time.monotonic() - saved > SAVE_S or number + 1 == len(waiting):
            for name, path in paths.items():
                save(found[name], path)
            saved = time.monotonic()
    for kernel, path in paths.items():
        save(found[kernel], path)
        print(
            f"{path}: {len(found[kernel].rows)} of {KERNELS[kernel][1]} shapes x {len(found[kernel].configs)} configs"
        )


# -- replaying --------------------------------------------------------------------------------------------------------


class Served(NamedTuple):
    """The outcome for a call that was left out.

    Attributes:
        rule: The loss of the rule's config; None if it abstains.
        bound: The promised loss.
        others: The losses of simpler methods, by name.
    """

    rule: float | None
    bound: float
    others: dict[str, float]


class Judged(NamedTuple):
    """The result for a table with calls left out: shares of calls, and losses (0.1 is 10%).

    Attributes:
        others: Mean and worst loss of all calls with simpler methods.
        same: The same for the calls that the rule serves.
    """

    calls: int
    share: float
    mean: float
    worst: float
    exceeded: float
    others: dict[str, tuple[float, float]]
    same: dict[str, tuple[float, float]]

    @property
    def is_worth_it(self) -> bool:
        """Whether the rule is 1% better in the mean than the best simpler method on the same calls, or halves the worst."""
        means, worsts = [list(some) for some in zip(*self.same.values())] or ([], [])
        return bool(means) and (self.mean <= min(means) - fit.GAIN or self.worst * fit.FACTOR <= min(worsts))

    def __str__(self) -> str:
        lines = [f"  served {self.share:.0%} of {self.calls}: {self.mean:.2%} in the mean, {self.worst:.1%} worst; "
                 f"above the bound: {self.exceeded:.1%}"]  # fmt: skip
        lines += [f"    the same calls, {name}: {mean:.2%} in the mean, {worst:.1%} worst"
                  for name, (mean, worst) in self.same.items()]  # fmt: skip
        lines += [f"    a tree is {'' if self.is_worth_it else 'not '}worth it"] if self.same else []
        lines += [f"  {name}: {mean:.2%} in the mean, {worst:.1%} worst" for name, (mean, worst) in self.others.items()]
        return "\n".join(lines)


def part(table: Table, rows: Sequence[int]) -> Table:
    """A table with some of the calls."""
    return Table(table.names, [table.sizes[row] for row in rows], [table.times[row] for row in rows], table.pattern,
                 table.processors)  # fmt: skip


def bands(table: Table) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """Calls left out, in whole bands, and the remaining ones."""
    return folds.along(table)


def combinations(table: Table) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """The same with whole combinations of the other sizes."""
    for others in sorted(set(table.others)):
        out = [row for row in range(len(table)) if table.others[row] == others]
        yield out, [row for row in range(len(table)) if table.others[row] != others]


def served(table: Table, out: Sequence[int], left: Sequence[int], within: float) -> Iterator[Served]:
    """Outcomes for the calls left out, with a rule fitted to the others and with simpler methods."""
    seen = part(table, left)
    fitted = fit.fit(seen, within)
    rule = fitted.rule()
    for row in out:
        times, values = table.times[row], table.sizes[row]
        best = min(times.values())
        loss, bound = None, math.inf
        if rule is not None and (place := rule.config(values, within)) is not None:
            known = rule.loss(rule.leaf(values), values)
            loss, bound = times.get(fitted.configs[place], math.inf) / best - 1, known.bound if known else math.inf
        others = {name: times.get(config, math.inf) / best - 1 for name, config in simpler(seen, table, row).items()}
        yield Served(loss, bound, others)


def simpler(seen: Table, table: Table, row: int) -> dict[str, str]:
    """The config of a call by simpler methods: one for all, one for each power of two, the nearest shape's.

    Without a known call of its combination there is no nearest shape, and it gets the one for all.
    """
    step, kind = float(table.steps[row]), table.others[row]
    losses = np.nan_to_num(seen.losses, nan=1e3)
    single = seen.configs[int(np.argmin(losses.mean(axis=0)))]
    own = [at for at in range(len(seen)) if seen.others[at] == kind]
    here = own or list(range(len(seen)))
    power = [at for at in here if math.ceil(math.log2(max(seen.steps[at], 1))) == math.ceil(math.log2(max(step, 1)))]
    far = {at: abs(math.log2(max(seen.steps[at], 1) / max(step, 1))) for at in here}
    at = min(far, key=far.__getitem__)
    near = min(seen.times[at], key=seen.times[at].__getitem__) if own and far[at] <= math.log2(NEAR) else single
    return {
        "best single config": single,
        "best config of each power of two": seen.configs[int(np.argmin(losses[power or [at]].mean(axis=0)))],
        f"nearest within a factor of {NEAR:g}": near,
    }


def judge(table: Table, parts: Iterator[tuple[Sequence[int], Sequence[int]]], within: float = WITHIN) -> Judged:
    """Replay each part that is left out."""
    return judged([one for out, left in parts for one in served(table, out, left, within)])


def judged(found: Sequence[Served]) -> Judged:
    """The result over calls that were left out."""
    losses = [one.rule for one in found if one.rule is not None]
    over = sum(one.rule > one.bound for one in found if one.rule is not None)
    nearest = f"nearest within a factor of {NEAR:g}"
    with_nearest = [one.others[nearest] if one.rule is None else one.rule for one in found]
    names = list(found[0].others) if found else []
    others = {name: [one.others[name] for one in found] for name in names}
    same = {name: [one.others[name] for one in found if one.rule is not None] for name in names if losses}
    others = {"the rule, and the nearest where it abstains": with_nearest, **others}
    return Judged(
        len(found), len(losses) / max(1, len(found)), statistics.fmean(losses) if losses else math.nan,
        max(losses, default=math.nan), over / max(1, len(losses)),
        *({name: (statistics.fmean(some), max(some)) for name, some in named.items()} for named in (others, same)),
    )  # fmt: skip


class Covered(NamedTuple):
    """The result of `tune --cover` for one combination of the other sizes: searches, and losses of other calls."""

    searches: int
    nearest: tuple[float, float]
    rule: tuple[float, float]
    estimate: tuple[float, float]


def cover(table: Table, mean: float = ranges.MEAN, worst: float = ranges.WORST) -> Covered:
    """Replay `tune --cover` over a table of one size; for a missing shape the nearest one is used."""
    losses = {int(step): _relative(times) for step, times in zip(table.steps, table.times)}
    known: dict[ranges.Point, dict[str, float]] = {}

    def measure(points: Sequence[ranges.Point]) -> int:
        before = len(known)
        for (size,) in points:
            near = min(losses, key=lambda step: abs(math.log(step / size)))
            known[near,] = losses[near]
        return len(known) - before

    measure(ranges.first({table.along: (min(losses), max(losses))}))
    while len(known) < ranges.MOST:
        found = ranges.estimate(known)
        if found.mean <= mean and found.worst <= worst:
            break
        if not measure(ranges.further(known, min(ranges.ROUND, ranges.MOST - len(known)))):
            break
    rows = [row for row in range(len(table)) if (int(table.steps[row]),) in known]
    seen = part(table, rows)
    fitted = fit.fit(seen, WITHIN)
    rule = fitted.rule()
    by_nearest, by_rule = [], []
    for row in set(range(len(table))) - {*rows}:
        near = min(known, key=lambda point: abs(math.log(point[0] / table.steps[row])))
        by_nearest.append(_relative(table.times[row]).get(ranges.winner(known[near]), math.inf))
        place = rule.config(table.sizes[row], WITHIN) if rule is not None else None
        by_rule.append(by_nearest[-1] if place is None else _relative(table.times[row])[fitted.configs[place]])
    pairs = [(statistics.fmean(some), max(some)) if some else (0.0, 0.0) for some in (by_nearest, by_rule)]
    return Covered(len(known), pairs[0], pairs[1], tuple(ranges.estimate(known)))


def _relative(times: Any) -> dict[str, float]:
    best = min(times.values())
    return {name: us / best - 1 for name, us in times.items()}


def replay(folder: Path) -> None:
    """Print the result for each table."""
    for path in sorted(folder.glob("*.csv.gz")):
        recorded = load(path)
        table = recorded.table()
        print(f"{recorded.name}: {len(table)} shapes x {len(table.configs)} configs")
        if not table.others[0]:
            for name, (mean, worst) in (("the goal", (ranges.MEAN, ranges.WORST)), ("40 searches", (0.0, 0.0))):
                found = cover(table, mean, worst)
                print(f" tune --cover, until {name}: {found.searches} searches; nearest {found.nearest[0]:.2%} in the mean, "
                      f"{found.nearest[1]:.1%} worst; with a rule {found.rule[0]:.2%}, {found.rule[1]:.1%}")  # fmt: skip
            continue
        few = [len(covers.fewest(table.losses, within).configs) for within in (WITHIN, 0.1)]
        print(f" all shapes are held within {WITHIN:.0%} of their best by {few[0]} configs, within 10% by {few[1]}")
        print(f" bands left out\n{judge(table, bands(table))}")
        print(f" combinations of {', '.join(set(table.names) - {table.along})} left out\n"
              f"{judge(table, combinations(table))}")  # fmt: skip


def replay_synthetic(count: int, first: int, within: float) -> None:
    """Print the results for synthetic kernels."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
    import synthetic

    for kind, made in synthetic.KINDS.items():
        made_tables = [made(seed).table(300) for seed in range(first, first + count)]
        for words, parts in (("bands", bands), ("combinations", combinations)):
            found = [one for table in made_tables for out, left in parts(table)
                     for one in served(table, out, left, within)]  # fmt: skip
            print(f"{kind}, {count} kernels, {words} left out, within {within:.0%}\n{judged(found)}", flush=True)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--replay", action="store_true")
    parser.add_argument("--synthetic", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--within", type=float, default=WITHIN)
    parser.add_argument("--budget", type=float, default=300.0)
    parser.add_argument("--only", default=",".join(KERNELS))
    parser.add_argument("--data", type=Path, default=DATA)
    given = parser.parse_args()
    if given.record:
        record(given.data, given.budget, given.only.split(","))
    if given.replay:
        replay(given.data)
    if given.synthetic:
        replay_synthetic(given.synthetic, given.first, given.within)


if __name__ == "__main__":
    main()
