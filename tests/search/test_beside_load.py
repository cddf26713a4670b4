"""Searches beside another user of the device: what is picked, replayed from samples that were recorded on an idle one."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import replay
from simulated import Bursts, Gpu

from autotuned.search import duel as duels
from autotuned.search import race, racing
from autotuned.search import trial as scale
from autotuned.search.trial import Drift, Trial

DATA = Path(__file__).parents[1] / "data"

RECORDINGS = {recording.name: recording for recording in replay.recordings()}


def trial(index: int, *samples_us: float) -> Trial:
    return Trial(index, lambda: None, lambda: None, samples_us=list(samples_us))


def searched(name: str, seed: int) -> replay.Result:
    recording = replay.resampled(RECORDINGS[name], seed)
    return replay.search(recording, seed, Gpu(shared=Bursts(seed)))


# What is lost at most; before the fastest samples were compared, 6 of 20 searches of rmsnorm lost 1.8% or more, and of
# the product half lost 0.8%. The untuned config of `add` is 0.49% behind, which load may hide.
@pytest.mark.parametrize(("name", "seeds", "most"), [("rmsnorm", 8, 0.003), ("add", 3, 0.005), ("splitk", 2, 0.0034)])
def test_what_is_picked_beside_load_is_close_to_the_best(name: str, seeds: int, most: float) -> None:
    assert max(searched(name, seed).regret for seed in range(seeds)) <= most


def raced(*samples_us: list[float]) -> list[int]:
    """Which configs are raced after these samples, which were taken while others compiled."""
    trials = [trial(index, *samples) for index, samples in enumerate(samples_us)]
    board = SimpleNamespace(open=lambda: trials, untuned=trials[0])
    job = SimpleNamespace(timer=SimpleNamespace(overlaps=False), all_stay=False)
    sampling = SimpleNamespace(is_late=False)
    return [one.index for one in racing.Racing(job, board, sampling, *[None] * 3).worth_racing()]  # type: ignore[arg-type]


@pytest.mark.parametrize(("us", "pause_us"), [(10.0, 100.0), (25.0, 30.0), (25.0, 100.0), (100.0, 100.0)])
def test_a_burst_while_others_compile_drops_no_config(us: float, pause_us: float) -> None:
    """Three samples at once; of 500 configs that are as fast as the others a tenth was not raced before."""
    bursts, now_us = Bursts(1), 0.0
    for _ in range(500):
        samples_us = []
        now_us += 5000
        for _ in range(3):
            samples_us.append(bursts(now_us, us))
            now_us += samples_us[-1] + pause_us
        assert raced([us] * 3, samples_us) == [0, 1]


def test_what_is_far_off_while_others_compile_is_not_raced() -> None:
    assert raced([50.0], [10.0, 11.0, 30.0], [39.0], [41.0, 60.0, 70.0], []) == [0, 1, 2, 4]


def beside(count: int, lead: float, seed: int) -> tuple[Trial, Trial]:
    """Samples of a config and of one that is slower by `lead`, three in ten of them slowed by load."""
    chance = random.Random(seed)

    def sample(us: float) -> float:
        slower = 1 + chance.expovariate(2.0) if chance.random() < 0.3 else 1.0
        return us * chance.gauss(1, 0.015) * slower

    return trial(0, *[sample(100.0) for _ in range(count)]), trial(1, *[sample(100 * (1 + lead)) for _ in range(count)])


@pytest.mark.parametrize("count", [40, 240])
def test_the_fastest_samples_tell_two_configs_apart_that_medians_and_centers_do_not(count: int) -> None:
    errors = dict.fromkeys(("fast_us", "center_us", "median_us"), 0.0)
    for seed in range(40):
        fast, slow = beside(count, 0.01, seed)
        for name in errors:
            errors[name] += (getattr(slow, name) / getattr(fast, name) - 1.01) ** 2
    assert 1.5 * errors["fast_us"] < min(errors["center_us"], errors["median_us"])


@pytest.mark.parametrize("count", [12, 40, 240])
def test_samples_that_no_launch_can_have_taken_tell_nothing(count: int) -> None:
    for seed in range(40):
        true, chance = beside(count, 0.0, seed)[0], random.Random(seed)
        extra = [100 * chance.uniform(0.5, 0.85) for _ in range(max(1, count // 50))]
        with_extra = trial(0, *true.samples_us, *extra)
        assert with_extra.fast_us == pytest.approx(true.fast_us, rel=1e-9)
        assert with_extra.fast_error == pytest.approx(true.fast_error, rel=1e-9)
    assert trial(0, 50.0, 100.0, 100.0).fast_us == 50.0, "of three samples each may be right"


@pytest.mark.parametrize("count", [12, 40, 240])
def test_the_error_of_the_fastest_samples_is_what_they_vary_by(count: int) -> None:
    found = [beside(count, 0.0, seed)[0] for seed in range(80)]
    center = sum(one.fast_us for one in found) / len(found)
    varies = (sum((one.fast_us / center - 1) ** 2 for one in found) / len(found)) ** 0.5
    said = sum(one.fast_error for one in found) / len(found)
    assert 0.7 * varies < said < 1.3 * varies


def test_what_spreads_little_is_compared_by_its_center_and_what_load_spreads_by_the_fastest() -> None:
    calm = [trial(index, *[100.0, 102.0, 104.0, 98.0] * 5) for index in range(3)]
    loaded = [beside(40, 0.0, seed)[0] for seed in range(3)]
    assert scale.scale(calm) is scale.CENTER and scale.scale([*calm, loaded[0]]) is scale.CENTER
    assert scale.scale(loaded) is scale.FASTEST
    assert scale.scale([trial(0, 100.0, 150.0, 200.0)]) is scale.CENTER, "three samples tell nothing"


@pytest.mark.parametrize("how", ["load", "a step"])
def test_load_is_no_drift_of_which_fast_samples_are_made(how: str) -> None:
    """Bursts that are shorter than a turn stay in the samples; a step that all share is taken out."""
    chance, drift = random.Random(1), Drift()
    trials = [trial(0), trial(1)]
    for number in range(8):
        order = [one for _ in range(8) for one in trials]
        before = {one.index: len(one.samples_us) for one in trials}
        for place, one in enumerate(order):
            slow = (place // 5 + number) % 2 if how == "load" else number > 3
            one.samples_us.append(100 * chance.gauss(1, 0.01) * (1.4 if slow else 1.0))
        drift.note(order, before)
    measured = [list(one.samples_us) for one in trials]
    drift.take_out()
    assert ([one.samples_us for one in trials] != measured) is (how == "a step")
    assert all(min(one.samples_us) > 95 for one in trials)


@pytest.mark.parametrize("slow", [1.3, 1.6, 2.0])
@pytest.mark.parametrize("seed", range(6))
def test_slow_samples_that_leave_the_middle_alone_make_no_fast_ones_either(slow: float, seed: int) -> None:
    """An eighth is slow: the fit took that for drift, and the fastest third then chose configs that are 3% slower."""
    chance = random.Random(seed)
    times_us = [100 * (1 + 0.3 * chance.random()) for _ in range(24)]

    def sample(turn: Sequence[Trial]) -> None:
        for one in turn:
            factor = slow if chance.random() < 0.12 else 1.0
            one.samples_us.append(times_us[one.index] * chance.gauss(1, 0.004) * factor)

    trials = [trial(index) for index in range(24)]
    steady = race.race(trials, race.Track(sample), seed)
    best, _ = race.winner(trials, 0.0, steady)
    assert times_us[best.index] < 1.01 * min(times_us)
    assert min(best.samples_us) > 0.96 * times_us[best.index]


@pytest.mark.parametrize("count", [scale.ENOUGH, 40, 1200])
@pytest.mark.parametrize("spread", [0.003, 0.02])
def test_bursts_that_leave_the_middle_of_the_samples_alone_are_load(spread: float, count: int) -> None:
    """A sixth of the samples is slow, as measured for a split-K matmul under 30% load. One slow sample is no load."""
    chance = random.Random(count)

    def sampled(share: float) -> Trial:
        ones = [100 * chance.gauss(1, spread) * (2.0 if chance.random() < share else 1.0) for _ in range(count)]
        return trial(0, *ones)

    loaded, idle = [sampled(1 / 6) for _ in range(7)], [sampled(0.0) for _ in range(7)]
    idle[0].samples_us[0] = 300.0
    assert scale.are_loaded(loaded) and not scale.are_loaded(idle)
    assert count < 1000 or all(one.middle < scale.LOAD for one in loaded)


def test_places_that_differ_by_chance_count_by_what_they_tell_and_others_alike() -> None:
    exact, rough = duels.Lead(0.005, 0.001), [duels.Lead(lead, 0.01) for lead in (0.012, -0.004, 0.002)]
    alike = duels.mean_lead([exact, *rough])
    assert alike.log == pytest.approx(0.005, abs=3e-4) and alike.error < 0.001
    apart = duels.mean_lead([exact, *(duels.Lead(lead, 0.002) for lead in (-0.03, -0.03, -0.03))])
    assert apart.log == pytest.approx((0.005 - 0.09) / 4, abs=2e-3) and apart.error > 0.006
    assert duels.mean_lead([exact]) == exact


def test_a_last_comparison_that_by_chance_says_less_than_the_race_confirms_it_and_one_that_says_otherwise_does_not() -> (
    None
):
    chance = random.Random(5)
    raced = tuple(trial(at, *[us * chance.gauss(1, 0.02) for _ in range(24)]) for at, us in enumerate((100.0, 104.0)))
    for us, won in ((101.5, True), (98.0, False)):
        pair = [
            trial(at, *[mean + step for step in (-2.0, -1.0, 0.0, 1.0, 2.0) * 4]) for at, mean in enumerate((100.0, us))
        ]
        assert duels.Duel(*pair, raced=raced).is_won is won


def recorded() -> list[tuple[list[Trial], duels.Duel | None]]:
    """Races beside another user of a GPU, and the last comparisons that followed: all but four kept the untuned config."""
    found = []
    for search in json.loads(gzip.decompress((DATA / "beside-load.json.gz").read_bytes()))["searches"]:
        trials = [replace(trial(one["index"], *one["us"]), leader_us=one["leader_us"]) for one in search["trials"]]
        of = {one.index: one for one in trials}
        places = [duels.Duel(trial(6, *best), trial(0, *untuned)) for best, untuned in search.get("places", [])]
        duel = replace(places[0], elsewhere=tuple(places[1:]), raced=(of[6], of[0])) if places else None
        found.append((trials, duel))
    return found


def test_a_config_that_is_5_percent_faster_beat_the_untuned_one_in_searches_beside_load_on_a_gpu() -> None:
    """Bursts had slowed one of the two at a place or in the race, or the two were a tie for all that was known."""
    kinds = []
    for trials, duel in recorded():
        [untuned] = [one for one in trials if one.index == 0]
        best, ahead = race.winner(trials, 0.5, untuned=0)[0], race.contender(trials, untuned)
        assert ahead is not None and ahead.index == 6
        kinds.append(best.index)
        assert duel is None or duel.is_won
    assert sorted(kinds) == [0] + [6] * 21  # by the middle of the samples alone, seven kept the untuned config


@pytest.mark.parametrize("name", ["rmsnorm", "add"])
def test_the_last_comparison_takes_twenty_pairs_or_a_twentieth_of_the_search(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    duel, pairs = duels.fight, []

    def counted(*given, **named):
        found = duel(*given, **named)
        known = named.get("before") or (given[4] if len(given) > 4 else None)
        pairs.append(len(found.best.samples_us) - (len(known.best.samples_us) if known else 0))
        return found

    monkeypatch.setattr(duels, "fight", counted)
    recording = RECORDINGS[name]
    for seed in range(2):
        pairs.clear()
        gpu = Gpu()
        seconds = replay.search(recording, seed, gpu).seconds
        each_us = 2 * (max(recording.samples_us[0]) + 130)  # with the flush, and what holds the stream
        assert sum(pairs) <= max(duels.MOST_PAIRS, duels.SHARE * seconds * 1e6 / each_us + duels.MOST_PAIRS)
