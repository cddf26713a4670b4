"""`install(race=True)`: a config that compiles much longer than the others is measured when it has compiled."""

import contextlib
import math

import fake_cuda
import pytest
import triton
from straggling import CONFIGS, TIMES, add, await_drop, both, tuner_in_a_new_process
from waits import until

import autotuned
from autotuned.dropin import install
from autotuned.search.compiling import parallelism
from autotuned.store import journal, layout
from autotuned.triton_compat import kernel as triton_names


@pytest.fixture
def bench():
    return fake_cuda.by_config(TIMES)


@both
def test_it_holds_up_no_call_and_a_later_one_measures_it(bench, x, held, replace, caplog):
    kernel = tuner_in_a_new_process(bench, replace=replace)
    for _ in range(3):
        kernel[(4,)](x, 100)
    assert (sorted(set(bench.calls)), kernel.best_config) == ([32, 64], CONFIGS[1])
    times = {config.kwargs["BLOCK"]: times[0] for config, times in kernel.configs_timings.items()}
    assert times == {16: math.inf, 32: 1.0, 64: 3.0}

    held.let_go()
    await_drop(kernel)
    bench.calls.clear()
    kernel[(4,)](x, 100)
    assert (sorted(set(bench.calls)), kernel.best_config) == ([16, 32], CONFIGS[0])
    bench.calls.clear()
    kernel[(4,)](x, 100)
    again = tuner_in_a_new_process(bench, replace=replace)
    again[(4,)](x, 100)
    assert (again.best_config, bench.calls, caplog.records) == (CONFIGS[0], [], [])


@both
def test_a_process_that_ends_before_leaves_it_to_the_next(bench, x, held, replace):
    tuner_in_a_new_process(bench, replace=replace)[(4,)](x, 100)
    held.let_go()
    kernel = tuner_in_a_new_process(bench, replace=replace)
    kernel[(4,)](x, 100)
    assert kernel.best_config is CONFIGS[0] and 16 in bench.calls


@both
@pytest.mark.parametrize("killed", [1, 2])
def test_what_two_killed_processes_did_not_live_to_see_compiled_is_waited_for(
    killed, bench, x, held, replace, monkeypatch
):
    def in_a_new_process(run):
        monkeypatch.setattr(journal, "_RUN", str(run))  # what the one before noted is that of a dead process
        return tuner_in_a_new_process(bench, replace=replace)

    def noted():
        return [*layout.schema_folder().glob(f"*/{layout.JOURNAL}/*.late.json")]

    for run in range(killed):
        in_a_new_process(run)[(4,)](x, 100)
        assert 16 not in bench.calls and noted()
    kernel = in_a_new_process("next")
    kernel[(4,)](x, 100)  # of two, it is compiled by itself
    assert kernel.best_config is CONFIGS[0 if killed == 2 else 1]
    held.let_go()
    until(lambda: not noted(), limit_s=60)


@contextlib.contextmanager
def captured():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton_names, "capturing", lambda: True)
        yield


FORBIDDEN = {
    "serve": lambda: autotuned.mode("serve"),
    "strict": lambda: autotuned.mode("strict"),
    "captured": captured,
    "sealed": autotuned.seal,
}


@both
@pytest.mark.parametrize("how", FORBIDDEN)
def test_where_nothing_may_be_measured_the_best_of_the_others_stays(bench, x, held, replace, how, caplog):
    kernel = tuner_in_a_new_process(bench, replace=replace)
    kernel[(4,)](x, 100)
    held.let_go()
    await_drop(kernel)
    bench.calls.clear()
    with FORBIDDEN[how]():
        kernel[(4,)](x, 100)
        assert (kernel.best_config, bench.calls, caplog.records) == (CONFIGS[1], [], [])
    kernel[(4,)](x, 100)
    assert kernel.best_config is CONFIGS[0] and 16 in bench.calls


@both
def test_one_that_does_not_compile_in_the_end_is_not_tried_again(bench, x, held, replace):
    kernel = tuner_in_a_new_process(bench, replace=replace)
    held.error = ValueError("no such layout")
    kernel[(4,)](x, 100)
    held.let_go()
    await_drop(kernel)
    for _ in range(2):
        kernel[(4,)](x, 100)
        assert (kernel.best_config, held.begun, 16 in bench.calls) == (CONFIGS[1], 1, False)
    assert kernel.cache  # nothing is left


def test_one_that_never_compiles_changes_nothing(bench, x, held):
    kernel = tuner_in_a_new_process(bench)
    for _ in range(20):
        kernel[(4,)](x, 100)
    assert (kernel.best_config, held.begun, bench.calls.count(32) > 0) == (CONFIGS[1], 1, True)


@both
def test_tritons_file_of_timings_waits_for_it(bench, x, held, replace):
    how = {"cache_results": True, "replace": replace}
    kernel = tuner_in_a_new_process(bench, **how)
    kernel[(4,)](x, 100)
    held.let_go()
    await_drop(kernel)
    kernel[(4,)](x, 100)
    install.uninstall()
    stock = triton.autotune(CONFIGS, key=["n"], do_bench=bench, cache_results=True)(add)
    bench.calls.clear()
    stock[(4,)](x, 100)
    assert (stock.best_config, bench.calls) == (CONFIGS[0], [])


def waits(kernel, x, held, bench):
    with held.let_go_meanwhile():
        kernel[(4,)](x, 100)
    return kernel.best_config is CONFIGS[0] and 16 in bench.calls


def test_with_an_infinite_budget_a_race_waits_for_all(bench, x, held):
    assert waits(tuner_in_a_new_process(bench, budget_s=math.inf), x, held, bench)


def test_on_one_core_it_waits_for_all(bench, x, held, monkeypatch):
    """A compilation would take the core from the launches that are measured."""
    monkeypatch.setattr(parallelism, "cores", lambda root=None: 1)
    assert waits(tuner_in_a_new_process(bench), x, held, bench)


def test_a_search_of_ours_waits_for_all(bench, x, held):
    kernel = autotuned.autotune(configs=CONFIGS, key=["n"], do_bench=bench)(add)
    assert waits(kernel, x, held, bench)
