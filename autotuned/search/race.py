"""A race of many configs: sample each until it is clearly slower than the fastest, then pick the winner."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence

from autotuned.search.trial import ENOUGH, FASTEST, MEDIAN, Rounds, Scale, Track, Trial, are_loaded, scale
from autotuned.store.record import Quality

# Counts and thresholds were validated by replaying recorded GPU timings (docs/tuning.md): three samples expose configs
# that are far off, nothing within the guard band is dropped before twelve, finalists get forty.
FIRST_SAMPLES, GUARD_SAMPLES, FINAL_SAMPLES = 3, ENOUGH, 40
FINAL_ROUND, LAST_ROUND = 8, 40  # smallest and largest round of the finals
FAR_OFF = 1.5  # after the first samples, drop configs this many times slower than the leader
GUARD_BAND = 0.04  # relative; configs this close to the leader stay until GUARD_SAMPLES
# With six finalists, 2 of 100 replayed races dropped a split-K matmul's best config; with eight, none.
FINAL_BAND, FINALISTS = 0.03, 8
# Relative; the untuned config wins if it is within `TIE_BAND` of the fastest, an earlier config of the list if it is
# within `NEAR`. With 0.003, chance decided between configs of a split-K matmul that are 0.5% apart (H200).
TIE_BAND, NEAR, TIE_ERRORS, TIE = 0.0025, 0.0015, 2.5, math.log1p(0.0025)
# A larger lead that ties only for lack of certainty is left to the last comparison: under 30% load a config that is 5%
# faster tied with the untuned one in 6 of 80 races (rmsnorm, H200).
CONTESTED = 0.01
# Allow more errors if a time is not known to 0.3%, or a difference to 0.5%: chance decided one in ten ties.
NOISY_TIE_ERRORS, TELLS, UNKNOWN = 3.5, 0.003, 0.005
# Sample the fastest config and the winner of the tie until they differ by this many standard errors, within this many
# launches and seconds of each. In bootstrapped replays of the split-K matmul, ten orders of the list had 4.1 winners,
# up to 0.8% apart; with 480 launches and `Trial.center_us` 2.6, up to 0.25% apart, for 0.04 s; in whole searches up to
# 0.39%, and on an H200 up to 0.56%. Sampling ends once the error of the difference is below `PARTED`, and does not
# start if all launches would leave it above `TOO_COARSE`.
PART_ERRORS, MOST_PARTED, PART_BUDGET_S, PARTED, TOO_COARSE = 2.5, 1200, 0.12, 0.00075, 0.0012
FAR_AHEAD = 0.1  # relative; a larger lead holds at any tensor addresses, and under load
NOISY = 0.05  # relative; a choice is noisy if the middle 60% of the winner's samples spread over more
# Samples of short kernels spread more and cost less: those of a 28 us rmsnorm spread by 2%, and 40 samples resolved
# 1.7% (H100). Sample a finalist beyond `FINAL_SAMPLES`, up to this many launches or seconds. If a sample is the mean of
# several launches, launches count: the cache is flushed before each.
MOST_LAUNCHES, FINAL_BUDGET_S = 240, 0.008
# A median is known well enough below this relative standard error. At 0.002 the split-K matmul above had two winners in
# 20 searches on a GPU and three in 40 replays; at 0.001 one winner in 39 of the 40, for 0.1 s more. The pooled spread
# counts like five of a trial's own samples.
SURE, PSEUDO_SAMPLES = 0.001, 5
# Stop sampling a config after this long: in Triton's interpreter a launch takes tens of milliseconds, and forty tell no
# more than three.
CONFIG_BUDGET_S = 0.25


def race(
    trials: Sequence[Trial], track: Track, random_seed: int = 0, untuned: Trial | None = None, all_stay: bool = False
) -> bool:
    """Sample each trial until it is clearly slower than the fastest.

    Configs take turns in shuffled order, one sample each, and common drift is removed (`Drift`), so that clocks,
    temperature and the order of candidates favor none.

    Args:
        trials: Configs launched at least once.
        random_seed: Seed of the shuffle.
        untuned: The untuned config; it stays until the finals, so that its time is well known.
        all_stay: Keep all others until the finals too.
    """
    rounds = Rounds(track, random.Random(random_seed))
    rounds.run(trials, FIRST_SAMPLES)
    first_limit, guard_limit = (_no_limit, _no_limit) if all_stay else (_first_limit, _guard_limit)
    track.examine(_within(trials, first_limit, untuned))
    alive = _left(trials, first_limit, untuned)  # again: the check may have removed the leader
    while behind := [trial for trial in open_trials(alive) if len(trial.samples_us) < GUARD_SAMPLES]:
        if not rounds.run(behind, FIRST_SAMPLES):
            break
        alive = _left(alive, guard_limit, untuned)
    near = next((one for one in _within(alive, _near_limit) if one is untuned and are_loaded(alive)), None)
    finalists = _left(alive, _finalist_limit, near, FINALISTS)
    while len(finalists) > 1 and (unsure := _unsure(finalists)):
        if not rounds.run(unsure, _final_round(unsure)):
            break
        finalists = _left(finalists, _final_limit, near)
    _part(rounds, finalists, untuned.index if untuned else None)
    _measure_by(finalists, trials)
    return rounds.left > 0


# How much slower than the leader a trial may be, relative, given the standard error of the difference.
Limit = Callable[[float], float]


def _left(trials: Sequence[Trial], limit: Limit, stays: Trial | None = None, most: int | None = None) -> list[Trial]:
    """Trials within a limit, at most the `most` fastest; sets `leader_us` of the others."""
    left = _within(trials, limit, stays)
    if most is not None:
        fastest = {id(trial) for trial in sorted(left, key=scale(left, MEDIAN).us)[:most]}
        left = [trial for trial in left if trial is stays or id(trial) in fastest]
    kept = {trial.index for trial in left}
    for trial in trials:
        if left and trial.index not in kept and not trial.error:
            trial.leader_us = min(one.median_us for one in left)
    return left


def _measure_by(finalists: Sequence[Trial], trials: Sequence[Trial]) -> None:
    """Scale the samples of eliminated trials to the leader's final time, since they were compared with the leader."""
    if finalists and not are_loaded(finalists):
        lead_us = min(trial.median_us for trial in finalists)
        for trial in trials:
            if trial.leader_us not in (None, lead_us):
                trial.samples_us[:] = [sample / trial.leader_us * lead_us for sample in trial.samples_us]


def _guard_limit(error: float) -> float:
    """Three standard errors, at least the guard band."""
    return max(GUARD_BAND, 3 * error)


def _final_limit(error: float) -> float:
    """A tie plus three standard errors, or four if samples are few and noisy."""
    return TIE_BAND + (3 if error <= UNKNOWN else 4) * error


def _final_round(trials: Sequence[Trial]) -> int:
    """Number of samples in the next final round: a third more than there are, to keep rounds few."""
    fewest = min(len(trial.samples_us) for trial in trials)
    most = MOST_LAUNCHES // max(trial.launches for trial in trials) - fewest
    return max(FINAL_ROUND, min(fewest // 3 // FINAL_ROUND * FINAL_ROUND, LAST_ROUND, most))


def open_trials(trials: Sequence[Trial]) -> list[Trial]:
    """Trials without an error and within their time budget."""
    return [trial for trial in trials if not trial.error and sum(trial.samples_us) < CONFIG_BUDGET_S * 1e6]


def _unsure(finalists: Sequence[Trial]) -> list[Trial]:
    pooled = _pooled_spread(finalists)
    return [trial for trial in open_trials(finalists) if _is_cheap(trial) and _shrunk_error(trial, pooled) > SURE]


def _part(rounds: Rounds, finalists: Sequence[Trial], untuned: int | None) -> None:
    """Sample the tie's winner and the fastest until it is certain whether they tie."""
    while finalists:
        by = scale(finalists)
        tied = _tied(finalists, untuned)
        pair = [tied[0], min(tied, key=by.us)]
        apart = by.us(pair[0]) / by.us(pair[1]) - 1
        doubt = math.hypot(*map(by.error, pair))
        certain = abs(apart - _band(pair[0], untuned)) > PART_ERRORS * doubt
        done = pair[0] is pair[1] or certain or doubt < PARTED or apart + 2 * doubt < TIE_BAND
        count = max(FINAL_ROUND, LAST_ROUND // pair[0].launches, len(pair[0].samples_us) // 4)
        if done or not _may_part(pair, doubt) or not rounds.run(open_trials(pair), count):
            break


def _may_part(pair: Sequence[Trial], doubt: float) -> bool:
    """Whether more samples are allowed and can settle the tie; otherwise the winner would flip between searches."""
    used = [max(len(one.samples_us) * one.launches / MOST_PARTED, sum(one.samples_us) / PART_BUDGET_S / 1e6)
            for one in pair if not one.error]  # fmt: skip
    return bool(used) and min(used) < 1 and doubt * math.sqrt(max(used)) < TOO_COARSE


def _band(trial: Trial, untuned: int | None) -> float:
    return TIE_BAND if trial.index == untuned else NEAR


def _is_cheap(trial: Trial) -> bool:
    """Whether a finalist may get more samples: up to 40, or 8 ms or 240 launches of a short kernel."""
    count, us = len(trial.samples_us), sum(trial.samples_us)
    return count < FINAL_SAMPLES or (count * trial.launches < MOST_LAUNCHES and us < FINAL_BUDGET_S * 1e6)


def _pooled_spread(trials: Sequence[Trial]) -> float:
    """Median spread of the trials with enough samples."""
    return statistics.median([trial.spread for trial in trials if len(trial.samples_us) >= GUARD_SAMPLES] or [0.0])


def _shrunk_error(trial: Trial, pooled: float) -> float:
    """Standard error of the median, with its spread shrunk towards the pooled one: few samples underestimate it."""
    count = len(trial.samples_us)
    spread = (count * trial.spread + PSEUDO_SAMPLES * pooled) / (count + PSEUDO_SAMPLES)
    return 1.2533 * (spread if pooled else trial.spread) / math.sqrt(count)


def _no_limit(error: float) -> float:
    return math.inf


def _first_limit(error: float) -> float:
    return FAR_OFF - 1


def _finalist_limit(error: float) -> float:
    return max(FINAL_BAND, math.sqrt(2) * error)


def _near_limit(error: float) -> float:
    """Under load a config with few samples looks slower, so a close untuned config gets as many as the others."""
    return FAR_AHEAD


def _within(trials: Sequence[Trial], limit: Limit, stays: Trial | None = None) -> list[Trial]:
    """The leader, and trials whose optimistic time is within `limit` of it."""
    measured = [trial for trial in trials if not trial.error and trial.samples_us]
    if not measured:
        return []
    by = scale(measured, MEDIAN)
    lead = min(measured, key=by.us)

    def is_within(trial: Trial) -> bool:
        return _at_best(trial, by) <= (1 + limit(math.hypot(by.error(trial), by.error(lead)))) * by.us(lead)

    return [trial for trial in measured if trial is lead or trial is stays or is_within(trial)]


def _at_best(trial: Trial, by: Scale) -> float:
    """A trial's time, or the lower quartile if it has few samples.

    Other users of the device only add time, and may slow two of three samples. By medians, 5 of 200 replayed races
    under 30% load dropped the best of 32 attention configs at once, and the winner was 13% slower.
    """
    return by.us(trial) if len(trial.samples_us) > GUARD_SAMPLES else min(by.us(trial), trial.percentile(0.25))


def pick(samples_us: Mapping[str, Sequence[float]], untuned: str | None = None) -> tuple[str, str]:
    """`winner` for stored times: the name, and the quality of the choice.

    Args:
        samples_us: At least one sample each, by name, in list order.
        untuned: Name of the untuned config.
    """
    names = list(samples_us)
    idle = lambda: None
    trials = [Trial(index, idle, idle, samples_us=list(samples_us[name])) for index, name in enumerate(names)]
    place = names.index(untuned) if untuned is not None and untuned in samples_us else None
    best, quality = winner(trials, 0.0, untuned=place)
    return names[best.index], quality


def winner(
    trials: Sequence[Trial], resolution_us: float, steady: bool = True, untuned: int | None = None
) -> tuple[Trial, Quality]:
    """The trial to use, and the quality of the choice.

    Trials within `NEAR` (the untuned one: `TIE_BAND`) or `TIE_ERRORS` standard errors of the fastest tie, up to
    `GUARD_BAND`. The untuned config wins a tie, else the earliest in the list, so that near ties do not flip between
    runs. Eliminated trials win only if no others remain.

    Args:
        trials: At least one, each with samples.
        steady: Whether conditions were steady.
        untuned: Index of the untuned config.

    Returns:
        The trial, and "ok", "tied", "noisy" (spread over 5%, or not steady) or "unresolved" (below the clock's
        resolution).
    """
    trials = [trial for trial in trials if trial.leader_us is None or trial.index == untuned] or trials
    best, *tied = _tied(trials, untuned)
    if best.median_us <= resolution_us:
        return best, "unresolved"
    return best, "noisy" if best.middle > NOISY or not steady else "tied" if tied else "ok"


def contender(trials: Sequence[Trial], untuned: Trial) -> Trial | None:
    """The fastest, if its lead over the untuned config is large and only uncertain."""
    left = [one for one in trials if one.leader_us is None or one is untuned]
    for by in (scale(trials), FASTEST):
        lead = min(left, key=by.us)
        if by.us(untuned) / by.us(lead) - 1 > CONTESTED:
            return lead
    return None


def _tied(trials: Sequence[Trial], untuned: int | None) -> list[Trial]:
    """Trials that tie with the fastest, the winner first."""
    by = scale(trials)
    times_us = {trial.index: by.us(trial) for trial in trials}
    lead = min(trials, key=lambda trial: times_us[trial.index])
    # Use the leader's error, not each trial's own, which is large for a trial dropped after three samples.
    error = by.error(lead) if by is FASTEST else _shrunk_error(lead, _pooled_spread(trials))
    error *= TIE_ERRORS if error <= TELLS or by is FASTEST else NOISY_TIE_ERRORS
    lead_us, doubt = times_us[lead.index], min(math.sqrt(2) * error, GUARD_BAND)
    tied = [one for one in trials if times_us[one.index] <= (1 + max(_band(one, untuned), doubt)) * lead_us]
    return sorted(tied, key=lambda trial: (trial.index != untuned, trial.index))
