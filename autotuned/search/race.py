"""A race of many configs: sample each until it can be told from the fastest, then pick the winner."""

from __future__ import annotations

import math
import operator
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from autotuned.search.trial import Drift, Trial
from autotuned.store.record import Quality

# Counts and thresholds were validated by replaying recorded GPU timings (docs/tuning.md): three samples tell a config
# that is far off, nothing within the guard band is dropped before twelve, finalists get forty.
FIRST_SAMPLES, GUARD_SAMPLES, FINAL_SAMPLES, FINAL_ROUND = 3, 12, 40, 8
LAST_ROUND = 40  # largest round of the finals
TOGETHER = 16  # samples per wait for the device, if fewer configs are left
FAR_OFF = 1.5  # after the first samples, configs this many times slower than the leader are out
GUARD_BAND = 0.04  # relative; configs this close to the leader stay until GUARD_SAMPLES
# With six finalists the best config of a split-K product was dropped in 2 of 100 replayed races, with eight in none.
FINAL_BAND, FINALISTS = 0.03, 8
# Relative; the untuned config wins if it is this close to the fastest, one that is earlier in the list if it is `NEAR`:
# with 0.003 chance decided between configs of a split-K product that are 0.5% apart (H200).
TIE_BAND, NEAR, TIE_ERRORS = 0.003, 0.0015, 2.5
# The fastest and the one that wins the tie are sampled until that is certain by so many standard errors, with at most
# so many launches of each, which take at most so long. In bootstrapped replays of the product, ten orders of the list
# had 4.1 winners, up to 0.8% apart; with this and `Trial.center_us` 2.6, up to 0.25% apart, for 0.04 s.
PART_ERRORS, MOST_PARTED, PART_BUDGET_S = 2.5, 480, 0.05
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
# A round during which the device's clocks were held down is repeated, at most this often in a race; after that the race
# goes on and its result is noisy. Undetected changes are removed by `drift`.
DISTURBED_ROUNDS = 4
# A config measured this long gets no more samples: in Triton's interpreter a launch takes tens of milliseconds, and
# forty of them tell no more than three.
CONFIG_BUDGET_S = 0.25


def nothing(trials: Sequence[Trial]) -> None:
    """Default callback."""


@dataclass(frozen=True)
class Track:
    """How a race takes its samples."""

    # Appends one sample to each trial, in this order, or sets its `error`; skips trials with an error. A trial may be
    # listed several times.
    sample: Callable[[Sequence[Trial]], None]
    measured: Callable[[Sequence[Trial]], None] = nothing  # called with the trials after each round
    examine: Callable[[Sequence[Trial]], None] = nothing  # called with the survivors of the first samples
    recovers: Callable[[], bool] = lambda: True  # after each round: whether the device ran well; if not, pauses first
    drifts: bool = True  # whether samples are listed in the order they were taken, so that drift can be removed


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
    rounds = _Rounds(track, random.Random(random_seed))
    rounds.run(trials, FIRST_SAMPLES)
    first_limit, guard_limit = (_no_limit, _no_limit) if all_stay else (_first_limit, _guard_limit)
    track.examine(_within(trials, first_limit, untuned))
    alive = _left(trials, first_limit, untuned)  # anew: the check may have removed the leader
    while behind := [trial for trial in _open(alive) if len(trial.samples_us) < GUARD_SAMPLES]:
        if not rounds.run(behind, FIRST_SAMPLES):
            break
        alive = _left(alive, guard_limit, untuned)
    finalists = _left(alive, _finalist_limit, most=FINALISTS)
    while len(finalists) > 1 and (unsure := _unsure(finalists)):
        if not rounds.run(unsure, _final_round(unsure)):
            break
        finalists = _left(finalists, _final_limit)
    _part(rounds, finalists, untuned.index if untuned else None)
    _measure_by(finalists, trials)
    return rounds.left > 0


@dataclass(frozen=True)
class Duel:
    """Fresh samples of the race's best and the untuned config.

    Attributes:
        steady: Whether conditions were steady meanwhile.
        elsewhere: Duels of the same two with the tensors at other places.
    """

    best: Trial
    untuned: Trial
    steady: bool = True
    elsewhere: tuple[Duel, ...] = ()

    @property
    def is_won(self) -> bool:
        """Whether the best beats the untuned config by more than a tie, over all places by more than they differ."""
        best, untuned = self._pooled
        if not self.is_fought or (self.is_disturbed and best.median_us > untuned.median_us):
            return False
        lead, doubt = self._over_places
        return lead > max(math.log1p(TIE_BAND), doubt)

    @property
    def is_sure(self) -> bool:
        """Whether it is certain over all places that the best is ahead by more than a tie, or that it is not."""
        lead, doubt = self._over_places
        return abs(lead - math.log1p(TIE_BAND)) > doubt

    @property
    def _over_places(self) -> tuple[float, float]:
        """Logarithm of the lead in the mean over all places, and the doubt about it."""
        us = self._us  # looks at all samples
        leads = sorted(math.log(duel.lead_by(us)) for duel in self._all)
        doubt = PLACE_ERRORS / math.sqrt(len(leads))
        if self.is_disturbed and len(leads) > 3:
            leads, doubt = leads[1:-1], TRIMMED * doubt
        return statistics.mean(leads), doubt * statistics.stdev(leads) if self.elsewhere else 0.0

    @property
    def is_disturbed(self) -> bool:
        """Whether samples spread as where others use the device: then only the fastest are believed, which load leaves
        as they are, and the two places that differ most are left out.
        """
        return self.is_fought and max(one.middle for one in self._pooled) > NOISY

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
    def _us(self) -> Callable[[Trial], float]:
        return _fast_us if self.is_disturbed else operator.attrgetter("center_us")

    @property
    def is_fought(self) -> bool:
        """Whether there was time for enough samples."""
        return min(len(self.best.samples_us), len(self.untuned.samples_us)) >= FIRST_SAMPLES

    @property
    def is_close(self) -> bool:
        """Whether the best is ahead by so little that it may be behind elsewhere."""
        return self.is_fought and 1 < self.lead_by(self._us) < 1 + SURE_LEAD

    def lead_by(self, us: Callable[[Trial], float]) -> float:
        """The untuned config's time over the best's."""
        return us(self.untuned) / us(self.best)

    def quality(self, resolution_us: float) -> Quality:
        """Quality of the choice to keep the untuned config; see `winner`."""
        if self.elsewhere:
            return "tied" if self.steady and not self.is_disturbed else "noisy"
        return winner([self.best, self.untuned], resolution_us, self.steady, self.untuned.index)[1]


def _fast_us(trial: Trial) -> float:
    """The mean of the fastest fifth of the samples, at least one."""
    fast = sorted(trial.samples_us)[: max(1, len(trial.samples_us) // 5)]
    return statistics.fmean(fast)


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
    fresh = before or Duel(best.fresh(), untuned.fresh())
    pair = [fresh.best, fresh.untuned]
    rounds = _Rounds(track, random.Random(0))
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


class _Rounds:
    """Rounds of a race: each samples its trials in random order, several times if they are few.

    `left` counts the disturbed rounds that may still be thrown away.
    """

    def __init__(self, track: Track, shuffle: random.Random) -> None:
        self._track, self._shuffle = track, shuffle
        self._drift = Drift()
        self.left = DISTURBED_ROUNDS  # disturbed rounds that may still be thrown away

    def run(self, trials: Sequence[Trial], count: int) -> bool:
        """Take `count` samples of each; False if none came: out of time, or the timer gives one answer only."""
        before = [len(trial.samples_us) for trial in trials]
        while trials:
            turns = self._turns(trials, count)
            if not self.left or self._track.recovers():
                break
            self.left -= 1
            if self.left:
                self._drift.drop(turns)
                for trial, length in zip(trials, before):
                    del trial.samples_us[length:]
        self._drift.take_out()
        self._track.measured(trials)
        return any(len(trial.samples_us) > length for trial, length in zip(trials, before))

    def _turns(self, trials: Sequence[Trial], count: int) -> int:
        """Sample each `count` times, or until nothing comes; returns how many turns were noted."""
        noted, passes = self._drift.count, max(1, TOGETHER // len(trials))
        while count > 0:
            order = [trial for _ in range(min(count, passes)) for trial in self._shuffled(trials)]
            before = {trial.index: len(trial.samples_us) for trial in trials}
            self._track.sample(order)
            count -= passes
            if all(len(trial.samples_us) == before[trial.index] for trial in trials):
                break
            if self._track.drifts:
                self._drift.note(order, before)
        return self._drift.count - noted

    def _shuffled(self, trials: Sequence[Trial]) -> list[Trial]:
        order = list(trials)
        self._shuffle.shuffle(order)
        return order


def _left(
    trials: Sequence[Trial], limit: Callable[[Trial, Trial], float], stays: Trial | None = None, most: int | None = None
) -> list[Trial]:
    """Trials within a limit, at most the `most` fastest; the others note the leader's median."""
    left = _within(trials, limit, stays)
    if most is not None:
        left = sorted(left, key=lambda trial: trial.median_us)[:most]
    kept = {trial.index for trial in left}
    for trial in trials:
        if left and trial.index not in kept and not trial.error:
            trial.leader_us = min(one.median_us for one in left)
    return left


def _measure_by(finalists: Sequence[Trial], trials: Sequence[Trial]) -> None:
    """Scale the samples of trials that left to the leader's final time: they were compared with it while racing."""
    if finalists:
        lead_us = min(trial.median_us for trial in finalists)
        for trial in trials:
            if trial.leader_us not in (None, lead_us):
                trial.samples_us[:] = [sample / trial.leader_us * lead_us for sample in trial.samples_us]


def _guard_limit(trial: Trial, lead: Trial) -> float:
    """Upper limit of the median: three standard errors, never inside the guard band."""
    doubt = 3 * math.hypot(trial.relative_error, lead.relative_error)
    return (1 + max(GUARD_BAND, doubt)) * lead.median_us


def _final_limit(trial: Trial, lead: Trial) -> float:
    """Upper limit of a finalist's median: a tie plus three standard errors."""
    doubt = 3 * math.hypot(trial.relative_error, lead.relative_error)
    return (1 + TIE_BAND + doubt) * lead.median_us


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


def _part(rounds: _Rounds, finalists: Sequence[Trial], untuned: int | None) -> None:
    """Sample the winner of the tie and the fastest until it is certain whether they tie."""
    while finalists:
        tied = _tied(finalists, untuned)
        pair = [tied[0], min(tied, key=lambda trial: trial.center_us)]
        gap = pair[0].center_us / pair[1].center_us - 1 - _band(pair[0], untuned)
        errors = [trial.relative_error for trial in pair]
        certain = pair[0] is pair[1] or abs(gap) > PART_ERRORS * math.hypot(*errors)
        count = max(FINAL_ROUND, LAST_ROUND // pair[0].launches)
        if certain or not any(map(_may_part, pair, errors)) or not rounds.run(_open(pair), count):
            break


def _may_part(trial: Trial, error: float) -> bool:
    """Whether more samples are allowed, and can tell: else the two would flip from search to search."""
    launches, us = len(trial.samples_us) * trial.launches, sum(trial.samples_us)
    can_tell = error * math.sqrt(launches / MOST_PARTED) < NEAR
    return not trial.error and can_tell and launches < MOST_PARTED and us < PART_BUDGET_S * 1e6


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


def _no_limit(trial: Trial, lead: Trial) -> float:
    return math.inf


def _first_limit(trial: Trial, lead: Trial) -> float:
    return FAR_OFF * lead.median_us


def _finalist_limit(trial: Trial, lead: Trial) -> float:
    return (1 + max(FINAL_BAND, 2 * trial.relative_error)) * lead.median_us


def _within(trials: Sequence[Trial], limit: Callable[[Trial, Trial], float], stays: Trial | None = None) -> list[Trial]:
    """The leader, and those whose best guess is within `limit(trial, leader)` microseconds."""
    measured = [trial for trial in trials if not trial.error and trial.samples_us]
    if not measured:
        return []
    lead = min(measured, key=lambda trial: trial.median_us)
    return [trial for trial in measured if trial is lead or trial is stays or _at_best(trial) <= limit(trial, lead)]


def _at_best(trial: Trial) -> float:
    """Median, or the lower quartile if there are few samples.

    Other users of the device only add time, and may slow two samples of three: by medians, the best of 32 attention
    configs left at once in 5 of 200 replayed races under 30% foreign load, and the winner was 13% slower.
    """
    return trial.median_us if len(trial.samples_us) > GUARD_SAMPLES else trial.percentile(0.25)


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
    times_us = {trial.index: trial.center_us for trial in trials}
    lead = min(trials, key=lambda trial: times_us[trial.index])
    # The leader's error, not each trial's own: that of a trial dropped after three samples is large.
    doubt = min(TIE_ERRORS * math.sqrt(2) * _shrunk_error(lead, _pooled_spread(trials)), GUARD_BAND)
    lead_us = times_us[lead.index]
    tied = [one for one in trials if times_us[one.index] <= (1 + max(_band(one, untuned), doubt)) * lead_us]
    return sorted(tied, key=lambda trial: (trial.index != untuned, trial.index))
