"""Times of configs under other conditions: records of other calls and contexts, and config files."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from autotuned.configfiles import lookup
from autotuned.key import nearest_key
from autotuned.key.key import Key
from autotuned.store import listing
from autotuned.store.record import TuningRecord, look_up

if TYPE_CHECKING:
    from autotuned.space.declared import Declared

HANDFUL = 5  # measure this many of a list's fastest configs, and its median one, first
SPREAD, SURE = 0.03, 3.0  # least standard deviation of the ratio to the other device's times; how many of them decide
NEAREST = 4  # records to read: those of the calls that differ least
ENTRIES = 16  # choices of config files to use
FADING = 8.0  # octaves over which a record's weight halves


def of(key: Key, live: Declared, stored: bool) -> list[tuple[Any, float]]:
    """Configs of a call's space with their relative times under other conditions, best first.

    A choice in a config file counts as the best of its call. Records on disk count if `stored`.
    """
    found: dict[str, list[tuple[float, float]]] = {}
    sources = itertools.chain(_records(key) if stored else (), _shipped(key))
    for weight, times in sources:
        for identity, ratio in times.items():
            found.setdefault(identity, []).append((weight, math.log(ratio)))
    means = {name: sum(w * r for w, r in known) / sum(w for w, _ in known) for name, known in found.items()}
    order = sorted(means, key=lambda name: (means[name], name))
    members = ((live.member(name), math.exp(means[name])) for name in order)
    return [(config, ratio) for config, ratio in members if config is not None]


def _records(key: Key) -> Iterator[tuple[float, dict[str, float]]]:
    """Weight and times of the records of the nearest other calls."""
    others = [head.key for head in listing.known_heads(key.kernel) if head.key != key]
    nearest = sorted(zip(nearest_key.distances(key, others), others), key=lambda pair: (pair[0], pair[1].digest))
    for far, other in nearest[:NEAREST]:
        found = look_up(other)[0]
        if found is not None and (times := _ratios(found)):
            yield 0.5 ** (far / FADING), times


def _ratios(found: TuningRecord) -> dict[str, float]:
    times = {timing.identity: timing.median_us for timing in found.timings if timing.usable and timing.median_us}
    best = min(times.values(), default=1.0)
    return {identity: us / best for identity, us in times.items()}


def _shipped(key: Key) -> Iterator[tuple[float, dict[str, float]]]:
    """Choices of config files for the nearest calls, on any device."""
    entries = [
        (other, entry.identity)
        for folder in lookup.folders()
        for _, file in lookup.with_devices(folder.path, key.kernel)
        for other, entry in file.entries()
    ]
    distances = nearest_key.distances(key, [other for other, _ in entries])
    for far, (_, identity) in sorted(zip(distances, entries), key=lambda pair: (pair[0], pair[1][1]))[:ENTRIES]:
        yield 0.5 ** (far / FADING), {identity: 1.0}


def of_list(key: Key, live: Mapping[str, Any]) -> Ranked | None:
    """A strategy for a list that another device has measured for the same call; None if none has."""
    others = [head.key for head in listing.known_heads(key.kernel) if head.key.call == key.call]
    others = [other for other in others if other.context["device"] != key.context["device"]]
    for _, other in sorted(zip(nearest_key.distances(key, others), others), key=lambda pair: (pair[0], pair[1].digest)):
        found = look_up(other)[0]
        times = {name: ratio for name, ratio in (_ratios(found) if found is not None else {}).items() if name in live}
        if 2 * len(times) > len(live):
            return Ranked(live, times)
    return None


class Ranked:
    """Asks for a list's configs, those that were fast on another device first, until no other may be faster.

    Args:
        live: The list, by identity.
        times: Times on the other device, relative to the best.
    """

    def __init__(self, live: Mapping[str, Any], times: Mapping[str, float]) -> None:
        self._live, self._logs = live, {name: math.log(times[name]) for name in times}
        self._names = {id(config): name for name, config in live.items()}
        order = sorted(times, key=lambda name: (times[name], name))
        self._first = [*order[:HANDFUL], order[len(order) // 2]]
        self._asked, self._seen = set[str](), dict[str, float | None]()

    def ask(self, n: int) -> list[Any]:
        """At most `n` configs; none once the others are slower, as far as the two devices agree."""
        wanted = [name for name in self._first if name not in self._seen] or self._open()
        found = [name for name in wanted if name not in self._asked][:n]
        self._asked.update(found)
        return [self._live[name] for name in found]

    def tell(self, results: Iterable[tuple[Any, float | None, str]]) -> None:
        """Take times in microseconds; None for failures."""
        told = ((self._names.get(id(config)), us) for config, us, _ in results)
        self._seen.update((name, math.log(us) if us else None) for name, us in told if name is not None)

    def _open(self) -> list[str]:
        """Configs that may be faster than the best so far, and those that the other device has no time for."""
        seen = {name: time for name, time in self._seen.items() if time is not None}
        ratios = [time - self._logs[name] for name, time in seen.items() if name in self._logs]
        if len(ratios) < 3:
            return list(self._live)
        limit = min(seen.values()) - statistics.median(ratios) + SURE * max(SPREAD, statistics.stdev(ratios))
        order = sorted(self._live, key=lambda name: self._logs.get(name, -math.inf))
        return [name for name in order if self._logs.get(name, -math.inf) < limit]

    def admit(self, configs: Iterable[Any]) -> dict[str, Any]:
        """By identity."""
        return {self._names[id(config)]: config for config in configs}
