"""A race that was noisy: it waits for calm, is run once more, and what is noisy still is stored, served, and said."""

from __future__ import annotations

import importlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import run, run_json
from fakes import FakeConfig as Config
from fakes import make_key
from given import Write
from given import work as write_work

import autotuned
from autotuned import autotune
from autotuned.gpu import device
from autotuned.offline.measure import remark
from autotuned.resolve.request import Options
from autotuned.search import race, racing, search, timers
from autotuned.search.compiling import compile as compiling
from autotuned.store import listing
from autotuned.store.record import TuningRecord

TIMES_US = (3000, 2000, 2500)


class World:
    """A clock that launches and waits move on, and a device whose times spread until some second of it.

    Attributes:
        races: When each began, by that clock.
        slept_s: What was waited for calm.
    """

    def __init__(self, noisy_until_s: float) -> None:
        self.noisy_until_s = noisy_until_s
        self.now_s = self.slept_s = 0.0
        self.races: list[float] = []
        self._noise = random.Random(1)

    def launch(self, us: float) -> None:
        spread = 0.5 if self.now_s < self.noisy_until_s else 0.0
        self.now_s += us / 1e6 * (1 + self._noise.uniform(0, spread))

    def monotonic(self) -> float:
        return self.now_s

    perf_counter = monotonic

    def perf_counter_ns(self) -> int:
        return round(self.now_s * 1e9)

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.slept_s += seconds


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], World]:
    """Make a world, which all that measures sees."""

    def make(noisy_until_s: float) -> World:
        made = World(noisy_until_s)
        for module in (search, racing, compiling, timers):
            monkeypatch.setattr(module, "time", made)
        once = race.race
        monkeypatch.setattr(race, "race", lambda *args, **more: made.races.append(made.now_s) or once(*args, **more))
        return made

    return make


def work_in(world: World, **options: Any) -> Any:
    """A tuned function of a world."""

    @autotune([Config({"us": us}) for us in TIMES_US], key=["n"], **options)
    def work(x: Any, n: int, *, us: float) -> None:
        world.launch(us)

    return work


def searched(world: World, **options: Any) -> TuningRecord:
    """The record of one search in a world."""
    with autotuned.mode("search"):
        work_in(world, **options)(np.zeros(4), 4)
    [(_, record)] = listing.all_records()
    return record


def test_a_calm_race_is_run_once(world: Callable[[float], World]) -> None:
    here = world(0.0)
    record = searched(here)
    assert (len(here.races), here.slept_s, record.quality) == (1, 0.0, "ok")
    assert "noise" not in record.provenance


def test_a_noisy_one_waits_for_calm_and_is_run_once_more(world: Callable[[float], World]) -> None:
    here = world(1.0)
    record = searched(here)
    assert len(here.races) == 2 and here.races[1] >= 1.0
    assert 0 < here.slept_s <= racing.PATIENCE_S
    assert (record.winner["kwargs"], record.quality) == ({"us": 2000}, "ok")
    assert record.provenance["noise"]["repeated"] and record.provenance["noise"]["spread"] == 0.0


def test_clocks_that_are_held_down_are_waited_for(
    world: Callable[[float], World], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = world(0.0)
    monkeypatch.setattr(timers.HostTimer, "ran_well", lambda timer: here.now_s > 1.0)
    record = searched(here)
    assert len(here.races) == 2 and here.races[1] >= 1.0 and here.slept_s > 0
    assert record.quality == "ok" and record.provenance["noise"]["slowed"] is False


def test_clocks_that_stay_down_are_said(world: Callable[[float], World], monkeypatch: pytest.MonkeyPatch) -> None:
    here = world(0.0)
    monkeypatch.setattr(timers.HostTimer, "ran_well", lambda timer: False)
    record = searched(here)
    assert record.quality == "noisy" and record.provenance["noise"]["slowed"] is True
    assert len(here.races) == 2 and here.slept_s <= racing.PATIENCE_S


def test_it_does_not_wait_for_longer_than_ten_seconds_and_is_stored_and_served(world: Callable[[float], World]) -> None:
    here = world(1e9)
    record = searched(here)
    assert len(here.races) == 2
    assert here.slept_s <= min(racing.PATIENCE_S, racing.PATIENCE_RACES * here.races[1])
    assert record.quality == "noisy" and record.provenance["noise"]["spread"] > race.NOISY

    again = work_in(here)
    again(np.zeros(4), 4)
    assert again.cache_info().searches == 0 and len(here.races) == 2


def test_a_tenth_of_the_patience_is_a_tenth_of_the_wait(
    world: Callable[[float], World], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(Options._defaults, "patience", 0.1)
    monkeypatch.setattr(racing, "PATIENCE_RACES", 1e9)
    here = world(1e9)
    assert searched(here).quality == "noisy" and len(here.races) == 2
    assert 0.05 * racing.PATIENCE_S < here.slept_s <= 0.1 * racing.PATIENCE_S


def test_ten_seconds_are_the_end_however_long_the_race_was(
    world: Callable[[float], World], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(racing, "PATIENCE_RACES", 1e9)
    here = world(1e9)
    searched(here)
    assert 0.9 * racing.PATIENCE_S < here.slept_s <= racing.PATIENCE_S


@pytest.mark.parametrize("budget_s", [0.2, 0.5, 1.0, 2.0])
def test_it_keeps_to_its_budget(world: Callable[[float], World], budget_s: float) -> None:
    here = world(1e9)
    record = searched(here, budget_s=budget_s)
    assert here.now_s <= budget_s + 2 * 1.5 * max(TIMES_US) / 1e6
    assert record.quality == "noisy" and len(record.timings) == 3
    assert all(timing.samples >= race.FIRST_SAMPLES for timing in record.timings)


def test_a_repetition_that_the_budget_ends_counts_for_nothing(
    world: Callable[[float], World], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, medians = world(1.0), []
    raced = race.race

    def noting(trials: Any, *args: Any) -> bool:
        steady = raced(trials, *args)
        medians.append({trial.median_us for trial in trials})
        return steady

    monkeypatch.setattr(race, "race", noting)
    record = searched(here, budget_s=1.1)
    assert len(here.races) == 2 and not record.provenance["noise"]["repeated"]
    assert {timing.median_us for timing in record.timings} == medians[0] != medians[1]


def test_what_a_benchmark_of_the_users_answers_is_taken(world: Callable[[float], World]) -> None:
    here = world(1e9)
    record = searched(here, do_bench=lambda call, quantiles: call() or [here.now_s, here.now_s / 2, 2 * here.now_s])
    assert (len(here.races), here.slept_s, record.quality) == (1, 0.0, "noisy")


def test_the_interpreter_s_clock_says_nothing_and_is_not_waited_for() -> None:
    assert not timers.for_device(device.INTERPRETER).repeats
    assert timers.for_device(device.cpu()).repeats


# -- measured again ----------------------------------------------------------------------------------------------------


def as_if_noisy(work: Any, noise: Any) -> None:
    """Let every stored choice be one that was noisy, and the function not know it."""
    work.cache_clear()
    for path, _ in listing.all_records():
        data = json.loads(Path(path).read_text())
        data["quality"], data["provenance"]["noise"] = "noisy", noise
        Path(path).write_text(json.dumps(data))


NOISE = {"spread": 0.12, "slowed": False, "waited_s": 3.0, "repeated": True}


def test_tune_measures_what_is_noisy_again_and_says_so(write: Write) -> None:
    module = write_work(write, "1")
    run("tune", module)
    work = importlib.import_module(module).work
    as_if_noisy(work, NOISE)
    result = run("tune", module)
    assert "mod_work.work  n=1: it was noisy before, and was measured again." in result.stdout
    [row] = run_json("tune", module)["cases"]
    assert (row["source"], row["quality"], row["remark"]) == ("stored", "ok", None)


def test_a_call_is_served_what_is_noisy(write: Write) -> None:
    module = write_work(write, "1")
    run("tune", module)
    work = importlib.import_module(module).work
    as_if_noisy(work, NOISE)
    before = work.cache_info().searches
    work(1)
    assert work.cache_info().searches == before
    with autotuned.mode("search"):
        work(1)
    assert work.cache_info().searches == before + 1


def test_the_interpreter_s_times_are_not_measured_again() -> None:
    interpreted = make_key(1, device=device.INTERPRETER.to_json())
    for key, is_doubtful in ((make_key(1), True), (interpreted, False)):
        assert TuningRecord(key, None, None, "noisy", ()).is_doubtful is is_doubtful
    assert remark(TuningRecord(interpreted, None, None, "noisy", ()), False) is None


@pytest.mark.parametrize(
    ("quality", "noise", "was_noisy", "words"),
    [
        ("ok", None, False, None),
        ("ok", NOISE, True, "it was noisy before, and was measured again"),
        ("noisy", NOISE, False, "noisy: its times spread over 12%, as if another program uses the device"),
        ("noisy", NOISE, True, "still noisy: its times spread over 12%"),
        ("noisy", {**NOISE, "slowed": True}, False, "noisy: heat or the hardware held the clocks down"),
        ("noisy", None, False, "noisy: its times spread over more than 5%. It is used anyway"),
    ],
)
def test_why_is_said_in_a_sentence(quality: str, noise: Any, was_noisy: bool, words: str | None) -> None:
    record = TuningRecord(make_key(1), None, None, quality, (), {"noise": noise})
    said = remark(record, was_noisy)
    assert said == words if words is None else str(said).startswith(words)
