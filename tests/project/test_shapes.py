"""Tests of `bench/shapes.py`: its files, which shapes are measured and in which order, and what a replay says.

Tables that were recorded on a GPU lie in `tests/data/shapes/`; what is promised of rules is held over each of them.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

pytest.importorskip("numpy")
import synthetic

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))
import recorded_shapes  # noqa: E402
import shapes  # noqa: E402

from autotuned.rules import cover as covers  # noqa: E402
from autotuned.rules import folds  # noqa: E402
from autotuned.rules.table import Table, tables  # noqa: E402

RECORDED = sorted(shapes.DATA.glob("*.csv.gz"))


def steps(count: int = 120, loss: float = 0.5) -> Table:
    """One config is best up to M = 500, another beyond, for each of four N."""
    names = [synthetic.form_of((size, 64, 32, 4, 3)) for size in (64, 128)]
    rows = [(round(1.08 ** (number % 120)) + number % 120, 256 << number % 4) for number in range(count)]
    calls = [
        ({"tensors": {}, "values": {"M": m, "N": n}, "none": []},
         {name: 10 * (1 + loss * (place != (m > 500))) for place, name in enumerate(names)})
        for m, n in rows
    ]  # fmt: skip
    [(found, _)] = tables(calls)
    return found


def test_a_table_survives_its_file(tmp_path: Path) -> None:
    facts = {"kernel": "matmul", "device": "card"}
    made = shapes.Recorded(facts, ("M", "N"), ['{"a":1}', '{"a":2}'], {(3, 4): [1.5, None], (5, 6): [2.25, 1e5]})
    shapes.save(made, tmp_path / "one.csv.gz")
    again = shapes.load(tmp_path / "one.csv.gz")
    assert (again.sizes, again.configs, again.rows, again.name) == (
        made.sizes,
        made.configs,
        made.rows,
        "matmul on card",
    )
    shapes.save(again, tmp_path / "other.csv.gz")
    assert (tmp_path / "one.csv.gz").read_bytes() == (tmp_path / "other.csv.gz").read_bytes()
    assert again.table().times == [{'{"a":1}': 1.5}, {'{"a":1}': 2.25, '{"a":2}': 1e5}]


@pytest.mark.parametrize("kernel", shapes.KERNELS)
def test_the_shapes_of_a_kernel_are_always_the_same_and_many(kernel: str) -> None:
    names, count, others, (low, high) = shapes.KERNELS[kernel]
    found = list(recorded_shapes.shapes(kernel))
    assert found == list(recorded_shapes.shapes(kernel)) and len(set(found)) == len(found) == count >= 100
    assert {len(shape) for shape in found} == {len(names)}
    sizes = [shape[1] if kernel == "attention" else shape[0] for shape in found]
    assert all(low <= size <= high for size in sizes)
    assert sum(size < math.sqrt(low * high) for size in sizes) / count == pytest.approx(0.5, abs=0.3)


def test_matmul_has_what_rules_are_judged_by() -> None:
    found = list(recorded_shapes.shapes("matmul"))
    assert len(found) >= 300 and len({shape[1:] for shape in found}) >= 6


def test_recording_goes_on_and_cuts_all_kernels_alike() -> None:
    everything = shapes.interleaved({kernel: set() for kernel in shapes.KERNELS})
    assert len(everything) == sum(count for _, count, _, _ in shapes.KERNELS.values())
    half = everything[: len(everything) // 2]
    for kernel, (_, count, _, _) in shapes.KERNELS.items():
        assert sum(name == kernel for name, _ in half) == pytest.approx(count / 2, abs=2)
    done = {kernel: {shape for name, shape in half if name == kernel} for kernel in shapes.KERNELS}
    assert shapes.interleaved(done) == everything[len(half) :]


def test_no_shape_that_a_rule_is_fitted_to_is_near_one_that_is_left_out() -> None:
    table = steps()
    for out, left in shapes.bands(table):
        ratios = [table.steps[a] / table.steps[b] for a in out for b in left]
        assert all(max(ratio, 1 / ratio) > 1.3 for ratio in ratios)
    for out, left in shapes.combinations(table):
        assert not {table.others[row] for row in out} & {table.others[row] for row in left}


def test_a_replay_prices_what_each_would_have_served() -> None:
    judged = shapes.judge(steps(), shapes.bands(steps()))
    assert judged.calls == 120
    single, power, near = (judged.others[name] for name in list(judged.others)[1:])
    assert single[1] == 0.5 and 0.1 < single[0] < 0.5  # one of two configs loses a half
    assert near[0] < single[0] and power[0] < single[0]
    assert judged.mean <= near[0] or math.isnan(judged.mean)
    assert 0 <= judged.share <= 1 and judged.exceeded <= 0.2
    assert "served" in str(judged)


def test_a_replay_of_cover_stops_early_where_little_changes() -> None:
    calls = [({"tensors": {}, "values": {"M": m}, "none": []}, {"{}": 10.0, '{"a":1}': 10.0 + 5 * (m > 0)})
             for m in sorted({round(1.03**step) for step in range(300)})]  # fmt: skip
    [(table, _)] = tables(calls)
    found = shapes.cover(table)
    assert found.searches <= shapes.ranges.START + 1 and found.nearest == (0.0, 0.0)


# The least share of calls left out that is served, and the largest mean and worst loss of those. Attention, rmsnorm and
# split-K have 100 calls each: their few served ones say little.
SERVED = {"matmul": (0.75, 0.015, 0.15), "attention": (0.0, 0.015, 0.15), "rmsnorm": (0.0, 0.015, 0.15)}


def recorded(kernel: str) -> Table:
    [path] = [path for path in RECORDED if path.name.startswith(f"{kernel}-nvidia")]
    return shapes.load(path).table()


def test_what_rules_promise_holds_over_recorded_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every third band is left out, and no combination: they take most of the time."""
    monkeypatch.setattr(folds, "across", lambda table: iter(()))
    everything = []
    for kernel, (share, mean, worst) in SERVED.items():
        table = recorded(kernel)
        found = [
            one for out, left in [*shapes.bands(table)][::3] for one in shapes.served(table, out, left, shapes.WITHIN)
        ]
        judged = shapes.judged(found)
        assert judged.share >= share, kernel
        assert not judged.share or (judged.mean <= mean and judged.worst <= worst), kernel
        assert kernel != "matmul" or judged.is_worth_it
        everything += found
    assert shapes.judged(everything).exceeded <= 0.05


def test_what_a_rule_promises_pairs_that_nobody_tuned_holds_over_the_recorded_table() -> None:
    table = recorded("matmul")
    judged = shapes.judge(table, [*shapes.combinations(table)][::4])  # each is left out in turn, and takes a second
    assert judged.share >= 0.4 and judged.mean <= 0.015 and judged.worst <= 0.15 and judged.exceeded <= 0.05


def test_cover_of_a_recorded_table_reaches_its_goal() -> None:
    found = shapes.cover(recorded("matmul-dense"))
    assert found.searches <= shapes.ranges.MOST
    assert found.nearest[0] <= shapes.ranges.MEAN and found.nearest[1] <= shapes.ranges.WORST


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name.partition(".")[0])
def test_few_configs_are_within_a_tenth_of_the_best_of_all_recorded_shapes(path: Path) -> None:
    table = shapes.load(path).table()
    found = covers.fewest(table.losses, 0.1)
    assert len(found.held) == len(table) and len(found.configs) <= 10
