"""Configs of plain callables: computed for a call, pruned, changed since one was chosen; and hooks around trials."""

import numpy as np
import pytest
from fakes import FakeConfig as Config
from stepped import CONFIGS, LAST, by_step, make, scale
from stored import records

from autotuned.store import listing


def test_computed_configs():
    asked = []

    def configs(x, factor):
        asked.append((len(x), factor))
        return [Config({"step": len(x)}), Config({"step": 2 * len(x)})]

    def multiply(x, *, step, factor=2.0):
        LAST.step = step
        return x * factor

    function = make(multiply)(configs)
    assert function.configs == []
    for n in (4, 8, 4, 8):
        assert (function(np.ones(n)) == 2.0).all()
        assert LAST.step == n
    assert asked == [(4, 2.0), (8, 2.0)]
    assert function.cache_info().searches == 2
    assert function(np.ones(4), factor=3.0)[0] == 3.0


def test_computed_configs_of_a_generator_that_differ_in_names():
    def configs(x, **rest):
        yield Config({"step": 4} if len(x) < 5 else {"step": 4, "factor": 7.0})
        yield Config({"step": 8} if len(x) < 5 else {"step": 8, "factor": 9.0})

    function = make(scale, key=["x"])(configs)
    x = np.ones(4)
    function(x, 4)
    assert (x == 0.5).all()
    x = np.ones(6)
    function(x, 6)
    assert (x == 7.0).all()
    x = np.ones(4)
    function(x, 4)
    assert (x == 0.5).all()


def keep_small(configs, named, **kwargs):
    return [config for config in configs if config.kwargs["step"] <= 16]


def keep_by_yielding(configs, named, **kwargs):
    yield from keep_small(configs, named)


def bring_new(configs, named, **kwargs):
    for config in configs[:2]:
        yield Config({"step": config.kwargs["step"] + 1})


@pytest.mark.parametrize(
    ("pruner", "measured"),
    [(keep_small, [8, 16]), (keep_by_yielding, [8, 16]), (bring_new, [9, 17])],
    ids=["list", "generator", "new-configs"],
)
def test_pruners(pruner, measured):
    bench = by_step({8: 2.0, 16: 1.0, 32: 0.5, 9: 2.0, 17: 1.0})
    configs = [*CONFIGS, Config({"step": 32})]
    options = {"do_bench": bench, "prune_configs_by": {"early_config_prune": pruner}}
    for searches in (1, 0):
        function = make(scale, **options)(configs)
        function(np.ones(50), 50)
        assert sorted(bench.calls) == measured
        assert LAST.step == measured[1]
        assert function.cache_info().searches == searches
        function(np.ones(50), 50)
        assert LAST.step == measured[1]


def test_pruners_see_positional_and_keyword_arguments_apart():
    seen = []

    def early(configs, named, **kwargs):
        seen.append((sorted(named), sorted(kwargs)))
        return configs

    def model(x, n, step, **rest):
        seen.append((n, step))
        return -step

    bench = by_step({8: 2.0, 16: 1.0})
    prune = {"early_config_prune": early, "perf_model": model, "top_k": 1}
    function = make(scale, do_bench=bench, prune_configs_by=prune)(CONFIGS)
    function(np.ones(50), n=50)
    assert seen == [(["x"], ["n"]), (50, 8), (50, 16)]
    assert bench.calls == []  # one is left: nothing to measure
    assert LAST.step == 16


def test_a_pruner_may_not_edit_the_list():
    def early(configs, named, **kwargs):
        configs.pop()
        return configs

    function = make(scale, prune_configs_by={"early_config_prune": early})(list(CONFIGS))
    for n in (50, 40):
        function(np.ones(n), n)
    assert function.configs == CONFIGS


def measure_with(configs, times):
    """Calls a function with these configs as a new process would; returns the steps measured and the one used."""
    bench = by_step(times)
    function = make(scale, do_bench=bench)(configs)
    function(np.ones(50), 50)
    return sorted(bench.calls), LAST.step


def test_a_list_that_grew_by_one_measures_one():
    times = {8: 3.0, 16: 2.0, 32: 1.0}
    assert measure_with(CONFIGS, times) == ([8, 16], 16)
    assert measure_with([*CONFIGS, Config({"step": 32})], times) == ([16, 32], 32)  # the new one, and the one to beat
    assert [timing.config["kwargs"]["step"] for timing in records()[0].timings] == [8, 16, 32]
    assert measure_with([*CONFIGS, Config({"step": 32})], times) == ([], 32)


def test_a_new_config_that_is_slower_does_not_win():
    times = {8: 3.0, 16: 2.0, 32: 4.0}
    measure_with(CONFIGS, times)
    assert measure_with([Config({"step": 32}), *CONFIGS], times) == ([16, 32], 16)


def test_a_new_config_is_compared_in_the_conditions_of_today():
    measure_with(CONFIGS, {8: 3.0, 16: 2.0})
    # On a machine that runs at half the speed by now, the old time of 16 would win.
    times = {16: 4.0, 32: 3.0}
    assert measure_with([*CONFIGS, Config({"step": 32})], times) == ([16, 32], 32)
    assert {timing.config["kwargs"]["step"]: timing.median_us for timing in records()[0].timings} == {
        8: 3000.0, 16: 4000.0, 32: 3000.0,
    }  # fmt: skip


def test_a_list_without_its_winner_measures_nothing():
    times = {8: 3.0, 16: 1.0, 32: 2.0}
    assert measure_with([*CONFIGS, Config({"step": 32})], times) == ([8, 16, 32], 16)
    assert measure_with([CONFIGS[0], Config({"step": 32})], times) == ([], 32)
    assert measure_with([*CONFIGS, Config({"step": 32})], times) == ([], 16)  # the record was not overwritten


def test_a_reordered_list_is_a_hit():
    times = {8: 3.0, 16: 1.0}
    measure_with(CONFIGS, times)
    assert measure_with(CONFIGS[::-1], times) == ([], 16)


def test_the_order_of_the_list_does_not_decide():
    times = {8: 3.0, 16: 1.0, 32: 2.0}
    configs = [*CONFIGS, Config({"step": 32})]
    assert measure_with(configs, times)[1] == 16
    listing.clear()
    assert measure_with(configs[::-1], times)[1] == 16


def test_equal_times_take_the_first_of_the_list():
    times = {8: 1.0, 16: 1.0 + 1e-9}
    assert measure_with(CONFIGS, times)[1] == 8
    assert records()[0].quality == "tied"
    listing.clear()
    assert measure_with(CONFIGS[::-1], times)[1] == 16


def test_configs_reassigned():
    function = make(scale)(list(CONFIGS))
    function(np.ones(50), 50)
    function.configs = [Config({"step": 50})]
    function(np.ones(50), 50)
    assert LAST.step == 50
    assert function.best_config is function.configs[0]


def test_b73_hooks_of_the_arguments_alone_and_hooks_that_take_whatever_comes():
    seen = []
    kinds = {"named": lambda arguments, **rest: seen.append((arguments["step"], sorted(rest)))}
    kinds["reset"] = lambda arguments, reset_only=False: seen.append((arguments["step"], [reset_only]))
    for name, hook in kinds.items():
        seen.clear()
        function = make(scale, pre_hook=hook, name=f"app.{name}", do_bench=by_step({8: 1.0, 16: 2.0}))
        tuned = function([Config({"step": 8}), Config({"step": 16})])
        tuned(np.ones(50), 50)
        assert {step for step, _ in seen} == {8, 16}
    config = Config({"step": 8}, pre_hook=lambda arguments: seen.append("alone"))
    make(scale, name="app.alone")([config])(np.ones(50), 50)
    assert seen[-1] == "alone"


def test_hooks_run_around_each_trial():
    calls = []
    configs = [
        Config({"step": step}, pre_hook=lambda arguments: calls.append(("config", arguments["step"])))
        for step in (8, 16)
    ]
    function = make(
        scale,
        pre_hook=lambda arguments, reset_only=False: calls.append(("pre", arguments["step"], reset_only)),
        post_hook=lambda arguments, exception: calls.append(("post", arguments["step"], exception)),
        do_bench=by_step({8: 1.0, 16: 2.0}),
    )(configs)
    function(np.ones(50), 50)
    trial = [("config", 8), ("pre", 8, False), ("post", 8, None)]
    assert calls[:3] == trial
    assert calls[-2:] == [("pre", 8, True), ("config", 8)]
    assert len(calls) == 4 * 3 + 2
    calls.clear()
    function(np.ones(50), 50)
    assert calls == [("config", 8)]
