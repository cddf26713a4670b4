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
# Relative; the untuned config, or one earlier in the list, wins if it is this close to the fastest. With 0.003, chance
# decided between configs of a split-K matmul that are 0.5% apart (H200).
TIE_BAND, TIE_ERRORS, TIE = 0.0015, 2.5, math.log1p(0.0015)
# A larger lead that ties only for lack of certainty is left to the last comparison: under 30% load a config that is 5%
# faster tied with the untuned one in 6 of 80 races (rmsnorm, H200).
CONTESTED = 0.01
# Allow more errors if a time is not known to 0.3%, or a difference to 0.5%: chance decided one in ten ties.
NOISY_TIE_ERRORS, TELLS, UNKNOWN = 3.5, 0.003, 0.005
# Sample all configs that tie further, within this many launches of each and seconds of all, until the difference of two
# is known to `PARTED` or all are certainly within `ALIKE`; not at all if that would leave its error above `TOLD`. Below
# `TOLD`, an earlier config of the list wins only if it is behind by at most `TIE_BAND`, not by 2.5 errors. For a
# split-K matmul with six configs within 0.5% (H200, replayed), ten orders of the list had 4.7 winners 0.46% apart
# before, with 240 launches.
MOST_PARTED, PART_BUDGET_S, PARTED, ALIKE, TOLD = 1200, 0.24, 0.00075, 0.0025, 0.002
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
    trials: Sequence[Trial], track: Track, random_seed: int = 0, untuned: Trial | None = None, all_stay: bool = False,
    parting: float = 1.0,
) -> bool:  # fmt: skip
    """Sample each trial until it is clearly slower than the fastest.

    Configs take turns in shuffled order, one sample each, and common drift is removed (`Drift`), so that clocks,
    temperature and the order of candidates favor none.

    Args:
        trials: Configs launched at least once.
        random_seed: Seed of the shuffle.
        untuned: The untuned config; it stays until the finals, so that its time is well known.
        all_stay: Keep all others until the finals too.
        parting: Share of `MOST_PARTED` that those which tie may get.
    """
    rounds = Rounds(track, random.Random(random_seed))
    rounds.run(trials, FIRST_SAMPLES)
    first_limit, guard_limit = (_no_limit, _no_limit) if all_stay else (_first_limit, _guard_limit)
    track.examine(_within(trials, first_limit, untuned))
    alive = _left(trials, first_limit, untuned)  # again: the check may have removed the leader
    while behind := [trial for trial in open_trials(alive) if len(trial.samples_us) < GUARD_SAMPLES]:
        if not rounds.run(behind, FIRST_SAMPLES):
            break
        alive = _left(_still(alive, trials), guard_limit, untuned)
    near = next((one for one in _within(alive, _near_limit) if one is untuned and are_loaded(alive)), None)
    finalists = _left(alive, _finalist_limit, near, FINALISTS)
    while len(finalists) > 1 and (unsure := _unsure(finalists)):
        if not rounds.run(unsure, _final_round(unsure)):
            break
        finalists = _left(_still(finalists, trials), _final_limit, near)
    _part(rounds, finalists, untuned.index if untuned else None, parting)
    _measure_by(finalists, trials)
    return rounds.left > 0


# How much slower than the leader a trial may be, relative, given the standard error of the difference.
Limit = Callable[[float], float]


def _no_limit(error: float) -> float:
    return math.inf


def _first_limit(error: float) -> float:
    return FAR_OFF - 1


def _guard_limit(error: float) -> float:
    """Three standard errors, at least the guard band."""
    return max(GUARD_BAND, 3 * error)


def _near_limit(error: float) -> float:
    """Under load a config with few samples looks slower, so a close untuned config gets as many as the others."""
    return FAR_AHEAD


def _finalist_limit(error: float) -> float:
    return max(FINAL_BAND, math.sqrt(2) * error)


def _final_limit(error: float) -> float:
    """A tie plus three standard errors, or four if samples are few and noisy."""
    return TIE_BAND + (3 if error <= UNKNOWN else 4) * error


def _left(trials: Sequence[Trial], limit: Limit, stays: Trial | None = None, most: int | None = None) -> list[Trial]:
    """Trials within a limit, at most the `most` fastest; sets `leader_us` of the others."""
    left = _within(trials, limit, stays)
    if most is not None:
        fastest = {id(trial) for trial in sorted(left, key=scale(left, MEDIAN).us)[:most]}
        left = [trial for trial in left if trial is stays or id(trial) in fastest]
    kept = {trial.index for trial in left}
    for trial in trials:
        if left and not trial.error:
            trial.leader_us = None if trial.index in kept else min(one.median_us for one in left)
    return left


def _still(alive: Sequence[Trial], trials: Sequence[Trial]) -> Sequence[Trial]:
    """The trials that race on; all of them if one has failed, since others may have left because it was faster."""
    return trials if any(trial.error for trial in alive) else alive


def _measure_by(finalists: Sequence[Trial], trials: Sequence[Trial]) -> None:
    """Scale the samples of eliminated trials to the leader's final time, since they were compared with the leader."""
    if finalists and not are_loaded(finalists):
        lead_us = min(trial.median_us for trial in finalists)
        for trial in trials:
            if trial.leader_us not in (None, lead_us):
                trial.samples_us[:] = [sample / trial.leader_us * lead_us for sample in trial.samples_us]


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


def _part(rounds: Rounds, finalists: Sequence[Trial], untuned: int | None, parting: float) -> None:
    """Sample the configs that tie until their differences are well known."""
    while finalists and len(tied := (standing := _Standing(finalists)).tied(untuned)) > 1:
        doubt = standing.doubt
        done = doubt < PARTED or max(map(standing.behind, tied)) + 2 * doubt < ALIKE
        if done or not _may_part(tied, doubt, parting) or not rounds.run(open_trials(tied), _part_round(tied)):
            break


def _part_round(tied: Sequence[Trial]) -> int:
    return max(FINAL_ROUND, LAST_ROUND // tied[0].launches, len(tied[0].samples_us) // 3)


def _may_part(tied: Sequence[Trial], doubt: float, parting: float) -> bool:
    """Whether more samples are allowed and can settle the tie; otherwise the winner would flip between searches."""
    launches = max(len(one.samples_us) * one.launches for one in tied)
    used = max(launches / MOST_PARTED, sum(sum(one.samples_us) for one in tied) / PART_BUDGET_S / 1e6)
    return used < parting and doubt * math.sqrt(used / parting) < TOLD


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

    Trials within `TIE_BAND` or `TIE_ERRORS` standard errors of the fastest tie, up to `GUARD_BAND`. The untuned config
    wins a tie, else the earliest in the list, so that near ties do not flip between runs. Eliminated trials win only if
    no others remain.

    Args:
        trials: At least one, each with samples.
        steady: Whether conditions were steady.
        untuned: Index of the untuned config.

    Returns:
        The trial, and "ok", "tied", "noisy" (spread over 5%, or not steady) or "unresolved" (below the clock's
        resolution).
    """
    trials = [trial for trial in trials if trial.leader_us is None or trial.index == untuned] or trials
    standing = _Standing(trials)
    best, is_tied = standing.preferred(untuned), len(standing.tied(untuned)) > 1
    if best.median_us <= resolution_us:
        return best, "unresolved"
    return best, "noisy" if best.middle > NOISY or not steady else "tied" if is_tied else "ok"


def contender(trials: Sequence[Trial], untuned: Trial) -> Trial | None:
    """The fastest, if its lead over the untuned config is large and only uncertain."""
    left = [one for one in trials if one.leader_us is None or one is untuned]
    for by in (scale(trials), FASTEST):
        lead = min(left, key=by.us)
        if by.us(untuned) / by.us(lead) - 1 > CONTESTED:
            return lead
    return None


class _Standing:
    """How trials compare.

    Attributes:
        doubt: Relative standard error of a difference, from the leader's error: a trial dropped early has a large one.
    """

    def __init__(self, trials: Sequence[Trial]) -> None:
        by = scale(trials)
        self._trials, self._is_loaded = trials, by is FASTEST
        self._times_us = {one.index: by.us(one) for one in trials}
        lead = min(trials, key=lambda one: self._times_us[one.index])
        self._lead_us = self._times_us[lead.index]
        error = by.error(lead) if self._is_loaded else _shrunk_error(lead, _pooled_spread(trials))
        self.doubt = math.sqrt(2) * error

    def behind(self, trial: Trial) -> float:
        """How much slower than the fastest a trial is, relative."""
        return self._times_us[trial.index] / self._lead_us - 1

    def tied(self, untuned: int | None) -> list[Trial]:
        """Trials that tie with the fastest, in order of preference."""
        is_coarse = self.doubt > math.sqrt(2) * TELLS and not self._is_loaded
        doubt = min(self.doubt * (NOISY_TIE_ERRORS if is_coarse else TIE_ERRORS), GUARD_BAND)
        tied = [one for one in self._trials if self.behind(one) <= max(TIE_BAND, doubt)]
        return sorted(tied, key=lambda trial: (trial.index != untuned, trial.index))

    def preferred(self, untuned: int | None) -> Trial:
        """The untuned config if it ties with the fastest, else the earliest that is known to be as fast."""
        tied = self.tied(untuned)
        if tied[0].index == untuned or self.doubt > TOLD:
            return tied[0]
        return next(one for one in tied if self.behind(one) <= TIE_BAND)
