"""`autotuned.refresh` over plain callables: what is looked at, what is left alone, and the thread that looks."""

from __future__ import annotations

import itertools
import os
import threading

import pytest
from counted import opcodes
from fakes import FakeConfig
from newer import store_choice
from stored import lines
from waits import until

import autotuned
from autotuned import autotune
from autotuned.errors import SealedError
from autotuned.serving import refresh as refreshing
from autotuned.store import layout
from autotuned.store.choice import Choice, Origin

CONFIGS = [FakeConfig({"step": step}) for step in range(3)]
numbers = itertools.count()


@pytest.fixture
def work():
    """A function that returns the step that it is called with: 0 until it is tuned."""

    def body(x, *, step):
        return step

    return autotune(CONFIGS, default=CONFIGS[0], name=f"refreshed.work_{next(numbers)}", version="1")(body)


def test_a_newer_choice_is_taken_at_the_next_refresh_and_once(work):
    assert [work(1), work(2)] == [0, 0]
    store_choice(work, CONFIGS[2], 1)
    assert work(1) == 0
    found = autotuned.refresh()
    assert [(swap.before, swap.after, swap.launches, swap.refused) for swap in found.swapped] == [
        ("step=0", "step=2", 1, "")
    ]
    assert found.to_json()["swaps"][0]["kernel"] == work.tuner.tunable.name
    assert [work(1), work(2)] == [2, 0]
    assert autotuned.refresh().swaps == []
    assert work.best_config is CONFIGS[0]  # of this thread's last call


def test_a_function_with_a_check_is_looked_at_too():
    name = f"refreshed.work_{next(numbers)}"
    checked = autotune(CONFIGS, default=CONFIGS[0], name=name, version="1", check="first")(lambda x, *, step: step)
    assert checked(1) == 0
    assert autotuned.refresh().keys >= 1


def test_best_config_stays_that_of_the_last_call(work):
    work(1)
    store_choice(work, CONFIGS[2], 1)
    autotuned.refresh()
    assert work.best_config is CONFIGS[0]
    work(1)
    assert work.best_config is CONFIGS[2]


def test_unchanged_records_are_not_read_again(work, monkeypatch):
    work(1)
    store_choice(work, CONFIGS[1], 1)
    autotuned.refresh()
    asked = []
    monkeypatch.setattr(refreshing.sources, "find", lambda *args: asked.append(args))
    autotuned.refresh()
    assert asked == []
    store_choice(work, CONFIGS[2], 1)
    autotuned.refresh()
    assert len(asked) == 1


def test_a_key_of_which_nothing_is_bound_is_asked_anew_at_its_next_call(work):
    store_choice(work, CONFIGS[1], 1)
    assert work(1) == 1
    autotuned.refresh()
    work.tuner.launcher.clear()
    store_choice(work, CONFIGS[2], 1)
    assert autotuned.refresh().swaps == []
    assert work(1) == 2


def test_a_record_that_is_damaged_or_gone_leaves_the_choice(work):
    store_choice(work, CONFIGS[1], 1)
    assert work(1) == 1
    path = layout.record_path(work.tuner.chooser.key(work.tuner.call((1,), {}, None)))
    path.write_text("{")
    assert autotuned.refresh().swaps == [] and work(1) == 1
    path.unlink(missing_ok=True)
    assert autotuned.refresh().swaps == [] and work(1) == 1


@pytest.mark.parametrize("mode", ["off", "search", "strict"])
def test_modes_in_which_nothing_is_swapped(work, mode, caplog):
    store_choice(work, CONFIGS[1], 1)
    assert work(1) == 1
    store_choice(work, CONFIGS[2], 1)
    with autotuned.mode(mode):
        assert mode in autotuned.refresh().reason
        assert lines(caplog)[-1].startswith("refresh: nothing is swapped: ")
    assert work(1) == 1


def test_in_strict_it_swaps_where_it_is_told_to(work):
    store_choice(work, CONFIGS[1], 1)
    with autotuned.mode("strict"):
        assert work(1) == 1
        store_choice(work, CONFIGS[2], 1)
        assert autotuned.refresh(strict=True).swapped
        assert work(1) == 2


def test_choices_that_are_kept_in_this_process_alone_are_left(monkeypatch):
    kept = autotune(CONFIGS, default=CONFIGS[0], name="refreshed.kept", cache_results=False)(lambda x, *, step: step)
    assert kept(1) == 0
    store_choice(kept, CONFIGS[1], 1)
    assert autotuned.refresh().swaps == [] and kept(1) == 0


def test_a_choice_kept_in_this_process_alone_is_not_forgotten():
    kept = autotune(CONFIGS, default=CONFIGS[0], name="refreshed.alone", cache_results=False)(lambda x, *, step: step)
    key = store_choice(kept, CONFIGS[1], 1)
    kept.tuner.chooser.state.remember(key, Choice(CONFIGS[2], Origin.SEARCH))
    autotuned.refresh()
    assert kept(1) == 2


def test_a_choice_that_is_not_bound_is_asked_anew_only_if_its_record_changed(work):
    key = store_choice(work, CONFIGS[1], 1)
    assert work(1) == 1
    choices = work.tuner.chooser.state.choices
    for forgets in (True, False):
        choices[key] = Choice(CONFIGS[1], Origin.STORE)
        work.tuner.launcher.clear()
        autotuned.refresh()
        assert (key not in choices) is forgets


def test_all_lists_of_candidates_of_a_key_are_looked_at():
    def early(configs, named, **more):
        return [one for one in configs if one.kwargs["step"] != named["without"]]

    def body(x, without, *, step):
        return step

    work = autotune(
        CONFIGS, key=["x"], default=CONFIGS[0], name="refreshed.pruned", version="1",
        prune_configs_by={"early_config_prune": early},
    )(body)  # fmt: skip
    assert [work(1, 1), work(1, 5)] == [0, 0]
    key = store_choice(work, CONFIGS[2], 1, 1)
    assert key == work.tuner.chooser.key(work.tuner.call((1, 5), {}, None))
    assert [swap.launches for swap in autotuned.refresh().swaps] == [1, 1]
    assert [work(1, 1), work(1, 5)] == [2, 2]


def test_a_seal_refuses_what_another_rank_proposes_of_a_key_that_has_no_record_here(work, monkeypatch):
    assert work(1) == 0
    [used] = refreshing._used_by(work.tuner)

    def sealed(chosen):
        raise SealedError("it is sealed", kernel="k", what="compile", reason="")

    monkeypatch.setattr(work.tuner, "bound_anew", sealed)
    assert refreshing._made(used, Choice(CONFIGS[2], Origin.STORE)).swap.refused
    autotuned.refresh()
    assert work(1) == 0


def test_a_thread_refreshes_until_it_is_closed(work):
    work(1)
    with autotuned.refresh(every_s=0.01) as handle:
        store_choice(work, CONFIGS[2], 1)
        until(lambda: work(1) == 2, limit_s=30)
        assert handle.latest is not None
    handle.close()
    store_choice(work, CONFIGS[1], 1)
    until(lambda: not any(thread.name == "autotuned-refresh" for thread in threading.enumerate()), limit_s=30)
    assert work(1) == 2


def test_the_thread_goes_on_after_an_error(work, monkeypatch, caplog):
    work(1)
    fails = iter([True, True])
    ask = refreshing._used_by
    monkeypatch.setattr(refreshing, "_used_by", lambda of: 1 / 0 if next(fails, False) else ask(of))
    with autotuned.refresh(every_s=0.01):
        store_choice(work, CONFIGS[2], 1)
        until(lambda: work(1) == 2, limit_s=30)
    assert len([line for line in lines(caplog) if "division by zero; it is tried again in 0.01 s" in line]) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_has_a_thread_of_its_own(work):
    work(1)
    with autotuned.refresh(every_s=0.01), refreshing._lock:  # as a thread may hold it that the child has not
        source, sink = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                store_choice(work, CONFIGS[2], 1)
                until(lambda: work(1) == 2, limit_s=30)
                os.write(sink, b"swapped")
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        os.close(sink)
        assert os.read(source, 100) == b"swapped"
        os.close(source)


@pytest.mark.parametrize("every_s", [1e10, float("inf")])
def test_a_time_longer_than_threads_can_wait_is_waited_for_all_the_same(every_s):
    with autotuned.refresh(every_s=every_s) as handle:
        assert not handle._stopped.wait(0.02)
        assert any(thread.name == "autotuned-refresh" for thread in threading.enumerate())


@pytest.mark.parametrize("every_s", [0, -1, "30", True, float("nan")])
def test_what_is_no_time(every_s):
    with pytest.raises(autotuned.errors.OptionError, match=r"every_s: expected seconds above 0, got "):
        autotuned.refresh(every_s=every_s)


def test_threads_that_call_meanwhile_get_one_config_or_the_other(work):
    work(1)
    stop, errors = threading.Event(), []

    def calling():
        while not stop.is_set():
            got = work(1)
            if work.best_config.kwargs["step"] != got:
                errors.append(got)

    threads = [threading.Thread(target=calling) for _ in range(3)]
    for thread in threads:
        thread.start()
    for turn in range(12):
        store_choice(work, CONFIGS[turn % 2 + 1], 1)
        assert autotuned.refresh().swapped
    stop.set()
    for thread in threads:
        thread.join()
    assert errors == []


def test_a_hit_is_not_one_instruction_longer(work):
    """Neither while a thread looks for newer choices, nor after a swap, which a hit does not tell from a first choice."""
    hits = lambda: opcodes(lambda: [work(1) for _ in range(10)])
    work(1)
    before = hits()
    with autotuned.refresh(every_s=600.0):
        assert hits() == before > 0
        store_choice(work, CONFIGS[2], 1)
        assert autotuned.refresh().swapped
        assert work(1) == 2
        assert hits() == before


# -- rests of the thread -------------------------------------------------------------------------------------------------


def newer(work, count):
    assert [work(x) for x in range(1, count + 1)] == [0] * count
    for x in range(1, count + 1):
        store_choice(work, CONFIGS[2], x)


def test_in_the_background_it_rests_after_each_key_in_proportion(work):
    newer(work, 4)
    rests = []
    found = refreshing._refreshed(False, lambda seconds: rests.append(seconds))
    assert (len(found.swapped), len(rests)) == (4, 3) and min(rests) > 0
    assert [work(x) for x in range(1, 5)] == [2] * 4
    assert autotuned.refresh().swaps == []


def test_what_it_is_stopped_before_is_found_by_the_next_look(work):
    newer(work, 4)
    found = refreshing._refreshed(False, lambda seconds: True)
    assert len(found.swapped) == 1
    assert sorted(work(x) for x in range(1, 5)) == [0, 0, 0, 2]
    assert len(autotuned.refresh().swapped) == 3
    assert [work(x) for x in range(1, 5)] == [2] * 4


def test_in_its_rests_others_may_refresh(work):
    newer(work, 3)
    inside = []

    def refresh_too(seconds):
        inside.append(len(autotuned.refresh().swapped))
        store_choice(work, CONFIGS[1], 2)
        return False

    found = refreshing._refreshed(False, refresh_too)
    assert len(found.swaps) == 3 and inside[0] == 0
    autotuned.refresh()
    assert [work(x) for x in range(1, 4)] == [2, 1, 2]


def test_a_capture_that_begins_in_a_rest_ends_the_look(work, monkeypatch):
    newer(work, 3)

    with monkeypatch.context() as patch:

        def begin(seconds):
            patch.setattr(refreshing.kernel, "capturing", lambda: True)
            return False

        assert len(refreshing._refreshed(False, begin).swapped) == 1
    assert len(autotuned.refresh().swapped) == 2


def test_the_thread_is_at_work_for_less_than_a_hundredth(work, monkeypatch):
    """By its own clock: what it rests is `RESTS` times what it worked, unless that is longer than between two looks."""
    newer(work, 2)
    waits = []
    stopped = threading.Event()
    monkeypatch.setattr(stopped, "wait", lambda seconds: waits.append(seconds) or len(waits) > 2)
    handle = object.__new__(refreshing.Refresher)
    handle._every_s, handle._strict, handle.latest = 3600.0, False, None
    handle._run(stopped)
    swap = handle.latest.swapped[0]
    assert waits[0] == 3600.0 and waits[1] >= refreshing.RESTS * swap.seconds >= 100 * swap.seconds
