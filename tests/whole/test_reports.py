"""Reports about autotuners as tests, by their numbers: state and measuring, on the CPU."""

import random
import time
from types import SimpleNamespace

import numpy as np
import pytest
from fakes import FakeConfig as Config
from paths import PATHS, on_path, quick
from stepped import LAST, by_step
from stored import records

from autotuned import autotune
from autotuned.errors import ArgumentNameError, CheckError
from autotuned.search import race, timers
from autotuned.search.safety import protection as snapshots
from autotuned.search.trial import Trial
from autotuned.search.trials import Board
from autotuned.tunable import function

CONFIGS = [Config({"step": step}) for step in (8, 16, 4)]


# -- state -----------------------------------------------------------------------------------------------------------


def test_b01_first_call_is_like_every_later_one():
    @autotune(CONFIGS, restore_value=["x"])
    def scale(x, *, step):
        x *= 0.5

    x = np.ones(1000)
    for expected in (0.5, 0.25, 0.125):
        scale(x)
        assert (x == expected).all()
    with pytest.raises(ArgumentNameError, match="'x' is in both restore_value and reset_to_zero"):
        autotune(CONFIGS, restore_value=["x"], reset_to_zero=["x"])(lambda x, step: None)


@pytest.mark.parametrize("path", PATHS)
def test_b02_accumulators_are_zeroed_on_every_path(path, monkeypatch, tmp_path):
    def add(x, out, *, step):
        out += x

    def make(configs, **options):
        return autotune(configs, reset_to_zero=["out"], do_bench=quick, **options)(add)

    x, out = np.arange(50.0), np.full(50, 7.0)
    tuned = on_path(path, make, CONFIGS, lambda f: f(np.ones(50), np.ones(50)), monkeypatch, tmp_path)
    for _ in range(2):
        tuned(x, out)
        assert (out == x).all()


def test_b04_arguments_by_name_are_restored_too():
    @autotune(CONFIGS, restore_value=["inp"], do_bench=quick)
    def inc(inp, n, alpha=1.0, *, step):
        inp += alpha

    a = np.zeros(8)
    for done, call in enumerate(
        [lambda: inc(a, 8), lambda: inc(inp=a, n=8), lambda: inc(n=8, inp=a), lambda: inc(a, n=8, alpha=1.0)], 1
    ):
        call()
        assert (a == done).all()
    assert inc.cache_info().searches == len(records()) == 1


def test_b05_none_is_skipped_and_is_another_key():
    @autotune(CONFIGS, restore_value=["cache"], reset_to_zero=["sums"], do_bench=quick)
    def conv(x, cache, sums, *, step):
        if cache is not None:
            cache += 1

    cache = np.zeros(4)
    conv(np.ones(4), None, None)
    conv(np.ones(4), cache, None)
    assert (cache == 1).all()
    assert len(records()) == 2


@pytest.mark.parametrize("view", [lambda b: b[::2], lambda b: b.reshape(8, 8).T, lambda b: b[3:]], ids=["2", "t", "3:"])
def test_b06_the_function_always_sees_the_callers_memory(view):
    seen = set()

    @autotune(CONFIGS, restore_value=["x"], do_bench=quick)
    def inc(x, *, step):
        seen.add((x.ctypes.data, x.strides))
        x += 1

    buffer, expected = np.zeros(64), np.zeros(64)
    view(expected)[...] += 1
    inc(view(buffer))
    assert seen == {(view(buffer).ctypes.data, view(buffer).strides)}
    assert (buffer == expected).all()


def test_b09_only_what_is_named_is_copied_and_once():
    copies = []

    class Counted(np.ndarray):
        def copy(self, *args):
            copies.append(self.size)
            return super().copy(*args)

    @autotune(CONFIGS, restore_value=["out"], do_bench=quick)
    def attend(kv, out, *, step):
        out += kv[0]

    attend(np.ones(1 << 16).view(Counted), np.zeros(8).view(Counted))
    assert copies == [8]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_b10_a_config_that_writes_and_raises_leaves_nothing(error):
    hooks = []

    @autotune(
        CONFIGS,
        do_bench=quick,
        pre_hook=lambda arguments, reset_only=False: hooks.append("before" * (not reset_only)),
        post_hook=lambda arguments, exception: hooks.append("after"),
    )
    def halve(x, *, step):
        x *= 0.5
        if step == 16:
            raise error("half-way")

    x = np.ones(50)
    if error is KeyboardInterrupt:
        with pytest.raises(KeyboardInterrupt):
            halve(x)
        assert (x == 1).all()
        return
    halve(x)
    assert (x == 0.5).all()
    assert hooks.count("before") == hooks.count("after")


MOMENTS = {
    "a launch": (function.TunableFunction, "launch"),
    "a copy aside": (snapshots.Snapshot, "__init__"),
    "what was written": (snapshots.Snapshot, "changed"),
    "a restore": (snapshots.Snapshot, "restore"),
    "the warm-up": (timers.HostTimer, "warm_up"),
    "a sample": (timers.HostTimer, "sample"),
    "waiting for the device": (timers.HostTimer, "synchronize"),
}


def interrupted(monkeypatch, moment, number, when):
    """From now on let Ctrl-C come right before or right after so many of these; the list of what came."""
    owner, name = MOMENTS[moment]
    act, calls, came = getattr(owner, name), [], []

    def interrupting(*args, **kwargs):
        calls.append(None)
        hits = len(calls) == number
        if hits and when == "before":
            came.append(None)
            raise KeyboardInterrupt
        result = act(*args, **kwargs)
        if hits:
            came.append(None)
            raise KeyboardInterrupt
        return result

    monkeypatch.setattr(owner, name, interrupting)
    return came


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_b10_an_interrupt_at_any_moment_of_a_search_leaves_the_data_as_given(moment, when, monkeypatch):
    """Each config writes something that no other does: what is interrupted before it was looked at is put back too."""

    def run(x, y, z, *, step):
        {8: x, 16: y, 4: z}[step][...] += step

    for number in range(1, 40):
        given = [np.arange(8.0) + i for i in range(3)]
        arrays = [array.copy() for array in given]
        tuned = autotune(CONFIGS, name=f"run_{number}", cache_results=False)(run)
        with monkeypatch.context() as patch:
            came = interrupted(patch, moment, number, when)
            try:
                tuned.prepare(*arrays, search=True)
            except KeyboardInterrupt:
                assert came
        assert all((array == kept).all() for array, kept in zip(arrays, given, strict=True)), number
        if not came:
            break
    assert number > 1


def test_b11_input_and_output_may_be_one():
    @autotune(CONFIGS, restore_value=["out"], do_bench=quick)
    def leaky(x, out, *, step):
        out[...] = np.where(x < 0, x * 0.5, x)

    x, out = -np.arange(1.0, 51), np.zeros(50)
    leaky(x, out)
    assert (out == x * 0.5).all()
    leaky(x, x)
    assert (x == out).all()
    zeroing = autotune(CONFIGS, reset_to_zero=["out"], do_bench=quick)(lambda x, out, step: None)
    with pytest.raises(ValueError, match="'out', which shares memory with argument 'x'"):
        zeroing(x, x[1:])


# -- measuring -------------------------------------------------------------------------------------------------------


def test_a_slow_restore_does_not_move_the_ranking(monkeypatch):
    """A copy that takes ten times as long as the function, and as a rule longer for the faster config."""
    ran, restore = [8], snapshots.Snapshot.restore

    def slow(self):
        time.sleep(0.02 if ran[-1] == 8 else 0.001)
        restore(self)

    @autotune(CONFIGS[:2], restore_value=["x"], budget_s=4.0)
    def run(x, *, step):
        ran.append(step)
        time.sleep(0.004 if step == 8 else 0.001)

    monkeypatch.setattr(snapshots.Snapshot, "restore", slow)
    run(np.zeros(8))
    assert run.best_config is CONFIGS[1]


def test_b79_near_ties_do_not_flip():
    def chosen(seed, slow):
        noise = random.Random(seed)

        def sample(turn):
            for trial in turn:
                middle = (slow, 99.5 if slow == 100 else 90.0)[trial.index]
                trial.samples_us.append(noise.gauss(middle, 3.0 if slow == 100 else 1.0))

        trials = [Trial(index, lambda: None, lambda: None) for index in range(2)]
        race.race(trials, race.Track(sample), seed)
        return race.winner(trials, 0.0)[0].index

    ties = [chosen(seed, 100) for seed in range(100)]
    assert max(ties.count(0), ties.count(1)) >= 95
    assert [chosen(seed, 100.001) for seed in range(100)] == [1] * 100


def off_by_one(wrong):
    def add(x, out, *, step):
        LAST.step = step
        out[...] = x + (step in wrong)

    return add


def test_b82_the_fastest_is_not_chosen_when_it_is_wrong(caplog):
    tuned = autotune(CONFIGS, check=lambda x: x, do_bench=by_step({8: 3.0, 16: 1.0, 4: 2.5}))(off_by_one({16}))
    x, out = np.arange(8.0), np.zeros(8)
    tuned(x, out)
    assert tuned.best_config.kwargs["step"] != 16
    assert (out == x).all()
    (record,) = records()
    assert {timing.config["kwargs"]["step"]: timing.status for timing in record.timings}[16] == "wrong"
    assert (
        "is dropped. Wrong: out: 8 of 8 elements differ from the reference; element 0: expected 0, got 1" in caplog.text
    )


def test_b82_a_wrong_first_config_is_no_reference():
    tuned = autotune(CONFIGS, check="first", do_bench=quick)(off_by_one({8}))
    with pytest.raises(CheckError, match="the first config disagrees with the majority: 2 of 3"):
        tuned(np.arange(8.0), np.zeros(8))
    assert records() == []


def test_twins_of_a_config_that_lost_the_device_have_no_time():
    """A binary that was launched once and never sampled: its twin has nothing to share."""
    job = SimpleNamespace(configs={"a": None, "b": None}, form=lambda identity: {}, known={})
    board = Board(job, lambda: None)
    board.trials = [Trial(index, lambda: None, lambda: None) for index in range(2)]
    board.pair(board.trials[1], board.trials[0])
    assert board.timings() == []
