"""A race of many configs: sample each until it can be told from the fastest, then pick the winner."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from autotuned.search.rounds import Rounds, Track
from autotuned.search.trial import (
    CENTER,
    ENOUGH,
    FASTEST,
    MEDIAN,
    Lead,
    Scale,
    Trial,
    are_loaded,
    mean_lead,
    relative,
    scale,
    weighed,
)
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
# Where a time is not known to 0.3%, or a difference to 0.5%, more errors are allowed: chance decided one of ten ties.
NOISY_TIE_ERRORS, TELLS, UNKNOWN = 3.5, 0.003, 0.005
# The fastest and the one that wins the tie are sampled until that is certain by so many standard errors, with at most
# so many launches of each, which take at most so long. In bootstrapped replays of the product, ten orders of the list
# had 4.1 winners, up to 0.8% apart; with 480 launches and `Trial.center_us` 2.6, up to 0.25% apart, for 0.04 s; in
# whole searches up to 0.39%, and on an H200 up to 0.56%. Sampling ends once the error of the difference is below
# `PARTED`, and does not begin if all launches would leave it above `TOO_COARSE`.
PART_ERRORS, MOST_PARTED, PART_BUDGET_S, PARTED, TOO_COARSE = 2.5, 1200, 0.12, 0.00075, 0.0012
NOISY = 0.05  # a choice is noisy if the middle 60% of the winner's samples spread over more than this, relative
# The final duel: at most this many pairs, fewer once it is decided by this many standard errors.
DUEL_SAMPLES, DUEL_ROUND, DUEL_ERRORS = 20, 5, 4
# A config that is ahead by less than `SURE_LEAD` may be behind where tensors lie elsewhere: the duel goes on at so many
# other `PLACES`, `FIRST_SAMPLES` pairs at each; again while it is not sure and has taken less than `DUEL_SHARE` of the
# search. In the mean of all places it must be faster by so many standard errors.
PLACES, SURE_LEAD, PLACE_ERRORS, DUEL_SHARE = 5, 0.1, 2, 0.05
TRIMMED = 1.25  # by how much more the mean of all but two of them varies than their standard error says
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
    trials: Sequence[Trial], track: Track, random_seed: int = 0, untuned: Trial | None = None, all_stay: bool = False
) -> bool:
    """Sample each trial until it can be told from the fastest.

    Turns are interleaved sample by sample and shuffled, and drift common to all configs is removed (`drift`), so that
    clocks, temperature and the order of candidates favor none.

    Args:
        trials: Configs launched at least once.
        random_seed: Seed of the shuffle.
        untuned: The untuned config; it stays until the finals, so that its time is known well.
        all_stay: Keep all others until the finals too.
    """
    rounds = Rounds(track, random.Random(random_seed))
    rounds.run(trials, FIRST_SAMPLES)
    first_limit, guard_limit = (_no_limit, _no_limit) if all_stay else (_first_limit, _guard_limit)
    track.examine(_within(trials, first_limit, untuned))
    alive = _left(trials, first_limit, untuned)  # anew: the check may have removed the leader
    while behind := [trial for trial in _open(alive) if len(trial.samples_us) < GUARD_SAMPLES]:
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


Limit = Callable[[float], float]  # how much slower than the leader, from the standard error of the difference


@dataclass(frozen=True)
class Duel:
    """Fresh samples of the race's best and the untuned config.

    Attributes:
        steady: Whether conditions were steady meanwhile.
        elsewhere: Duels of the same two with the tensors at other places.
        raced: The two with the samples of the race.
    """

    best: Trial
    untuned: Trial
    steady: bool = True
    elsewhere: tuple[Duel, ...] = ()
    raced: tuple[Trial, Trial] | None = None

    @property
    def is_won(self) -> bool:
        """Whether the best beats the untuned config by more than a tie, and by more than chance and places explain.

        The fresh samples must not contradict those of the race; without these their medians must agree.
        """
        if not self.is_fought:
            return False
        lead, fresh, (best, untuned) = self._lead, self._fresh, self._pooled
        agrees = fresh.log + fresh.error > TIE if self._raced else best.median_us < untuned.median_us
        return agrees and lead.log > max(TIE, self._doubt(lead))

    @property
    def is_sure(self) -> bool:
        """Whether it is certain over all places that the best is ahead by more than a tie, or that it is not."""
        lead = self._lead
        return abs(lead.log - TIE) > self._doubt(lead)

    def _doubt(self, lead: Lead) -> float:
        return PLACE_ERRORS * lead.error if self.elsewhere or self._raced else 0.0

    @property
    def _lead(self) -> Lead:
        """The lead in the mean over all places; what the race says counts for the caller's tensors."""
        if self._raced is None:
            return self._fresh
        [raced] = self._leads_of(self._raced)
        if self.is_disturbed and self.elsewhere:
            return mean_lead([self._fresh, raced])
        here, *others = self._leads
        return mean_lead([weighed([here, raced]), *others])

    @property
    def _fresh(self) -> Lead:
        """The lead by the fresh samples alone."""
        leads = self._leads
        if not self.is_disturbed or len(leads) < 4:
            return mean_lead(leads)
        inner = sorted(lead.log for lead in leads)[1:-1]
        return Lead(statistics.mean(inner), TRIMMED * statistics.stdev(inner) / math.sqrt(len(leads) - 2))

    @property
    def _leads(self) -> list[Lead]:
        return self._leads_of(*(duel._pair for duel in self._all))

    def _leads_of(self, *pairs: tuple[Trial, Trial]) -> list[Lead]:
        scale = FASTEST if self.is_disturbed else CENTER
        noise = self._noise(scale)
        errors = [noise * math.sqrt(sum(1 / len(one.samples_us) for one in pair)) for pair in pairs]
        return [Lead(math.log(scale.us(pair[1]) / scale.us(pair[0])), error) for pair, error in zip(pairs, errors)]

    def _noise(self, scale: Scale) -> float:
        """Relative standard error of a time of one sample."""
        ones = self._raced or [one for duel in self._all for one in duel._pair]
        samples_us = relative(ones, scale.us)
        return scale.error(replace(self.best, samples_us=samples_us)) * math.sqrt(len(samples_us))

    @property
    def _raced(self) -> tuple[Trial, Trial] | None:
        """The samples of the race, if there are enough."""
        return self.raced if self.raced and min(len(one.samples_us) for one in self.raced) >= GUARD_SAMPLES else None

    @property
    def is_disturbed(self) -> bool:
        """Whether samples spread as where others use the device: then only the fastest are believed, which load leaves
        as they are, and the two places that differ most are left out.
        """
        return self.is_fought and max(map(self._middle, range(2))) > NOISY

    def _middle(self, which: int) -> float:
        """How far the samples of one of the two spread within places."""
        ones = [duel._pair[which] for duel in self._all]
        return replace(self.best, samples_us=relative(ones, MEDIAN.us)).middle

    @property
    def _pair(self) -> tuple[Trial, Trial]:
        return self.best, self.untuned

    @property
    def _all(self) -> tuple[Duel, ...]:
        return (self, *self.elsewhere)

    @property
    def _pooled(self) -> tuple[Trial, Trial]:
        """Both with the samples of all places."""
        best = [us for duel in self._all for us in duel.best.samples_us]
        untuned = [us for duel in self._all for us in duel.untuned.samples_us]
        return replace(self.best, samples_us=best), replace(self.untuned, samples_us=untuned)

    @property
    def is_fought(self) -> bool:
        """Whether there was time for enough samples."""
        return min(len(self.best.samples_us), len(self.untuned.samples_us)) >= FIRST_SAMPLES

    @property
    def is_close(self) -> bool:
        """Whether the best is ahead by so little that it may be behind elsewhere, or behind by no more than chance."""
        if not self.is_fought:
            return False
        [lead] = self._leads_of(self._pair)
        return -PLACE_ERRORS * lead.error < lead.log < math.log1p(SURE_LEAD)

    def quality(self, resolution_us: float) -> Quality:
        """Quality of the choice to keep the untuned config; see `winner`."""
        if self.elsewhere:
            return "tied" if self.steady and not self.is_disturbed else "noisy"
        return winner([self.best, self.untuned], resolution_us, self.steady, self.untuned.index)[1]


def duel(
    best: Trial,
    untuned: Trial,
    track: Track,
    most: int = DUEL_SAMPLES,
    before: Duel | None = None,
    exactly: bool = False,
) -> Duel:
    """Compare the best of a race with the untuned config on fresh samples; their own samples stay.

    Args:
        most: Samples of each, fewer once it is decided.
        before: A duel of the same two to go on with.
        exactly: No fewer, as in a comparison that other places belong to.
    """
    fresh = before or Duel(best.fresh(), untuned.fresh(), raced=(best, untuned))
    pair = [fresh.best, fresh.untuned]
    rounds = Rounds(track, random.Random(0))
    while len(pair[0].samples_us) < most and not any(trial.error for trial in pair):
        if not exactly and _is_decided(*pair):
            break
        if not rounds.run(_open(pair), min(DUEL_ROUND, most - len(pair[0].samples_us))):
            break
    for trial, sampled in zip((best, untuned), pair):
        trial.error = trial.error or sampled.error
    return replace(fresh, steady=fresh.steady and rounds.left > 0)


def _is_decided(best: Trial, untuned: Trial) -> bool:
    if not (best.samples_us and untuned.samples_us):
        return False
    doubt = DUEL_ERRORS * math.hypot(best.relative_error, untuned.relative_error)
    return abs(untuned.center_us / best.center_us - 1 - TIE_BAND) > doubt


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


def _open(trials: Sequence[Trial]) -> list[Trial]:
    """Trials to sample further: no error, and within their time budget."""
    return [trial for trial in trials if not trial.error and sum(trial.samples_us) < CONFIG_BUDGET_S * 1e6]


def _unsure(finalists: Sequence[Trial]) -> list[Trial]:
    pooled = _pooled_spread(finalists)
    return [trial for trial in _open(finalists) if _is_cheap(trial) and _shrunk_error(trial, pooled) > SURE]


def _part(rounds: Rounds, finalists: Sequence[Trial], untuned: int | None) -> None:
    """Sample the winner of the tie and the fastest until it is certain whether they tie."""
    while finalists:
        by = scale(finalists)
        tied = _tied(finalists, untuned)
        pair = [tied[0], min(tied, key=by.us)]
        apart = by.us(pair[0]) / by.us(pair[1]) - 1
        doubt = math.hypot(*map(by.error, pair))
        certain = abs(apart - _band(pair[0], untuned)) > PART_ERRORS * doubt
        done = pair[0] is pair[1] or certain or doubt < PARTED or apart + 2 * doubt < TIE_BAND
        count = max(FINAL_ROUND, LAST_ROUND // pair[0].launches, len(pair[0].samples_us) // 4)
        if done or not _may_part(pair, doubt) or not rounds.run(_open(pair), count):
            break


def _may_part(pair: Sequence[Trial], doubt: float) -> bool:
    """Whether more samples are allowed, and can tell: else the two would flip from search to search."""
    used = [max(len(one.samples_us) * one.launches / MOST_PARTED, sum(one.samples_us) / PART_BUDGET_S / 1e6)
            for one in pair if not one.error]  # fmt: skip
    return bool(used) and min(used) < 1 and doubt * math.sqrt(max(used)) < TOO_COARSE


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
    return SURE_LEAD


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
    best, *tied = _tied(trials, untuned)
    if best.median_us <= resolution_us:
        return best, "unresolved"
    return best, "noisy" if best.middle > NOISY or not steady else "tied" if tied else "ok"


def _tied(trials: Sequence[Trial], untuned: int | None) -> list[Trial]:
    """Those that tie with the fastest, the winner first."""
    by = scale(trials)
    times_us = {trial.index: by.us(trial) for trial in trials}
    lead = min(trials, key=lambda trial: times_us[trial.index])
    # The leader's error, not each trial's own: that of a trial dropped after three samples is large.
    error = by.error(lead) if by is FASTEST else _shrunk_error(lead, _pooled_spread(trials))
    error *= TIE_ERRORS if error <= TELLS or by is FASTEST else NOISY_TIE_ERRORS
    lead_us, doubt = times_us[lead.index], min(math.sqrt(2) * error, GUARD_BAND)
    tied = [one for one in trials if times_us[one.index] <= (1 + max(_band(one, untuned), doubt)) * lead_us]
    return sorted(tied, key=lambda trial: (trial.index != untuned, trial.index))
