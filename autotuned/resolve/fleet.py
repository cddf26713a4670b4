"""A miss with a shared store: when to ask it, and which host searches."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from autotuned.remote import connection
from autotuned.resolve.request import Question
from autotuned.store import locks
from autotuned.store.choice import Choice, Origin

if TYPE_CHECKING:
    from autotuned.remote.client import Client

log = logging.getLogger("autotuned")

POLL_S = 0.25


def _store(chooser: Any, question: Question) -> Client | None:
    return None if question.fresh or not chooser.state.keeps(question.key) else connection.store()


def asked(chooser: Any, question: Question, known: Choice | None, ending: Origin | None) -> Choice | None:
    """The known choice, after asking the shared store; waits for it only if the call would raise otherwise.

    If the call would search, `searched` asks; if the user's store answers, nothing is asked.
    """
    store = _store(chooser, question)
    if store is None:
        return known
    store.begin()
    if known is None and ending is None and question.launches:
        found: Choice | None = chooser.known(question) if store.find(question.key) else None
        return found
    will_search = ending is Origin.SEARCH and (known is None or not chooser.is_enough(known, question))
    if not (known is not None and known.is_own) and not will_search:
        store.ask([question.key], again=False)
    return known


def searched(chooser: Any, question: Question) -> Choice:
    """The choice of the fleet, or of a search that other hosts wait for.

    As on one machine, wait while another host searches, or use `default=` meanwhile; search anyway after the same time.
    A thread that holds another key's lock does not wait.

    Raises:
        AllConfigsFailedError, DeviceLostError: The search failed.
    """
    search: Callable[[Question], Choice] = chooser.searched
    store = _store(chooser, question)
    if store is None:
        return search(question)
    start, is_said = time.monotonic(), False
    patience_s = 0.0 if locks.depth() > 1 else locks.LOCK_TIMEOUT_S
    try:
        while True:
            changed, who = store.turn(question.key)
            known: Choice | None = chooser.known(question) if changed else None
            if known is not None and chooser.is_enough(known, question):
                return known
            if changed and who is None:  # not all that is needed: ask again, with the lease
                continue
            waited_s = time.monotonic() - start
            if not who or waited_s >= patience_s:
                return search(question)
            if chooser.options.default is not None and not question.must_search:
                untuned: Choice = chooser.default(question.call, question.live)
                return untuned
            if not is_said and waited_s > locks.MESSAGE_AFTER_S:
                is_said = True
                log.warning("waiting for %s, which tunes the same key; shared store: %s", who, store.where)
            time.sleep(POLL_S)
    finally:
        store.release(question.key)
