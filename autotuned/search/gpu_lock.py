"""One search at a time measures on a GPU: what another measures beside it would be in both their times."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from autotuned.store import layout, locks
from autotuned.store.locks import Lock

log = logging.getLogger("autotuned")
PATIENCE_S = 60.0  # a race takes less than a second; one who holds the lock for so long is not racing
PAUSE_S = 0.02


@contextmanager
def timing(device: str | None, patience_s: float = PATIENCE_S) -> Iterator[bool]:
    """Be the only search of this user, on this host, that measures on a device, for a `with` block.

    It is waited for, not relied on: whoever cannot have the lock in time measures all the same.

    Args:
        device: What names the device on this host; None for none that could be shared.
        patience_s: How long to wait at most.

    Yields:
        Whether no other search measures on it.
    """
    if device is None:
        yield True
        return
    end = time.monotonic() + patience_s
    while True:
        # Tried again and again: a thread that holds its key's lock is never made to wait by another lock.
        with locks.locked(layout.gpu_lock_path(device), timeout_s=0.0) as lock:
            alone = lock is not Lock.BUSY
            if alone or time.monotonic() > end:
                if not alone:
                    log.warning("another search measures on GPU %s for over %.0f s; not waiting.", device, patience_s)
                yield alone
                return
        time.sleep(PAUSE_S)
