"""What `bench/never.py` computes: the interval of a ratio, the bound on the losing rate, and the report of a folder."""

import json
import math
import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))
import never  # noqa: E402
from never import Interval  # noqa: E402


@pytest.mark.parametrize("ratio", [0.97, 1.0, 1.02])
def test_the_interval_holds_the_ratio_and_is_as_wide_as_its_noise_asks(ratio: float) -> None:
    held = []
    for seed in range(100):
        noise = random.Random(seed)
        found = never.interval([math.log(ratio) + noise.gauss(0, 0.01) for _ in range(100)])
        assert 0.0012 < found.half_width < 0.0032  # 1.96 x 1% / 10, a tenth more or less
        held.append(abs(1 + found.ratio - ratio) <= found.half_width * ratio)
    assert sum(held) >= 88


def test_outliers_of_another_user_move_neither() -> None:
    noise = random.Random(1)
    logs = [noise.gauss(0, 0.01) for _ in range(100)]
    calm = never.interval(logs)
    found = never.interval([*logs[:97], 2.0, 2.0, 2.0])
    assert abs(found.ratio - calm.ratio) < 0.002 and found.half_width < 1.2 * calm.half_width


@pytest.mark.parametrize(
    ("ratio", "half_width", "loses"),
    [(0.02, 0.004, True), (0.012, 0.004, False), (-0.1, 0.001, False), (0.0, 0.0, False)],
)
def test_a_row_loses_where_its_whole_interval_does(ratio: float, half_width: float, loses: bool) -> None:
    assert Interval(ratio, half_width).loses is loses


@pytest.mark.parametrize(
    ("lost", "count", "bound"), [(0, 60, 0.0487), (1, 60, 0.0766), (0, 1, 0.95), (3, 3, 1.0), (0, 20, 0.1391)]
)
def test_the_upper_bound_is_that_of_clopper_and_pearson(lost: int, count: int, bound: float) -> None:
    assert never.upper_bound(lost, count) == pytest.approx(bound, abs=1e-3)


def test_the_report_of_a_folder(tmp_path: Path) -> None:
    rows = {"rmsnorm": (-0.2, -0.2), "matmul": (0.02, -0.1), "softmax": (0.0, 0.0)}
    for number, (name, (mine, best)) in enumerate(rows.items()):
        row = {"case": name, "seconds": 1.0, "vs_untuned": [mine, 0.003], "best_vs_untuned": [best, 0.003]}
        (tmp_path / f"measured-{number:03}.json").write_text(json.dumps(row))
    found = never.report(tmp_path, 60)
    assert (found["measured"], found["wanted"], found["lost"], found["too wide"]) == (3, 60, ["matmul"], [])
    assert found["of the best"] == pytest.approx(((0.8 * 0.9) / (0.8 * 1.02)) ** (1 / 3))
    text = "\n".join(never.table(found))
    assert "1 of 3 lose by over 1%" in text and text.count("LOSES") == 1


def test_an_empty_folder_has_a_report_too(tmp_path: Path) -> None:
    assert "0 of 0 lose" in "\n".join(never.table(never.report(tmp_path, 60)))
