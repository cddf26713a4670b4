"""Which sizes are worth a search: replayed over pretended kernels, against a grid of as many."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping

import pytest
import synthetic
from hypothesis import given, settings
from hypothesis import strategies as st

from autotuned import errors
from autotuned.offline import ranges
from autotuned.offline.ranges import Point, WantedSizes

Losses = Callable[[Point], Mapping[str, float]]


def steps(*changes: int) -> Losses:
    """One config is best up to each change, by a half."""

    def losses(point: Point) -> dict[str, float]:
        best = sum(point[0] > change for change in changes)
        return {str(name): 0.5 * (name != best) for name in range(len(changes) + 1)}

    return losses


def covered(losses: Losses, asked: dict[str, tuple[int, int]]) -> dict[Point, Mapping[str, float]]:
    """All points that are measured, in rounds, as `tune` does."""
    known = {point: losses(point) for point in ranges.first(asked)}
    while len(known) < ranges.MOST and not ranges.estimate(known).is_enough:
        new = ranges.further(known, min(ranges.ROUND, ranges.MOST - len(known)))
        if not new:
            break
        known.update({point: losses(point) for point in new})
    return known


def nearest(known: Mapping[Point, Mapping[str, float]], size: int) -> str:
    point = min(known, key=lambda point: abs(math.log(point[0] / size)))
    return ranges.winner(known[point])


def test_gaps_are_halved_where_the_winner_changes_and_nowhere_else() -> None:
    known = covered(steps(700), {"M": (1, 8192)})
    below, above = max(m for (m,) in known if m <= 700), min(m for (m,) in known if m > 700)
    assert above <= below * 1.02  # until no call between them may lose much
    assert len(known) <= 28 and ranges.estimate(known).is_enough
    assert {point for point in known if not 300 < point[0] < 1600} == {
        point for point in ranges.first({"M": (1, 8192)}) if not 300 < point[0] < 1600
    }


@settings(max_examples=60, deadline=None)
@given(changes=st.lists(st.integers(1, 8192), min_size=1, max_size=3, unique=True))
def test_no_more_than_40_and_only_where_something_changes(changes: list[int]) -> None:
    known = covered(steps(*sorted(changes)), {"M": (1, 8192)})
    assert len(known) <= ranges.MOST
    assert all(1 <= m <= 8192 for (m,) in known)
    losses = [steps(*sorted(changes))((m,))[nearest(known, m)] for m in range(1, 8193, 37)]
    assert statistics.fmean(losses) < 0.05


def test_where_one_config_is_always_best_what_is_first_is_all() -> None:
    assert covered(steps(), {"M": (1, 8192)}).keys() == set(ranges.first({"M": (1, 8192)}))


def test_two_sizes_are_covered_together() -> None:
    def losses(point: Point) -> dict[str, float]:
        return {"low": 0.4 * (point[0] * point[1] > 4000), "high": 0.4 * (point[0] * point[1] <= 4000)}

    known = covered(losses, {"M": (1, 512), "N": (1, 512)})
    assert len(ranges.first({"M": (1, 512), "N": (1, 512)})) < len(known) <= ranges.MOST
    assert {(1, 1), (1, 512), (512, 1), (512, 512)} <= known.keys()


def test_of_pretended_kernels_it_knows_more_than_a_grid_of_as_many() -> None:
    lost: dict[str, list[float]] = {"cover": [], "grid": []}
    for seed in range(4):
        kernel, (n, k) = synthetic.Kernel(seed), synthetic.PAIRS[seed]

        def measured(point: Point, kernel: synthetic.Kernel = kernel, n: int = n, k: int = k) -> dict[str, float]:
            return relative(kernel.times(point[0], n, k))

        known = covered(measured, {"M": (1, 8192)})
        grid = {(m,): measured((m,)) for m in ranges.spread(1, 8192, 45)}
        assert len(known) <= ranges.MOST <= len(grid)
        mine = []
        for m in sorted({round(1.046**step) for step in range(200)}):
            true = relative({synthetic.form_of(one): kernel.us(one, m, n, k) for one in kernel.configs})
            mine.append(true[nearest(known, m)])
            lost["grid"].append(true[nearest(grid, m)])
        lost["cover"] += mine
        assert statistics.fmean(mine) <= max(ranges.estimate(known).mean, ranges.MEAN)  # it does not promise too much
    assert statistics.fmean(lost["cover"]) < 1.1 * statistics.fmean(lost["grid"])


def relative(times: Mapping[str, float]) -> dict[str, float]:
    best = min(times.values())
    return {name: us / best - 1 for name, us in times.items()}


def test_what_is_wanted_survives_its_json() -> None:
    made = WantedSizes(("M", "N"), ((1, 2), (3, 4)), {"k 0.0": [(1, 2)]})
    again = WantedSizes.from_json(made.to_json())
    assert again is not None and again.to_json() == made.to_json()
    assert again.holds("k 0.0", (1, 2)) and not again.holds("k 0.0", (3, 4)) and not again.holds("other", (1, 2))
    assert (
        WantedSizes.from_json(WantedSizes(("M",), ((1,),)).to_json()).holds("any", (1,))
        and WantedSizes.from_json(None) is None
    )


@pytest.mark.parametrize(
    ("texts", "found"),
    [(["M=1:8192"], {"M": (1, 8192)}), (["M=1:8,N=2:2"], {"M": (1, 8), "N": (2, 2)}),
     (["M=1:8", "N=2:4"], {"M": (1, 8), "N": (2, 4)})],
)  # fmt: skip
def test_ranges_are_read(texts: list[str], found: dict[str, tuple[int, int]]) -> None:
    assert ranges.parsed(texts) == found


@pytest.mark.parametrize(
    "text",
    [
        "M",
        "M=8",
        "M=8:1",
        "M=0:8",
        "M=a:b",
        "=1:8",
        "M=1:8:9",
        "1M=1:2",
        "",
        "M=1:8,M=1:4",
        f"M=1:{'9' * 400}",
        f"M=1:{2**53}",
        ",".join(f"{name}=1:9" for name in "ABCDEF"),
    ],
)
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(errors.OptionError, match="cover: ") as caught:
        ranges.parsed([text])
    assert caught.value.option == "cover"
