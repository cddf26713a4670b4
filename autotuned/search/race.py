"""A race of many configs: each is sampled until it can be told from the fastest, and the winner is picked."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from autotuned.search.drift import Drift
from autotuned.search.trial import Trial
from autotuned.store.record import Quality

# The race. Counts and thresholds were validated by replaying recorded GPU timings (see docs/tuning.md): three
# samples tell a config that is far off, nothing within the guard band is dropped before twelve, finalists get forty.
FIRST_SAMPLES, GUARD_SAMPLES, FINAL_SAMPLES, FINAL_ROUND = 3, 12, 40, 8
LAST_ROUND = 40  # rounds of finals grow up to this
TOGETHER = 16  # samples between two waits for the device, where fewer configs than that are left
FAR_OFF = 1.5  # after the first samples, this many times the leader's median is out
GUARD_BAND = 0.04  # relative; closer than this to the leader stays in until GUARD_SAMPLES
# Of more than eight within the band the slowest are out after twelve samples: of six, the best of a split-K product was
# among them in 2 of 100 replayed races, of eight in none.
FINAL_BAND, FINALISTS = 0.03, 8
# Relative; two configs this close are a tie, whatever the samples say. With 0.005, and medians known half as well, a
# split-K product of 28.6 us flipped between configs that are 0.6% apart (H200).
TIE_BAND, TIE_ERRORS = 0.003, 3
NOISY = 0.05  # over more than this, relative, the middle 60% of a winner's samples may not spread
# The last duel of what won with what runs without tuning: so many pairs at most, fewer where it is decided by so many
# standard errors.
DUEL_SAMPLES, DUEL_ROUND, DUEL_ERRORS = 20, 5, 4
# Samples of short kernels spread more and cost less: an rmsnorm of 28 us spread by 2%, and 40 samples told apart no
# better than 1.7% (H100). A finalist has more than `FINAL_SAMPLES` while all of its own take less than this. Where a
# sample is the mean of several launches, these are what is counted: the cache is flushed before each.
MOST_LAUNCHES, FINAL_BUDGET_S = 240, 0.008
# A median whose relative standard error is below this is sure. At 0.002 the split-K product above had two winners in 20
# searches on a GPU, and three in 40 replayed ones; at half of it one in 39 of these 40, for 0.1 s more. Of each trial's
# own spread and the median spread of all that were sampled enough the latter counts like five samples.
SURE, PSEUDO_SAMPLES = 0.001, 5
# A round after which the device says that its clocks are held down is thrown away and repeated, so often in one race;
# after that the race goes on and says so. What it does not say is taken out (`drift`).
DISTURBED_ROUNDS = 4
# A config that has been measured this long takes part with the samples it has: in Triton's interpreter one launch
# takes tens of milliseconds, and forty of them would tell nothing that three do not.
CONFIG_BUDGET_S = 0.25


def nothing(trials: Sequence[Trial]) -> None:
    """Where nobody is to be told."""


@dataclass(frozen=True)
class Track:
    """What a race is run on.

    Attributes:
        sample: Appends one more sample to each trial, in this order, or sets its `error`; one that has an error is
            passed over. A trial may be in the list several times.
        measured: Told after each round of those that took part.
        examine: Told who survived the first samples; may set `error`.
        recovers: Asked after each round whether the device ran as it should; if not, it has been given time to.
        drifts: Whether samples are in the order in which they were taken, so that what changed meanwhile shows.
    """

    sample: Callable[[Sequence[Trial]], None]
    measured: Callable[[Sequence[Trial]], None] = nothing
    examine: Callable[[Sequence[Trial]], None] = nothing
    recovers: Callable[[], bool] = lambda: True
    drifts: bool = True


def race(
    trials: Sequence[Trial], track: Track, random_seed: int = 0, untuned: Trial | None = None, all_stay: bool = False
) -> bool:
    """Give each trial as many samples as it takes to tell it from the fastest.

    Turns are interleaved sample by sample and shuffled, and what all configs' times share of change is taken out
    (`drift`), so that clocks and temperature fall on all alike and the order of candidates decides nothing.

    Args:
        trials: Configs that have been launched at least once; losers simply stop being sampled.
        random_seed: Of the shuffle, so that a search can be repeated.
        untuned: What runs without tuning; it stays until there are finalists, so that its time is known well.
        all_stay: So do all others.

    Returns:
        Whether conditions were steady, as far as the device says.
    """
    rounds = _Rounds(track, random.Random(random_seed))
    rounds.run(trials, FIRST_SAMPLES)
    first_limit, guard_limit = (_no_limit, _no_limit) if all_stay else (_first_limit, _guard_limit)
    track.examine(_within(trials, first_limit, untuned))
    alive = _left(trials, first_limit, untuned)  # the leader may be out
    while behind := [trial for trial in _open(alive) if len(trial.samples_us) < GUARD_SAMPLES]:
        if not rounds.run(behind, FIRST_SAMPLES):
            break
        alive = _left(alive, guard_limit, untuned)
    finalists = _left(alive, _finalist_limit, most=FINALISTS)
    while len(finalists) > 1 and (unsure := _unsure(finalists)):
        if not rounds.run(unsure, _final_round(unsure)):
            break
        finalists = _left(finalists, _final_limit)
    _measure_by(finalists, trials)
    return rounds.left > 0


@dataclass(frozen=True)
class Duel:
    """The last comparison of the best of a race with what runs without tuning: fresh samples of the two.

    Attributes:
        steady: Whether conditions were steady meanwhile.
    """

    best: Trial
    untuned: Trial
    steady: bool = True

    @property
    def is_won(self) -> bool:
        """Whether the best beats the untuned config by more than a tie."""
        return self.is_fought and self.best.median_us * (1 + TIE_BAND) < self.untuned.median_us

    @property
    def is_fought(self) -> bool:
        """Whether there was time for enough samples."""
        return min(len(self.best.samples_us), len(self.untuned.samples_us)) >= FIRST_SAMPLES

    def quality(self, resolution_us: float) -> Quality:
        """How sure it is that the untuned config stays; see `winner`."""
        return winner([self.best, self.untuned], resolution_us, self.steady, self.untuned.index)[1]


def duel(best: Trial, untuned: Trial, track: Track, random_seed: int = 0) -> Duel:
    """Compare the best of a race once more with what runs without tuning.

    Args:
        best, untuned: Their samples stay as they are; an error of one is noted.
    """
    pair = [replace(trial, samples_us=[], leader_us=None) for trial in (best, untuned)]
    rounds = _Rounds(track, random.Random(random_seed))
    while len(pair[0].samples_us) < DUEL_SAMPLES and rounds.run(_open(pair), DUEL_ROUND):
        if any(trial.error for trial in pair) or _is_decided(*pair):
            break
    for trial, fresh in zip((best, untuned), pair):
        trial.error = trial.error or fresh.error
    return Duel(pair[0], pair[1], steady=rounds.left > 0)


def _is_decided(best: Trial, untuned: Trial) -> bool:
    doubt = DUEL_ERRORS * math.hypot(best.relative_error, untuned.relative_error)
    return abs(untuned.median_us / best.median_us - 1 - TIE_BAND) > doubt


class _Rounds:
    """Rounds of a race, each of some turns: its trials once, or where they are few several times, in random order.

    Attributes:
        left: Disturbed rounds that may still be thrown away.
    """

    def __init__(self, track: Track, shuffle: random.Random) -> None:
        self._track, self._shuffle = track, shuffle
        self._drift = Drift()
        self.left = DISTURBED_ROUNDS

    def run(self, trials: Sequence[Trial], count: int) -> bool:
        """So many samples of each; False if nothing came of it: out of time, or a timer that has one answer."""
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
        """Sample each so often, or until nothing comes; how many turns were noted."""
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
    """Those within a limit, of more than so many the fastest; of the others is kept how far they are behind."""
    left = _within(trials, limit, stays)
    if most is not None:
        left = sorted(left, key=lambda trial: trial.median_us)[:most]
    kept = {trial.index for trial in left}
    for trial in trials:
        if left and trial.index not in kept and not trial.error:
            trial.leader_us = min(one.median_us for one in left)
    return left


def _measure_by(finalists: Sequence[Trial], trials: Sequence[Trial]) -> None:
    """Times of those that left, by the leader's at the end: they were compared with it while they took part."""
    if finalists:
        lead_us = min(trial.median_us for trial in finalists)
        for trial in trials:
            if trial.leader_us not in (None, lead_us):
                trial.samples_us[:] = [sample / trial.leader_us * lead_us for sample in trial.samples_us]


def _guard_limit(trial: Trial, lead: Trial) -> float:
    """Above this median a trial is out: three standard errors, and never inside the guard band."""
    doubt = 3 * math.hypot(trial.relative_error, lead.relative_error)
    return (1 + max(GUARD_BAND, doubt)) * lead.median_us


def _final_limit(trial: Trial, lead: Trial) -> float:
    """Above this median a finalist is out: it is no tie, and that is three standard errors from being in doubt."""
    doubt = 3 * math.hypot(trial.relative_error, lead.relative_error)
    return (1 + TIE_BAND + doubt) * lead.median_us


def _final_round(trials: Sequence[Trial]) -> int:
    """Samples of the next round of finals: a third more than there are, so that many samples are not many rounds."""
    fewest = min(len(trial.samples_us) for trial in trials)
    most = MOST_LAUNCHES // max(trial.launches for trial in trials) - fewest
    return max(FINAL_ROUND, min(fewest // 3 // FINAL_ROUND * FINAL_ROUND, LAST_ROUND, most))


def _open(trials: Sequence[Trial]) -> list[Trial]:
    """Trials that may still be sampled: no error, and not measured for longer than their budget."""
    return [trial for trial in trials if not trial.error and sum(trial.samples_us) < CONFIG_BUDGET_S * 1e6]


def _unsure(finalists: Sequence[Trial]) -> list[Trial]:
    pooled = _pooled_spread(finalists)
    return [trial for trial in _open(finalists) if _is_cheap(trial) and _shrunk_error(trial, pooled) > SURE]


def _is_cheap(trial: Trial) -> bool:
    """Whether a finalist may have more samples: 40, and of a short kernel as many as take 8 ms or 240 launches."""
    count, us = len(trial.samples_us), sum(trial.samples_us)
    return count < FINAL_SAMPLES or (count * trial.launches < MOST_LAUNCHES and us < FINAL_BUDGET_S * 1e6)


def _pooled_spread(trials: Sequence[Trial]) -> float:
    """The median spread of those with samples enough to have one."""
    return statistics.median([trial.spread for trial in trials if len(trial.samples_us) >= GUARD_SAMPLES] or [0.0])


def _shrunk_error(trial: Trial, pooled: float) -> float:
    """Standard error of the median, the spread drawn towards that of all: of few samples it is small by chance."""
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
    """Those that stay in the race: the leader, and who is within `limit(trial, leader)` microseconds at its best.

    One that failed or has no samples is out. Before the race `racing.Racing.worth_racing` drops what is far off.
    """
    measured = [trial for trial in trials if not trial.error and trial.samples_us]
    if not measured:
        return []
    lead = min(measured, key=lambda trial: trial.median_us)
    return [trial for trial in measured if trial is lead or trial is stays or _at_best(trial) <= limit(trial, lead)]


def _at_best(trial: Trial) -> float:
    """What a trial is judged by when it is to leave: its median, but of few samples their lower quartile.

    Other users of the device only ever add time, and of three samples they may slow two: by medians, the best of 32
    attention configs left at once in 5 of 200 replayed races under 30% foreign load, and what won was 13% slower.
    """
    return trial.median_us if len(trial.samples_us) > GUARD_SAMPLES else trial.percentile(0.25)


def pick(samples_us: Mapping[str, Sequence[float]], untuned: str | None = None) -> tuple[str, str]:
    """`winner` among configs whose times were kept: its name, and the quality of that choice.

    Args:
        samples_us: At least one sample of each, by name, in the order of the list.
        untuned: The name of what runs without tuning.
    """
    names = list(samples_us)
    trials = [
        Trial(index, _no_launch, _no_launch, samples_us=list(samples_us[name])) for index, name in enumerate(names)
    ]
    place = names.index(untuned) if untuned is not None and untuned in samples_us else None
    best, quality = winner(trials, 0.0, untuned=place)
    return names[best.index], quality


def _no_launch() -> None:
    """A trial that is not launched any more."""


def winner(
    trials: Sequence[Trial], resolution_us: float, steady: bool = True, untuned: int | None = None
) -> tuple[Trial, Quality]:
    """The trial to use, and the quality of that choice.

    Within `TIE_BAND`, or `TIE_ERRORS` standard errors of the difference of two such medians, of the fastest what runs
    without tuning wins, else the earlier in the list, so that near ties do not flip from run to run. However noisy it
    was, nothing slower by more than `GUARD_BAND` is a tie. Those that left the race had lost it already, and win only
    where nobody else is left.

    Args:
        trials: At least one, each with samples.
        steady: Whether conditions were steady while they were taken.
        untuned: Index of what runs without tuning.

    Returns:
        The trial, and "ok", "tied", "noisy" (spread over 5%, or not steady) or "unresolved" (below the clock's
        resolution).
    """
    trials = [trial for trial in trials if trial.leader_us is None or trial.index == untuned] or trials
    lead = min(trials, key=lambda trial: trial.median_us)
    # By the leader's error, not each trial's own: one that was dropped after three samples has a large one.
    error = _shrunk_error(lead, _pooled_spread(trials))
    limit_us = (1 + max(TIE_BAND, min(TIE_ERRORS * math.sqrt(2) * error, GUARD_BAND))) * lead.median_us
    tied = [trial for trial in trials if trial.median_us <= limit_us]
    best = min(tied, key=lambda trial: (trial.index != untuned, trial.index))
    if best.median_us <= resolution_us:
        return best, "unresolved"
    return best, "noisy" if best.middle > NOISY or not steady else "tied" if len(tied) > 1 else "ok"
