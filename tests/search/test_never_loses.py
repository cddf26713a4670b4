"""What is chosen is never slower than what runs without tuning, as far as samples can tell."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import replay
from fakes import FakeConfig as Config

import autotuned
from autotuned import autotune
from autotuned.offline.measure import remark
from autotuned.search import duel as duels
from autotuned.search import race, racing, search
from autotuned.search.compiling import compile as compiling
from autotuned.search.duel import Duel, fight
from autotuned.search.race import Track, winner
from autotuned.search.trial import Trial, median
from autotuned.store import listing


def nothing() -> None: ...


def trial(index: int, *samples_us: float) -> Trial:
    return Trial(index, nothing, nothing, samples_us=list(samples_us))


def tuned(took: Callable[[float], None], times_us: Sequence[float], **more: Any) -> Any:
    @autotune([Config({"us": us}) for us in times_us], key=["n"], **more)
    def run(x: Any, n: int, *, us: float) -> None:
        took(us)

    return run


def searched(run: Any, n: int) -> None:
    with autotuned.mode("search"):
        run(np.zeros(4), n)


@pytest.mark.parametrize(
    ("times_us", "default_us", "chosen_us"),
    [
        pytest.param([3000, 2000], 500, 500, id="a default beside the list that is the fastest"),
        pytest.param([3000, 2000], 2500, 2000, id="one that is slower than the best"),
        pytest.param([3000, 2000], 2002, 2002, id="one that is a tie"),
        pytest.param([3000, 2000], 2000, 2000, id="one of the list"),
        pytest.param([900, 1000, 1002], 1002, 900, id="one of the list, slower"),
        pytest.param([1000, 1001, 999], None, 1000, id="without one the first, in a tie"),
        pytest.param([5000, 1000, 999], None, 1000, id="without one the first, far behind"),
    ],
)
def test_the_untuned_config_takes_part(
    took: Callable[[float], None], times_us: list[int], default_us: int | None, chosen_us: int
) -> None:
    default = Config({"us": default_us}) if default_us is not None else None
    run = tuned(took, times_us, default=default)
    searched(run, 4)
    run(np.zeros(4), 4)
    assert run.best_config.kwargs["us"] == chosen_us
    [(_, record)] = listing.all_records()
    untuned_us = times_us[0] if default_us is None else default_us
    assert record.provenance["default"]["kwargs"] == {"us": untuned_us}
    base = record.timing_of(record.provenance["default"])
    assert base is not None and base.samples >= race.GUARD_SAMPLES
    again = tuned(took, times_us, default=default)
    again(np.zeros(4), 4)
    assert (again.best_config.kwargs["us"], again.cache_info().searches) == (chosen_us, 0)


def test_a_callable_default_is_asked_for_the_call(took: Callable[[float], None]) -> None:
    run = tuned(took, [3000, 2000], default=lambda x, n: Config({"us": 100 * n}))
    for n, chosen_us in ((4, 400), (50, 2000)):
        searched(run, n)
        run(np.zeros(4), n)
        assert run.best_config.kwargs["us"] == chosen_us


def test_a_default_that_the_pruner_drops_takes_no_part(took: Callable[[float], None]) -> None:
    def slow(configs: list[Any], named: Any, **more: Any) -> list[Any]:
        return [config for config in configs if config.kwargs["us"] > 1000]

    run = tuned(took, [3000, 2000], default=Config({"us": 500}), prune_configs_by={"early_config_prune": slow})
    searched(run, 4)
    run(np.zeros(4), 4)
    assert run.best_config.kwargs["us"] == 2000


def test_a_default_that_raises_takes_no_part_and_that_is_said(
    took: Callable[[float], None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "autotuned")

    def none(x: Any, n: int) -> Any:
        raise KeyError("no idea")

    run = tuned(took, [3000, 2000], default=none)
    searched(run, 4)
    assert re.search("default= takes no part in the search for key .*: KeyError", caplog.text)
    [(_, record)] = listing.all_records()
    assert record.winner["kwargs"] == {"us": 2000}
    assert record.provenance["default_left_out"] == "KeyError: 'no idea'"


def test_a_default_that_gives_none_is_said(took: Callable[[float], None]) -> None:
    searched(tuned(took, [3000, 2000], default=lambda x, n: None), 4)
    [(_, record)] = listing.all_records()
    assert record.winner["kwargs"] == {"us": 2000}
    assert record.provenance["default_left_out"] == "the pruner drops it, or it gave None"


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("wrong", "wrong: Wrong: x: 4 of 4 elements differ"),
        ("fails", "failed: ValueError: no such time"),
        ("pruned", "the pruner drops it"),
    ],
)
def test_a_default_that_cannot_be_is_out_and_that_is_said_and_kept(
    took: Callable[[float], None], caplog: pytest.LogCaptureFixture, how: str, why: str
) -> None:
    def odd(configs: list[Any], named: Any, **more: Any) -> list[Any]:
        return [config for config in configs if config.kwargs["us"] != 500]

    more: dict[str, Any] = {"prune_configs_by": {"early_config_prune": odd}} if how == "pruned" else {}

    @autotune([Config({"us": us}) for us in (3000, 2000)], key=["n"], default=Config({"us": 500}),
              check=(lambda x: x * 0) if how == "wrong" else None, **more)  # fmt: skip
    def run(x: Any, n: int, *, us: float) -> None:
        if us == 500 and how == "fails":
            raise ValueError("no such time")
        x[:] = 1.0 if us == 500 else 0.0
        took(us)

    searched(run, 4)
    [(_, record)] = listing.all_records()
    assert record.winner["kwargs"] == {"us": 2000}
    assert record.provenance["default_left_out"].startswith(why)
    assert caplog.text.count(f"default= takes no part in the search for key {record.key.digest[:12]}: {why}") == 1


@pytest.mark.parametrize("mode", ["auto", "serve", "off", "search"])
def test_a_callable_default_is_asked_once_a_miss(took: Callable[[float], None], mode: str) -> None:
    asked = []
    run = tuned(took, [3000, 2000], default=lambda x, n: asked.append(n) or Config({"us": 500}))
    with autotuned.mode(mode):
        run(np.zeros(4), 4)
    assert asked == [4]


def test_of_kept_times_the_untuned_wins_a_tie() -> None:
    kept = {"first": [100.0] * 3, "untuned": [100.1] * 3, "slow": [120.0] * 3}
    assert race.pick(kept, "untuned") == ("untuned", "tied")
    assert race.pick(kept) == ("first", "tied")
    assert race.pick(kept, "unknown") == ("first", "tied")


def test_a_record_without_its_winner_gives_ties_to_the_untuned(took: Callable[[float], None]) -> None:
    searched(tuned(took, [1000, 1002, 900], default=Config({"us": 1002})), 4)
    again = tuned(took, [1000, 1002], default=Config({"us": 1002}))
    again(np.zeros(4), 4)
    assert (again.best_config.kwargs["us"], again.cache_info().searches) == (1002, 0)


# -- the last comparison -----------------------------------------------------------------------------------------------


def dueled(best_us: float, untuned_us: float, spread: float = 1) -> tuple[Duel, int]:
    """What came of the last comparison, and how many samples of each that took."""
    samples = []

    def sample(turn: Sequence[Trial]) -> None:
        for one in turn:
            samples.append(one.index)
            noise = spread * (len(samples) * 7 % 11 - 5) / 1000
            one.samples_us.append((best_us, untuned_us)[one.index] * (1 + noise))

    found = fight(trial(0, best_us), trial(1, untuned_us), Track(sample))
    return found, samples.count(0)


@pytest.mark.parametrize(
    ("untuned_us", "confirmed"), [(110.0, True), (101.0, True), (100.1, False), (100.0, False), (90.0, False)]
)
def test_what_won_is_confirmed_by_fresh_samples(untuned_us: float, confirmed: bool) -> None:
    found, samples = dueled(100.0, untuned_us)
    assert found.is_won is confirmed
    assert samples <= duels.MOST_PAIRS


def test_what_is_far_apart_needs_few_pairs() -> None:
    found, samples = dueled(100.0, 200.0)
    assert (found.is_won, samples) == (True, duels.ROUND)


def test_what_is_near_the_bound_of_a_tie_needs_more_pairs() -> None:
    samples = [dueled(100.0, untuned_us, spread=0.1)[1] for untuned_us in (99.6, 100.6)]  # 0.7% from it, and 0.3%
    assert samples[0] < samples[1] == duels.MOST_PAIRS


@pytest.mark.parametrize(
    ("untuned_us", "spread", "quality"), [(100.0, 1, "tied"), (90.0, 1, "ok"), (90.0, 20, "noisy")]
)
def test_what_is_overruled_has_the_quality_of_the_duel(untuned_us: float, spread: float, quality: str) -> None:
    assert dueled(100.0, untuned_us, spread)[0].quality(0.5) == quality


def test_a_race_that_was_misled_is_overruled(
    took: Callable[[float], None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "autotuned")
    told, misled = race.winner, [True, True]  # whether it was noisy, and who won
    monkeypatch.setattr(
        race, "winner", lambda trials, *more: (trials[-1], "ok") if misled and misled.pop() else told(trials, *more)
    )
    run = tuned(took, [1000.0, 1500.0])
    searched(run, 4)
    run(np.zeros(4), 4)
    assert run.best_config.kwargs["us"] == 1000.0
    assert "no faster than the untuned config" in caplog.text


def test_a_tie_goes_to_the_untuned_and_then_to_the_earlier() -> None:
    trials = [trial(index, *[100.0 + index / 100] * 40) for index in range(3)]
    assert winner(trials, 0.5, untuned=2)[0] is trials[2]
    assert winner(trials, 0.5)[0] is trials[0]
    assert winner([*trials, trial(3, *[90.0] * 40)], 0.5, untuned=2)[0].index == 3


# -- a default that came later, and a budget that ended too early --------------------------------------------------------


def tuned_again(run: Any, n: int = 4) -> Any:
    return run.tuner.tune(run.tuner.call((np.zeros(4), n), {}, None), again=True)[1]


@pytest.mark.parametrize("default_us", [500, 2002, 2500, 3000], ids="{}".format)
def test_a_default_that_came_after_the_choice_is_raced_by_tune(took: Callable[[float], None], default_us: int) -> None:
    times_us = [3000, 2000, 2500]
    tuned(took, times_us)(np.zeros(4), 4)
    run = tuned(took, times_us, default=Config({"us": default_us}))
    run(np.zeros(4), 4)
    assert (run.best_config.kwargs["us"], run.cache_info().searches) == (2000, 0)
    beaten = "default= was given, or changed, after this was chosen" in str(run.explain(np.zeros(4), 4))
    assert beaten == (default_us != 3000)  # which was the first of the list, and so what ran untuned
    chosen = tuned_again(run)
    assert chosen.config.kwargs["us"] == (2000 if default_us > 2002 else default_us)
    [(_, record)] = listing.all_records()
    assert record.provenance["default"]["kwargs"] == {"us": default_us}
    assert {timing.config["kwargs"]["us"] for timing in record.timings} == {*times_us, default_us}
    assert "default= was given" not in str(run.explain(np.zeros(4), 4))
    searches = run.cache_info().searches
    tuned_again(run)
    assert run.cache_info().searches == searches == (default_us != 3000)


class Late:
    """A clock that is over a budget as soon as the last comparison is about to begin."""

    def __init__(self, took: Callable[[float], None], monkeypatch: pytest.MonkeyPatch, budget_s: float) -> None:
        self.now_s, self._took = 0.0, took
        for module in (racing, search, compiling):
            monkeypatch.setattr(module, "time", self)
        use_all = racing.Sampling.use_all

        def late(self_: Any) -> None:
            use_all(self_)
            self.now_s += budget_s

        monkeypatch.setattr(racing.Sampling, "use_all", late)

    def monotonic(self) -> float:
        return self.now_s

    perf_counter = monotonic


@pytest.mark.parametrize("default_us", [None, 2500])
def test_a_budget_that_ends_before_the_last_comparison_leaves_what_runs_untuned(
    took: Callable[[float], None], monkeypatch: pytest.MonkeyPatch, default_us: int | None
) -> None:
    untuned_us = default_us or 3000
    with monkeypatch.context() as patch:
        Late(took, patch, 10.0)
        run = tuned(took, [3000, 2000, 2500], budget_s=5.0, default=default_us and Config({"us": default_us}))
        searched(run, 4)
    [(_, record)] = listing.all_records()
    assert (record.winner["kwargs"]["us"], record.quality) == (untuned_us, "unresolved")
    assert record.provenance["unconfirmed"]["kwargs"] == {"us": 2000}
    assert "run `tune` again" in str(remark(record, False))
    run = tuned(took, [3000, 2000, 2500], default=default_us and Config({"us": default_us}))
    run(np.zeros(4), 4)
    assert (run.best_config.kwargs["us"], run.cache_info().searches) == (untuned_us, 0)
    assert "a budget ended before" in str(run.explain(np.zeros(4), 4))
    assert tuned_again(run).config.kwargs["us"] == 2000
    [(_, record)] = listing.all_records()
    assert (record.quality, record.unconfirmed, len(record.timings)) == ("ok", None, 3)


@pytest.mark.parametrize("recording", [one.name for one in replay.recordings()])
def test_whatever_the_budget_nothing_is_chosen_that_has_not_won_the_last_comparison(recording: str) -> None:
    """Replayed: a duel that is cut off after any number of samples is won by nobody but who beats the other."""
    [samples_us] = [one.samples_us for one in replay.recordings() if one.name == recording]
    means = [median(list(samples)) for samples in samples_us]
    best = means.index(min(means))
    for untuned in range(len(samples_us)):
        for time_for in range(0, 2 * duels.MOST_PAIRS, 3):
            taken: list[int] = []

            def sample(turn: Sequence[Trial], untuned: int = untuned, time_for: int = time_for) -> None:
                for one in turn:
                    if len(taken) < time_for:
                        one.samples_us.append(samples_us[(best, untuned)[one.index]][len(one.samples_us)])
                        taken.append(one.index)

            found = fight(trial(0, means[best]), trial(1, means[untuned]), Track(sample))
            fewest = min(taken.count(0), taken.count(1))
            assert found.is_fought == (fewest >= race.FIRST_SAMPLES)
            if found.is_won:
                assert found.is_fought and found.best.median_us < found.untuned.median_us


# -- what fails late ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("times_us", "checked"), [((1000, 700, 730), True), ((1000, 950, 955), False), ((1000, 999, 1001), False)]
)
def test_whenever_a_config_fails_the_best_of_the_others_is_chosen(
    took: Callable[[float], None], times_us: tuple[int, ...], checked: bool
) -> None:
    """Also in the last comparison, where it may have no sample yet, and where others left the race for its sake."""
    failed, launches = True, 0
    while failed:
        launches += 1
        left = [launches]

        @autotune([Config({"us": us}) for us in times_us], key=["n"], check=(lambda x: x * 0) if checked else None,
                  version=launches)  # fmt: skip
        def run(x: Any, n: int, *, us: int, left: list[int] = left) -> None:
            x[:] = 0.0
            took(us)
            left[0] -= us == times_us[1]
            if us == times_us[1] and left[0] < 0:
                raise ValueError("once too often")

        with contextlib.suppress(ValueError):  # of the call's own launch
            searched(run, 4)
        [record] = [found for _, found in listing.all_records() if found.key.context["version"] == launches]
        failed = any(timing.status == "failed" for timing in record.timings)
        fastest = min(times_us[::2] if failed else times_us)
        assert record.winner["kwargs"]["us"] == (fastest if fastest < 990 else 1000), launches
    assert launches > race.GUARD_SAMPLES
