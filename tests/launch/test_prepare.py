"""`.prepare`: decided and bound before the first call, and nothing is run that was not asked for."""

import numpy as np
import pytest
from fakes import FakeConfig as Config

import autotuned
from autotuned import autotune
from autotuned.errors import CallError, NotTunedError

FIRST, BEST, DEFAULT = CONFIGS = [Config({"step": step}) for step in (8, 16, 32)]
TIMES = {8: 3.0, 16: 1.0, 32: 2.0}
steps = []


def body(x, n, *, step):
    steps.append(step)


def make(**options):
    def bench(call, quantiles):
        call()
        return [TIMES[steps[-1]]] * 3

    steps.clear()
    return autotune(CONFIGS, key=["n"], do_bench=bench, name="app.body", version="1", **options)(body)


@pytest.fixture
def x():
    return np.ones(4)


@pytest.fixture
def stored(x):
    make()(x, 4)


def test_a_stored_choice_is_bound_without_a_call(stored, x):
    tuned = make()
    assert tuned.prepare(x, 4).kwargs == BEST.kwargs
    assert steps == []
    assert tuned.cache_info()[:3] == (0, 0, 1)
    tuned(x, n=4)
    assert steps == [16]
    assert tuned.cache_info()[:2] == (1, 0)


def test_nothing_stored_is_an_error_that_says_what_to_do(x):
    tuned = make()
    with pytest.raises(NotTunedError, match=r"prepare\(search=False\) allows no search; .*autotuned tune"):
        tuned.prepare(x, 4)
    assert steps == [] and tuned.cache_info().size == 0


def test_default_answers_where_nothing_is_stored(x):
    tuned = make(default=DEFAULT)
    assert tuned.prepare(x, 4) is DEFAULT
    assert steps == []


def test_a_search_that_is_allowed_is_run_and_the_call_is_not(x):
    tuned = make()
    assert tuned.prepare(x, 4, search=True) is BEST
    info = tuned.cache_info()
    assert (info.searches, info.misses, info.size) == (1, 0, 1)
    count = len(steps)
    tuned(x, 4)
    assert steps[count:] == [16]


@pytest.mark.parametrize("mode", ["serve", "off"])
def test_modes_that_never_search_take_the_first(mode, x):
    tuned = make()
    with autotuned.mode(mode):
        assert tuned.prepare(x, 4, search=True) is FIRST
        tuned(x, 4)
        assert tuned.cache_info().hits == 1
    assert steps == [8]


def test_strict_refuses_a_search_that_prepare_would_allow(x):
    with autotuned.mode("strict"), pytest.raises(NotTunedError, match="'strict'"):
        make().prepare(x, 4, search=True)


def test_mode_search_prepares_from_what_is_stored(stored, x):
    with autotuned.mode("search"):
        assert make().prepare(x, 4).kwargs == BEST.kwargs
    assert steps == []


def test_a_strict_process_proves_that_nothing_searches(stored, x):
    tuned = make()
    tuned.prepare(x, 4)
    with autotuned.mode("strict"):
        tuned(x, 4)
        with pytest.raises(NotTunedError):
            tuned(x, 5)
    assert tuned.cache_info().searches == 0


def test_arguments_that_do_not_fit_are_refused(x):
    with pytest.raises(CallError, match="'n' is missing"):
        make().prepare(x)


def test_a_pinned_or_only_config_is_prepared(x):
    tuned = autotune([BEST], name="app.one")(body)
    assert tuned.prepare(x, 4) is BEST
    assert tuned.cache_info().size == 1
