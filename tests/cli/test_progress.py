"""What `tune` says of how far it is, and for how long it will go on."""

import pytest
from autotuned.cli import progress, terminal

from autotuned.offline.results import CaseResult
from autotuned.search.job import Progress

CASE = CaseResult("app.k", "skipped", call={"values": {"n": 1}})


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def at(done):
    """A search of 8 configs that has tried so many."""
    return Progress(**{**dict.fromkeys(Progress.__dataclass_fields__), "done": done, "total": 8, "config": "BLOCK=1"})


def test_the_time_left_is_told_from_what_the_cases_took_so_far(clock, capsys):
    display = progress.Display()
    display.count(2, 10)
    display.begin(CASE)
    clock[0] += 60
    display.count(4, 10)  # two took a minute
    display.observe(at(3))
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("app.k  n=1: 3 of 8 configs tried") and line.endswith(
        "(4 of 10 cases done, about 3 min left)"
    )


def test_before_a_case_is_done_no_time_is_told(clock, capsys):
    display = progress.Display()
    display.count(0, 10)
    display.begin(CASE)
    clock[0] += 60
    display.observe(at(3))
    assert capsys.readouterr().err.strip().endswith("(0 of 10 cases done)")


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.2, "1 s"), (90, "90 s"), (150, "2 min"), (7000, "117 min"), (9000, "2 h")]
)
def test_times_in_words(seconds, words):
    assert progress._time_words(seconds) == words


def test_nothing_is_said_quietly(clock, capsys):
    with terminal.hushed(True):
        display = progress.Display()
        display.begin(CASE)
        clock[0] += 60
        display.observe(at(3))
        display.note("a line")
    assert capsys.readouterr().err == ""
