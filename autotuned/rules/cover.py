"""The fewest configs that serve every call with little loss: exact, or with a proven bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

NODES = 20_000  # limit of a search; then it returns the best so far and the proven bound


@dataclass(frozen=True)
class Cover:
    """Chosen configs, by index.

    Attributes:
        held: The calls for which one of the configs is within the allowed loss.
        least: Proven lower bound on the number of configs that hold all calls that can be held.
        most_held: Proven upper bound on the number of calls that a choice within the limit holds.
    """

    configs: tuple[int, ...]
    held: tuple[int, ...]
    least: int
    most_held: int

    @property
    def is_exact(self) -> bool:
        """Whether no better choice exists, proven."""
        return len(self.held) == self.most_held and len(self.configs) <= max(self.least, 1)


def fewest(losses: np.ndarray, within: float, most: int | None = None) -> Cover:
    """Choose the fewest configs that hold every call within a loss; with a limit, those that hold most calls.

    A local search, exchanging one config at a time, then reduces the total loss.

    Args:
        losses: Calls by configs, 0.1 is 10% slower than the best; NaN if unmeasured, which never holds.
        within: The allowed loss.
        most: Largest number of configs.
    """
    masks = _masks(losses, within)
    everything = _union(masks)
    found = _Fewest(masks, everything)
    chosen, least = found.best, found.least
    most_held = everything.bit_count()
    if most is not None and len(chosen) > most:
        best = _MostHeld(masks, most)
        chosen, most_held = best.best, best.bound
    chosen = _exchanged(chosen, losses, masks)
    held = _rows(_union([masks[config] for config in chosen]))
    return Cover(tuple(sorted(chosen)), tuple(held), least, most_held)


def greedy(losses: np.ndarray, within: float, most: int | None = None) -> list[int]:
    """Choose few configs greedily that hold every call within a loss, or many calls with at most `most`."""
    masks = _masks(losses, within)
    return _greedy(masks, _union(masks), len(masks) if most is None else most)


def _masks(losses: np.ndarray, within: float) -> list[int]:
    """The calls that each config holds, one bit each."""
    holds = np.nan_to_num(losses, nan=np.inf) <= within
    return [int.from_bytes(np.packbits(column, bitorder="little").tobytes(), "little") for column in holds.T]


def _greedy(masks: Sequence[int], wanted: int, most: int) -> list[int]:
    chosen: list[int] = []
    while wanted and len(chosen) < most:
        best = max(range(len(masks)), key=lambda place: ((masks[place] & wanted).bit_count(), -place))
        if not masks[best] & wanted:
            break
        chosen.append(best)
        wanted &= ~masks[best]
    return chosen


def _undominated(masks: Sequence[int]) -> list[int]:
    """Indices of the masks that no other contains; of equal ones, the first."""
    kept: list[int] = []
    for place in sorted(range(len(masks)), key=lambda place: (-masks[place].bit_count(), place)):
        if masks[place] and not any(masks[place] & ~masks[larger] == 0 for larger in kept):
            kept.append(place)
    return sorted(kept)


class _Fewest:
    """Branch and bound; branches on the call that fewest configs hold, since one of these must be chosen."""

    def __init__(self, masks: Sequence[int], everything: int) -> None:
        self._masks, self._nodes = masks, 0
        places = _undominated(masks)
        self._holders = {row: [place for place in places if masks[place] >> row & 1] for row in _rows(everything)}
        self.best = _greedy(masks, everything, len(masks))
        root = self._bound(everything)
        if root < len(self.best):
            self._search(everything, [])
        self.least = len(self.best) if self._nodes <= NODES else root

    def _bound(self, wanted: int) -> int:
        """A lower bound: calls, chosen greedily, of which no two are held by the same config."""
        count = 0
        while wanted:
            row = min(_rows(wanted), key=lambda row: (len(self._holders[row]), row))
            count += 1
            for place in self._holders[row]:
                wanted &= ~self._masks[place]
        return count

    def _search(self, wanted: int, chosen: list[int]) -> None:
        self._nodes += 1
        if self._nodes > NODES:
            return
        if not wanted:
            self.best = list(chosen)
            return
        if len(chosen) + self._bound(wanted) >= len(self.best):
            return
        row = min(_rows(wanted), key=lambda row: (len(self._holders[row]), row))
        for place in sorted(self._holders[row], key=lambda place: -(self._masks[place] & wanted).bit_count()):
            self._search(wanted & ~self._masks[place], [*chosen, place])


class _MostHeld:
    """Branch and bound with a limit; the sum of the largest remaining gains is the bound."""

    def __init__(self, masks: Sequence[int], most: int) -> None:
        self._masks, self._most, self._nodes = masks, most, 0
        self._places = _undominated(masks)
        self.best = _greedy(masks, _union(masks), most)
        self._held = _union([masks[place] for place in self.best]).bit_count()
        root = self._most_from(0, self._places, most)
        self._search(0, self._places, [])
        self.bound = self._held if self._nodes <= NODES else root

    def _most_from(self, held: int, places: Sequence[int], left: int) -> int:
        gains = sorted(((self._masks[place] & ~held).bit_count() for place in places), reverse=True)
        return min(held.bit_count() + sum(gains[:left]), _union(self._masks).bit_count())

    def _search(self, held: int, places: Sequence[int], chosen: list[int]) -> None:
        self._nodes += 1
        if self._nodes > NODES:
            return
        if held.bit_count() > self._held:
            self._held, self.best = held.bit_count(), list(chosen)
        left = self._most - len(chosen)
        order = sorted(places, key=lambda place: (-(self._masks[place] & ~held).bit_count(), place))
        for at, place in enumerate(order if left else ()):
            if self._most_from(held, order[at:], left) <= self._held:
                return
            self._search(held | self._masks[place], order[at + 1 :], [*chosen, place])


def _union(masks: Sequence[int]) -> int:
    union = 0
    for mask in masks:
        union |= mask
    return union


def _rows(mask: int) -> list[int]:
    return [row for row in range(mask.bit_length()) if mask >> row & 1]


def _exchanged(chosen: Sequence[int], losses: np.ndarray, masks: Sequence[int]) -> list[int]:
    """Exchange single configs while that lowers the total loss and still holds the same calls."""
    costs = np.nan_to_num(losses, nan=1e3)
    best = list(chosen)
    held = _union([masks[place] for place in best])

    def total(places: Sequence[int]) -> float:
        return float(costs[:, list(places)].min(axis=1).sum()) if places else 0.0

    cost, improved = total(best), True
    while improved:
        improved = False
        for at in range(len(best)):
            for other in range(len(masks)):
                trial = [*best[:at], other, *best[at + 1 :]]
                if other not in best and _union([masks[place] for place in trial]) & held == held:
                    now = total(trial)
                    if now < cost - 1e-9:
                        best, cost, improved = trial, now, True
    return best
