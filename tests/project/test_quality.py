"""`bench/quality.py`: going on where it ended, within a limit, and a row for each problem."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))
import quality  # noqa: E402

HEAD = {"card": "A card", "triton": "3"}
FOUND = {"truth": [[10.0, 10.02, 12.0]] * 3, "searches": [(0, 0.5)] * 3, "orders": [(0, 0.5), (1, 0.7)]}


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Namespace:
    """Two problems, whose pieces take a second each; `ran` has those that were measured."""
    options = Namespace(problems="add,splitk", repeats=3, stock=0, orders=2, load=0.0, limit=100.0)
    options.json, options.ran, clock = tmp_path / "quality.json", [], [0.0]
    monkeypatch.setattr(quality.time, "monotonic", lambda: clock[0])

    def measured(name: str) -> Any:
        def measure(*given: Any) -> Any:
            clock[0] += 1.0
            options.ran.append(name)
            return FOUND[name]

        return measure

    for name in FOUND:
        monkeypatch.setattr(quality, name, measured(name))
    return options


def work(options: Namespace, head: dict[str, str] = HEAD) -> Any:
    return quality.work(options, head, lambda name: name)


def test_it_goes_on_where_its_limit_ended_it(options: Namespace) -> None:
    options.limit = 3.5
    done, left = work(options)
    assert options.ran == ["truth", "searches", "orders", "truth"]
    assert left == ["splitk: ours", "splitk: ours, 2 orders"]
    done, left = work(options)
    assert options.ran[4:] == ["searches", "orders"] and not left
    assert work(options)[0] == json.loads(json.dumps(done)) and len(options.ran) == 6


def test_of_another_card_nothing_is_taken_over(options: Namespace) -> None:
    work(options)
    work(options, HEAD | {"card": "Another"})
    assert len(options.ran) == 12


def test_each_problem_has_a_row_that_says_whether_its_winners_tie(options: Namespace) -> None:
    options.problems = "add"
    lines = list(quality.table(quality.rows_of(work(options)[0])))
    assert lines[0].endswith("| ours | ours, 2 orders |")
    assert lines[2:] == ["| add | 1 in 3, 0.00%, 0.00%, 0.50 s | 2 in 2, 0.20% (tie), 0.20%, 0.60 s |"]
    apart = quality.summary("add", "ours", [(0, 1.0), (2, 1.0)], [10.0, 10.02, 12.0])
    assert list(quality.table([apart]))[2] == "| add | 2 in 2, 20.00% **(no tie)**, 20.00%, 1.00 s |"
    assert set(json.loads(options.json.read_text())) == {*HEAD, "rows", "done"}
