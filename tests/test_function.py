"""Plain callables with their tunables chosen: NumPy functions stand for whatever a host function may launch."""

import logging
import threading

import numpy as np
import pytest
from fakes import FakeConfig as Config
from paths import PATHS, check_path, on_path, quick

import autotuned
from autotuned import autotune, key, store
from autotuned.errors import CallError, DecorationError

CONFIGS = [Config({"step": step}) for step in (8, 16)]


class Last:
    """The step that a function ran with; an object of a class, because a global's value would be part of the key."""

    step = 0


LAST = Last()


def by_step(times):
    """A benchmark that gives each config the time of its `step`; `bench.calls` lists the steps in order."""

    def bench(call, quantiles):
        call()
        bench.calls.append(LAST.step)
        return [times[LAST.step]] * 3

    bench.calls = []
    return bench


def scale(x, n, *, step, factor=0.5):
    LAST.step = step
    for start in range(0, n, step):
        x[start : min(start + step, n)] *= factor


def accumulate(x, out, *, step):
    LAST.step = step
    for start in range(0, len(x), step):
        out[start : start + step] += x[start : start + step]


def leaky(x, out, *, step):
    for start in range(0, len(x), step):
        part = x[start : start + step]
        out[start : start + step] = np.where(part < 0, part * 0.5, part)


def total(x, step=8):
    LAST.step = step
    return sum(float(x[start : start + step].sum()) for start in range(0, len(x), step))


def make(function, **options):
    return lambda configs, **more: autotune(configs, **({"do_bench": quick} | options | more))(function)


def records():
    return [record for _, record in store.all_records()]


# -- one clean call by every path ------------------------------------------------------------------------------------


@pytest.mark.parametrize("restore", [["x"], None], ids=["named", "found-out"])
@pytest.mark.parametrize("path", PATHS)
def test_in_place(path, restore, monkeypatch, tmp_path):
    function = on_path(
        path, make(scale, restore_value=restore), CONFIGS, lambda f: f(np.ones(50), 50), monkeypatch, tmp_path
    )
    x = np.ones(50)
    function(x, 50)
    assert (x == 0.5).all()
    check_path(path, function)
    function(n=50, x=x)
    assert (x == 0.25).all()


@pytest.mark.parametrize("path", PATHS)
def test_accumulated(path, monkeypatch, tmp_path):
    function = on_path(
        path,
        make(accumulate, reset_to_zero=["out"]),
        CONFIGS,
        lambda f: f(np.arange(50.0), np.zeros(50)),
        monkeypatch,
        tmp_path,
    )
    x, out = np.arange(50.0), np.full(50, 7.0)
    for _ in range(2):
        function(x, out=out)
        assert (out == np.arange(50.0)).all()
    assert (x == np.arange(50.0)).all()


@pytest.mark.parametrize("in_place", [False, True], ids=["apart", "aliased"])
@pytest.mark.parametrize("path", PATHS)
def test_input_and_output_may_be_one_array(path, in_place, monkeypatch, tmp_path):
    function = on_path(path, make(leaky), CONFIGS, lambda f: f(-np.ones(50), np.zeros(50)), monkeypatch, tmp_path)
    x = -np.arange(50.0)
    out = x if in_place else np.zeros(50)
    function(x, out)
    assert (out == -np.arange(50.0) * 0.5).all()


@pytest.mark.parametrize("path", PATHS)
def test_the_result_is_the_functions(path, monkeypatch, tmp_path):
    function = on_path(path, make(total), CONFIGS, lambda f: f(np.ones(20)), monkeypatch, tmp_path)
    assert function(np.arange(20.0)) == 190.0
    assert function(np.arange(20.0)) == 190.0


@pytest.mark.parametrize(
    "view",
    [lambda b: b[::2], lambda b: b[::-1], lambda b: b[3:53], lambda b: b.reshape(10, 10).T[2, :]],
    ids=["every-second", "reversed", "offset", "column"],
)
@pytest.mark.parametrize("restore", [["x"], None], ids=["named", "found-out"])
def test_views_in_place(view, restore):
    buffer, expected = np.arange(100.0), np.arange(100.0)
    view(expected)[...] *= 0.5
    function = make(scale, restore_value=restore)(CONFIGS)
    function(view(buffer), len(view(buffer)))
    assert (buffer == expected).all()


HOLDERS = {
    "list": lambda one, other: [one, other],
    "tuple": lambda one, other: (one, other),
    "dictionary": lambda one, other: {"x": one, "more": [other]},
}


@pytest.mark.parametrize("restore", [["parts"], None], ids=["named", "found-out"])
@pytest.mark.parametrize("holder", HOLDERS)
def test_arrays_in_containers(holder, restore):
    """As the operands of a grouped product."""

    def grow(parts, *, step):
        one, other = (parts["x"], parts["more"][0]) if isinstance(parts, dict) else parts
        one += 1
        other += one

    one, other = np.zeros(8), np.ones(8)
    tuned = make(grow, key=[], restore_value=restore)(CONFIGS)
    tuned(HOLDERS[holder](one, other))
    assert (one == 1).all()
    assert (other == 2).all()


class Seen:
    """What trials found in their arguments."""

    def __init__(self):
        self.values = []

    def note(self, *values):
        self.values.append(values)


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"restore_value": ["x", "out"]}, (1.0, 7.0)),
        ({}, (1.0, 7.0)),
        ({"restore_value": ["x"], "reset_to_zero": ["out"]}, (1.0, 0.0)),
        ({"reset_to_zero": ["out"]}, (1.0, 0.0)),
    ],
    ids=["named", "found-out", "zeroed", "zeroed-found-out"],
)
@pytest.mark.parametrize("do_bench", [quick, None], ids=["do_bench", "own-timer"])
def test_every_trial_gets_what_the_caller_gave(options, found, do_bench):
    seen = Seen()

    @autotune([Config({"step": 1}), Config({"step": 2}), Config({"step": 3})], do_bench=do_bench, **options)
    def spoil(x, out, *, step):
        seen.note(float(x[0]), float(out[-1]))
        x *= 0.5
        out += x
        if step == 2:
            raise ValueError("after it wrote")

    spoil(np.ones(5), np.full(5, 7.0))
    assert set(seen.values) == {found}
    assert len(seen.values) >= 6


def test_a_config_that_writes_and_then_raises():
    @autotune([Config({"step": 8}), Config({"step": 16}), Config({"step": 4})], do_bench=quick)
    def halve(x, *, step):
        x *= 0.5
        if step != 4:
            raise ValueError(f"{step} is wrong")

    x = np.ones(50)
    halve(x)
    assert (x == 0.5).all()
    assert [timing.error for timing in records()[0].timings] == [
        "ValueError: 8 is wrong",
        "ValueError: 16 is wrong",
        None,
    ]


def test_all_fail():
    @autotune(CONFIGS)
    def halve(x, *, step):
        x *= 0.5
        raise ValueError("always")

    x = np.ones(50)
    with pytest.raises(ValueError, match="always"):
        halve(x)
    assert (x == 1).all()
    assert records() == []


# -- it stays a function ---------------------------------------------------------------------------------------------


def test_it_looks_like_the_function():
    function = make(total)(CONFIGS)
    assert function.__name__ == "total"
    assert function.__wrapped__ is function.fn is total
    assert callable(function)
    assert function.arg_names == ["x", "step"]
    assert function.configs == CONFIGS
    assert function.best_config is None
    function(np.ones(20))
    assert function.best_config is CONFIGS[0]


def test_positional_only_and_keyword_only_parameters():
    @autotune(CONFIGS, do_bench=quick)
    def join(a, b, /, c, step=1, *, d=4):
        return (a, b, c, d, step)

    for _ in range(2):
        assert join(1, 2, 3) == (1, 2, 3, 4, 8)
        assert join(1, 2, c=3, d=5) == (1, 2, 3, 5, 8)
    assert join.cache_info().hits == 2
    with pytest.raises((CallError, TypeError)):
        join(a=1, b=2, c=3)


def test_best_config_is_of_the_thread():
    function = make(total, do_bench=by_step({8: 2.0, 16: 1.0}))(CONFIGS)
    function(np.ones(20))
    seen = []
    thread = threading.Thread(target=lambda: seen.append(function.best_config))
    thread.start()
    thread.join(10)
    assert seen == [None]
    assert function.best_config is CONFIGS[1]


def test_mutable_state_of_the_call_is_not_kept():
    """Neither table nor record may keep the caller's memory alive."""
    import gc
    import weakref

    class Array(np.ndarray):
        pass

    function = make(total)(CONFIGS)
    for kind in (np.ndarray, Array):
        x = np.ones(20).view(kind)
        kept = weakref.ref(x)
        function(x)
        del x
        gc.collect()
        assert kept() is None


# -- the key ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "searches"), [(None, 4), (["n"], 3), (["x"], 3), ([], 2)], ids=["all", "n", "x", "nothing"]
)
def test_key(keys, searches):
    function = make(scale, key=keys)(CONFIGS)
    for x, n in [
        (np.ones(50), 50),
        (np.ones(60), 50),
        (np.ones(50), 40),
        (np.ones(50, np.float32), 50),
        (np.ones(50), 50),
    ]:
        function(x, n)
        assert (x[:n] == 0.5).all()
    assert function.cache_info().searches == searches
    assert len(records()) == searches


def test_key_callables():
    function = make(scale, key=[lambda arguments: arguments["n"] // 100, parity])(CONFIGS)
    for n in (50, 52, 51, 150, 50):
        function(np.ones(n), n)
    assert function.cache_info().searches == 3
    assert {str(sorted(record.key.call["values"].items())) for record in records()} == {
        "[('function0()', 0), ('parity()', 0)]",
        "[('function0()', 0), ('parity()', 1)]",
        "[('function0()', 1), ('parity()', 0)]",
    }


def parity(arguments):
    return arguments["n"] % 2


@pytest.mark.parametrize(
    "values", [(1, True, 1.0, "1"), (0.0, 0, False, None), (2**63, 2**63 + 1), (0.1, 0.1000000000000001)], ids=str
)
def test_scalars_in_the_key_are_told_apart(values):
    function = make(lambda x, n, step: None, key=["n"])(CONFIGS)
    for _ in range(2):
        for value in values:
            function(np.ones(4), value)
    assert function.cache_info().searches == len(values)


def test_negative_zero_is_one_key():
    function = make(lambda x, n, step: None, key=["n"])(CONFIGS)
    for value in (0.0, -0.0, float("nan"), -float("nan")):
        function(np.ones(4), value)
    assert function.cache_info().searches == 2


def closure(m, n):
    """As many write their kernels: the sizes are Python variables outside."""

    @autotune(CONFIGS, do_bench=quick)
    def multiply(x, *, step):
        return x * m * n

    return multiply


def test_a_closure_is_part_of_the_key():
    assert closure(256, 256)(np.ones(4))[0] == 256 * 256
    other = closure(512, 1024)
    other(np.ones(4))
    assert other.cache_info().searches == 1
    assert len(records()) == 2
    again = closure(256, 256)
    again(np.ones(4))
    assert again.cache_info().searches == 0


def test_a_changed_helper_is_another_key(load):
    text = "from fakes import FakeConfig as Config\nfrom autotuned import autotune\nfrom helper import add\n\n\n"
    text += "@autotune([Config({'step': 1}), Config({'step': 2})])\ndef run(x, step):\n    return add(x)\n"
    searches = []
    for number in ("1", "2", "1"):
        module = load("app", app=text, helper=f"def add(x):\n    return x + {number}\n")
        assert module.run(1) == 1 + int(number)
        searches.append(module.run.cache_info().searches)
    assert searches == [1, 1, 0]


def test_version_is_a_salt():
    x = np.ones(4)
    for version, searches in [(None, 1), ("a", 1), ("a", 0), (1, 1), (True, 1), (None, 0)]:
        function = make(total, version=version)(CONFIGS)
        function(x)
        assert function.cache_info().searches == searches, version
    assert len(records()) == 4


def test_toolchain_versions_are_in_the_key(monkeypatch):
    from importlib import metadata

    versions = {"numpy": "1.0"}
    monkeypatch.setattr(metadata, "version", versions.__getitem__)
    searches = []
    for version in ("1.0", "2.0", "1.0"):
        versions["numpy"] = version
        function = make(total, toolchain=["numpy"])(CONFIGS)
        function(np.ones(4))
        searches.append(function.cache_info().searches)
    assert searches == [1, 1, 0]
    assert {record.key.context["distributions"]["numpy"] for record in records()} == {"1.0", "2.0"}


def test_toolchain_that_is_not_installed():
    with pytest.raises(DecorationError) as caught:
        make(total, toolchain=["no-such-distribution-anywhere"])(CONFIGS)
    assert "expected names of installed distributions, got 'no-such-distribution-anywhere'" in str(caught.value)
    assert "Use the name that pip shows" in str(caught.value)


class Opaque:
    """Something that typed JSON has no spelling for."""


def test_a_key_value_without_spelling_is_kept_in_memory_with_one_warning(caplog):
    caplog.set_level(logging.WARNING, "autotuned")
    function = make(lambda x, n, step: None, key=["n"])(CONFIGS)
    one, other = Opaque(), Opaque()
    for value in (one, other, one, other):
        function(np.ones(4), value)
    assert function.cache_info().searches == 2
    (line,) = [record.getMessage() for record in caplog.records]
    assert "has no JSON form: its choice is kept in memory only" in line
    assert records() == []


# -- buckets ---------------------------------------------------------------------------------------------------------


def test_a_bucket_bounds_the_searches():
    runs = []

    def fill(x, T, *, step):
        runs.append(T)
        x[:T] = 1.0

    function = make(fill, key=["T"], bucket={"T": autotuned.pow2})(CONFIGS)
    memory = np.zeros(4096)
    for T in range(1, 4097):
        function(memory, T)
    assert function.cache_info().searches <= 13
    assert function.cache_info().searches == len({key.pow2(T) for T in range(1, 4097)}) == 13
    assert set(runs) == set(range(1, 4097))  # the launch gets the true value


@pytest.mark.parametrize(
    ("lengths", "searches"),
    [((1024, 513, 1000), 1), ((1024, 1025), 2), ((1025, 2048), 1), ((1, 2), 2)],
    ids=["one-bucket", "edge", "next-bucket", "small"],
)
def test_bucket_edges(lengths, searches):
    function = make(scale, key=["n"], bucket={"n": autotuned.pow2})(CONFIGS)
    for n in lengths:
        x = np.ones(n + 5)
        function(x, n)
        assert (x[:n] == 0.5).all()
        assert (x[n:] == 1.0).all()
    assert function.cache_info().searches == searches


def test_a_bucket_of_ones_own():
    function = make(scale, key=["n"], bucket={"n": lambda n: n // 1000})(CONFIGS)
    for n in (10, 999, 1000, 1999, 10):
        function(np.ones(n), n)
    assert function.cache_info().searches == 2
    assert {record.key.call["values"]["n"] for record in records()} == {0, 1}


# -- configs: computed, pruned, changed ------------------------------------------------------------------------------


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
    store.clear()
    assert measure_with(configs[::-1], times)[1] == 16


def test_equal_times_take_the_first_of_the_list():
    times = {8: 1.0, 16: 1.0}
    assert measure_with(CONFIGS, times)[1] == 8
    assert records()[0].quality == "tied"
    store.clear()
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


def test_arguments_that_do_not_fit_are_one_error_and_not_an_error_within_another():
    tuned = autotune(CONFIGS)(accumulate)
    with pytest.raises(CallError, match="is missing") as caught:
        tuned(np.ones(4))
    assert caught.value.__context__ is None
