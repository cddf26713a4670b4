"""Measure every config of our own spaces on a GPU, without the race, into tables that `spaces.py` replays.

By hand: python tests/bench/spaces.py --record DIR [--budget 300] [--only matmul] [--few 8]
It continues the tables in DIR; `--few` takes this many configs of each space. Configs are measured in batches: compiled
by this package's pool, launched once and compared with a reference, then sampled in interleaved rounds with the cache
flushed before each launch. At the end, configs close to the best are sampled again together, since batches are minutes
apart.
"""

from __future__ import annotations

import collections
import math
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import space_tables
import torch
import triton
from own_spaces import PROBLEMS, Problem, Shape
from space_tables import Recorded, Row

from autotuned.search import timers
from autotuned.search.compiling.compile import CompileStream, Wanted
from autotuned.search.timers import Timer
from autotuned.search.trial import Trial
from autotuned.store.record import identity_of
from autotuned.tunable import configs
from autotuned.tunable.call import bind
from autotuned.tunable.kernel import TunableKernel

BATCH = 240
SAMPLES, FEWEST, ENOUGH_US = 21, 5, 8_000.0  # samples per config; at least 5 once they have taken this long
CLOSE = 1.12  # configs this close to the best are measured again at the end
TOLERANCE = 0.02  # relative to the largest expected element
RESERVE = 0.4  # share of a batch's compile time that must be left when the next begins


class Shaped:
    """One call of a problem, with its table."""

    def __init__(self, problem: Problem, shape: Shape, folder: Path, device: str) -> None:
        self.tunable = TunableKernel.of(problem.kernel)
        self.members = problem.space.members()
        self.case = problem.case(shape, device)
        tuned = frozenset(self.members.names)
        self.call = bind(self.tunable, tuned, self.case.arguments, {}, self.case.grid)
        self.where = self.tunable.device(self.call)
        slug = "interpreter" if self.tunable.interpreted else self.where.slug
        self.path = folder / f"{problem.name}-{'x'.join(map(str, shape))}-{slug}.csv.gz"
        facts = {"kernel": problem.name, "shape": shape, "device": slug, "triton": triton.__version__,
                 "torch": torch.__version__, "python": platform.python_version(), "samples": SAMPLES,
                 "together": 0}  # fmt: skip
        self.table = space_tables.read(self.path) if self.path.exists() else Recorded(facts, self.members.names)

    def trial(self, index: int, row: Row) -> Trial:
        """A config's launches: the first one is compared."""
        config = self.config(row)
        return Trial(index, lambda: None, lambda: self.tunable.launch(self.call, config))

    def config(self, row: Row) -> Any:
        """The config of a row."""
        places = [list(values).index(value) for values, value in zip(self.members.values, row)]
        return self.members.config(places)

    def try_out(self, trial: Trial) -> str:
        """Launch once; returns "ok", "wrong", or why it does not run."""
        self.case.out.fill_(float("nan"))
        try:
            trial.launch()
        except Exception as error:
            return failure(error)
        expected = self.case.expected.float()
        worst = (self.case.out.float() - expected).abs().max().item()
        return "ok" if worst <= TOLERANCE * expected.abs().max().item() else "wrong"

    def save(self) -> None:
        """Write the file."""
        space_tables.write(self.table, self.path)


def failure(error: Exception) -> str:
    """A word for a config that does not run."""
    name = type(error).__name__
    return "memory" if name == "OutOfResources" else "compile" if "Compil" in name or "PTXAS" in name else "launch"


def sample(trials: Sequence[Trial], timer: Timer, source: random.Random) -> None:
    """Take samples in interleaved rounds of random order, fewer of slow configs."""
    timer.warm_up()
    for number in range(SAMPLES):
        left = [one for one in trials if number < FEWEST or math.fsum(one.samples_us) < ENOUGH_US]
        turn = source.sample(left, len(left))
        found = timer.turn(turn)
        for place, trial in enumerate(turn):
            trial.samples_us += timer.sample(trial, 1) if found is None else [found[place]]


def compiled(one: Shaped, rows: Sequence[Row], end: float) -> Iterator[tuple[Row, str]]:
    """Compile a batch in the pool; yields rows with "ok" or the error, without rows not begun before `end`."""
    wanted = [Wanted(place, identity(one, row), one.config(row)) for place, row in enumerate(rows)]
    if not one.tunable.compiles_ahead:
        yield from ((row, "ok") for row in rows)
        return
    with tempfile.TemporaryDirectory() as folder, one.tunable.trials(Path(folder)):
        for ready in list(CompileStream(one.tunable, one.call).stream(wanted, end)):
            try:
                ready.take()
            except Exception as error:
                if type(error).__name__ != "CancelledError":
                    yield rows[ready.wanted.index], failure(error)
            else:
                yield rows[ready.wanted.index], "ok"


def identity(one: Shaped, row: Row) -> str:
    """A config's name in the journal and messages."""
    return identity_of(configs.to_json(one.config(row), one.tunable.name, None))


def measure(one: Shaped, rows: Sequence[Row], timer: Timer) -> None:
    """Try and sample compiled configs, and add them to the table."""
    trials = {row: one.trial(index, row) for index, row in enumerate(rows)}
    said = {row: one.try_out(trial) for row, trial in trials.items()}
    sample([trials[row] for row in rows if said[row] == "ok"], timer, random.Random(len(one.table.rows)))
    for row, trial in trials.items():
        one.table.rows[row] = (statistics.median(trial.samples_us) / 1e3 if trial.samples_us else None), said[row]


def batches(problem: Problem, done: set[Row], few: int) -> Iterator[list[Row]]:
    """Missing configs in random order, with configs that differ only in launch options next to each other.

    Triton's front end then runs once for all of these.
    """
    members = problem.space.members()
    rows = [tuple(values[at] for values, at in zip(members.values, point)) for point in members]
    kernels = [place for place, name in enumerate(members.names) if not name.startswith("num_")]
    groups: dict[Row, list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[place] for place in kernels), []).append(row)
    shuffled = random.Random(problem.name).sample(list(groups.values()), len(groups))
    left = [row for group in shuffled for row in group][: few or None]
    left = [row for row in left if row not in done]
    yield from (left[at : at + BATCH] for at in range(0, len(left), BATCH))


def remeasure(one: Shaped, timer: Timer, end: float) -> None:
    """Sample configs close to the best again, all together."""
    times = {row: ms for row, (ms, _) in one.table.rows.items() if ms is not None}
    close = sorted(row for row, ms in times.items() if ms <= CLOSE * min(times.values(), default=0.0))
    ready = [row for row, status in compiled(one, close, end) if status == "ok"]
    if ready and len(ready) == len(close):
        measure(one, ready, timer)
        one.table.facts["together"] = len(ready)
        one.save()


def record(folder: Path, budget_s: float, only: Sequence[str], few: int, device: str = "") -> bool:
    """Measure missing configs for at most `budget_s`; returns whether none are left."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    end = time.monotonic() + budget_s
    return all(whole(PROBLEMS[name], folder, end, few, device) for name in only)


def whole(problem: Problem, folder: Path, end: float, few: int, device: str) -> bool:
    """The same for one space, until `end` on `time.monotonic`."""
    shapes = problem.shapes if device == "cuda" else problem.small
    shaped = [Shaped(problem, shape, folder, device) for shape in shapes]
    timer = timers.for_device(shaped[0].where)
    done = set(shaped[0].table.rows).intersection(*(one.table.rows for one in shaped))
    took_s = 0.0
    for rows in batches(problem, done, few):
        start = time.monotonic()
        if start + took_s * RESERVE > end:
            return False
        found = batch(shaped, rows, timer, end - took_s * 0.1)
        took_s = time.monotonic() - start
        print(f"{problem.name}: {len(shaped[0].table.rows)} of {few or shaped[0].members.size}; "
              f"{found} more in {took_s:.1f} s", flush=True)  # fmt: skip
        if found < len(rows):
            return False
    for one in shaped:
        if not one.table.facts["together"] and time.monotonic() < end:
            remeasure(one, timer, end)
        print(summary(one), flush=True)
    return True


def batch(shaped: Sequence[Shaped], rows: Sequence[Row], timer: Timer, end: float) -> int:
    """Measure configs at all shapes into the files; returns how many fit into the time."""
    start = time.monotonic()
    found = list(compiled(shaped[0], rows, end))
    print(f"{shaped[0].path.name}: compiled in {time.monotonic() - start:.1f} s", flush=True)
    for one in shaped:
        measure(one, [row for row, status in found if status == "ok"], timer)
        one.table.rows.update({row: (None, status) for row, status in found if status != "ok"})
        one.save()
    return len(found)


def summary(one: Shaped) -> str:
    """A summary of a table in one line."""
    times = sorted(ms for ms, _ in one.table.rows.values() if ms is not None)
    failed = collections.Counter(status for ms, status in one.table.rows.values() if ms is None)
    words = f"{one.path.name}: {len(one.table.rows)} configs, {len(times)} run, not {dict(failed)}"
    if not times:
        return words
    near, middle = sum(ms <= 1.05 * times[0] for ms in times), times[len(times) // 2]
    return f"{words}, best {times[0] * 1e3:.1f} us, {near} within 5%, middle {middle * 1e3:.1f} us"
