"""Tests of `bench/table.py`: what is run and in which order, what a limit leaves, and what the table says of it."""

import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))
import table  # noqa: E402
from table import Piece  # noqa: E402

CARD = {"card": "A card", "torch": "2", "triton": "3"}


class Bench:
    """A clock, and pieces that take what they guess, ten times as fast for `ours`."""

    def __init__(self, fails=()):
        self.now_s, self.ran, self.fails = 0.0, [], list(fails)

    def now(self):
        return self.now_s

    def run(self, piece, folder, limit_s):
        self.ran.append(piece)
        self.now_s += piece.guess_s
        if piece in self.fails:
            raise subprocess.CalledProcessError(1, "bench")
        if piece.kind != "wall":
            return {**CARD, "rows": [quality(tool) for tool in ("ours", "stock", "ours, 30% load")]}
        each_s = {"ours": 0.5, "strong": 2.0, "stock": 9.0}[piece.tool]
        return {**CARD, "seconds": [2 * each_s, *[each_s] * piece.further]}

    def work(self, path, limit_s, pieces=None):
        return table.work(pieces or table.plan(), path, limit_s, self.run, self.now)


def quality(tool, **fields):
    return {"tool": tool, "searches": 20, "median_regret": 0.001, "p95_regret": 0.01, "winners": 1, **fields}


def result(piece, data, seconds=1.0):
    return {"piece": asdict(piece), "seconds": seconds, "result": {**CARD, **data}}


def wall(tool, seconds, problem="matmul", repeat=0, **card):
    return result(Piece("wall", problem, tool, repeat, len(seconds) - 1, 1.0), {"seconds": seconds, **card})


def measured(results):
    return {row.what: (row.measured, row.met) for row in table.rows(results)}


def test_every_row_has_its_first_run_before_any_has_its_second():
    pieces = table.plan()
    assert len(pieces) == len(set(pieces))
    first_repeat = next(index for index, piece in enumerate(pieces) if piece.repeat)
    assert {piece.like for piece in pieces[:first_repeat]} == {piece.like for piece in pieces}
    assert {piece.problem for piece in pieces if piece.kind == "quality"} == set(table.QUALITY)


def test_one_command_repeated_does_all_of_it_and_each_piece_once(tmp_path):
    bench, path = Bench(), tmp_path / "results.jsonl"
    calls = 0
    while bench.work(path, 540.0):
        calls += 1
        assert calls < 20
    assert sorted(map(str, bench.ran)) == sorted(map(str, table.plan()))
    assert all(met for _, met in measured(table.load(path)).values())


def test_a_call_stays_within_its_limit_and_uses_most_of_it(tmp_path):
    bench = Bench()
    left = bench.work(tmp_path / "results.jsonl", 540.0)
    assert 400.0 < bench.now_s <= 540.0
    assert len(left) + len(bench.ran) == len(table.plan())


def test_what_took_longer_than_its_guess_is_expected_to_take_as_long(tmp_path):
    piece = Piece("wall", "matmul", "stock", 1, 3, 5.0)
    seen = [result(Piece("wall", "matmul", "stock", 0, 3, 5.0), {"seconds": [1.0]}, seconds=100.0)]
    assert table.expected_s(piece, seen) == 100.0
    assert table.expected_s(piece, []) == 5.0


def test_a_piece_that_fails_stops_no_other_and_is_tried_by_the_next_call(tmp_path, capsys):
    pieces = [piece for piece in table.plan() if piece.problem == "pair"]
    bench = Bench(fails=pieces[:1])
    assert bench.work(tmp_path / "results.jsonl", 10_000.0, pieces) == pieces[:1]
    assert "failed" in capsys.readouterr().err
    assert Bench().work(tmp_path / "results.jsonl", 10_000.0, pieces) == []


def test_a_line_that_a_killed_process_left_half_written_is_measured_again(tmp_path):
    path, pieces = tmp_path / "results.jsonl", table.plan()[:2]
    Bench().work(path, 1000.0, pieces)
    text = path.read_text()
    path.write_text(text[: len(text) - 20])
    assert table.left_over(pieces, table.load(path)) == pieces[1:]
    assert Bench().work(path, 1000.0, pieces) == []
    assert [one["piece"] for one in table.load(path)] == [asdict(piece) for piece in pieces]


def test_ratios_are_those_of_medians_of_all_runs():
    runs = [wall("ours", [seconds, 0.2, 0.4, 0.3], repeat=repeat) for repeat, seconds in enumerate([3.0, 2.0, 9.0])]
    runs += [wall("stock", [27.0, 4.5, 4.5, 4.5]), wall("strong", [6.0, 4.0, 4.0, 4.0])]
    rows = measured(runs)
    assert rows["matmul, 40 configs, cold"] == ("9.00 (27.00 s / 3.00 s; 1 and 3 runs)", True)
    assert rows["the same, against strong"] == ("2.00 (6.00 s / 3.00 s; 1 and 3 runs)", False)
    assert rows["a further shape of matmul"][0].startswith("15.00 (4.50 s / 0.30 s")
    assert rows["attention, 36 configs, cold"] == ("not measured", None)


def test_results_of_another_card_are_kept_and_not_mixed_in():
    runs = [wall("ours", [1.0], "pair", card="another"), wall("stock", [2.0], "pair"), wall("ours", [4.0], "pair")]
    assert measured(table.comparable(runs))["2 configs of a trivial kernel"] == (
        "0.50 (2.00 s / 4.00 s; 1 and 1 runs)", False,
    )  # fmt: skip
    assert "card A card" in table.show(runs)


@pytest.mark.parametrize(
    ("ours", "stock", "met"),
    [
        ({}, {}, True),
        ({"median_regret": 0.006}, {}, False),
        ({"p95_regret": 0.021}, {}, False),
        ({"median_regret": 0.004}, {"median_regret": 0.0}, True),  # a tie, which the earlier in the list wins
    ],
)
def test_a_pick_is_good_if_all_that_is_asked_of_it_holds(ours, stock, met):
    rows = [quality("ours", **ours), quality("stock", **stock), quality("ours, 30% load", p95_regret=0.06)]
    found = measured([result(Piece("quality", "rmsnorm", "both", 0, 0, 1.0), {"rows": rows})])
    assert found["rmsnorm, pick over the best"][1] is met
    assert found["rmsnorm, 30% foreign load"] == ("6.00%", False)
    assert found["problems with one winner"] == ("1 of 1", None)


def test_without_a_measurement_the_table_says_so():
    text = table.show([])
    assert text.startswith("nothing measured")
    assert text.count("not measured") == len(table.rows([]))


def test_each_piece_is_a_process_with_what_is_left_of_the_limit(tmp_path, monkeypatch):
    asked = []

    def ended(command, **options):
        asked.append((command, options["timeout"]))
        (tmp_path / "record-softmax.json").write_text('{"card": "A card", "rows": []}')

    monkeypatch.setattr(subprocess, "run", ended)
    assert table.run(Piece("record", "softmax", "ours", 0, 0, 1.0), tmp_path, 77.0)["rows"] == []
    [(command, limit_s)] = asked
    assert limit_s == 77.0
    assert command[-4:] == ["--record", str(tmp_path), "--repeats", "0"]
