"""What `tune` says of how far it is, and for how long it will go on."""

from dataclasses import replace

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


def measure(display, clock, number, seconds, source="measured", status="done"):
    """Go through one case of ten."""
    display.count(number, 10)
    display.begin(CASE)
    clock[0] += seconds
    display.done(replace(CASE, status=status, source=source))


def test_which_case_it_is_and_how_long_the_others_take_is_told(clock, capsys):
    display = progress.Display()
    for number, seconds in enumerate((20, 40)):
        measure(display, clock, number, seconds)
    display.count(2, 10)
    display.begin(CASE)
    display.observe(at(3))
    [line] = capsys.readouterr().err.splitlines()
    assert line == "case 3 of 10, about 4 min left: app.k  n=1: 3 of 8 configs tried; none ran yet"


def test_what_is_stored_says_nothing_of_how_long_measuring_takes(clock, capsys):
    display = progress.Display()
    measure(display, clock, 0, 0.0, source="stored")
    measure(display, clock, 1, 30, source=None, status="failed")
    display.count(2, 10)
    display.begin(CASE)
    clock[0] += 60
    display.observe(at(3))
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("case 3 of 10, 1 failed: app.k")


def test_many_quick_cases_are_told_of_now_and_then(clock, capsys):
    """Each began its own pause, so that a run of a thousand short cases said nothing for minutes."""
    display = progress.Display()
    for number in range(10):
        display.count(number, 10)
        display.begin(CASE)
        clock[0] += 1
        display.observe(at(1))
        display.done(replace(CASE, status="done", source="measured"))
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_several_devices_share_what_is_left(clock, capsys):
    display = progress.Display()
    display.count(0, 10)
    for device in "01":
        display.begin(CASE, device)
    clock[0] += 60
    for device in "01":
        display.done(replace(CASE, status="done", source="measured"), device)
    display.count(2, 10)
    for device in "01":
        display.begin(CASE, device)
    display.observe(at(3), "0")
    assert capsys.readouterr().err.startswith("0: 2 of 10 cases, about 4 min left: app.k")


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.2, "1 s"), (90, "90 s"), (150, "2 min"), (7000, "117 min"), (9000, "2 h")]
)
def test_times_in_words(seconds, words):
    assert progress.time_words(seconds) == words


def test_nothing_is_said_quietly(clock, capsys):
    with terminal.hushed(True):
        display = progress.Display()
        display.begin(CASE)
        clock[0] += 60
        display.observe(at(3))
        display.note("a line")
    assert capsys.readouterr().err == ""
