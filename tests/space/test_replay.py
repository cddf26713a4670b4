"""The replay of `tests/bench/spaces.py`, on a small table: the same adapters, with one seed each; and its recorder."""

from __future__ import annotations

import math
import random
import statistics
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))
import space_tables  # noqa: E402
import spaces as bench  # noqa: E402


@pytest.fixture(scope="module")
def spaces():
    return bench


@pytest.fixture(scope="module")
def tables(spaces, tmp_path_factory):
    """A made-up stencil on two made-up cards; a tenth of the configs fails."""
    folder = tmp_path_factory.mktemp("spaces")
    for card, best in (("one", 5.0), ("two", 5.6)):
        source, rows = random.Random(card), ["x,y,tile,pad,time_ms"]
        for x in (4, 8, 16, 32, 64, 128):
            for y in (1, 2, 4, 8, 16):
                for tile in (1, 2, 3, 4, 6):
                    for pad in (0, 1):
                        far = abs(math.log2(x * y) - best - 2) + abs(tile - 3) / 2 + (0.2 if x < 32 and not pad else 0)
                        ms = "" if x * y * tile > 4096 else f"{(1 + far) * source.uniform(0.99, 1.01):.5f}"
                        rows += [f"{x},{y},{tile},{pad},{ms}"] if x * y >= 16 else []
        (folder / f"stencil-{card}.csv").write_text("\n".join(rows))
    return [spaces.load(path) for path in sorted(folder.glob("*.csv"))]


def names_of(spaces):
    return ["guided", "random", "guided, prior", "guided, 20 times", "guided, misled", *dict(bench.peers())]


def test_every_strategy_is_replayed(spaces, tables):
    found = {name: spaces.replay(tables[0], run, 0, 8) for name, run in spaces.runs(tables[0], tables).items()}
    assert set(found) == set(names_of(spaces))
    assert found["guided"] <= 60 and found["guided, prior"] <= 20 and found["guided, misled"] <= found["guided"] + 60


@pytest.mark.parametrize("name", ["Optuna TPE", "Kernel Tuner diff_evo", "Kernel Tuner genetic_algorithm"])
def test_peers_find_it_too(spaces, tables, name):
    pytest.importorskip(name.split(" ")[0].lower() if name.startswith("Optuna") else "kernel_tuner")
    run = dict(bench.peers())[name]
    assert spaces.replay(tables[0], run, 0, 8) <= len(tables[0].times)


def test_a_replay_repeats_itself(spaces, tables):
    run = spaces.ours("guided")
    assert len({spaces.replay(tables[1], run, 3, 4) for _ in range(3)}) == 1


# -- our own spaces, measured whole on a GPU ---------------------------------------------------------------------------

OWN = sorted(bench.DATA.glob("*.csv.gz"))


@pytest.mark.parametrize("path", OWN, ids=lambda path: "-".join(path.name.split("-")[:2]))
def test_our_own_spaces_take_a_few_dozen_trials_and_a_handful_with_a_prior(path):
    tables = [bench.load(one) for one in OWN if one.name.split("-")[0] == path.name.split("-")[0]]
    table = next(one for one in tables if path.name.startswith(one.name))
    found = bench.runs(table, tables)
    assert bench.replay(table, found["guided"], 0, 16) <= (100 if "attention" in path.name else 40)
    assert bench.replay(table, found["guided, 20 times"], 0, 16) <= 8


def test_they_are_three_kernels_at_two_shapes_and_whole():
    record_spaces = pytest.importorskip("record_spaces")
    found = [space_tables.read(path) for path in OWN]
    assert sorted(one.facts["kernel"] for one in found) == sorted(2 * [*record_spaces.PROBLEMS])
    for one in found:
        assert len(one.rows) == record_spaces.PROBLEMS[one.facts["kernel"]].space.members().size
        assert one.facts["together"] and "wrong" not in {status for _, status in one.rows.values()}


# -- the recorder -----------------------------------------------------------------------------------------------------


def test_every_config_is_measured_and_a_second_call_goes_on(tmp_path):
    record_spaces = pytest.importorskip("record_spaces")
    assert record_spaces.record(tmp_path, 600, ["rmsnorm"], 3, "cpu")
    paths = sorted(tmp_path.glob("rmsnorm-*.csv.gz"))
    first = [space_tables.read(path) for path in paths]
    assert [(len(one.rows), one.facts["together"] > 0) for one in first] == [(3, True), (3, True)]
    assert all(status == "ok" and ms > 0 for one in first for ms, status in one.rows.values())
    assert record_spaces.record(tmp_path, 600, ["rmsnorm"], 4, "cpu")
    again = [space_tables.read(path) for path in paths]
    assert all(len(one.rows) == 4 and one.rows.keys() > before.rows.keys() for one, before in zip(again, first))
    assert bench.load(paths[0]).members.size == 4


def test_no_time_records_nothing(tmp_path):
    record_spaces = pytest.importorskip("record_spaces")
    assert not record_spaces.record(tmp_path, -1, ["rmsnorm"], 3, "cpu")
    assert list(tmp_path.iterdir()) == []


def test_all_of_our_spaces_are_right(tmp_path):
    """The fastest of none: one config of each way through the attention kernel, and of the others."""
    record_spaces = pytest.importorskip("record_spaces")
    for name, some in {
        "attention": [(16, 32, 0, 4, 2), (16, 32, 1, 4, 2), (32, 16, 1, 2, 1)],
        "matmul": [(32, 64, 32, 4, 2, 3)],
        "rmsnorm": [(4, 512, 2, 4)],
    }.items():
        problem = record_spaces.PROBLEMS[name]
        one = record_spaces.Shaped(problem, problem.small[1], tmp_path, "cpu")
        assert [one.try_out(one.trial(0, row)) for row in some] == ["ok"] * len(some)
    assert record_spaces.PROBLEMS["matmul"].space.members().size >= 2000


def test_a_table_survives_its_file(tmp_path):
    rows = {(1, "a", None): (0.25, "ok"), (2, "b", True): (None, "memory")}
    made = space_tables.Recorded({"device": "one"}, ("x", "y", "z"), rows)
    for row in rows:  # what is no number is JSON
        made.rows = {tuple("null" if v is None else "true" if v is True else v for v in row): rows[row]}
        space_tables.write(made, tmp_path / "k-one.csv.gz")
        assert space_tables.read(tmp_path / "k-one.csv.gz").rows == {row: rows[row]}


def test_after_a_prior_that_misleads_the_space_is_spread_out_again(spaces):
    """Measured on a GPU; a dropped prior leaves trials in few corners, of which a model says little."""
    found = [spaces.load(path) for path in sorted(spaces.DATA.glob("attention-*"))]
    table = found[1]
    run = spaces.runs(table, found)
    needed = lambda name: statistics.median(spaces.replay(table, run[name], seed, 16) for seed in range(5))
    assert needed("guided, misled") <= needed("guided") + 30
