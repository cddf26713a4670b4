"""Ranks of one job on one host race a key once: one searches, the others wait and get its times."""

import math
import signal
from functools import partial

import pytest
from started_ranks import begin, ended, go

from autotuned.store import listing

BLOCKS, RANKS = (16, 32, 64, 128, 256, 512), 3


@pytest.fixture
def race(start, tmp_path, monkeypatch):
    """`race(*words)`: starts a rank that races, all with one store, which is this process's too."""
    monkeypatch.setenv("AUTOTUNED_CACHE_DIR", str(tmp_path / "store"))
    return partial(start, "race", AUTOTUNED_CACHE_DIR=str(tmp_path / "store"))


def winners():
    return [record.winner["kwargs"]["BLOCK"] for _, record in listing.all_records()]


def measured_by(process, count):
    """Wait until a slow rank has measured some configs; which."""
    return [int(process.stdout.readline().removeprefix("measured ")) for _ in range(count)]


def test_one_rank_compiles_and_races_and_all_choose_alike(race, start):
    found = go(*[race() for _ in range(RANKS)])
    assert start.assemblies() == len(BLOCKS)  # as one rank alone
    # On all cores: of up to five, a share of these ranks would be no thread.
    assert [name for one in found for name in one["compiled"]] == ["autotuned-compile"] * len(BLOCKS)
    assert sorted(one["searches"] for one in found) == [0] * (RANKS - 1) + [1]
    assert sorted(block for one in found for block in one["measured"]) == list(BLOCKS)
    assert {(one["chosen"], one["launched"]) for one in found} == {(64, 64)}
    assert all(one["times"] == found[0]["times"] and len(one["times"]) == len(BLOCKS) for one in found)
    assert sorted(one["launches"] for one in found)[:-1] == [1] * (RANKS - 1)  # those that wait launch the winner
    assert [one["said"] for one in found] == [[]] * RANKS
    assert winners() == [64]


def test_a_rank_that_is_killed_while_it_races_is_taken_over(race, start):
    first, second = race("slow=0.5"), race()
    begin(first)
    done = measured_by(first, 3)
    begin(second)
    first.send_signal(signal.SIGKILL)
    (found,) = ended(second)
    assert (found["chosen"], found["searches"], found["said"]) == (64, 1, [])
    assert not set(found["measured"]) & set(done[:-1])  # all but the one in flight was in the logbook
    assert start.assemblies() == len(BLOCKS)
    assert winners() == [64]


def test_in_mode_search_the_ranks_measure_again_once(race):
    go(race())
    first, second = race("slow=1", AUTOTUNED_MODE="search"), race(AUTOTUNED_MODE="search")
    begin(first)
    measured_by(first, 1)
    found = go(second) + ended(first)
    assert [(one["chosen"], one["searches"], len(one["measured"])) for one in found] == [(64, 0, 0), (64, 1, 6)]


def test_after_the_limit_a_rank_races_by_itself_and_stores_nothing(race):
    first, second = race("slow=1"), race("limit=0.3")
    begin(first)
    measured_by(first, 1)
    (found,) = go(second)
    assert found["chosen"] == 64 and found["measured"]
    (line,) = found["said"]
    assert "continuing without it" in line
    assert winners() == []  # the first goes on, and stores
    (held,) = ended(first)
    assert (held["chosen"], winners()) == (64, [64])
    noted = len(BLOCKS) - len(found["measured"])  # on a busy machine the first has meanwhile noted some in the logbook
    assert sorted(found["measured"] + held["measured"][:noted]) == list(BLOCKS)


def test_ranks_choose_alike_among_what_a_budget_allows_to_measure(race):
    """Six configs of 0.4 s each do not fit into one second."""
    waited, raced = sorted(
        go(race("slow=0.4", "budget=1"), race("slow=0.4", "budget=1")), key=lambda one: one["measured"]
    )
    assert 0 < len(raced["measured"]) < len(BLOCKS) and waited["measured"] == []
    assert (waited["chosen"], waited["times"], waited["said"]) == (raced["chosen"], raced["times"], [])
    timed = [int(block) for block, time in raced["times"].items() if time < math.inf]
    assert timed == sorted(raced["measured"])


def test_without_a_folder_to_write_to_a_rank_races_by_itself_with_one_line(race, tmp_path):
    (tmp_path / "file").write_text("")
    (found,) = go(race(AUTOTUNED_CACHE_DIR=str(tmp_path / "file" / "store")))
    (line,) = found["said"]
    assert (found["chosen"], found["searches"]) == (64, 1) and "kept in memory only" in line


def test_a_rank_whose_gpu_waits_for_another_rank_does_not_hold_that_one_up(race, tmp_path):
    """As in a pipeline: what the first has launched ends when the second has sent, which it does after the same call."""
    sent = tmp_path / "sent"
    first, second = race(f"needs={sent}"), race(f"sends={sent}")
    begin(first)
    found = go(second) + ended(first)
    assert [(one["chosen"], one["searches"], one["said"]) for one in found] == [(64, 1, []), (64, 0, [])]
