"""All rows of the table of tuning by one command, which continues where it ended, then reports.

Run by hand on a machine with a GPU: python tests/bench/table.py [--into DIR] [--limit SECONDS] [--report]
Each piece of work is a process with empty caches, limited by the remaining time. All rows get their first run before
any gets its second. Results of other cards or versions are kept but not mixed in.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tuning

HERE = Path(__file__).resolve().parent
REPEATS, SHAPES, SEARCHES, LOAD = 5, 19, 20, 0.3
QUALITY = ("matmul", "attention", "rmsnorm", "add", "splitk")
RECORDED = ("matmul", "attention", "rmsnorm", "softmax", "add")
SLACK = 1.2  # a piece is begun if this many times the longest similar one fits into the remaining time
Result = dict[str, Any]


@dataclass(frozen=True)
class Piece:
    """The work of one process.

    Attributes:
        kind: "wall", "quality" or "record".
        further: Number of shapes after the first.
        guess_s: Assumed duration until a similar piece has run.
    """

    kind: str
    problem: str
    tool: str
    repeat: int
    further: int
    guess_s: float

    @property
    def like(self) -> tuple[str, str, str, int]:
        """The properties that similar pieces, which take as long, have in common."""
        return self.kind, self.problem, self.tool, self.further


def plan() -> list[Piece]:
    """All pieces, most valuable first."""
    guesses = {"ours": 30.0, "strong": 60.0, "stock": 90.0}
    wall = [
        Piece("wall", problem, tool, repeat, further, guesses[tool])
        for repeat in range(REPEATS)
        for problem, further, tools in (
            ("matmul", 3, tuning.TOOLS), ("attention", 3, tuning.TOOLS), ("pair", 0, ("stock", "ours")),
        )
        for tool in tools
    ]  # fmt: skip
    shapes = [Piece("wall", "matmul", tool, 0, SHAPES, 2 * guesses[tool]) for tool in ("stock", "ours")]
    quality = [Piece("quality", problem, "both", 0, 0, 150.0) for problem in QUALITY]
    records = [Piece("record", problem, "ours", 0, 0, 60.0) for problem in RECORDED]
    once = [piece for piece in wall if not piece.repeat]
    return [*once, *shapes, *quality, *records, *(piece for piece in wall if piece.repeat)]


# -- running ------------------------------------------------------------------------------------------------------------


def run(piece: Piece, folder: Path, limit_s: float) -> Result:
    """Measure one piece; returns its result as JSON data.

    Raises:
        subprocess.SubprocessError: It failed, or took longer than the limit.
    """
    if piece.kind == "wall":
        return tuning.run(piece.tool, piece.problem, piece.further, limit_s)
    path = folder / f"{piece.kind}-{piece.problem}.json"
    command = [sys.executable, str(HERE / "quality.py"), "--problems", piece.problem, "--json", str(path)]
    if piece.kind == "record":
        command += ["--record", str(folder), "--repeats", "0"]
    else:
        command += ["--repeats", str(SEARCHES), "--stock", "5", "--load", str(LOAD)]
    environment = {**os.environ, "TRITON_CACHE_DIR": str(folder / "triton"), "AUTOTUNED_CACHE_DIR": str(folder / "own")}
    subprocess.run(command, env=environment, check=True, timeout=limit_s, stdout=sys.stderr)
    result: Result = json.loads(path.read_text())
    return result


def load(path: Path) -> list[Result]:
    """Results of earlier runs; skips a line that a killed process left half-written."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def left_over(pieces: Iterable[Piece], results: Iterable[Result]) -> list[Piece]:
    """Pieces without a result."""
    done = [one["piece"] for one in results]
    return [piece for piece in pieces if asdict(piece) not in done]


def expected_s(piece: Piece, results: Iterable[Result]) -> float:
    """The expected duration of a piece: that of the longest similar one, or its guess."""
    like = [one["seconds"] for one in results if Piece(**one["piece"]).like == piece.like]
    return max(like, default=piece.guess_s)


def work(
    pieces: Sequence[Piece],
    path: Path,
    limit_s: float,
    runner: Callable[[Piece, Path, float], Result] = run,
    now: Callable[[], float] = time.monotonic,
) -> list[Piece]:
    """Run pieces without a result that fit into the limit; results are appended one by one.

    Returns:
        The pieces left.
    """
    end, left = now() + limit_s, left_over(pieces, results := load(path))
    for piece in list(left):
        if SLACK * expected_s(piece, results) > end - now():
            continue
        began = now()
        try:
            result = runner(piece, path.parent, end - now())
        except (subprocess.SubprocessError, SystemExit, OSError, ValueError) as error:
            print(f"failed: {piece}: {error}", file=sys.stderr, flush=True)
            continue
        results.append({"piece": asdict(piece), "seconds": round(now() - began, 2), "result": result})
        with path.open("a") as file:
            file.write(f"\n{json.dumps(results[-1])}\n")  # an empty line first: the last may be torn
        left.remove(piece)
        print(f"{piece.kind} {piece.problem} {piece.tool} {piece.repeat}: {results[-1]['seconds']} s", flush=True)
    return left


# -- the table ----------------------------------------------------------------------------------------------------------

HEAD = ("card", "torch", "triton")


def comparable(results: Sequence[Result]) -> list[Result]:
    """The results with the same card and versions as the last one."""
    place = [results[-1]["result"].get(name) for name in HEAD] if results else []
    return [one for one in results if [one["result"].get(name) for name in HEAD] == place]


@dataclass(frozen=True)
class Row:
    """One row: goal and result; `met` is None if nothing was measured."""

    what: str
    target: str
    measured: str
    met: bool | None


def rows(results: Sequence[Result]) -> list[Row]:
    """The whole table, including rows without a measurement."""
    return [*_wall_rows(results), *_quality_rows(results)]


def _wall_rows(results: Sequence[Result]) -> Iterator[Row]:
    for what, problem, further, other, part, aim in (
        ("matmul, 40 configs, cold", "matmul", 3, "stock", _cold, 7.0),
        ("the same, against strong", "matmul", 3, "strong", _cold, 2.2),
        ("attention, 36 configs, cold", "attention", 3, "stock", _cold, 5.0),
        ("a further shape of matmul", "matmul", 3, "stock", _each_further, 15.0),
        ("a further shape of attention", "attention", 3, "stock", _each_further, 15.0),
        (f"{SHAPES + 1} shapes of matmul in one go", "matmul", SHAPES, "stock", sum, 12.0),
        ("2 configs of a trivial kernel", "pair", 0, "stock", _cold, 1.0),
    ):
        mine, theirs = (_seconds(results, problem, tool, further, part) for tool in ("ours", other))
        yield _ratio_row(what, other, aim, mine, theirs)


def _cold(seconds: Sequence[float]) -> float:
    return seconds[0]


def _each_further(seconds: Sequence[float]) -> float:
    return statistics.mean(seconds[1:])


def _seconds(
    results: Sequence[Result], problem: str, tool: str, further: int, part: Callable[[Sequence[float]], float]
) -> list[float]:
    like = ("wall", problem, tool, further)
    return [part(one["result"]["seconds"]) for one in results if Piece(**one["piece"]).like == like]


def _ratio_row(what: str, other: str, aim: float, mine: Sequence[float], theirs: Sequence[float]) -> Row:
    target = f"{aim:g} times less than {other}"
    if not mine or not theirs:
        return Row(what, target, "not measured", None)
    ours, other_s = statistics.median(mine), statistics.median(theirs)
    text = f"{other_s / ours:.2f} ({other_s:.2f} s / {ours:.2f} s; {len(theirs)} and {len(mine)} runs)"
    return Row(what, target, text, other_s / ours >= aim)


def _quality_rows(results: Sequence[Result]) -> Iterator[Row]:
    winners = []
    loaded = f"ours, {LOAD:.0%} load"
    for problem in QUALITY:
        found = _tools(results, problem)
        quiet, stock = found.get("ours"), found.get("stock")
        winners += [quiet["winners"]] if quiet else []
        yield _regret_row(problem, quiet, stock)
        yield _load_row(f"{problem}, {LOAD:.0%} foreign load", found.get(loaded))
    steady = sum(count == 1 for count in winners)
    text = f"{steady} of {len(winners)}" if winners else "not measured"
    yield Row("problems with one winner", "4 of 5", text, steady >= 4 if len(winners) == len(QUALITY) else None)


def _tools(results: Sequence[Result], problem: str) -> dict[str, Result]:
    found = [one["result"]["rows"] for one in results if Piece(**one["piece"]).like == ("quality", problem, "both", 0)]
    return {row["tool"]: row for row in found[-1]} if found else {}


def _regret_row(problem: str, ours: Result | None, stock: Result | None) -> Row:
    target = "median 0.5%, 95th percentile 2%, no worse than stock"
    if ours is None:
        return Row(f"{problem}, pick over the best", target, "not measured", None)
    text = f"{ours['median_regret']:.2%}, {ours['p95_regret']:.2%} in {ours['searches']} searches"
    met = ours["median_regret"] <= 0.005 and ours["p95_regret"] <= 0.02
    if stock is not None:
        text += f"; stock {stock['median_regret']:.2%}, {stock['p95_regret']:.2%} in {stock['searches']}"
        # Within half a percent is a tie, which the earlier config in the list should win.
        met = met and ours["median_regret"] <= max(stock["median_regret"], 0.005)
    return Row(f"{problem}, pick over the best", target, text, met)


def _load_row(what: str, ours: Result | None) -> Row:
    if ours is None:
        return Row(what, "95th percentile 5%", "not measured", None)
    return Row(what, "95th percentile 5%", f"{ours['p95_regret']:.2%}", ours["p95_regret"] <= 0.05)


def show(results: Sequence[Result]) -> str:
    """The table as text, with its card and versions."""
    shown = comparable(results)
    head = ", ".join(f"{name} {shown[-1]['result'].get(name)}" for name in HEAD) if shown else "nothing measured"
    words = {True: "yes", False: "no", None: ""}
    lines = [head, "", "| work | target | measured | met |", "|---|---|---|---|"]
    lines += [f"| {row.what} | {row.target} | {row.measured} | {words[row.met]} |" for row in rows(shown)]
    return "\n".join(lines)


def main() -> None:
    """Measure within the limit, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--into", type=Path, default=Path("tuning-results"), help="folder for results and recordings")
    parser.add_argument("--limit", type=float, default=540.0, help="seconds that this call may take")
    parser.add_argument("--report", action="store_true", help="measure nothing")
    arguments = parser.parse_args()
    arguments.into.mkdir(parents=True, exist_ok=True)
    path = arguments.into / "results.jsonl"
    if not arguments.report:
        left = work(plan(), path, arguments.limit)
        print(f"{len(left)} of {len(plan())} pieces are left" + "; run the same command again" * bool(left))
    print(show(load(path)))


if __name__ == "__main__":
    main()
