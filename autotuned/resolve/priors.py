"""Times of a space's configs under other conditions: records of other calls and contexts, and config files."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from autotuned.configfiles import lookup
from autotuned.key import nearest_key
from autotuned.key.key import Key
from autotuned.store import listing, records
from autotuned.store.record import TuningRecord

if TYPE_CHECKING:
    from autotuned.space.declared import Declared

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
        found = records.look_up(other)[0]
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
