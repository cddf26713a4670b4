"""Configs that are not tried: which, why, and for how long."""

from functools import partial

import pytest
from anywhere import interrupt
from fakes import FakeConfig, form

from autotuned.search import exclusions
from autotuned.search.exclusions import Exclusions, Lifetime, Reason
from autotuned.store.journal import Journal
from autotuned.store.record import STATUSES, Timing

CRASHED = Timing(form(FakeConfig({"BLOCK": 64})), status="crashed", error="Crashed: so it is")
RAN = Timing(form(FakeConfig({"BLOCK": 128})), 1.0, 1.0, 1.0, 3)
KNOWN = {CRASHED.identity: CRASHED, RAN.identity: RAN}


def journal(**names: list[str]) -> Journal:
    found = Journal(None)
    vars(found).update(names)
    return found


def test_each_reason_says_why_how_long_and_what_the_record_has():
    assert {reason.lifetime for reason in Reason} == set(Lifetime)
    assert len({reason.why for reason in Reason}) == len(Reason)
    assert {reason.status for reason in Reason} <= set(STATUSES)


def test_a_search_leaves_out_what_holds_for_its_key_its_calls_and_its_journal():
    exclusions.remember("calls", {"compiles": "SyntaxError: no", "ended": "SyntaxError: no"})
    exclusions.remember(None, {"everywhere": "never"})
    exclusions.process.add("key", "both", Reason.BLAMED, "TimedOut: slow")
    exclusions.process.add("another", "other", Reason.BLAMED, "TimedOut: slow")
    found = exclusions.of_search("key", "calls", journal(crashed=["ended", "both", "lost"], lost=["lost"]))
    assert {name: one.reason for name, one in found.items()} == {
        "compiles": Reason.NOT_COMPILED, "ended": Reason.CRASHED, "lost": Reason.LOST, "both": Reason.BLAMED,
    }  # fmt: skip
    assert found["both"].words == "TimedOut: slow"
    assert exclusions.of_search("third", None, Journal(None)) == {}


@pytest.mark.parametrize("again", [True, False])
def test_what_ended_a_process_is_tried_once_more_where_it_is_asked_for_and_never_a_third_time(again):
    left = exclusions.measured(KNOWN, Journal(None), again)
    assert left == ({RAN.identity: RAN} if again else KNOWN)
    twice = exclusions.measured(KNOWN, journal(crashed=[CRASHED.identity]), again)[CRASHED.identity]
    assert (twice.status, twice.error) == ("failed", exclusions.TWICE)


def test_what_is_excluded_is_bounded_and_forgotten_by_kind_of_calls(monkeypatch):
    monkeypatch.setattr(exclusions, "LIMIT", 2)
    mine = Exclusions()
    for key in ("a", "b", "c"):
        mine.add(key, "config", Reason.NOT_LAUNCHED, "so")
    assert [key for key in "abc" if mine.of(key)] == ["b", "c"]
    assert mine.without("c", {"config": 1, "other": 2}) == {"other": 2}
    assert mine.without("a", {"config": 1}) == {"config": 1}


def test_threads_may_exclude_configs_at_once(monkeypatch):
    """A search ended in a `RuntimeError` if another thread excluded a config at the wrong moment."""

    def begin():
        mine = Exclusions({"a": {}, "b": {}})
        return partial(mine.add, "c", "config", Reason.NOT_LAUNCHED, "so"), lambda: mine.setdefault("d", {})

    monkeypatch.setattr(exclusions, "LIMIT", 2)
    interrupt(Exclusions.add, begin)
