"""Which configs are likely to win, and so tried first: the winners of the tuned calls that are most like a call."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import chain

from autotuned.key.key import Key
from autotuned.store import listing
from autotuned.store.record import TuningRecord, identity_of
from autotuned.typed_json import Json

MOST = 3
MOST_READ = 100  # of the records on disk, in the order of their names, which says nothing of them; each once a process
OTHER = 8.0  # how far apart two values are that are no numbers; as far as numbers that differ 256 times


def nearest(key: Key, known: Iterable[TuningRecord | None], stored: bool = False) -> list[str]:
    """Identities of the winners of the nearest calls, the nearest first, each once.

    Near is little difference in the logarithms of sizes and other integers. Calls of another context do not count.

    Args:
        known: Records that this process has.
        stored: Look also among those on disk.
    """
    on_disk = listing.known_heads(key.kernel, MOST_READ) if stored else ()
    tuned = [record for record in chain(known, on_disk) if record is not None]
    alike = [record for record in tuned if record.winner is not None and record.key.context == key.context]
    ordered = sorted(alike, key=lambda record: distance(key.call, record.key.call))
    return list(dict.fromkeys(identity_of(record.winner or {}) for record in ordered))[:MOST]


def distance(one: Json, other: Json) -> float:
    """How far two calls are apart: the sum over their parts of differences in the logarithms of integers."""
    left, right = dict(_leaves(one)), dict(_leaves(other))
    return sum(_apart(left.get(place), right.get(place)) for place in left.keys() | right.keys())


def _leaves(data: Json, place: str = "") -> Iterator[tuple[str, Json]]:
    if isinstance(data, dict):
        for name, part in data.items():
            yield from _leaves(part, f"{place}.{name}")
    elif isinstance(data, list):
        for index, part in enumerate(data):
            yield from _leaves(part, f"{place}.{index}")
    else:
        yield place, data


def _apart(one: Json, other: Json) -> float:
    if one == other and type(one) is type(other):
        return 0.0
    if type(one) is int and type(other) is int:
        return abs(math.log2(1 + abs(one)) - math.log2(1 + abs(other))) + ((one < 0) != (other < 0))
    return OTHER
