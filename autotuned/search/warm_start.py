"""Which configs are likely to win, and so tried first: the winners of the tuned calls that are most like a call."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from itertools import chain

from autotuned.key import nearest_key
from autotuned.key.key import Key
from autotuned.store import listing
from autotuned.store.record import TuningRecord, identity_of

MOST = 3
MOST_READ = 100  # of the records on disk, in the order of their names, which says nothing of them; each once a process


def nearest(key: Key, known: Iterable[TuningRecord | None], stored: bool = False) -> list[str]:
    """Identities of the winners of the nearest calls, the nearest first, each once.

    Calls of another context do not count.

    Args:
        known: Records that this process has.
        stored: Look also among those on disk.
    """
    on_disk = listing.known_heads(key.kernel, MOST_READ) if stored else ()
    tuned = [record for record in chain(known, on_disk) if record is not None]
    alike = [record for record in tuned if record.winner is not None and record.key.context == key.context]
    far = nearest_key.distances(key, (record.key for record in alike))
    ordered = sorted(zip(alike, far), key=operator.itemgetter(1))
    return list(dict.fromkeys(identity_of(record.winner or {}) for record, _ in ordered))[:MOST]
