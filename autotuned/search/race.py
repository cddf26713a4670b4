"""A race of many configs: sample each until it can be told from the fastest, then pick the winner."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence

from autotuned.search.trial import ENOUGH, FASTEST, MEDIAN, Rounds, Scale, Track, Trial, are_loaded, scale
from autotuned.store.record import Quality

# Counts and thresholds were validated by replaying recorded GPU timings (docs/tuning.md): three samples tell a config
# that is far off, nothing within the guard band is dropped before twelve, finalists get forty.
FIRST_SAMPLES, GUARD_SAMPLES, FINAL_SAMPLES = 3, ENOUGH, 40
FINAL_ROUND, LAST_ROUND = 8, 40  # the least and the largest round of the finals
FAR_OFF = 1.5  # after the first samples, configs this many times slower than the leader are out
GUARD_BAND = 0.04  # relative; configs this close to the leader stay until GUARD_SAMPLES
# With six finalists the best config of a split-K product was dropped in 2 of 100 replayed races, with eight in none.
FINAL_BAND, FINALISTS = 0.03, 8
# Relative; the untuned config wins if it is this close to the fastest, one that is earlier in the list if it is `NEAR`:
# with 0.003 chance decided between configs of a split-K product that are 0.5% apart (H200).
TIE_BAND, NEAR, TIE_ERRORS, TIE = 0.0025, 0.0015, 2.5, math.log1p(0.0025)
# Beyond this a tie of doubt alone is left to the last comparison: beside 30% load a config that is 5% faster tied with
# the untuned one in 6 of 80 races (rmsnorm, H200).
CONTESTED = 0.01
# Where a time is not known to 0.3%, or a difference to 0.5%, more errors are allowed: chance decided one of ten ties.
NOISY_TIE_ERRORS, TELLS, UNKNOWN = 3.5, 0.003, 0.005
# All that tie are sampled further, with at most so many launches of each, which take at most so long in all, until the
# difference of two is known to `PARTED`; not at all if that would leave its error above `TOLD`. Below that, one that is
# earlier in the list wins only if it is behind by at most `NEAR`, not by 2.5 errors. Of a split-K product with six
# configs within 0.5% (H200, replayed), ten orders of the list had 4.7 winners 0.46% apart before, with 240 launches.
MOST_PARTED, PART_BUDGET_S, PARTED, TOLD = 1200, 0.24, 0.00075, 0.002
FAR_AHEAD = 0.1  # relative; so far apart are two configs wherever tensors lie, and beside load
NOISY = 0.05  # a choice is noisy if the middle 60% of the winner's samples spread over more than this, relative
# Samples of short kernels spread more and cost less: an rmsnorm of 28 us spread by 2%, and 40 samples resolved 1.7%
# (H100). A finalist gets more than `FINAL_SAMPLES` until all of its samples take this long. If a sample is the mean of
# several launches, launches count: the cache is flushed before each.
MOST_LAUNCHES, FINAL_BUDGET_S = 240, 0.008
# A median is sure below this relative standard error. At 0.002 the split-K product above had two winners in 20 searches
# on a GPU and three in 40 replays; at 0.001 one winner in 39 of the 40, for 0.1 s more. The pooled spread counts like
# five samples next to a trial's own.
SURE, PSEUDO_SAMPLES = 0.001, 5
# A config measured this long gets no more samples: in Triton's interpreter a launch takes tens of milliseconds, and
# forty of them tell no more than three.
CONFIG_BUDGET_S = 0.25


def race(
    trials: Sequence[Trial], track: Track, random_seed: int = 0, untuned: Trial | None = None, all_stay: bool = False,
    parting: float = 1.0,
) -> bool:  # fmt: skip
    """Sample each trial until it can be told from the fastest.

    Turns are interleaved sample by sample and shuffled, and drift common to all configs is removed (`drift`), so that
    clocks, temperature and the order of candidates favor none.

    Args:
        trials: Configs launched at least once.
        random_seed: Seed of the shuffle.
        untuned: The untuned config; it stays until the finals, so that its time is known well.
        all_stay: Keep all others until the finals too.
        parting: Share of `MOST_PARTED` that those which tie may get.
    """
    rounds = Rounds(track, random.Random(random_seed))
    rounds.run(trials, FIRST_SAMPLES)
    first_limit, guard_limit = (_no_limit, _no_limit) if all_stay else (_first_limit, _guard_limit)
    track.examine(_within(trials, first_limit, untuned))
    alive = _left(trials, first_limit, untuned)  # anew: the check may have removed the leader
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
    _part(rounds, finalists, untuned.index if untuned else None, parting)
    _measure_by(finalists, trials)
    return rounds.left > 0


Limit = Callable[[float], float]  # how much slower than the leader, from the standard error of the difference


def _left(trials: Sequence[Trial], limit: Limit, stays: Trial | None = None, most: int | None = None) -> list[Trial]:
    """Trials within a limit, at most the `most` fastest; the others note the leader's median."""
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
    """Scale the samples of trials that left to the leader's final time: they were compared with it while racing."""
    if finalists and not are_loaded(finalists):
        lead_us = min(trial.median_us for trial in finalists)
        for trial in trials:
            if trial.leader_us not in (None, lead_us):
                trial.samples_us[:] = [sample / trial.leader_us * lead_us for sample in trial.samples_us]


def _guard_limit(error: float) -> float:
    """How much slower than the leader: three standard errors, never inside the guard band."""
    return max(GUARD_BAND, 3 * error)


def _final_limit(error: float) -> float:
    """A tie plus three standard errors, or four where few noisy samples tell little."""
    return TIE_BAND + (3 if error <= UNKNOWN else 4) * error


def _final_round(trials: Sequence[Trial]) -> int:
    """Samples of the next final round: a third more than there are, to keep the number of rounds small."""
    fewest = min(len(trial.samples_us) for trial in trials)
    most = MOST_LAUNCHES // max(trial.launches for trial in trials) - fewest
    return max(FINAL_ROUND, min(fewest // 3 // FINAL_ROUND * FINAL_ROUND, LAST_ROUND, most))


def open_trials(trials: Sequence[Trial]) -> list[Trial]:
    """Trials to sample further: no error, and within their time budget."""
    return [trial for trial in trials if not trial.error and sum(trial.samples_us) < CONFIG_BUDGET_S * 1e6]


def _unsure(finalists: Sequence[Trial]) -> list[Trial]:
    pooled = _pooled_spread(finalists)
    return [trial for trial in open_trials(finalists) if _is_cheap(trial) and _shrunk_error(trial, pooled) > SURE]


def _part(rounds: Rounds, finalists: Sequence[Trial], untuned: int | None, parting: float) -> None:
    """Sample those that tie until their differences are known well."""
    while finalists and len(tied := (standing := _Standing(finalists)).tied(untuned)) > 1:
        doubt = standing.doubt
        done = doubt < PARTED or max(map(standing.behind, tied)) + 2 * doubt < TIE_BAND
        if done or not _may_part(tied, doubt, parting) or not rounds.run(open_trials(tied), _part_round(tied)):
            break


def _part_round(tied: Sequence[Trial]) -> int:
    return max(FINAL_ROUND, LAST_ROUND // tied[0].launches, len(tied[0].samples_us) // 3)


def _may_part(tied: Sequence[Trial], doubt: float, parting: float) -> bool:
    """Whether more samples are allowed, and can tell: else these would flip from search to search."""
    launches = max(len(one.samples_us) * one.launches for one in tied)
    used = max(launches / MOST_PARTED, sum(sum(one.samples_us) for one in tied) / PART_BUDGET_S / 1e6)
    return used < parting and doubt * math.sqrt(used / parting) < TOLD


def _band(trial: Trial, untuned: int | None) -> float:
    return TIE_BAND if trial.index == untuned else NEAR


def _is_cheap(trial: Trial) -> bool:
    """Whether a finalist may get more samples: up to 40, or for a short kernel 8 ms or 240 launches."""
    count, us = len(trial.samples_us), sum(trial.samples_us)
    return count < FINAL_SAMPLES or (count * trial.launches < MOST_LAUNCHES and us < FINAL_BUDGET_S * 1e6)


def _pooled_spread(trials: Sequence[Trial]) -> float:
    """Median spread of the trials with enough samples."""
    return statistics.median([trial.spread for trial in trials if len(trial.samples_us) >= GUARD_SAMPLES] or [0.0])


def _shrunk_error(trial: Trial, pooled: float) -> float:
    """Standard error of the median, its spread shrunk towards the pooled one: few samples underestimate it."""
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
    """Beside load what has few samples seems slower: the untuned config gets as many as the others if it is near."""
    return FAR_AHEAD


def _within(trials: Sequence[Trial], limit: Limit, stays: Trial | None = None) -> list[Trial]:
    """The leader, and those whose best guess is within `limit` of it."""
    measured = [trial for trial in trials if not trial.error and trial.samples_us]
    if not measured:
        return []
    by = scale(measured, MEDIAN)
    lead = min(measured, key=by.us)

    def is_within(trial: Trial) -> bool:
        return _at_best(trial, by) <= (1 + limit(math.hypot(by.error(trial), by.error(lead)))) * by.us(lead)

    return [trial for trial in measured if trial is lead or trial is stays or is_within(trial)]


def _at_best(trial: Trial, by: Scale) -> float:
    """Its time, or the lower quartile if there are few samples.

    Other users of the device only add time, and may slow two samples of three: by medians, the best of 32 attention
    configs left at once in 5 of 200 replayed races under 30% foreign load, and the winner was 13% slower.
    """
    return by.us(trial) if len(trial.samples_us) > GUARD_SAMPLES else min(by.us(trial), trial.percentile(0.25))


def pick(samples_us: Mapping[str, Sequence[float]], untuned: str | None = None) -> tuple[str, str]:
    """`winner` for stored times: the name, and the quality of the choice.

    Args:
        samples_us: At least one sample each, by name, in list order.
        untuned: Name of the config that runs untuned.
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
    `GUARD_BAND`. Of these the untuned one wins, else the earliest in the list, so that near ties do not flip between
    runs. Trials that left the race win only if no other is left.

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
    """The fastest, if it is ahead of the untuned config by so much that only doubt makes them tie."""
    left = [one for one in trials if one.leader_us is None or one is untuned]
    for by in (scale(trials), FASTEST):
        lead = min(left, key=by.us)
        if by.us(untuned) / by.us(lead) - 1 > CONTESTED:
            return lead
    return None


class _Standing:
    """How trials compare.

    Attributes:
        doubt: Relative standard error of a difference; not by each trial's own, large where it was dropped early.
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
        """By how much it is slower than the fastest, relative."""
        return self._times_us[trial.index] / self._lead_us - 1

    def tied(self, untuned: int | None) -> list[Trial]:
        """Those that tie with the fastest, in the order in which they are preferred."""
        is_coarse = self.doubt > math.sqrt(2) * TELLS and not self._is_loaded
        doubt = min(self.doubt * (NOISY_TIE_ERRORS if is_coarse else TIE_ERRORS), GUARD_BAND)
        tied = [one for one in self._trials if self.behind(one) <= max(_band(one, untuned), doubt)]
        return sorted(tied, key=lambda trial: (trial.index != untuned, trial.index))

    def preferred(self, untuned: int | None) -> Trial:
        """The untuned one if it ties with the fastest; else the earliest of those that are known to be as fast."""
        tied = self.tied(untuned)
        if tied[0].index == untuned or self.doubt > TOLD:
            return tied[0]
        return next(one for one in tied if self.behind(one) <= NEAR)
