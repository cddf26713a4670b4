"""Tests of `conditions`: what a choice was measured under is enough, or is not, for what a call asks."""

from functools import partial
from typing import Any

import numpy as np
import pytest
from fakes import FakeConfig as Config
from hypothesis import given, settings
from hypothesis import strategies as st

import autotuned
from autotuned import Check, autotune, disk
from autotuned.configfiles import exchange
from autotuned.errors import CheckError, NotTunedError, RecordError
from autotuned.key.key import Key
from autotuned.store import conditions, listing
from autotuned.store.conditions import Checked, Conditions

WRONG = [Config({"WRONG": wrong}) for wrong in (False, True)]
TIMES = {False: 2.0, True: 1.0}  # the wrong one is faster


class Latest:
    """What ran last: state, which is no part of a function's source."""

    wrong: Any = None


def bench(call, quantiles):
    call()
    return [TIMES[Latest.wrong]] * 3


def dbl(x, out, *, WRONG):
    Latest.wrong = WRONG
    out[...] = x * (3 if WRONG else 2)


def double(x):
    return {"out": x * 2}


def tuned(configs=WRONG, **options):
    return autotune(configs, do_bench=bench, name="app.dbl", **options)(dbl)


def call(function):
    x, out = np.arange(1.0, 9.0), np.zeros(8)
    function(x, out)
    return function.best_config.kwargs["WRONG"], function.cache_info().searches


def record():
    [(_, found)] = listing.all_records()
    return found


# -- more is asked, and less -----------------------------------------------------------------------------------------


def test_what_was_measured_without_check_does_not_serve_a_call_with_one():
    assert call(tuned()) == (True, 1)
    checked = tuned(check=double)
    explanation = checked.explain(np.arange(1.0, 9.0), np.zeros(8))
    assert (explanation.reason, explanation.answer) == ("weaker conditions", "search")
    assert "measured without check=" in str(explanation)
    assert call(checked) == (False, 1)
    assert call(tuned(check=double)) == (False, 0)


def test_what_was_checked_serves_a_call_without_check():
    assert call(tuned(check=double)) == (False, 1)
    assert call(tuned()) == (False, 0)
    assert record().conditions.words.startswith("protected: auto; checked against function ")


def nearly(x):
    return {"out": x * 3.0001}


MORE = {
    "a check": ({}, {"check": double}),
    "a tolerance that allows less": (
        {"check": Check(nearly, tolerance=0.9)}, {"check": Check(nearly, tolerance=1e-3)}
    ),
    "a tolerance of one dtype": (
        {"check": Check(nearly, tolerance={"float64": 0.5})}, {"check": Check(nearly, tolerance={"float64": 1e-3})}
    ),
    "NaN that differs": ({"check": Check(double)}, {"check": Check(double, equal_nan=False)}),
    "poison": ({"check": Check(double)}, {"check": Check(double, poison=["out"])}),
    "more protection": ({"restore_value": []}, {"restore_value": ["out"]}),
    "protection of all": ({"restore_value": ["out"]}, {}),
    "protection of all by name": ({"restore_value": []}, {"restore_value": "auto"}),
}  # fmt: skip


@pytest.mark.parametrize("case", MORE)
def test_more_is_measured_once_and_serves_who_asks_less(case):
    less, more = MORE[case]
    assert call(tuned(**less))[1] == 1
    assert call(tuned(**more))[1] == 1
    for options in (less, more, less):
        assert call(tuned(**options))[1] == 0


@pytest.mark.parametrize("case", MORE)
def test_who_asked_more_first_leaves_nothing_to_search(case):
    less, more = MORE[case]
    assert call(tuned(**more))[1] == 1
    assert call(tuned(**less))[1] == 0


OTHER_TRIALS = {
    "zeroing": {"reset_to_zero": ["out"]},
    "a hook before": {"pre_hook": lambda arguments, reset_only=False: None},
    "another hook before": {"pre_hook": lambda arguments, reset_only=False: arguments["out"].fill(0)},
    "a hook after": {"post_hook": lambda arguments, exception=None: None},
}


def test_another_kind_of_trial_is_another_key():
    kinds = [{}, *OTHER_TRIALS.values()]
    for options in kinds:
        assert call(tuned(**options))[1] == 1
    for options in kinds:
        assert call(tuned(**options))[1] == 0
    assert len(list(listing.all_records())) == len(kinds)


def test_another_trial_is_a_reason_by_name():
    call(tuned())
    explanation = tuned(reset_to_zero=["out"]).explain(np.arange(1.0, 9.0), np.zeros(8))
    assert explanation.reason == "other trial" and "context.trial" in str(explanation)


def test_the_reference_counts_by_what_it_does():
    def reference(factor):
        return lambda x: {"out": x * factor}

    assert call(tuned(check=reference(2))) == (False, 1)
    assert call(tuned(check=reference(3))) == (True, 1)
    assert call(tuned(check=reference(2))) == (False, 0)  # each of them keeps what it accepted
    assert call(tuned(check=reference(3))) == (True, 0)


def test_the_first_config_is_another_reference_in_another_order():
    pair = [*WRONG, Config({"WRONG": False}, num_warps=8)]
    assert call(tuned(pair, check="first"))[0] is False
    assert call(tuned(pair[::-1], check="first")) == (False, 1)
    with_wrong_first = [WRONG[1], WRONG[0]]
    assert call(tuned(with_wrong_first, check=Check("first", tolerance=0.0)))[1] == 1


def test_a_reference_without_source_keeps_the_choice_in_memory(caplog):
    class Opaque:
        def __init__(self):
            self.double, self.token = double, object()

        def __call__(self, x):
            return self.double(x)

    function = tuned(check=Opaque())
    assert call(function) == (False, 1)
    assert list(listing.all_records()) == [] and "reference of check=" in caplog.text
    function.tuner.launcher.clear()
    assert call(function) == (False, 1)  # of one process


# -- timers ------------------------------------------------------------------------------------------------------------


def make_bench(number):
    def timed(call, quantiles):
        call()
        return [number * TIMES[Latest.wrong]] * 3

    return timed


class Bench:
    def __init__(self, rep):
        self.rep, self.calls = rep, []

    def __call__(self, call, quantiles):
        self.calls.append(call())
        return [TIMES[Latest.wrong]] * 3

    def timed(self, call, quantiles):
        return self(call, quantiles)


def by_default(rep=1):
    def timed(call, quantiles, rep=rep):
        return make_bench(rep)(call, quantiles)

    return timed


def times(call, quantiles, rep):
    return make_bench(rep)(call, quantiles)


def test_another_timer_is_another_key_and_an_equal_one_is_not():
    def timers():
        yield from (make_bench(1), make_bench(2), Bench(1), Bench(2), Bench(1).timed)
        yield from (partial(times, rep=1), partial(times, rep=2), by_default(1), by_default(2))

    for searches in (1, 0):
        for timer in timers():
            function = autotune(WRONG, do_bench=timer, name="app.timed")(dbl)
            assert call(function)[1] == searches, timer
    assert len(list(listing.all_records())) == 9


@pytest.mark.parametrize(
    ("one", "other"),
    [({"rep": 1}, {"rep": 2}), ({"warmup": 1}, {"warmup": 2}), ({"rep": 1}, {"rep": 1, "use_cuda_graph": True})],
    ids=str,
)
def test_times_of_tritons_benchmark_are_part_of_the_timer(one, other):
    one, same, other = (
        autotune(WRONG, name="app.k", **options)(dbl).tuner.options.trial for options in (one, one, other)
    )
    assert one == same != other


# -- where a choice comes from ---------------------------------------------------------------------------------------


def test_strict_says_what_the_stored_choice_lacks():
    call(tuned())
    with autotuned.mode("strict"), pytest.raises(NotTunedError, match="found one .* measured without check="):
        call(tuned(check=double))


def test_serve_says_what_the_stored_choice_lacks(caplog):
    call(tuned())
    with autotuned.mode("serve"):
        assert call(tuned(check=double)) == (False, 0)  # the first config, untuned
    assert "was measured without check=" in caplog.text


def shipped(folder, **options):
    """What was measured with these options, as a file; the store is empty then."""
    call(tuned(**options))
    exchange.export(folder)
    listing.clear()
    autotuned.register_configs(folder)


def test_a_shipped_choice_without_check_serves_only_who_asks_none(tmp_path):
    shipped(tmp_path)
    assert call(tuned()) == (True, 0)
    with autotuned.mode("strict"), pytest.raises(NotTunedError, match="was measured without check="):
        call(tuned(check=double))
    assert call(tuned(check=double)) == (False, 1)


def test_a_shipped_choice_with_check_serves_who_asks_for_it_or_for_none(tmp_path):
    shipped(tmp_path, check=double)
    with autotuned.mode("strict"):
        assert call(tuned(check=double)) == (False, 0)
        assert call(tuned()) == (False, 0)
        with pytest.raises(NotTunedError, match="with another reference in check="):
            call(tuned(check=nearly))


def test_conditions_survive_export_and_import(tmp_path):
    call(tuned(check=double))
    before = record().conditions
    exchange.export(tmp_path)
    listing.clear()
    exchange.import_configs([tmp_path])
    assert record().conditions == before and not record().timings
    with autotuned.mode("strict"):
        assert call(tuned(check=double)) == (False, 0)


def test_a_search_that_was_killed_resumes_only_what_was_protected_alike():
    seen = []

    def stops(call, quantiles):
        call()
        seen.append(Latest.wrong)
        if len(seen) == 2:
            raise KeyboardInterrupt
        return [TIMES[Latest.wrong]] * 3

    def function(**options):
        return autotune(WRONG, do_bench=stops, name="app.stops", **options)(dbl)

    with pytest.raises(KeyboardInterrupt):
        call(function(restore_value=[]))
    call(function(restore_value=["out"]))
    assert seen == [False, True, False, True]


# -- equal digests ---------------------------------------------------------------------------------------------------


def test_a_key_is_compared_where_a_digest_is_equal(monkeypatch, tmp_path):
    monkeypatch.setattr(Key, "digest", "0" * 64)
    function = autotune([Config({"step": step}) for step in (1, 2)], do_bench=by_n, name="app.n")(remember)
    for n in (1, 2, 1, 2):
        function(n)
        function.tuner.launcher.clear()
        assert function.best_config.kwargs["step"] == n
    assert function.cache_info().searches == 2
    again = autotune([Config({"step": step}) for step in (1, 2)], do_bench=by_n, name="app.n")(remember)
    again(1)  # the file holds the record of the other key
    assert again.best_config.kwargs["step"] == 1 and again.cache_info().searches == 1


def remember(n, *, step):
    Latest.wrong = n, step


def by_n(call, quantiles):
    call()
    n, step = Latest.wrong
    return [1.0 if n == step else 2.0] * 3


# -- the order -------------------------------------------------------------------------------------------------------

names = st.lists(st.sampled_from("abc"), unique=True).map(conditions.names)
restores = st.none() | names
numbers = st.sampled_from([0.0, 1e-6, 0.01, 1.0])
checks = st.builds(
    Checked,
    st.sampled_from([{"first": "a"}, {"function": ["f", "aa"]}]),
    st.builds(
        lambda others, more: {"*": others, **more}, numbers, st.dictionaries(st.sampled_from(["float16"]), numbers)
    ),
    st.booleans(),
    st.booleans() | names.filter(bool),
    restores,
)
several = st.builds(Conditions, restores, st.lists(checks, max_size=3).map(tuple))
asked = st.builds(Conditions, restores, st.lists(checks, max_size=1).map(tuple))


@given(several, asked, asked)
def test_covering_is_an_order(measured, one, other):
    assert conditions.covers(one, one)
    if conditions.covers(measured, one) and conditions.covers(one, other):
        assert conditions.covers(measured, other)
    assert conditions.covers(measured, one) is (conditions.lack(measured, one) == "")


@given(checks, checks)
def test_a_joined_check_covers_both(one, other):
    joined = one.joined(other.replace(restore=one.restore))
    if joined is not None:
        assert joined.covers(one) and joined.covers(other.replace(restore=one.restore))


@given(restores, restores)
def test_a_union_of_protections_covers_both(one, other):
    both = conditions.union(one, other)
    assert conditions.restore_covers(both, one) and conditions.restore_covers(both, other)


@given(several)
def test_conditions_survive_json(measured):
    assert conditions.load(disk.parse_json(disk.text(measured.to_json())), "here") == measured


def test_what_are_no_conditions_is_refused():
    good = Checked({"first": "a"}, {"*": 0.0}, True, False, None).to_json()
    for changes in (
        {"reference": "first"}, {"tolerance": {}}, {"tolerance": {"*": -1}}, {"tolerance": {"*": True}},
        {"tolerance": {"*": float("nan")}}, {"equal_nan": 1}, {"poison": "out"}, {"poison": [1]}, {"restore": "auto"},
    ):  # fmt: skip
        with pytest.raises(RecordError, match="here"):
            conditions.load_checks([{**good, **changes}], "here")


# -- programs that share a store -------------------------------------------------------------------------------------

GRADES = {1: 0.0, 2: 1e-5, 3: 1e-2, 4: 0.5}  # the error of a config, relative; the greater, the faster


def graded(x, out, *, step):
    Latest.wrong = step
    out[...] = x * 2 * (1 + GRADES[step])


def by_grade(call, quantiles):
    call()
    return [1.0 / Latest.wrong] * 3


def twice(x):
    return {"out": x * 2, "x": x}


def a_little_more(x):
    return {"out": x * 2.02, "x": x}  # what step=3 computes


REFERENCES = {"twice": twice, "more": a_little_more, "first": "first"}
demands = st.fixed_dictionaries(
    {"restore_value": st.sampled_from([None, [], ["out"], ["x"], ["x", "out"]])},
    optional={
        "check": st.builds(
            Check,
            st.sampled_from(sorted(REFERENCES)).map(REFERENCES.get),
            tolerance=st.sampled_from([1e-7, 1e-4, 0.1]),
            equal_nan=st.booleans(),
            poison=st.sampled_from([False, True, ("out",)]),
        )
    },
)


def passes(check, step):
    """Whether a config passes a check, by its grade; tolerances lie far from the grades."""
    if check is None:
        return True
    expected, got = 2.02 if check.reference is a_little_more else 2.0, 2 * (1 + GRADES[step])
    return abs(got - expected) <= check.tolerance * expected


@settings(max_examples=25, deadline=None)
@given(st.lists(demands, min_size=2, max_size=8))
def test_programs_that_share_a_store_search_as_often_as_they_ask_for_more_and_never_in_turns(programs):
    listing.clear()
    configs = [Config({"step": step}) for step in GRADES]
    asked_before = None
    for options in [*programs, *programs]:
        function = autotune(configs, do_bench=by_grade, name="app.graded", **options)(graded)
        needed = function.tuner.options.needs("app.graded", function.tuner.chooser.candidates(bound(function)))
        grows = asked_before is None or not conditions.covers(asked_before, needed)
        try:
            function(np.arange(1.0, 9.0), np.zeros(8))
        except CheckError:  # its reference refuses most of them: then it is no measure
            assert 2 * sum(passes(options["check"], step) for step in GRADES) < len(GRADES)
            continue
        assert passes(options.get("check"), function.best_config.kwargs["step"])
        assert function.cache_info().searches <= grows
        earlier = asked_before or Conditions(())
        restore = conditions.union(earlier.restore, needed.restore)
        asked_before = Conditions(restore, (*earlier.checks, *needed.checks))


def bound(function):
    return function.tuner.call((np.arange(1.0, 9.0), np.zeros(8)), {}, None)
