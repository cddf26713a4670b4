"""Reports about autotuners as tests, by their numbers: state, failures, memory and measuring, on the CPU."""

import gc
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest
from fakes import FakeConfig as Config
from paths import PATHS, on_path, quick

import autotuned
from autotuned import Check, autotune, hosttarget, measure, race, state, store
from autotuned.errors import AllConfigsFailedError, ArgumentNameError, CheckError, DeviceLostError, OutOfMemoryError

CONFIGS = [Config({"step": step}) for step in (8, 16, 4)]
ROOT = Path(__file__).resolve().parent.parent


def records():
    return [record for _, record in store.all_records()]


def statuses():
    (record,) = records()
    return {timing.config["kwargs"]["step"]: timing.status for timing in record.timings}


def by_step(times):
    """A benchmark with a time for each step, which the function under test notes in `bench.ran`."""

    def bench(call, quantiles):
        call()
        return [times[bench.ran[-1]]] * 3

    bench.ran = []
    return bench


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
    "a launch": (hosttarget.HostTarget, "launch"),
    "a copy aside": (state.Snapshot, "__init__"),
    "what was written": (state.Snapshot, "changed"),
    "a restore": (state.Snapshot, "restore"),
    "the warm-up": (measure.HostTimer, "warm_up"),
    "a sample": (measure.HostTimer, "sample"),
    "waiting for the device": (measure.HostTimer, "synchronize"),
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


# -- failures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [RuntimeError("PassManager::run failed"), AssertionError(""), OSError("ptxas"), MemoryError("")], ids=repr
)
def test_b58_a_failing_config_does_not_end_the_search(error):
    @autotune(CONFIGS, do_bench=quick)
    def run(x, *, step):
        if step != 4:
            raise error
        x += 1

    x = np.zeros(8)
    run(x)
    assert (x == 1).all()
    assert run.best_config is CONFIGS[2]
    assert statuses() == {4: "ok"} if isinstance(error, MemoryError) else {8: "failed", 16: "failed", 4: "ok"}


def test_b58_what_all_share_is_the_users_bug():
    @autotune(CONFIGS)
    def run(x, *, step):
        return y  # noqa: F821

    with pytest.raises(NameError, match="'y' is not defined") as caught:
        run(np.zeros(8))
    assert caught.traceback[-1].name == "run"


class OutOfResources(Exception):
    """As Triton's."""


def test_b59_when_all_fail_each_reason_is_named(caplog):
    def run(x, *, step):
        if step != 32:
            raise OutOfResources(f"shared memory, Required: {step * 1024}, Hardware limit: 101376")
        x += 1

    with pytest.raises(AllConfigsFailedError) as caught:
        autotune(CONFIGS)(run)(np.zeros(8))
    assert "all 3 failed" in str(caught.value)
    assert (
        "Required: 4096, Hardware limit: 101376\n    step=4; step=8 (Required: 8192); step=16 (Required: 16384)"
        in str(caught.value)
    )
    assert records() == []
    tuned = autotune(CONFIGS, default=Config({"step": 32}))(run)
    caplog.clear()
    with autotuned.mode("search"):
        for length in (8, 9):
            x = np.zeros(length)
            tuned(x)
            assert (x == 1).all()
    assert ["its default= is used, untuned" in record.getMessage() for record in caplog.records] == [True]
    assert records() == []


DYING = """
import os, sys
import numpy as np
sys.path.insert(0, "tests")
from fakes import FakeConfig as Config
from autotuned import autotune

@autotune([Config({"step": step}) for step in (8, 16, 4)], name="dying")
def run(x, *, step):
    if step == 16 and os.path.exists(FLAG):
        os._exit(7)
    x += 1

if "tune" in sys.argv:  # what the command line does
    run.tuner.tune(run.tuner.call((np.zeros(8),), {}, None))
else:
    run(np.zeros(8))
print(run.best_config.kwargs["step"] if "tune" not in sys.argv else "tuned")
"""
SKIPPED = "step=16 is skipped: an earlier process ended in its first launch"


@pytest.fixture
def dying(tmp_path):
    """Runs a program that ends in the launch of one of its configs, if it is told so."""
    script = tmp_path / "dying.py"
    flag = tmp_path / "dies"
    script.write_text(DYING.replace("FLAG", repr(str(flag))))

    def run(*words, dies=False):
        flag.touch() if dies else flag.unlink(missing_ok=True)
        return subprocess.run([sys.executable, script, *words], cwd=ROOT, capture_output=True, text=True, timeout=60)

    return run


def test_b62_a_run_that_died_is_not_repeated(dying):
    first, second, third = (dying(dies=True) for _ in range(3))
    assert first.returncode == 7
    assert (second.returncode, second.stdout.strip() in ("8", "4")) == (0, True), second.stderr
    assert SKIPPED in second.stderr
    assert (third.returncode, third.stderr) == (0, "")
    assert statuses() == {8: "ok", 16: "crashed", 4: "ok"}
    assert not list(store.root().rglob("journal/*.json"))


def test_b62_b42_what_a_killed_job_had_skipped_is_measured_when_it_is_tuned(dying):
    """The process was killed from outside: the config is as good as the others."""
    assert dying(dies=True).returncode == 7
    assert SKIPPED in dying().stderr
    assert statuses()[16] == "crashed"
    assert dying("tune").returncode == 0
    assert statuses() == {8: "ok", 16: "ok", 4: "ok"}
    tuned = dying("tune")
    assert (tuned.returncode, tuned.stderr) == (0, "")


def test_b62_what_ended_two_processes_has_failed_for_good(dying):
    assert dying(dies=True).returncode == 7
    assert dying(dies=True).returncode == 0
    assert dying("tune", dies=True).returncode == 7
    assert dying("tune", dies=True).returncode == 0
    assert statuses() == {8: "ok", 16: "failed", 4: "ok"}
    again = dying("tune", dies=True)
    assert (again.returncode, again.stderr) == (0, "")


def test_b65_a_full_memory_is_not_a_verdict(caplog):
    full = [True]

    def run(x, *, step):
        if full and step != 4:
            raise MemoryError("no room")
        x += 1

    tuned = autotune(CONFIGS[:2], default=CONFIGS[2], do_bench=quick)(run)
    with autotuned.mode("search"):
        for _ in range(2):
            x = np.zeros(8)
            tuned(x)
            assert (x == 1).all()
            assert tuned.best_config is CONFIGS[2]
        assert records() == []
        assert [record.getMessage() for record in caplog.records] == [
            f"`{tuned.tuner.target.name}`: there is no room to tune now: it runs untuned until there is."
        ]
        full.clear()
        tuned(x)  # the pause of one call after the second failure
        tuned(x)
    assert tuned.best_config is CONFIGS[0]
    assert statuses() == {8: "ok", 16: "ok"}
    assert tuned.cache_info().searches == 3


def test_b65_without_a_default_the_first_runs(caplog):
    fails = [True] * 6

    @autotune(CONFIGS[:2], do_bench=quick)
    def run(x, *, step):
        if fails:
            fails.pop()
            raise MemoryError("no room")
        x += 1

    x = np.zeros(8)
    with pytest.raises(MemoryError, match="no room") as caught:
        run(x)  # the launch itself has no room either
    assert not isinstance(caught.value, OutOfMemoryError)
    run(x)
    assert (x == 1).all()


def test_a_config_that_finds_room_at_the_second_try_is_measured():
    tries = []

    @autotune(CONFIGS[:2], do_bench=quick)
    def run(x, *, step):
        tries.append(step)
        if tries.count(16) == 1 and step == 16:
            raise MemoryError("no room")

    run(np.zeros(8))
    assert statuses() == {8: "ok", 16: "ok"}


def test_a_lost_device_is_not_tried_again_by_another_process(monkeypatch):
    ran = []

    def run(x, *, step):
        ran.append(step)

    def lose(self):
        if ran and ran[-1] == 16:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with monkeypatch.context() as patch:
        patch.setattr(measure.HostTimer, "synchronize", lose)
        with pytest.raises(RuntimeError, match="restart the process; other configs are not to blame"):
            autotune(CONFIGS, restore_value=[])(run)(np.zeros(8))
    assert ran == [8, 16]
    ran.clear()
    autotune(CONFIGS, restore_value=[])(run)(np.zeros(8))
    assert 16 not in ran
    assert statuses() == {8: "ok", 16: "failed", 4: "ok"}


class Device:
    """What one step breaks for the rest of the process, whatever is launched then."""

    step, ran, is_lost, fails = None, [], False, False

    @classmethod
    def use(cls):
        if cls.is_lost or cls.fails:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")


def on_device(x, *, step):
    device = sys.modules[__name__].Device  # what is reached so is in no key
    if device.is_lost:
        device.use()
    device.ran.append(step)
    x += 1
    device.is_lost = step == device.step
    if device.fails:
        device.use()


@pytest.fixture
def device(monkeypatch):
    """A device that works."""
    for name, value in (("step", None), ("ran", []), ("is_lost", False), ("fails", False)):
        monkeypatch.setattr(Device, name, value)
    monkeypatch.setattr(measure.HostTimer, "synchronize", Device.use)
    return Device


def test_b62_whoever_goes_on_after_a_lost_device_condemns_nobody_else(device):
    """A server that catches every exception, and calls again: the next process has all configs but the one."""
    device.step = 16
    tuned = autotune(CONFIGS, restore_value=[])(on_device)
    for config in ("step=16", "", ""):
        with pytest.raises(DeviceLostError, match="restart the process") as caught:
            tuned(np.zeros(8))
        assert caught.value.config == config
    assert device.ran == [8, 16]
    assert "before this search began" in str(caught.value)
    assert "no config is to blame" in str(caught.value)
    device.is_lost = False  # as in the next process
    autotune(CONFIGS, restore_value=[])(on_device)(np.zeros(8))
    assert statuses() == {8: "ok", 16: "failed", 4: "ok"}


def test_a_device_that_the_program_lost_itself_is_no_configs_fault(device):
    device.is_lost = True
    with pytest.raises(DeviceLostError, match="no config is to blame") as caught:
        autotune(CONFIGS)(on_device)(np.zeros(8))
    assert "illegal memory access" in str(caught.value.__cause__)
    assert device.ran == []
    assert records() == []
    assert not list(store.root().rglob("journal/*.json"))


@pytest.mark.parametrize("path", ["disk", "cleared", "file"])
def test_a_fault_after_a_known_config_ran_is_raised(device, path, monkeypatch, tmp_path):
    """Another one would run over what it wrote. A fault of this call's data, perhaps: the choice stands."""

    def make(configs, **options):
        return autotune(configs, do_bench=quick, **options)(on_device)

    tuned = on_path(path, make, CONFIGS, lambda f: f(np.zeros(8)), monkeypatch, tmp_path)
    searches = tuned.cache_info().searches
    device.ran.clear()
    x = np.zeros(8)
    for count in (1, 2):
        device.fails = True
        with pytest.raises(RuntimeError, match="illegal memory access") as caught:
            tuned(x)
        assert not isinstance(caught.value, DeviceLostError)
        assert (x == count).all()
    device.fails = False
    tuned(x)
    assert device.ran == [8, 8, 8]
    assert tuned.cache_info().searches == searches


# -- memory ----------------------------------------------------------------------------------------------------------


OUTCOMES = ["one fails", "all fail alike", "all fail", "default", "wrong", "memory", "interrupted", "device lost"]


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_b99_nothing_of_a_search_is_kept_alive_without_the_garbage_collector(outcome, device):
    class Array(np.ndarray):
        """An array that can be referred to weakly."""

    def run(x, y, *, step):
        temporary = y.copy().view(Array)
        kept.append(weakref.ref(temporary))
        if outcome == "all fail alike" or (outcome == "one fails" and step == 16):
            raise RuntimeError("no")
        if outcome in ("all fail", "default") and step != 4:
            raise RuntimeError(f"no {step}")
        if outcome == "interrupted" and step == 16:
            raise KeyboardInterrupt
        sys.modules[__name__].Device.is_lost = outcome == "device lost"
        if outcome == "memory":
            raise MemoryError("no")
        x += step

    kept = []
    check = Check(lambda x: {"x": x + 8}) if outcome == "wrong" else None
    options = {"check": check, "default": CONFIGS[2] if outcome == "default" else None}
    tuned = autotune(CONFIGS[:2] if outcome != "wrong" else CONFIGS, do_bench=quick, **options)(run)
    x, y = np.zeros(8).view(Array), np.zeros(8).view(Array)
    kept += [weakref.ref(x), weakref.ref(y)]
    gc.collect()
    gc.disable()
    try:
        try:
            with autotuned.mode("search"):
                tuned(x, y)
        except (RuntimeError, MemoryError, KeyboardInterrupt):
            assert outcome not in ("one fails", "default")
        del x, y
        assert [reference() for reference in kept if reference() is not None] == []
    finally:
        gc.enable()


# -- measuring -------------------------------------------------------------------------------------------------------


def test_a_slow_restore_does_not_move_the_ranking(monkeypatch):
    """A copy that takes ten times as long as the function, and as a rule longer for the faster config."""
    import time

    from autotuned.state import Snapshot

    ran, restore = [8], Snapshot.restore

    def slow(self):
        time.sleep(0.02 if ran[-1] == 8 else 0.001)
        restore(self)

    @autotune(CONFIGS[:2], restore_value=["x"], budget_s=1.0)
    def run(x, *, step):
        ran.append(step)
        time.sleep(0.004 if step == 8 else 0.001)

    monkeypatch.setattr(Snapshot, "restore", slow)
    run(np.zeros(8))
    assert run.best_config is CONFIGS[1]


def test_b79_near_ties_do_not_flip():
    import random

    def chosen(seed, slow):
        noise = random.Random(seed)

        def sample(trial, count):
            middle = (slow, 99.5 if slow == 100 else 90.0)[trial.index]
            trial.samples_us += [noise.gauss(middle, 3.0 if slow == 100 else 1.0) for _ in range(count)]

        trials = [race.Trial(index, lambda: None, lambda: None) for index in range(2)]
        race.race(trials, sample, seed)
        return race.winner(trials, 0.0)[0].index

    ties = [chosen(seed, 100) for seed in range(100)]
    assert max(ties.count(0), ties.count(1)) >= 95
    assert [chosen(seed, 100.001) for seed in range(100)] == [1] * 100


def off_by_one(wrong):
    def add(x, out, *, step):
        bench.ran.append(step)
        out[...] = x + (step in wrong)

    bench = by_step({8: 3.0, 16: 1.0, 4: 2.5})
    return add, bench


def test_b82_the_fastest_is_not_chosen_when_it_is_wrong(caplog):
    add, bench = off_by_one({16})
    tuned = autotune(CONFIGS, check=lambda x: x, do_bench=bench)(add)
    x, out = np.arange(8.0), np.zeros(8)
    tuned(x, out)
    assert tuned.best_config.kwargs["step"] != 16
    assert (out == x).all()
    assert statuses()[16] == "wrong"
    assert (
        "is dropped. Wrong: out: 8 of 8 elements differ from the reference; element 0: expected 0, got 1" in caplog.text
    )


def test_b82_a_wrong_first_config_is_no_reference():
    add, _ = off_by_one({8})
    tuned = autotune(CONFIGS, check="first", do_bench=lambda call, quantiles: (call(), [1.0] * 3)[1])(add)
    with pytest.raises(CheckError, match="the first config disagrees with the majority: 2 of 3"):
        tuned(np.arange(8.0), np.zeros(8))
    assert records() == []


def test_twins_of_a_config_that_lost_the_device_have_no_time(monkeypatch):
    """A binary that was launched once and never sampled: its twin has nothing to share."""
    from types import SimpleNamespace

    from autotuned.board import Board
    from autotuned.race import Trial

    board = Board(SimpleNamespace(configs={"a": None, "b": None}, forms={"b": {}}, known={}))
    board.trials = [Trial(0, lambda: None, lambda: None), Trial(1, lambda: None, lambda: None)]
    board.pair(board.trials[1], board.trials[0])
    assert board.timings() == []


def test_a_list_of_configs_that_all_failed_before_is_the_same_error_again():
    """One key, a shorter list: what is left of it failed in the search that the record is of."""
    import numpy as np
    from triton import Config

    from autotuned import autotune
    from autotuned.errors import AllConfigsFailedError

    def work(x, *, block):
        if block > 8:
            raise ValueError(f"{block} is too large")
        x += 1

    good, bad = Config({"block": 8}), [Config({"block": 16}), Config({"block": 32})]
    first = autotune([*bad, good], name="shorter_list")(work)
    first(np.zeros(4))
    for _ in range(2):
        shorter = autotune(bad, name="shorter_list")(work)
        with pytest.raises(AllConfigsFailedError, match="16 is too large"):
            shorter(np.zeros(4))
