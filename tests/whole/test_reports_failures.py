"""Reports about failures as tests, by their numbers: configs that fail, processes that die, full memory, lost devices."""

import gc
import sys
import weakref
from pathlib import Path

import forked
import numpy as np
import pytest
from fakes import FakeConfig as Config
from paths import on_path, quick
from stored import records

import autotuned
from autotuned import Check, autotune
from autotuned.errors import AllConfigsFailedError, DeviceLostError, OutOfMemoryError
from autotuned.search import timers
from autotuned.store import layout

CONFIGS = [Config({"step": step}) for step in (8, 16, 4)]
ROOT = Path(__file__).resolve().parents[2]


def statuses():
    (record,) = records()
    return {timing.config["kwargs"]["step"]: timing.status for timing in record.timings}


# -- configs that fail -----------------------------------------------------------------------------------------------


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
    failed = {} if isinstance(error, MemoryError) else {8: "failed", 16: "failed"}
    assert statuses() == failed | {4: "ok"}


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
sys.path.insert(0, "tests/support")
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
        return forked.run([sys.executable, script, *words], cwd=ROOT, timeout=60)

    return run


def test_b62_a_run_that_died_is_not_repeated(dying):
    first, second, third = (dying(dies=True) for _ in range(3))
    assert first.returncode == 7
    assert (second.returncode, second.stdout.strip() in ("8", "4")) == (0, True), second.stderr
    assert SKIPPED in second.stderr
    assert (third.returncode, third.stderr) == (0, "")
    assert statuses() == {8: "ok", 16: "crashed", 4: "ok"}
    assert not list(layout.root().rglob("journal/*.json"))


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
            f"`{tuned.tuner.tunable.name}`: not enough free memory to tune now; it runs untuned until there is."
        ]
        full.clear()
        tuned(x)  # the pause of one call after the second failure
        tuned(x)
    assert tuned.best_config is CONFIGS[2]  # a tie goes to what runs untuned
    assert statuses() == {8: "ok", 16: "ok", 4: "ok"}
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
        patch.setattr(timers.HostTimer, "synchronize", lose)
        with pytest.raises(RuntimeError, match="restart the process; other configs are not to blame"):
            autotune(CONFIGS, restore_value=[])(run)(np.zeros(8))
    assert ran == [8, 16]
    ran.clear()
    autotune(CONFIGS, restore_value=[])(run)(np.zeros(8))
    assert 16 not in ran
    assert statuses() == {8: "ok", 16: "failed", 4: "ok"}


# -- devices that are lost --------------------------------------------------------------------------------------------


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
    monkeypatch.setattr(timers.HostTimer, "synchronize", Device.use)
    return Device


def test_b62_whoever_goes_on_after_a_lost_device_excludes_nobody_else(device):
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
    assert not list(layout.root().rglob("journal/*.json"))


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


def test_a_list_of_configs_that_all_failed_before_is_the_same_error_again():
    """One key, a shorter list: what is left of it failed in the search that the record is of."""

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
