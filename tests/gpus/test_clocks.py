"""Tests of `clocks`, with a library that is made up, and that a race repeats what was measured meanwhile."""

import ctypes
from types import SimpleNamespace

import pytest
from simulated import Gpu

from autotuned.gpu import clocks
from autotuned.search import race, timers
from autotuned.search.trial import DISTURBED_ROUNDS, Trial


class Library:
    """NVML with one GPU."""

    def __init__(self, reasons=0, error=0, names=clocks._REASONS):
        self.reasons, self.error, self.asked = reasons, error, []
        for name in names:
            setattr(self, name, self._get)

    def nvmlInit_v2(self):
        return 0

    def nvmlDeviceGetHandleByUUID(self, name, handle):
        self.asked.append(name)
        return 0 if name == b"GPU-12ab" else 6  # not found

    def _get(self, handle, bits):
        bits._obj.value = self.reasons
        return self.error


def opened(monkeypatch, library, uuid="12ab"):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    found = clocks.Clocks(uuid)
    found.open()
    found.wait()
    return found


@pytest.mark.parametrize(
    ("reasons", "slowed"),
    [
        pytest.param(0, False, id="none"),
        pytest.param(0x1, False, id="idle"),
        pytest.param(0x2, False, id="clocks as the user set them"),
        pytest.param(0x4, False, id="power cap"),
        pytest.param(0x8, True, id="slowdown of the hardware"),
        pytest.param(0x20, True, id="heat"),
        pytest.param(0x40, True, id="heat, by the hardware"),
        pytest.param(0x84, True, id="power brake beside the power cap"),
    ],
)
def test_heat_and_the_hardware_slow_a_gpu_down_and_load_does_not(monkeypatch, reasons, slowed):
    assert opened(monkeypatch, Library(reasons)).slowed is slowed


@pytest.mark.parametrize("name", clocks._REASONS)
def test_the_reasons_have_an_old_name_and_a_new_one(monkeypatch, name):
    assert opened(monkeypatch, Library(0x20, names=[name])).slowed


@pytest.mark.parametrize("uuid", ["12ab", "GPU-12ab"])
def test_a_gpu_is_asked_for_by_its_name_as_the_driver_spells_it(monkeypatch, uuid):
    library = Library()
    opened(monkeypatch, library, uuid)
    assert library.asked == [b"GPU-12ab"]


@pytest.mark.parametrize(
    ("library", "uuid"),
    [(Library(0x20), "other"), (Library(0x20, names=()), "12ab"), (Library(0x20, error=3), "12ab")],
    ids=["another GPU", "an older driver", "a driver that does not answer"],
)
def test_where_the_driver_says_nothing_nothing_is_slowed(monkeypatch, library, uuid):
    assert not opened(monkeypatch, library, uuid).slowed


def test_without_the_library_or_a_name_nothing_is_slowed(monkeypatch):
    def missing(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    found = clocks.Clocks("12ab")
    found.open()
    found.wait()
    nameless = clocks.Clocks(None)
    nameless.open()
    nameless.wait()
    assert not found.slowed
    assert not nameless.slowed


def test_a_gpu_is_opened_once(monkeypatch):
    library = Library()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    monkeypatch.setattr(clocks, "_known", {})
    first = clocks.of("12ab")
    first.wait()
    assert clocks.of("12ab") is first
    assert len(library.asked) == 1


# -- what a race makes of it ------------------------------------------------------------------------------------------


def race_of_two(slowed_rounds):
    """Two trials without noise, on a GPU that was slowed in the first rounds: whether all was steady, and the samples."""
    answers = iter([False] * slowed_rounds)
    calls = []

    def sample(turn):
        for trial in turn:
            calls.append(trial.index)
            trial.samples_us.append(100.0 + trial.index)

    trials = [Trial(index, lambda: None, lambda: None) for index in range(2)]
    return race.race(trials, race.Track(sample, recovers=lambda: next(answers, True))), calls, trials


@pytest.mark.parametrize(("rounds", "steady"), [(1, True), (3, True), (10_000, False)])
def test_rounds_that_were_slowed_are_repeated_and_a_gpu_that_stays_slow_is_said_to_be_unsteady(rounds, steady):
    was_steady, quiet, undisturbed = race_of_two(slowed_rounds=0)
    assert was_steady
    found, calls, trials = race_of_two(slowed_rounds=rounds)
    assert found is steady
    assert len(calls) == len(quiet) + 2 * race.FIRST_SAMPLES * min(rounds, DISTURBED_ROUNDS - 1)
    assert [trial.samples_us for trial in trials] == [trial.samples_us for trial in undisturbed]
    assert all(len(trial.samples_us) >= race.GUARD_SAMPLES for trial in trials)


def test_the_timer_leaves_a_slowed_gpu_alone_for_a_moment(monkeypatch):
    timer = Gpu().install(monkeypatch)
    slept = []
    monkeypatch.setattr(timers, "time", SimpleNamespace(sleep=slept.append))
    assert timer.ran_well()
    monkeypatch.setattr(timer, "_clocks", SimpleNamespace(slowed=True))
    assert not timer.ran_well()
    assert slept == [timer._COOL_S]
    assert timers.HostTimer().ran_well()
    assert timers.GivenTimer(lambda call, quantiles: 1.0, timer).ran_well()
