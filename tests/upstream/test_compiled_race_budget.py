"""`install(race=True, budget_s=)`: what a budget leaves out is measured later, and misleads nobody until then."""

import math

import fake_cuda
import pytest
import triton
from straggling import CONFIGS, add, tuner_in_a_new_process
from triton import Config

import autotuned
from autotuned.dropin import install, stock_tuner
from autotuned.store.journal import Journal
from autotuned.triton_compat import kernel as triton_names

TIMES = {16: 2.0, 32: 1.0, 64: 3.0}


@pytest.fixture
def bench():
    return fake_cuda.by_config(TIMES)


@pytest.fixture(autouse=True)
def three_threads(monkeypatch):
    monkeypatch.setenv("AUTOTUNED_COMPILE_WORKERS", "3")


def test_a_race_with_a_budget_does_not_wait_for_a_slow_compilation_which_the_next_process_measures(
    bench, x, held, caplog
):
    kernel = tuner_in_a_new_process(bench, budget_s=1.0)
    kernel[(4,)](x, 100)
    measured = set(bench.calls)
    assert measured and measured <= {32, 64}  # what a slow machine has compiled in time
    assert kernel.best_config.kwargs["BLOCK"] == min(measured, key=TIMES.get)
    times = {config.kwargs["BLOCK"]: times[0] for config, times in kernel.configs_timings.items()}
    assert times == {block: TIMES[block] if block in measured else math.inf for block in TIMES}
    assert caplog.records == []

    with autotuned.mode("serve"):  # nothing may be measured: the best of those that were is served
        served = tuner_in_a_new_process(bench, budget_s=1.0)
        served[(4,)](x, 100)
    assert (served.best_config, bench.calls, caplog.records) == (kernel.best_config, [], [])

    held.let_go()
    last = tuner_in_a_new_process(bench)
    last[(4,)](x, 100)
    assert last.best_config is CONFIGS[1] and 16 in bench.calls
    again = tuner_in_a_new_process(bench)
    again[(4,)](x, 100)
    assert (again.best_config, bench.calls) == (CONFIGS[1], [])


@pytest.mark.parametrize(
    "how", [{"budget_s": 1.0}, *({"race": True, "budget_s": s} for s in (0, -1, True, "5", math.nan))]
)
def test_a_budget_is_seconds_of_a_race(how):
    with pytest.raises(ValueError, match="install: budget_s: expected seconds above 0, and race=True, got"):
        autotuned.install(**how)


@pytest.fixture
def best(bench, x, held):
    """The best config that a race measured within its budget, in an earlier process."""
    kernel = tuner_in_a_new_process(bench, budget_s=1.0)
    kernel[(4,)](x, 100)
    assert 16 not in bench.calls
    return kernel.best_config


@pytest.mark.parametrize("replace", [False, True], ids=["seeded", "replaced"])
def test_a_captured_call_gets_the_best_of_those_measured_and_the_next_measures_the_rest(
    bench, x, held, best, replace, monkeypatch, caplog
):
    kernel = tuner_in_a_new_process(bench, replace=replace)
    with monkeypatch.context() as patch:
        patch.setattr(triton_names, "capturing", lambda: True)
        kernel[(4,)](x, 100)
    assert (kernel.best_config, bench.calls, caplog.records) == (best, [], [])
    held.let_go()
    kernel[(4,)](x, 100)
    assert kernel.best_config is CONFIGS[1] and 16 in bench.calls


@pytest.mark.parametrize("replace", [False, True], ids=["seeded", "replaced"])
@pytest.mark.parametrize("mode", ["serve", "strict"])
def test_the_best_of_those_measured_serves_until_the_mode_lets_the_rest_be_measured(
    bench, x, held, best, mode, replace
):
    kernel = tuner_in_a_new_process(bench, replace=replace)
    with autotuned.mode(mode):
        kernel[(4,)](x, 100)
        assert (kernel.best_config, bench.calls) == (best, [])
    held.let_go()
    kernel[(4,)](x, 100)
    assert kernel.best_config is CONFIGS[1] and 16 in bench.calls


@pytest.mark.parametrize("mode", ["serve", "strict"])
def test_the_next_container_serves_the_best_of_those_measured(bench, x, held, mode, monkeypatch, tmp_path):
    first = tuner_in_a_new_process(bench, budget_s=1.0, binaries=tmp_path / "kept")
    first[(4,)](x, 100)
    monkeypatch.setenv("AUTOTUNED_CACHE_DIR", str(tmp_path / "another"))
    second = tuner_in_a_new_process(bench, binaries=tmp_path / "kept")
    with autotuned.mode(mode):
        second[(4,)](x, 100)
    assert (second.best_config, bench.calls) == (first.best_config, [])


@pytest.mark.parametrize("replace", [False, True], ids=["seeded", "replaced"])
def test_tritons_file_of_timings_holds_no_race_that_its_budget_ended(bench, x, held, replace):
    """It would serve what is in there for ever, also without this package."""
    how = {"cache_results": True, "replace": replace}
    tuner_in_a_new_process(bench, budget_s=1.0, **how)[(4,)](x, 100)
    held.let_go()
    whole = tuner_in_a_new_process(bench, **how)
    whole[(4,)](x, 100)
    assert whole.best_config is CONFIGS[1] and 16 in bench.calls
    install.uninstall()
    stock = triton.autotune(CONFIGS, key=["n"], do_bench=bench, cache_results=True)(add)
    bench.calls.clear()
    stock[(4,)](x, 100)
    assert (bench.calls, sorted(times[0] for times in stock.configs_timings.values())) == ([], [1.0, 2.0, 3.0])


def test_with_hooks_a_slow_compilation_holds_up_no_other_config(bench, x, held):
    """They waited for it till the deadline, after which one more is launched: in each process the same."""

    def measured(call, quantiles):
        times = bench(call, quantiles)
        if len(bench.calls) == 2:
            held.let_go()
        return times

    tuner_in_a_new_process(bench, budget_s=600.0)
    configs = [Config({"BLOCK": block}, pre_hook=lambda arguments: None) for block in TIMES]
    kernel = triton.autotune(configs, key=["n"], do_bench=measured)(add)
    kernel[(4,)](x, 100)
    assert bench.calls in ([32, 64, 16], [64, 32, 16]) and kernel.best_config is configs[1]


def test_few_configs_and_the_few_that_were_left_wait_for_no_slow_compilation(bench, x, held, monkeypatch):
    """Three configs were compiled one after the other, by the thread that called the kernel."""
    monkeypatch.delenv("AUTOTUNED_COMPILE_WORKERS")
    for _ in range(2):
        kernel = tuner_in_a_new_process(bench, budget_s=1.0)
        kernel[(4,)](x, 100)
        assert 16 not in bench.calls and kernel.best_config in CONFIGS[1:]


def test_configs_that_were_compiling_when_a_process_was_killed_keep_to_the_budget(bench, x, held, monkeypatch):
    """Who kills a program whose first step never ends, and runs it again with a budget, has such a journal."""
    kernel = tuner_in_a_new_process(bench, budget_s=1.5)
    suspects = [*stock_tuner.seed_of(kernel).identities(CONFIGS)]
    monkeypatch.setattr(Journal, "_look_back", lambda journal: setattr(journal, "suspects", suspects))
    kernel[(4,)](x, 100)
    assert bench.calls and 16 not in bench.calls and kernel.best_config in CONFIGS[1:]
