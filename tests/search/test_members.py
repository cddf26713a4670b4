"""A bucket that is tuned on several of its calls: the config that is best over them wins, and loses to none's default."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from fakes import FakeConfig as Config
from hypothesis import given, settings
from hypothesis import strategies as st

from autotuned import autotune, errors, pow2
from autotuned.offline.members import ends, sizes_of
from autotuned.offline.targets import TunedObject
from autotuned.resolve.request import Member
from autotuned.search import race
from autotuned.store import listing

# Microseconds of each config for n = 5, 6, 8 of the bucket 8: "even" is never the best, and the best over all.
TIMES = {"low": (1000, 1500, 1600), "high": (1600, 1500, 1000), "even": (1100, 1100, 1100), "odd": (1050, 1010, 1900),
         "new": (1001.5, 1002.5, 1003.5)}  # fmt: skip
LISTED = ("low", "high", "even", "odd")


class Log:
    """An argument that notes how long each launch takes; of such an object no key holds anything."""

    def __init__(self) -> None:
        self.launched: list[float] = []

    def note(self, us: float) -> None:
        self.launched.append(us)


SIZES = (5, 6, 8)


def tuned(
    took: Callable[[float], None], times: dict[str, Sequence[float]] = TIMES, names: Sequence[str] = LISTED, **more: Any
) -> Any:
    @autotune([Config({"name": name}) for name in names], key=["n"], bucket={"n": pow2},
              members=3, **more)  # fmt: skip
    def run(x: Any, n: int, log: Any = None, *, name: str) -> None:
        x[:] = 7.0 if name == "wrong" and n == 6 else 1.0
        if log is not None:
            log.note(times[name][SIZES.index(n)])
        took(times[name][SIZES.index(n)])

    return run


def tune(run: Any, sizes: Sequence[int] = SIZES, log: Log | None = None) -> Any:
    calls = [run.tuner.call((np.zeros(4), n, log or Log()), {}, None) for n in sizes]
    found = TunedObject(run)
    members = [Member(one, run.tuner.chooser.candidates(one), sizes_of(found, one.arguments)) for one in calls]
    return run.tuner.tune(calls[0], members=members)[1]


def record() -> Any:
    [(_, found)] = listing.all_records()
    return found


@pytest.mark.parametrize(("by", "best"), [("mean", "even"), ("worst", "even")])
def test_the_best_of_all_wins_and_not_that_of_whichever_came_first(
    took: Callable[[float], None], by: str, best: str
) -> None:
    run = tuned(took, members_by=by)
    run(np.zeros(4), 5, Log())  # a first call in a program has only itself
    assert run.best_config.kwargs["name"] == "low"
    assert not record().members
    choice = tune(tuned(took, members_by=by))
    assert choice.config.kwargs["name"] == best
    found = record()
    assert [one["sizes"] for one in found.members] == [{"n": 5}, {"n": 6}, {"n": 8}]
    for index, one in enumerate(found.members):
        taken = {timing["config"]["kwargs"]["name"]: timing["median_us"] for timing in one["timings"]}
        assert taken == {name: pytest.approx(TIMES[name][index], rel=0.01) for name in LISTED}
        assert one["vs_default"] == pytest.approx(TIMES["low"][index] / TIMES["even"][index], rel=0.01)


def test_the_worst_and_the_mean_may_choose_differently(took: Callable[[float], None]) -> None:
    times = {"first": (2000, 2000, 1000), "often": (1000, 1000, 1400), "even": (1200, 1200, 1200)}
    assert tune(tuned(took, times, tuple(times))).config.kwargs["name"] == "often"
    assert tune(tuned(took, times, tuple(times), members_by="worst", version=2)).config.kwargs["name"] == "even"


def test_what_was_measured_for_all_is_not_measured_again_and_serves(took: Callable[[float], None]) -> None:
    tune(tuned(took))
    again, log = tuned(took), Log()
    assert tune(again, log=log).config.kwargs["name"] == "even"
    assert log.launched == [] and again.cache_info().searches == 0
    again(np.zeros(4), 6, Log())
    assert again.best_config.kwargs["name"] == "even"
    assert "best over 3 calls of its bucket: n=5; n=6; n=8" in str(again.explain(np.zeros(4), 6, Log()))


def test_a_new_config_is_measured_for_each_of_them_and_the_others_are_not(took: Callable[[float], None]) -> None:
    tune(tuned(took))
    run, log = tuned(took, names=(*LISTED, "new")), Log()
    assert tune(run, log=log).config.kwargs["name"] == "new"
    assert set(TIMES["new"]) <= set(log.launched)
    assert 1900 not in log.launched
    assert {len(one["timings"]) for one in record().members} == {5}


@pytest.mark.parametrize(
    ("default", "chosen"),
    [
        pytest.param((1000, 1400, 1400), "spare", id="one member has a better default"),
        pytest.param((1104, 1104, 1104), "even", id="slower everywhere"),
        pytest.param((1101, 1101, 1101), "spare", id="a tie"),
        pytest.param((900, 900, 900), "spare", id="the fastest"),
    ],
)
def test_nothing_is_chosen_that_loses_to_the_default_of_any_member(
    took: Callable[[float], None], default: tuple[int, ...], chosen: str
) -> None:
    run = tuned(took, {**TIMES, "spare": default}, default=Config({"name": "spare"}))
    assert tune(run).config.kwargs["name"] == chosen


def test_where_each_member_has_its_own_default_the_choice_loses_to_none_if_it_can(
    took: Callable[[float], None],
) -> None:
    best = {5: "odd", 6: "odd", 8: "even"}
    run = tuned(took, default=lambda x, n: Config({"name": best[n]}))
    tune(run)
    ratios = [one["vs_default"] for one in record().members]
    assert min(ratios) > 0.9  # 1010 for "odd" against 1100: no config wins everywhere


def test_one_that_is_wrong_for_a_member_is_not_chosen(took: Callable[[float], None]) -> None:
    times = {"first": (2000, 2000, 2000), "wrong": (900, 900, 900), **TIMES}
    run = tuned(took, times, ("first", "wrong", *LISTED), check=lambda x, n: {"x": np.ones(4)}, restore_value=["x"])
    assert tune(run).config.kwargs["name"] == "even"
    [wrong] = [one for one in record().timings if one.config["kwargs"]["name"] == "wrong"]
    assert wrong.status == "wrong" and wrong.error.startswith("n=6: ")


def test_every_member_keeps_its_data(took: Callable[[float], None]) -> None:
    run = tuned(took)
    arrays = [np.full(4, float(n)) for n in SIZES]
    calls = [run.tuner.call((x, n), {}, None) for x, n in zip(arrays, SIZES)]
    run.tuner.tune(calls[0], members=[Member(one, run.tuner.chooser.candidates(one), {"n": n}) for one, n in
                                      zip(calls, SIZES)])  # fmt: skip
    assert [list(x) for x in arrays] == [[float(n)] * 4 for n in SIZES]


def test_a_search_that_is_interrupted_is_none_of_a_plain_call(took: Callable[[float], None]) -> None:
    class Stopping(Log):
        def note(self, us: float) -> None:
            super().note(us)
            if self.launched.count(1900) == 2:  # in the race of the last member
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(tuned(took), log=Stopping())
    assert record().winner is None and len(record().members) == 2
    run = tuned(took)
    run(np.zeros(4), 8, Log())
    assert run.best_config.kwargs["name"] == "high"
    assert tune(run).config.kwargs["name"] == "even"


@settings(max_examples=25, deadline=None)
@given(data=st.data(), by=st.sampled_from(["mean", "worst"]), count=st.integers(2, 5), members=st.integers(2, 3),
       has_default=st.booleans())  # fmt: skip
def test_it_is_the_best_over_all_members_that_loses_to_no_default(
    data: Any, by: str, count: int, members: int, has_default: bool
) -> None:
    """Whatever the times, against the definition: of those that lose nowhere the best; else what runs untuned."""
    from autotuned.search import timers

    table = {f"c{i}": tuple(data.draw(st.integers(100, 200)) * 10.0 for _ in SIZES) for i in range(count)}
    with pytest.MonkeyPatch.context() as patch:
        clock = [0]
        patch.setattr(timers.time, "perf_counter_ns", lambda: clock[0])
        run = tuned(lambda us: clock.__setitem__(0, clock[0] + round(us * 1e3)), table, tuple(table), members_by=by,
                    version=random.random(), cache_results=False,
                    default=Config({"name": "c0"}) if has_default else None)  # fmt: skip
        chosen = tune(run, SIZES[:members]).config.kwargs["name"]
    score = {name: _score(times, list(table.values()), members, by) for name, times in table.items()}
    lossless = [
        name for name, times in table.items() if not has_default
        or all(mine <= base * (1 + race.TIE_BAND) for mine, base in itertools.islice(zip(times, table["c0"]), members))
    ]  # fmt: skip
    ranked = sorted(score, key=score.__getitem__)
    assert chosen in lossless
    open_ = [name for name in ranked[:3] if name in lossless] or ["c0"]  # three are compared with the default at most
    assert score[chosen] <= score[open_[0]] * (1 + 2 * race.TIE_BAND)


def _score(times: Sequence[float], all_times: Sequence[Sequence[float]], members: int, by: str) -> float:
    ratios = [times[i] / min(other[i] for other in all_times) for i in range(members)]
    return max(ratios) if by == "worst" else math.exp(sum(map(math.log, ratios)) / members)


@pytest.mark.parametrize(("size", "found"), [(1, (1, 1)), (2, (2, 2)), (6, (5, 8)), (8, (5, 8)), (1000, (513, 1024))])
def test_the_ends_of_a_bucket_are_found(size: int, found: tuple[int, int]) -> None:
    assert ends(pow2, size) == found


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"members": 0}, "members: expected a number of calls, 1 or more, got 0"),
        ({"members": True}, "members: expected a number of calls, 1 or more, got True"),
        ({"members": 3, "bucket": None}, "members: expected a bucket= with it, got none"),
        ({"members_by": "median"}, "members_by: expected 'mean' or 'worst', got 'median'"),
    ],
)
def test_members_that_cannot_be_are_refused(options: dict[str, Any], text: str) -> None:
    def run(x: Any, n: int, *, name: str) -> None: ...

    with pytest.raises(errors.DecorationError, match=text):
        autotune([Config({"name": "a"})], **{"key": ["n"], "bucket": {"n": pow2}, **options})(run)
