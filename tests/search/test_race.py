"""Tests of `race`."""

import math
import random
import statistics
from collections.abc import Sequence

import pytest

import autotuned.search.race as race_module
from autotuned.search.race import Track, race, winner
from autotuned.search.trial import NOISE_FLOOR, Trial, check_samples


def nothing() -> None: ...


def trial(index: int = 0, *samples_us: float) -> Trial:
    return Trial(index, nothing, nothing, samples_us=list(samples_us))


class Clock:
    """Takes samples of configs whose true times are known, with Gaussian noise of `noise_us`."""

    def __init__(self, times_us: Sequence[float], noise_us: float = 0.0, seed: int = 0) -> None:
        self.times_us, self.noise_us = times_us, noise_us
        self.random = random.Random(seed)
        self.turns: list[list[int]] = []

    def __call__(self, turn: Sequence[Trial]) -> None:
        self.turns.append([trial.index for trial in turn])
        for trial in turn:
            trial.samples_us.append(self.times_us[trial.index] + self.random.gauss(0, self.noise_us))


def raced(clock: Clock, seed: int = 0) -> list[Trial]:
    trials = [trial(index) for index in range(len(clock.times_us))]
    race(trials, Track(clock), seed)
    return trials


def chosen(times_us: Sequence[float], noise_us: float, seed: int) -> float:
    """The true time of what is chosen."""
    best, _ = winner(raced(Clock(times_us, noise_us, seed), seed), 0.5)
    return times_us[best.index]


# -- the choice ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("times_us", "noise_us", "least"),
    [((100.0, 99.8), 6.0, 41), ((99.8, 100.0), 6.0, 41), ((100.0, 99.95), 3.0, 37), ((99.95, 100.0), 3.0, 37)],
    ids=["slower first", "faster first", "as good, slower first", "as good, faster first"],
)
def test_below_the_noise_the_earlier_config_wins_from_run_to_run(
    times_us: tuple[float, ...], noise_us: float, least: int
) -> None:
    # An argmin would flip a coin.
    assert sum(chosen(times_us, noise_us, seed) == times_us[0] for seed in range(50)) >= least


def test_what_many_samples_can_tell_is_no_tie() -> None:
    # 0.4% apart under a noise of 3%: within what chance explains with 240 samples of each.
    assert sum(chosen((100.0, 99.6), 3.0, seed) == 99.6 for seed in range(50)) >= 42


@pytest.mark.parametrize("times_us", [(100.0, 90.0), (90.0, 100.0)], ids=["slower first", "faster first"])
def test_above_the_noise_the_faster_config_always_wins(times_us: tuple[float, ...]) -> None:
    assert all(chosen(times_us, 3.0, seed) == 90.0 for seed in range(100))


@pytest.mark.parametrize("seed", range(5))
def test_the_order_of_the_candidates_does_not_decide(seed: int) -> None:
    times_us = [100.0 + 5 * i for i in range(8)]
    random.Random(seed).shuffle(times_us)
    assert chosen(times_us, 1.0, seed) == 100.0


def test_equal_times_are_a_tie_that_the_earlier_in_the_list_wins() -> None:
    trials = [trial(2, 10.0, 10.0, 10.0), trial(0, 12.0, 12.0, 12.0), trial(1, 10.0, 10.0, 10.0)]
    assert winner(trials, 0.5) == (trials[2], "tied")


@pytest.mark.parametrize(
    ("first", "second", "resolution_us", "quality"),
    [
        pytest.param([10.0] * 12, [20.0] * 12, 0.5, "ok", id="far apart"),
        pytest.param([10.01] * 12, [10.0] * 12, 0.5, "tied", id="within 0.15 percent"),
        pytest.param([9.0, 9.5, 10.0, 10.5, 11.0] * 3, [20.0] * 15, 0.5, "noisy", id="spread of a tenth"),
        pytest.param([0.5] * 12, [0.9] * 12, 0.5, "unresolved", id="no longer than the clock's resolution"),
        pytest.param([0.01] * 12, [0.02] * 12, 0.0, "ok", id="a benchmark without a resolution"),
    ],
)
def test_the_quality_of_a_choice(first: list[float], second: list[float], resolution_us: float, quality: str) -> None:
    trials = [trial(0, *first), trial(1, *second)]
    assert winner(trials, resolution_us) == (trials[0], quality)


def test_however_noisy_it_was_three_times_as_slow_is_no_tie() -> None:
    slow, fast = trial(0, 3000.0, 3100.0, 3200.0), trial(1, 400.0, 1100.0, 3900.0)
    assert winner([slow, fast], 0.5) == (fast, "noisy")


def test_a_config_that_was_dropped_early_never_ties_by_its_own_noise() -> None:
    dropped = trial(0, 100.0, 160.0, 220.0)
    lead = trial(1, *[100.0, 101.0] * 20)
    assert winner([dropped, lead], 0.5)[0] is lead


def test_one_config_wins() -> None:
    only = trial(3, 5.0, 5.0, 5.0)
    assert winner([only], 0.5) == (only, "ok")


# -- the race --------------------------------------------------------------------------------------------------------


def test_each_gets_as_many_samples_as_it_takes() -> None:
    trials = raced(Clock([100.0, 101.0, 110.0, 140.0, 200.0], noise_us=2.0))
    counts = [len(trial.samples_us) for trial in trials]
    assert counts[4] == race_module.FIRST_SAMPLES  # more than 1.5 times the best
    assert counts[3] == 2 * race_module.FIRST_SAMPLES  # out as soon as the guard band is checked
    assert counts[3] <= counts[2] <= race_module.GUARD_SAMPLES
    assert counts[0] >= race_module.GUARD_SAMPLES
    assert max(counts) <= race_module.MOST_LAUNCHES


def test_within_the_guard_band_nothing_is_dropped_before_twelve_samples() -> None:
    trials = raced(Clock([100.0, 103.9]))
    assert [len(trial.samples_us) for trial in trials] == [12, 12]


def test_at_most_eight_finalists_are_measured_further() -> None:
    trials = raced(Clock([100.0] * 12, noise_us=2.0))
    assert sum(len(trial.samples_us) > race_module.GUARD_SAMPLES for trial in trials) == race_module.FINALISTS


def test_a_finalist_that_is_certainly_no_tie_is_measured_no_further() -> None:
    # 2% apart: within the guard band, and beyond a tie by more than three errors once there are some samples.
    trials = raced(Clock([100.0, 102.0, 100.2], noise_us=1.0))
    counts = [len(trial.samples_us) for trial in trials]
    assert counts[1] < counts[0] == counts[2]


def test_many_samples_are_few_rounds() -> None:
    clock, rounds = Clock([20.0, 20.02], noise_us=0.6), []
    trials = [trial(index) for index in range(2)]
    race(trials, Track(clock, lambda trials: rounds.append(len(clock.turns))))
    assert len(trials[0].samples_us) >= 160
    assert len(rounds) <= 24
    assert max(after - before for before, after in zip([0, *rounds], rounds)) <= 2 * race_module.LAST_ROUND
    assert max(len(trial.samples_us) for trial in trials) < race_module.MOST_PARTED * 4 / 3 + 1


def test_where_a_sample_is_several_launches_these_are_counted() -> None:
    clock = Clock([8.0, 8.02], noise_us=0.4)
    trials = [Trial(index, nothing, nothing, launches=5) for index in range(2)]
    race(trials, Track(clock))
    most = race_module.MOST_PARTED // 5
    assert race_module.MOST_LAUNCHES // 5 <= len(trials[0].samples_us) < most + race_module.FINAL_ROUND


def most_samples(*times_us: float, noise_us: float) -> int:
    """The most that any config got in one of eight races."""
    return max(len(one.samples_us) for seed in range(8) for one in raced(Clock(times_us, noise_us, seed), seed))


def test_all_that_tie_are_sampled_until_their_differences_are_known() -> None:
    usual, most = race_module.MOST_LAUNCHES + race_module.FINAL_ROUND, race_module.MOST_PARTED
    assert most <= most_samples(100.15, 100.0, 100.2, noise_us=1.5) < most * 4 / 3 + 1
    assert most_samples(100.0, 101.0, noise_us=1.5) <= usual
    assert most_samples(103.0, 100.0, noise_us=1.5) <= usual


def test_long_kernels_are_not_sampled_twice_as_often_to_part_them() -> None:
    assert most_samples(2003.0, 2000.0, noise_us=30.0) < race_module.FINAL_SAMPLES + race_module.LAST_ROUND


@pytest.mark.parametrize("untuned", [None, 0])
@pytest.mark.parametrize(("us", "quality"), [(100.14, "tied"), (100.16, "ok")])
def test_a_tie_is_as_wide_for_the_untuned_config_as_for_an_earlier_one(us, quality, untuned) -> None:
    first, fastest = trial(0, *[us] * 400), trial(1, *[100.0] * 400)
    assert winner([first, fastest], 0.5, untuned=untuned) == (first if quality == "tied" else fastest, quality)


def test_a_center_is_a_mean_that_far_samples_hardly_move() -> None:
    steps = trial(0, *[100.0] * 40, *[100.2] * 30)
    assert steps.center_us == pytest.approx(100 + 0.2 * 30 / 70) and steps.median_us == 100.0
    assert trial(0, *[100.0, 101.0] * 20, 900.0).center_us == pytest.approx(100.5, abs=0.6)
    assert trial(0, 7.0).center_us == 7.0


def test_the_median_is_that_of_the_statistics_module() -> None:
    for values in ([3.0], [2.0, 1.0], [5.0, 1.0, 3.0], [4.0, 1.0, 3.0, 9.0]):
        assert trial(0, *values).median_us == statistics.median(values)


def test_rounds_are_interleaved_and_shuffled_by_the_seed() -> None:
    clocks = [Clock([100.0] * 6, noise_us=1.0) for _ in range(3)]
    for clock, seed in zip(clocks, (1, 1, 2)):
        raced(clock, seed)
    first_turns = [[clock.turns[0][:6], clock.turns[0][6:12]] for clock in clocks]  # taken together
    for turns in first_turns:
        assert sorted(turns[0]) == sorted(turns[1]) == list(range(6))
    assert first_turns[0] == first_turns[1] != first_turns[2]
    assert first_turns[0][0] != first_turns[0][1]


@pytest.mark.parametrize(
    ("time_us", "samples"),
    [
        pytest.param(100_000.0, 3, id="beyond it after the first round"),
        pytest.param(50_000.0, 6, id="after the second"),
    ],
)
def test_slow_configs_stop_at_their_budget_of_a_quarter_second(time_us: float, samples: int) -> None:
    trials = raced(Clock([time_us, time_us]))
    assert [len(trial.samples_us) for trial in trials] == [samples, samples]
    assert winner(trials, 0.1)[0] is trials[0]


def test_a_config_that_fails_is_out_and_the_others_race_on() -> None:
    clock = Clock([100.0, 90.0, 101.0], noise_us=1.0)

    def sample(turn: Sequence[Trial]) -> None:
        for one in turn:
            if one.index == 1 and len(one.samples_us) == race_module.FIRST_SAMPLES:
                one.error = "RuntimeError: boom"
        clock([one for one in turn if not one.error])

    trials = [trial(index) for index in range(3)]
    race(trials, Track(sample))
    assert trials[1].error
    assert len(trials[1].samples_us) == race_module.FIRST_SAMPLES
    assert len(trials[0].samples_us) > race_module.GUARD_SAMPLES
    assert len(trials[2].samples_us) > race_module.GUARD_SAMPLES


def test_if_all_fail_the_race_ends() -> None:
    def sample(turn: Sequence[Trial]) -> None:
        for one in turn:
            one.error = "boom"

    trials = [trial(0), trial(1)]
    race(trials, Track(sample))
    assert [trial.samples_us for trial in trials] == [[], []]


@pytest.mark.parametrize("allowed", [3, 12, 14], ids=["at once", "before the finals", "in the finals"])
def test_the_race_ends_when_no_more_samples_come(allowed: int) -> None:
    # Out of time, or a benchmark that answers once: asking again and again would never end.
    clock = Clock([100.0, 100.0], noise_us=1.0)

    def sample(turn: Sequence[Trial]) -> None:
        for one in turn:
            clock([one] if len(one.samples_us) < allowed else [])

    trials = [trial(0), trial(1)]
    race(trials, Track(sample))
    assert [len(trial.samples_us) for trial in trials] == [allowed, allowed]
    assert len(clock.turns) < 80


# -- times -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sample", [0.0, -1.0, math.nan, math.inf, -math.inf], ids=str)
def test_a_time_that_no_clock_measured_is_refused(sample: float) -> None:
    with pytest.raises(ValueError, match=f"expected a time above 0 us, got {sample}"):
        check_samples([5.0, sample])


@pytest.mark.parametrize("samples", [[], [0.001, 1, 1e9]], ids=str)
def test_times_are_accepted(samples: list[float]) -> None:
    assert check_samples(samples) is None  # it raises for those above


def test_median_and_percentiles() -> None:
    ten = trial(0, *[float(n) for n in (3, 1, 2, 10, 9, 8, 7, 6, 5, 4)])
    assert ten.median_us == 5.5
    assert (ten.percentile(0.2), ten.percentile(0.8), ten.percentile(1.0)) == (3.0, 9.0, 10.0)


def test_the_error_of_a_median_shrinks_with_the_samples_and_never_below_the_floor() -> None:
    noisy = [95.0, 100.0, 105.0]
    few, many = trial(0, *noisy), trial(0, *noisy * 12)
    assert few.relative_error == pytest.approx(1.2533 * 1.4826 * 0.05 / math.sqrt(3))
    assert many.relative_error == pytest.approx(few.relative_error / math.sqrt(12))
    assert trial(0, 5.0, 5.0, 5.0, 5.0).relative_error == pytest.approx(1.2533 * NOISE_FLOOR / 2)


# -- disturbance ------------------------------------------------------------------------------------------------------


class Disturbed(Clock):
    """All times are longer by a half during some turns."""

    def __init__(self, times_us: Sequence[float], slow_turns: range) -> None:
        super().__init__(times_us, noise_us=0.2)
        self.slow_turns = slow_turns

    def __call__(self, turn: Sequence[Trial]) -> None:
        for one in turn:
            super().__call__([one])
            one.samples_us[-1] *= 1.5 if len(self.turns) // 3 in self.slow_turns else 1.0


@pytest.mark.parametrize("slow_turns", [range(3, 6), range(1, 2), range(3, 10_000)], ids=["a while", "a turn", "ever"])
def test_what_all_share_of_a_change_is_taken_out(slow_turns: range) -> None:
    clock = Disturbed([100.0, 101.0, 102.0], slow_turns)
    trials = [trial(index) for index in range(3)]
    assert race(trials, Track(clock))
    assert winner(trials, 0.5) == (trials[0], "ok")
    assert trials[2].median_us / trials[0].median_us == pytest.approx(1.02, abs=0.004)
    assert trials[0].median_us in (pytest.approx(100, rel=0.02), pytest.approx(150, rel=0.02))


def test_what_was_measured_stays_as_it_is_where_nothing_changes() -> None:
    def sample(turn: Sequence[Trial]) -> None:
        for one in turn:
            one.samples_us.append(100.0 + one.index / 3)

    trials = [trial(index) for index in range(3)]
    assert race(trials, Track(sample))
    assert all(set(one.samples_us) == {100.0 + one.index / 3} for one in trials)


def test_answers_that_are_not_in_the_order_of_time_stay_as_they_are() -> None:
    def sample(turn: Sequence[Trial]) -> None:
        for place, one in enumerate(turn):
            one.samples_us += [] if one.samples_us else [100.0 + 30 * place, 90.0, 120.0]

    trials = [trial(index) for index in range(8)]
    assert race(trials, Track(sample, drifts=False))
    assert all({90.0, 120.0} < set(one.samples_us) for one in trials)


def test_one_config_that_moves_alone_disturbs_nothing() -> None:
    def sample(turn: Sequence[Trial]) -> None:
        for one in turn:
            one.samples_us.append(100.0 * (1.2 if one.index == 1 and len(one.samples_us) >= 3 else 1.0))

    trials = [trial(index) for index in range(3)]
    assert race(trials, Track(sample))
    assert trials[0].median_us == pytest.approx(trials[2].median_us) == pytest.approx(100.0)


def test_those_that_left_have_times_beside_those_of_the_leader_at_the_end() -> None:
    clock, level = Clock([100.0, 160.0], noise_us=0.1), [1.0]

    def sample(turn: Sequence[Trial]) -> None:
        clock(turn)
        for one in turn:
            one.samples_us[-1] *= level[0]
        level[0] *= 0.99

    trials = [trial(index) for index in range(2)]
    race(trials, Track(sample))
    assert len(trials[1].samples_us) == race_module.FIRST_SAMPLES < len(trials[0].samples_us)
    assert trials[1].median_us / trials[0].median_us == pytest.approx(1.6, abs=0.05)
