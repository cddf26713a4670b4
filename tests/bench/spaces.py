"""Strategies replayed over fully measured spaces: number of configs until one is within 5% of the best.

By hand: python tests/bench/spaces.py --data DIR [--seeds 15] [--batch 16] [--only gemm] [--strategies guided,random]
or:      python tests/bench/spaces.py --record DIR    measures our own spaces on a GPU: `record_spaces.py`
or:      python tests/bench/spaces.py --wall    searches our matmul space on a GPU: `wall_spaces.py`
DIR holds tables (`space_tables.py`). Tables of one kernel, for other cards or shapes, are each other's priors: "guided,
prior" has all times of the first other table, "20 times" the best and 20 others, "misled" all in reversed order.
Optuna's samplers and Kernel Tuner's strategies are replayed too if they are installed; every requested config counts,
also failed ones, repeated ones once.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import space_tables
from space_peers import member, peers

from autotuned import Space
from autotuned.space.members import Members
from autotuned.space.parts import Point
from autotuned.space.strategies import strategy

DATA = Path(__file__).parents[1] / "data" / "spaces"
BUDGET, WITHIN = 600, 1.05


class Table(NamedTuple):
    """A measured space: milliseconds by point, None for failures."""

    name: str
    members: Members
    times: dict[Point, float | None]
    best: float


def load(path: Path) -> Table:
    """The table in a file."""
    recorded = space_tables.read(path)
    names, found = recorded.names, {row: ms for row, (ms, _) in recorded.rows.items()}
    values = {name: sorted({row[place] for row in found}) for place, name in enumerate(names)}
    space = Space(values, where=[member(list(names), found)])
    members = space.members(options=False)
    times = {tuple(values[name].index(v) for name, v in zip(names, row)): ms for row, ms in found.items()}
    return Table(path.name.split(".")[0], members, times, min(ms for ms in found.values() if ms is not None))


class Counted:
    """Counts a strategy's requests until one is within 5% of the best or the budget is used up."""

    class Done(Exception):
        """The replay is over."""

    def __init__(self, table: Table) -> None:
        self.table, self.asked = table, dict.fromkeys(())
        self.needed = BUDGET + 1

    def __call__(self, point: Point) -> float | None:
        """The time of a point; None if it failed or is not in the table."""
        ms = self.table.times.get(point)
        self.asked[point] = None
        if ms is not None and ms <= WITHIN * self.table.best:
            self.needed = len(self.asked)
            raise self.Done
        if len(self.asked) >= BUDGET:
            raise self.Done
        return ms


Make = Callable[[Members, int], Any]  # a strategy for members and a seed


def ours(name: str, prior: dict[Point, float] | None = None) -> Make:
    """One of our strategies."""

    def make(members: Members, seed: int) -> Any:
        known = [(members.config(point), ms * 1e3) for point, ms in (prior or {}).items()]
        return strategy(name, members, seed, known)

    return make


def priors(table: Table, others: list[Table]) -> Iterator[tuple[str, dict[Point, float]]]:
    """Times from another table for the members of a table: all, 21 of them, and all in reversed order."""
    for other in others[:1]:
        whole = {}
        for row, ms in other.times.items():
            point = table.members.point(other.members.config(row))
            if ms is not None and point is not None:
                whole[point] = ms
        order = sorted(whole, key=lambda point: whole[point])
        some = [order[0], *random.Random(0).sample(order, 20)]
        yield "guided, prior", whole
        yield "guided, 20 times", {point: whole[point] for point in some}
        yield "guided, misled", dict(zip(order, sorted(whole.values(), reverse=True)))


def replay(table: Table, make: Make, seed: int, batch: int) -> int:
    """Number of configs requested."""
    counted, members = Counted(table), table.members
    chosen = make(members, seed)
    try:
        while configs := chosen.ask(min(batch, getattr(chosen, "at_once", batch))):
            times = [(config, counted(members.point(config) or ())) for config in configs]
            chosen.tell([(config, ms and ms * 1e3, "ok" if ms else "failed") for config, ms in times])
    except Counted.Done:
        pass
    if hasattr(chosen, "close"):
        chosen.close()
    return counted.needed


def runs(table: Table, tables: list[Table]) -> dict[str, Make]:
    """Every strategy for one table, by name."""
    kernel = table.name.split("-")[0]
    others = [one for one in tables if one is not table and one.name.split("-")[0] == kernel]
    found = {"guided": ours("guided"), "random": ours("random")}
    found |= {label: ours("guided", prior) for label, prior in priors(table, others)}
    return found | dict(peers())


def main() -> None:
    """Replay, and print a row of Markdown for each table and strategy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--record", type=Path, help="measure our own spaces into this folder")
    parser.add_argument("--wall", action="store_true", help="seconds of searches on this GPU")
    parser.add_argument("--pretended", action="store_true", help="--wall without a GPU")
    parser.add_argument("--json", type=Path, help="also write the runs of --wall to this file")
    parser.add_argument("--budget", type=float, default=300.0, help="seconds for --record and --wall")
    parser.add_argument("--few", type=int, default=0, help="so many configs of each space for --record")
    parser.add_argument("--seeds", type=int, default=15)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--only", default="")
    parser.add_argument("--strategies", default="")
    given = parser.parse_args()
    if given.record:
        import record_spaces

        only = given.only.split(",") if given.only else list(record_spaces.PROBLEMS)
        raise SystemExit(0 if record_spaces.record(given.record, given.budget, only, given.few) else 3)
    if given.wall:
        import wall_spaces

        only = [one for one in given.strategies.split(";") if one]
        wall_spaces.measure(given.data, given.budget, given.pretended, given.json, only)
        return
    tables = [load(path) for path in sorted(given.data.glob("*.csv*"))]
    print("| space | strategy | median | found | worst | s |\n|---|---|---|---|---|---|")
    for table in tables:
        for name, run in runs(table, tables).items() if given.only in table.name else ():
            if given.strategies and name not in given.strategies.split(";"):
                continue
            start = time.perf_counter()
            needed = sorted(replay(table, run, seed, given.batch) for seed in range(given.seeds))
            made = sum(one <= BUDGET for one in needed)
            row = statistics.median(needed), f"{made} of {len(needed)}", needed[-1], time.perf_counter() - start
            print(f"| {table.name} | {name} | {row[0]:g} | {row[1]} | {row[2]} | {row[3]:.0f} |", flush=True)


if __name__ == "__main__":
    main()
